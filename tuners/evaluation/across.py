"""What one machine learned, asked on the next: whole instances held out, then given back little by
little.

For every instance of a portable platform, and every fold of matrix groups: all other machines are
known (without the fold's groups), and of the instance itself 0, 1, 2, 5, ... matrices. Other builds
on the same processor are left out with it. The answers
are those of the code that answers queries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound
from embeddb.core.reports import Progress
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.fit import FitInput
from embeddb.index.held_out import split_groups
from embeddb.index.lookup import Lookup
from embeddb.platforms.machines import same_machine
from embeddb.ranking.fallback import answer
from embeddb.ranking.query import Query
from embeddb.ranking.recommendation import Candidate
from tuners.evaluation.bench import Bench
from tuners.evaluation.figures import Truth, judge

#: Matrices of the machine itself that are given back.
CURVE = (0, 1, 2, 5, 10, 20, 50)
#: An instance is judged from so many groups on.
_FEWEST_GROUPS = 8
_K = 5

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AcrossRow:
    """One method on one instance that knows `local` of its matrices (-1: any number, the method
    does not look); figures are means over matrices, folds and seeds (geometric for ratios).

    `got` is the gain of the first answer over the default, `promised` what it was said to be,
    `covered` the share of gains in the promised 8-of-10 interval, `slower` that of first answers
    slower than the default; nan where a method promises nothing.
    """

    op: str
    instance: str
    method: str
    local: int
    matrices: int
    of_optimum_1: float
    of_optimum_5: float
    got: float
    promised: float
    covered: float
    slower: float

    def document(self) -> dict[str, Any]:
        """The released JSON form."""
        values = {name: getattr(self, name) for name in self.__slots__}
        head = {name: values.pop(name) for name in ("op", "instance", "method")}
        head["local"] = values.pop("local")
        rest = {
            name.replace("_1", "@1").replace("_5", "@5"): None
            if isinstance(value, float) and math.isnan(value)
            else value
            for name, value in values.items()
        }
        return {**head, **rest}


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Log shares and gains of one answer; nan where nothing was promised."""

    of_optimum_1: float
    of_optimum_5: float
    got: float
    promised: float
    covered: float
    slower: float


def evaluate_across(
    db: Lookup,
    *,
    scopes: Sequence[tuple[Op, str]] | None = None,
    instances: Sequence[str] = (),
    curve: Sequence[int] = CURVE,
    seeds: Sequence[int] = (0,),
    folds: int = 5,
    progress: Progress | None = None,
) -> list[AcrossRow]:
    """Rows by op, instance, method and number of local matrices.

    Raises: NothingFound if no scope has an instance to leave out.
    """
    found: list[AcrossRow] = []
    for op, scope in scopes if scopes is not None else db.scopes():
        bench = Bench(db, op, scope)
        able = [i for i in _able(bench) if not instances or i in instances]
        for instance in able:
            found += _Instance(bench, instance, tuple(curve)).rows(seeds, folds, progress)
    if not found:
        raise NothingFound(
            "no machine to leave out: an op needs two instances of one portable platform, one "
            f"of them with {_FEWEST_GROUPS} groups of matrices",
            hint="`embeddb calibrate` measures this machine",
        )
    return found


def _able(bench: Bench) -> list[str]:
    """Instances with enough groups, where there is another machine."""
    of = np.array([row.platform for row in bench.evidence.rows])
    groups, counted = bench.evidence.groups, bench.counted
    names = sorted(set(of.tolist()))
    facts = {i: p.environment for i, p in bench.platforms.items()}
    return [
        name
        for name in names
        if np.unique(groups[counted[of[counted] == name]]).size >= _FEWEST_GROUPS
        and not all(same_machine(name, other, facts) for other in names)
    ]


class _Instance:
    """One instance left out of a bench."""

    def __init__(self, bench: Bench, instance: str, curve: tuple[int, ...]) -> None:
        self.of = np.array([row.platform for row in bench.evidence.rows])
        self.bench = bench
        self.instance, self.curve = instance, curve
        self.facts = {i: p.environment for i, p in bench.platforms.items()}
        #: Rows of other builds on the same processor say what no other machine could.
        self.kin = np.array([same_machine(name, instance, self.facts) for name in self.of])

    def rows(
        self, seeds: Sequence[int], folds: int, progress: Progress | None
    ) -> Iterator[AcrossRow]:
        done: dict[tuple[str, int], list[_Outcome]] = {}
        mine = self.bench.counted[self.of[self.bench.counted] == self.instance]
        groups = self.bench.evidence.groups
        what, total = f"{self.bench.op} without {self.instance}", len(seeds) * folds
        for at, seed in enumerate(seeds):
            fold = split_groups(groups, min(folds, np.unique(groups[mine]).size), seed)
            for held in range(int(fold.max()) + 1):
                if progress is not None:
                    progress(what, at * folds + held, total)
                test = mine[fold[mine] == held]
                if test.size:
                    for method, local, outcome in self._fold(fold != held, mine, test, seed):
                        done.setdefault((method, local), []).append(outcome)
        for (method, local), outcomes in done.items():
            yield self._row(method, local, outcomes, len(seeds))

    def _fold(
        self, kept: NDArray[np.bool_], mine: Rows, test: Rows, seed: int
    ) -> Iterator[tuple[str, int, _Outcome]]:
        bench = self.bench
        others = bench.evidence.take(np.flatnonzero(kept & ~self.kin)).pruned()
        whole = AnswerIndex.build(
            FitInput(others, bench.unlearned, self._facts(others)), scope=bench.scope
        )
        known = np.random.default_rng(seed).permutation(mine[kept[mine]])
        for local in [n for n in self.curve if n <= len(known)]:
            given = bench.evidence.take(np.sort(known[:local])).pruned()
            vectors = bench.vectors[whole.featurizer]
            new = {row.pattern_id for row in given.rows} - set(whole.ids)
            partition = whole
            if local:
                fresh = {i: vectors[i] for i in new if i in vectors}
                partition = whole.grown(given, fresh, self.facts)
            alone = AnswerIndex.build(FitInput(given, bench.unlearned), scope="") if local else None
            for row in test:
                truth, query = bench.truth(int(row)), bench.query(int(row), partition)
                yield from self._asked(truth, query, local)
                if alone is not None:
                    yield from self._alone(truth, bench.query(int(row), alone), local)

    def _facts(self, others: Any) -> Mapping[str, Mapping[str, str]]:
        return {name: self.facts[name] for name in {row.platform for row in others.rows}}

    def _asked(self, truth: Truth, query: Query, local: int) -> Iterator[tuple[str, int, _Outcome]]:
        rng = np.random.default_rng(0)
        if local == 0:
            yield "default", -1, _outcome(truth, [query.default])
            ranked = sorted(truth.times, key=lambda c: truth.times[c])
            yield "oracle", -1, _outcome(truth, ranked)
            if query.vote.configs:
                order = np.argsort(-query.vote.mean, kind="stable")[:_K]
                static = [query.vote.configs[i] for i in order]
                yield "static-best-elsewhere", -1, _outcome(truth, static)
        if query.vote.neighbours and np.isfinite(query.vote.gains[0]).any():
            copied = np.argsort(-np.nan_to_num(query.vote.gains[0], nan=-math.inf), kind="stable")
            winners = [query.vote.configs[i] for i in copied[:_K]]
            yield "nearest-winner", local, _outcome(truth, winners)
        found = answer(query, _K, rng=rng)
        first = found.candidates[0] if found.candidates else None
        proposals = [Config(c.config) for c in found.candidates]
        yield "embeddb", local, _outcome(truth, proposals, first)

    def _alone(self, truth: Truth, query: Query, local: int) -> Iterator[tuple[str, int, _Outcome]]:
        """By the runs of this machine only."""
        order = np.argsort(-query.vote.mean, kind="stable")[:_K]
        yield "static-best-here", local, _outcome(truth, [query.vote.configs[i] for i in order])
        found = answer(query, _K, rng=np.random.default_rng(0))
        proposals = [Config(c.config) for c in found.candidates]
        yield "neighbours-here", local, _outcome(truth, proposals)

    def _row(self, method: str, local: int, outcomes: list[_Outcome], seeds: int) -> AcrossRow:
        def mean(name: str) -> float:
            values = np.array([getattr(o, name) for o in outcomes])
            known = values[np.isfinite(values)]
            return float(known.mean()) if known.size else math.nan

        return AcrossRow(
            op=str(self.bench.op),
            instance=self.instance,
            method=method,
            local=local,
            matrices=len(outcomes) // seeds,
            of_optimum_1=math.exp(mean("of_optimum_1")),
            of_optimum_5=math.exp(mean("of_optimum_5")),
            got=math.exp(mean("got")),
            promised=math.exp(mean("promised")),
            covered=mean("covered"),
            slower=mean("slower"),
        )


def _outcome(truth: Truth, proposals: Sequence[Config], first: Candidate | None = None) -> _Outcome:
    found = judge(truth, proposals)
    promised = covered = math.nan
    if first is not None and first.expected_gain is not None:
        promised = math.log(first.expected_gain)
        if first.gain_low is not None and first.gain_high is not None:
            low, high = math.log(first.gain_low), math.log(first.gain_high)
            # Bounds that meet are those of the default, which is its own measure.
            covered = float(low - 1e-9 <= found.gain_1 <= high + 1e-9)
    return _Outcome(
        found.of_optimum_1, found.of_optimum_5, found.gain_1, promised, covered, found.slower
    )
