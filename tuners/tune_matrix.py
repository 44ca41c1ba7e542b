"""In which order the configurations of a matrix are tried: by whom, and as far as is known."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.pattern import Pattern
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform, this_machine
from embeddb.platforms.space.space import ConfigSpace
from embeddb.ranking.build import build_query
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import Ranker
from embeddb.ranking.rankers.choose import FEWEST_NEIGHBOURS, Rankers
from embeddb.ranking.rankers.search import Predicted, predicted_whole, search
from indexer.measure import Machine
from indexer.runners.base import RunOptions
from tuners.search import Effort, Trials, Tuned, annealed, final_rounds, in_order

#: Who may be asked to rank.
RANKERS = ("neighbours", "model", "analytical")
#: Nobody ranks: annealing goes by measured seconds.
HARDWARE = "hardware"
#: Predictions after which a search of the model looks at the clock.
_LEG = 2048
#: Configurations whose roofline is made; of a larger space so many by chance.
_MOST_ANALYSED = 2000
#: What the roofline of configurations is written for.
_ANALYSED = "cpu"

Told = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Ranking:
    """`configs` in the order to try, chosen `by`: `neighbours`, `model`, `neighbours and model` or
    `analytical`; `hardware` where there are none. A model of this version was asked for `model_s`
    seconds (empty, 0: none was)."""

    by: str
    configs: Sequence[Config] = ()
    model: str = ""
    model_s: float = 0.0


def ranking(
    query: Query, pattern: Pattern, by: str, model_s: float, *, seed: int, told: Told
) -> Ranking:
    """By whom is asked for; with an empty `by` as a query is answered. A cost model that cannot be
    asked about the whole space at once is searched for `model_s` seconds, of which `told` hears.

    Raises: NothingFound where who is asked for knows nothing; UsageError for the analytical model
    of another platform than `cpu`; MissingDependency without numba, which it needs.
    """
    if by == "analytical":
        return _analytical(query, pattern, seed)
    rankers = Rankers(query, rng=np.random.default_rng(seed))
    near = len(query.vote.neighbours) >= FEWEST_NEIGHBOURS and bool(query.vote.configs)
    if by == "neighbours" and not near:
        what = f"fewer than {FEWEST_NEIGHBOURS} matrices near this one ran {query.op}"
        raise NothingFound(what, hint="`embeddb measure` makes runs; --by analytical needs none")
    if by == "model" and query.prediction.predict is None:
        why = query.prediction.note or f"there is no cost model of {query.op}"
        raise NothingFound(why, hint="`embeddb train costmodel` makes one")
    chosen = {"neighbours": rankers.vote, "model": rankers.model}.get(by) or rankers.chosen
    if chosen.by_model and not chosen.by_vote and not predicted_whole(query):
        return _searched(query, model_s, seed, told)
    if not (near or chosen.by_model):
        return Ranking(HARDWARE)
    return _ranked(query, chosen)


def _ranked(query: Query, ranker: Ranker) -> Ranking:
    names = (("neighbours", ranker.by_vote), ("model", ranker.by_model))
    by = " and ".join(name for name, part in names if part)
    configs = [Config(candidate.config) for candidate in ranker.candidates()]
    return Ranking(by, configs, query.prediction.version if ranker.by_model else "")


def _searched(query: Query, model_s: float, seed: int, told: Told) -> Ranking:
    """Searches of the model's predictions, each from other random configurations, for so long."""
    begun = time.monotonic()
    rng = np.random.default_rng(seed)
    seen = Predicted(query, len(query.prediction.configs) + _LEG)
    seen.of(query.prediction.configs)
    while (spent := time.monotonic() - begun) < model_s:
        told(spent)
        before = seen.count
        seen.budget = before + _LEG
        search(seen, rng=rng)
        if seen.count == before:
            break
    return Ranking("model", seen.best(), query.prediction.version, time.monotonic() - begun)


def _analytical(query: Query, pattern: Pattern, seed: int) -> Ranking:
    from embeddb.dynamics.roofline import Machine, Roofline

    if query.platform.name != _ANALYSED:
        what = f"the analytical model knows no {query.platform.name}"
        raise UsageError(what, hint="choose another --by")
    configs = _some(query.space, seed)
    machine = Machine.of(query.platform.environment)
    seconds = Roofline(pattern, machine).seconds(query.platform, query.op, configs)
    order = np.argsort(seconds, kind="stable")
    return Ranking("analytical", [configs[int(at)] for at in order])


def _some(space: ConfigSpace, seed: int) -> list[Config]:
    return space.sample(_MOST_ANALYSED, rng=np.random.default_rng(seed))


#: The default runs again before so many others: a machine that drifts is seen.
_DEFAULT_EVERY = 16
#: The fastest of one turn are partly lucky: so many run again.
_FINALISTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixTuneRequest:
    """So many seconds of a model, where the space is too large to be predicted at once, and of
    hardware, compiling counted; `rounds` of the fastest beside the default come after, unless the
    platform is simulated: its times are exact. `by` says
    who ranks: `neighbours`, `model` or `analytical`; empty: as a query is answered. With 0 seconds
    of a model nobody ranks, unless neighbours or the analytical model were asked for.

    Raises: UsageError for a `by` or budgets that are none.
    """

    by: str = ""
    model_s: float = 60.0
    hardware_s: float = 60.0
    rounds: int = 3
    seed: int = 0
    options: RunOptions = field(
        default_factory=lambda: RunOptions(repeats=3, max_repeats=9, min_time_s=0.003)
    )

    def __post_init__(self) -> None:
        if self.by not in ("", *RANKERS):
            raise UsageError(f"no ranker {self.by!r}", hint=f"there are: {', '.join(RANKERS)}")
        for budget in (self.model_s, self.hardware_s):
            if not 0 <= budget < math.inf:
                raise UsageError(f"a budget is 0 seconds or more, not {budget}")
        if self.by == "model" and not self.model_s:
            raise UsageError("a model cannot rank in 0 seconds", hint="leave --by out")
        if not self.model_s and not self.hardware_s and not self.by:
            raise UsageError("both budgets are 0: there is nothing to tune by")


@dataclass(frozen=True, slots=True)
class MatrixTuning:
    """Tunes a matrix into `db` with a `runner` of `here`, the platform as this machine is. What ran
    is written back, also where it is stopped: the same tuning again goes on there, and with more
    seconds further."""

    db: Lookup
    runner: Any
    here: Platform
    request: MatrixTuneRequest
    progress: Callable[[str, int, int], None] | None = None

    def run(self, pattern: Pattern, op: Op) -> tuple[Tuned, Ranking]:
        """What ran, and the ranking that it ran by.

        Raises: as `tuners.tune_matrix.ranking`; RunnerUnavailable if the machine fails in the
        middle of it.
        """
        asked = self.request
        query = build_query(self.db, pattern, self.here, op)
        ranked = self._ranked(query, pattern)
        done = Tuned(
            subject=pattern,
            default=query.default,
            by=ranked.by,
            ranked=len(ranked.configs),
            model=ranked.model,
            model_s=ranked.model_s,
            exact=self.here.simulated,
        )
        if not asked.hardware_s:
            return done, ranked
        self._tried(done, ranked, query)
        return done, ranked

    def _ranked(self, query: Query, pattern: Pattern) -> Ranking:
        asked = self.request
        if not asked.model_s and not asked.by:
            return Ranking(HARDWARE)
        told = self._told("predict", asked.model_s)
        return ranking(query, pattern, asked.by, asked.model_s, seed=asked.seed, told=told)

    def _tried(self, done: Tuned, ranked: Ranking, query: Query) -> None:
        asked = self.request
        effort = Effort(
            seconds=asked.hardware_s,
            default_every=0 if done.exact else _DEFAULT_EVERY,
            finalists=_FINALISTS,
            rounds=0 if done.exact else asked.rounds,
        )
        machine = Machine(self.db, self.runner, self.here, asked.options)
        told = self._told("measure", asked.hardware_s)
        label = f"tune:{ranked.by}/{ranked.model[:8]}/{asked.seed}"
        with Trials(machine, done.subject, query.op, label) as trials:
            if ranked.by == HARDWARE:
                annealed(done, trials, query.space, effort, seed=asked.seed, told=told)
            else:
                before = list(trials.known())
                in_order(done, trials, [*before, *ranked.configs], effort, told)
            final_rounds(done, trials, effort, self._round)
            done.fresh = trials.fresh
            trials.keep()
            done.warning = trials.warning

    def _round(self, at: int) -> None:
        if self.progress is not None:
            self.progress("rounds", at, self.request.rounds)

    def _told(self, what: str, budget_s: float) -> Callable[[float], None]:
        def told(spent_s: float) -> None:
            if self.progress is not None:
                self.progress(f"{what}, seconds", int(spent_s), math.ceil(budget_s))

        return told


@dataclass(frozen=True, slots=True)
class MatrixTuned:
    """What ran on the instance `platform`, and the ranking that it ran by; seconds are in a
    `time_unit` as answers are (`Recommendation.time_unit`)."""

    platform: str
    op: Op
    tuned: Tuned
    ranking: Ranking
    time_unit: str = "s"


def tune_matrix(
    db: Lookup,
    pattern: Pattern,
    where: tuple[Op, Platform],
    request: MatrixTuneRequest,
    *,
    progress: Callable[[str, int, int], None] | None = None,
    note: Callable[[str], None],
) -> MatrixTuned:
    """`note` is told where times are simulated.

    Raises: as `MatrixTuning.run`; RunnerUnavailable if the platform cannot be measured here.
    """
    op, platform = where
    runner, here = this_machine(platform)
    if here.simulated:
        note(f"{here.id} is simulated: no time is of real hardware")
    tuned, ranking = MatrixTuning(db, runner, here, request, progress).run(pattern, op)
    return MatrixTuned(here.id, op, tuned, ranking, here.time_unit)
