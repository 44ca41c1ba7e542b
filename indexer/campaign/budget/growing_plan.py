"""A campaign whose points a strategy buys: the plan grows from results until the budget is used.

The plan's first matrices are the pool and run nothing. Every share of every round is a further
entry behind them, the same matrix again with the configurations that the round buys, so that
earlier measurements stay valid. The strategy's state is in the plan file, which is replaced whole:
it is either before or after a round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError, UsageError
from embeddb.core.files.safe_write import OwnFolder
from embeddb.core.pattern import Pattern
from embeddb.core.reports import Progress, ignore_progress
from embeddb.core.row_lengths import from_vector
from embeddb.core.wording import plural
from embeddb.cost_model import Problem
from embeddb.cost_model.encoders.inputs import ConfigColumns
from embeddb.cost_model.gaussian import Inputs
from embeddb.featurizers import missing
from embeddb.featurizers.row_lengths import RowHistograms
from embeddb.featurizers.stats import Stats
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform, parse_platform
from indexer.campaign.budget.sampler import Pool, Round, Sample, Sampler, Share
from indexer.campaign.budget.samplers import clusters_of, strategy
from indexer.campaign.exclusive import admit, alone, nothing_submitted
from indexer.campaign.folder import Campaign, Task, another_campaign, nothing_ran
from indexer.campaign.plan import (
    PLAN,
    Buying,
    Choice,
    Matrix,
    Plan,
    planned_pattern,
    seeded,
    write_plan,
)

#: Largest budget, and most samples of one matrix.
_MOST_BUDGET, _MOST_OF_ONE = 1_000_000, 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRequest:
    """Buy `budget` samples of `op` on `platform` by the strategy of that name."""

    platform: Platform
    op: Op
    strategy: str
    budget: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class BudgetReport:
    """Progress of a strategy by name: numbers of samples planned and measured, and of matrices."""

    name: str
    budget: int
    planned: int
    measured: int
    matrices: int
    rounds: int
    clusters: int

    def document(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)


def first_plan(
    request: BudgetRequest,
    pool: Sequence[Matrix],
    clusters: Callable[[int], tuple[str, list[list[int]]]],
) -> Plan:
    """The plan of the strategy's first round. `clusters(k)` gives the name of a featurizer and k
    clusters of the pool; called only if needed.

    Raises: UsageError for a budget too small or too large, an unknown strategy, or no matrix.
    """
    chosen = strategy(request.strategy)
    if request.budget > _MOST_BUDGET:
        raise UsageError(f"a budget may be {_MOST_BUDGET:,} samples, not {request.budget:,}")
    _buyer(bare := _plan(request, pool, "", []))  # checked before anything is computed
    plan = _plan(request, pool, *clusters(chosen.clusters)) if chosen.clusters else bare
    buyer = _buyer(plan)
    buyer.buy()
    return _grown(plan, buyer)


def takes_up(plan: Plan, request: BudgetRequest, pool: Sequence[Matrix]) -> bool:
    """True if a plan is of this request and pool, however far it has grown."""
    return plan.id == _plan(request, pool, "", []).id


def planned(
    folder: Path,
    request: BudgetRequest,
    pool: Sequence[Matrix],
    clusters: Callable[[int], tuple[str, list[list[int]]]],
) -> Campaign:
    """The campaign of a strategy in a folder: a new one with its first round, or the existing one,
    with its next round if this one is measured. `clusters` as in `first_plan`.

    Raises: InputError if another campaign is there; UsageError as `first_plan`.
    """
    if not is_campaign(folder):
        return Campaign.create(folder, first_plan(request, pool, clusters))
    campaign = Campaign(folder)
    if not takes_up(campaign.plan, request, pool):
        raise another_campaign(folder, _difference(campaign.plan, request, pool))
    return buy_more(campaign) or campaign


def _difference(plan: Plan, request: BudgetRequest, pool: Sequence[Matrix]) -> str:
    """The differences of a plan from a request, in words."""
    buying = plan.buying
    if isinstance(buying, msgspec.UnsetType):
        return "it buys no samples"
    there = {one.name: one for one in plan.matrices[: buying.pool]}
    here = {one.name: one for one in pool}
    lost, new = sorted(there.keys() - here.keys()), sorted(here.keys() - there.keys())
    moved = sorted(name for name in there.keys() & here.keys() if there[name] != here[name])
    parts: dict[str, object] = {
        f"matrices missing here: {named(lost)}": lost,
        f"matrices that are new here: {named(new)}": new,
        f"matrices of another path, size or group here: {named(moved)}": moved,
        "the text of its platform file differs": plan.platform != request.platform.text,
        f"its operation is {plan.ops[0]}": plan.ops != [str(request.op)],
        f"its seed is {buying.seed}": buying.seed != request.seed,
        f"its strategy is {buying.strategy}": buying.strategy != request.strategy,
        f"its budget is {buying.planned_budget}": buying.planned_budget != request.budget,
    }
    return "; ".join(part for part, differs in parts.items() if differs)


#: Names of files in a message.
_NAMED = 3


def named(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def extended(folder: Path, request: BudgetRequest, pool: Sequence[Matrix]) -> Campaign:
    """The campaign of a strategy without clusters in a folder, as `planned`, with its budget raised
    to the requested one, in which earlier measurements count. One that was begun with another
    strategy keeps it.

    Raises: as `planned`.
    """
    budget = request.budget
    if is_campaign(folder):
        plan = Campaign(folder).plan
        request = _kept(plan, request)
        if not takes_up(plan, request, pool):
            hint = "put that back as it was, or name another folder by --campaign DIR"
            raise another_campaign(folder, _difference(plan, request, pool), hint)
    campaign = planned(folder, request, pool, lambda _: ("", []))
    buying = campaign.plan.buying
    assert not isinstance(buying, msgspec.UnsetType)
    if budget <= buying.budget:
        return campaign
    raised = msgspec.structs.replace(buying, budget=budget, first_budget=buying.planned_budget)
    plan = msgspec.structs.replace(campaign.plan, buying=raised)
    OwnFolder(folder).write(PLAN, write_plan(plan))
    campaign = Campaign(folder)
    return buy_more(campaign) or campaign


def begin_again(
    folder: Path,
    request: BudgetRequest,
    pool: Sequence[Matrix],
    here: Platform,
    note: Callable[[str], None],
) -> None:
    """Have the failed points of a campaign in which nothing ran measured again, on the instance
    `here`; one of another request or pool is put aside.

    Raises: InputError if another process or node measures it.
    """
    if not is_campaign(folder):
        return
    with alone(folder):
        campaign = Campaign(folder)
        nothing_submitted(campaign)
        done = campaign.progress()
        if done.statuses["ok"] or not done.measured:
            return
        failed = f"{plural(done.measured, 'sample')} so far failed"
        if takes_up(campaign.plan, _kept(campaign.plan, request), pool):
            admit(campaign, here, done.statuses.keys())
            campaign.repeat(done.statuses.keys())
            note(f"{folder}: {failed}: measured again")
            return
        numbers = (folder.with_name(f"{folder.name}.failed-{number}") for number in count(1))
        aside = next(place for place in numbers if not place.exists())
        folder.rename(aside)
    note(f"{folder}: {failed}, and the request is another: begun anew, the old one is {aside}")


def _kept(plan: Plan, request: BudgetRequest) -> BudgetRequest:
    """A request with the strategy and the first budget of a plan."""
    buying = plan.buying
    if isinstance(buying, msgspec.UnsetType):
        return request
    return replace(request, budget=buying.planned_budget, strategy=buying.strategy)


def is_campaign(folder: Path) -> bool:
    """True if a folder has a plan."""
    return (folder / PLAN).exists()


def buy_more(
    campaign: Campaign, progress: Progress = ignore_progress, place: str = "DB"
) -> Campaign | None:
    """The campaign with the next round of its strategy, written to its folder; None if it has no
    strategy, points of it are still to be measured, or nothing is left to buy. The first time it
    may read all matrices.

    Raises: InputError if everything measured so far failed, naming the database at `place`, or the
    plan's state does not fit.
    """
    plan = campaign.plan
    buying = plan.buying
    if isinstance(buying, msgspec.UnsetType):
        return None
    buyer = _buyer(plan, PoolInputs(campaign, buying.pool, progress))
    shares = [share for r in buying.rounds for share in r.shares]
    _check_entries(plan, shares)
    outcomes = []
    for at, share in enumerate(shares, buying.pool):
        if None in share.outcomes:
            task = Task(at, plan.ops[0], 0)
            if campaign.missing(task):
                return None
            measured = campaign.lines(task).items()
            outcomes += [Sample(share.matrix, config, _seconds(m)) for config, m in measured]
    buyer.tell(outcomes)
    if shares and not campaign.progress().statuses["ok"]:
        raise nothing_ran(campaign, place)
    if not buyer.buy():
        return None
    OwnFolder(campaign.folder).write(PLAN, write_plan(_grown(plan, buyer)))
    return Campaign(campaign.folder)


def bought(campaign: Campaign) -> BudgetReport | None:
    """Progress of a campaign's strategy; None without one."""
    buying = campaign.plan.buying
    if isinstance(buying, msgspec.UnsetType):
        return None
    shares = [share for r in buying.rounds for share in r.shares]
    return BudgetReport(
        buying.strategy,
        buying.budget,
        sum(len(share.configs) for share in shares),
        campaign.progress().measured,
        len({share.matrix for share in shares}),
        len(buying.rounds),
        len(buying.clusters),
    )


def samples_to_buy(campaign: Campaign, enough: int) -> int:
    """The number of samples that a campaign's strategy can buy; counted up to `enough`."""
    plan, total = campaign.plan, 0
    buying = plan.buying
    assert not isinstance(buying, msgspec.UnsetType)
    platform, op = parse_platform(plan.platform), Op.parse(plan.ops[0])
    for matrix in plan.matrices[: buying.pool]:
        if total >= enough:
            break
        size = platform.space(op, matrix.sizes).size(_MOST_OF_ONE)
        total += _MOST_OF_ONE if size is None else size
    return total


def _seconds(measurement: Any) -> float:
    seconds = float(measurement.seconds)
    return seconds if seconds > 0 else math.inf


def _plan(
    request: BudgetRequest, pool: Sequence[Matrix], featurizer: str, clusters: list[list[int]]
) -> Plan:
    op = str(request.op)
    return Plan(
        platform=request.platform.text,
        ops=[op],
        rounds=1,
        repeat_share=1.0,
        seed=request.seed,
        grid_op="",
        grid=[],
        matrices=list(pool),
        configs={op: []},
        choices={op: [Choice()] * len(pool)},
        buying=Buying(
            strategy=request.strategy,
            budget=request.budget,
            seed=request.seed,
            pool=len(pool),
            featurizer=featurizer,
            clusters=clusters,
            rounds=[],
        ),
    )


def _buyer(plan: Plan, inputs: PoolInputs | None = None) -> Sampler:
    """The sampler of a plan.

    Raises: InputError for an inconsistent plan, which may come from elsewhere.
    """
    buying = plan.buying
    assert not isinstance(buying, msgspec.UnsetType)
    everyone = [at for members in buying.clusters for at in members]
    if (
        not 0 <= buying.pool <= len(plan.matrices)
        or len(plan.ops) != 1
        or plan.rounds != 1
        or buying.budget > _MOST_BUDGET
        or buying.seed < 0
        or not all(0 <= at < buying.pool for at in everyone)
        or not all(buying.clusters)
    ):
        raise InputError(
            "the plan's strategy does not fit its matrices",
            hint="plan the campaign anew in another folder",
        )
    pool = plan.matrices[: buying.pool]
    sizes = np.array([(m.m, m.n, m.nnz) for m in pool], dtype=np.int64).reshape(-1, 3)
    return Sampler(
        strategy(buying.strategy).policy,
        Pool(sizes, buying.clusters, _configs_of(plan, min(buying.budget, _MOST_OF_ONE)), inputs),
        buying.budget,
        buying.seed,
        # A copy: outcomes are added to its shares.
        msgspec.convert(msgspec.to_builtins(buying.rounds), type=list[Round]),
    )


def _configs_of(plan: Plan, most: int) -> Callable[[int], Sequence[Config]]:
    """The default, then other legal configurations in a random order by the matrix's name, which
    other matrices do not change."""
    platform, op = parse_platform(plan.platform), Op.parse(plan.ops[0])

    @cache
    def configs(at: int) -> Sequence[Config]:
        matrix = plan.matrices[at]
        rng = seeded(plan.seed, plan.ops[0], matrix.name)
        drawn = platform.space(op, matrix.sizes).sample(most, rng=rng)
        return list(dict.fromkeys([platform.default(op, matrix.sizes), *drawn]))

    return configs


def _grown(plan: Plan, buyer: Sampler) -> Plan:
    """The plan with an entry for every bought share."""
    buying, (op,) = plan.buying, plan.ops
    assert not isinstance(buying, msgspec.UnsetType)
    shares = [share for r in buyer.rounds for share in r.shares]
    table: dict[Config, int] = {}
    choices = [
        Choice(0, [table.setdefault(Config(c), len(table)) for c in share.configs])
        for share in shares
    ]
    pool = plan.matrices[: buying.pool]
    return msgspec.structs.replace(
        plan,
        matrices=[*pool, *(pool[share.matrix] for share in shares)],
        configs={op: [msgspec.json.decode(config.json) for config in table]},
        choices={op: [*([Choice()] * buying.pool), *choices]},
        buying=msgspec.structs.replace(buying, rounds=buyer.rounds),
    )


def _check_entries(plan: Plan, shares: Sequence[Share]) -> None:
    """Raises: InputError unless the entries behind the pool are the shares, in their order."""
    buying, (op,) = plan.buying, plan.ops
    assert not isinstance(buying, msgspec.UnsetType)
    entries = list(zip(plan.matrices, plan.choices[op], strict=True))
    table = [Config(c) for c in plan.configs[op]]
    fits = len(entries) == buying.pool + len(shares) and all(
        matrix == plan.matrices[share.matrix]
        and [table[at] for at in choice.configs] == [Config(c) for c in share.configs]
        for (matrix, choice), share in zip(entries[buying.pool :], shares, strict=True)
    )
    if not fits:
        raise InputError(
            "the plan's matrices are not what its strategy has bought",
            hint="plan the campaign anew in another folder",
        )


#: The file of the statistics and row lengths of the matrices of a pool, and a size that none has.
_POOL, _MOST_BYTES = "pool.json", 256 << 20


class _Vectors(msgspec.Struct, frozen=True, array_like=True):
    """Numbers of one matrix: `stats` of a version, and the histogram of its row lengths."""

    version: str
    stats: list[float]
    lengths: list[float]


class PoolInputs:
    """Configurations on the matrices of a campaign's pool, as a process reads them. The matrices
    are read once, for their vectors, and only if these are used."""

    def __init__(self, campaign: Campaign, pool: int, progress: Progress) -> None:
        plan, self._progress = campaign.plan, progress
        self._campaign, self._matrices = campaign, plan.matrices[:pool]
        self._platform, self._op = parse_platform(plan.platform), Op.parse(plan.ops[0])

    def __call__(self, at: int, configs: Sequence[Config]) -> Inputs:
        """Raises: InputError, MatrixError for a matrix that is not what was planned."""
        vectors, sizes = self._vectors[at], self._matrices[at].sizes
        lengths = from_vector(np.array(vectors.lengths, np.float32), sizes.m, sizes.nnz)
        stats = np.array(vectors.stats, dtype=np.float32)
        problem = Problem(stats, self._platform, self._op, sizes, lengths)
        return ConfigColumns(self._platform, self._op, configs).on(problem)

    @cached_property
    def _vectors(self) -> list[_Vectors]:
        folder, stats = OwnFolder(self._campaign.folder), Stats()
        with suppress(OSError, msgspec.DecodeError):
            stored = msgspec.json.decode(folder.read(_POOL, _MOST_BYTES), type=list[_Vectors])
            if len(stored) == len(self._matrices) and all(
                one.version == str(stats.version) and len(one.stats) == stats.dim for one in stored
            ):
                return stored
        vectors = []
        for at, matrix in enumerate(self._matrices):
            self._progress("statistics of matrices", at, len(self._matrices))
            pattern = planned_pattern(matrix)
            histogram = RowHistograms().embed(pattern)
            vectors.append(
                _Vectors(str(stats.version), stats.embed(pattern).tolist(), histogram.tolist())
            )
        folder.write(_POOL, msgspec.json.encode(vectors))
        return vectors


class PoolVectors:
    """Collects vectors of the patterns that it is called with, by the learned featurizer if it
    works here, else by plain statistics, without storing the structures. Does nothing unless
    `wanted`, or for a strategy without clusters.
    """

    def __init__(self, db: Lookup, name: str, *, wanted: bool, note: Callable[[str], None]) -> None:
        """Raises: UsageError if there is no strategy of that name."""
        clusters = strategy(name).clusters
        there = db.featurizers()
        learned = there.get("scnn")
        self._plug = there.named("stats") if learned is None or missing(learned) else learned
        self._wanted = wanted and clusters > 0
        self._note = note
        self._vectors: list[NDArray[np.float32]] = []

    def __call__(self, pattern: Pattern) -> None:
        if self._wanted:
            self._vectors.append(self._plug.embed(pattern))

    def clusters(self, count: int, seed: int) -> tuple[str, list[list[int]]]:
        """The featurizer's name, and clusters of the patterns; a warning if there are fewer."""
        clusters = clusters_of(np.stack(self._vectors), count, seed)
        if len(clusters) < count:
            self._note(
                f"warning: {plural(len(clusters), 'cluster')} instead of {count}: there are not "
                "more matrices that differ"
            )
        return f"{self._plug.name} {self._plug.version}", clusters
