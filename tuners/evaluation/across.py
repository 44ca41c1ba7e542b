"""Evaluation across machines: learning curves of an instance whose own runs are held out.

For every instance of a portable platform and every fold of matrix groups, the evidence is that of
all other machines (without the fold's groups) and of 0, 1, 2, 5, ... matrices of the instance.
Other builds on the same processor are held out with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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
from tuners.evaluation.bench import Bench, Rows
from tuners.evaluation.figures import Outcome, Truth, judge

#: Numbers of the machine's own matrices in the evidence.
CURVE = (0, 1, 2, 5, 10, 20, 50)
#: Fewest groups of a judged instance.
_FEWEST_GROUPS = 8
_K = 5


@dataclass(frozen=True, slots=True)
class AcrossRow:
    """One method on one instance with `local` of its matrices in the evidence (-1: the method does
    not use them); figures are means over matrices, folds and seeds (geometric for ratios).

    `gain` is that of the first answer over the default, `predicted` its prediction, `covered` the
    share of gains in the predicted 80 % interval, `slower` that of first answers slower than the
    default; nan for methods without predictions.
    """

    op: str
    instance: str
    method: str
    local: int
    matrices: int
    of_optimum_1: float
    of_optimum_5: float
    gain: float
    predicted: float
    covered: float
    slower: float

    def document(self) -> dict[str, Any]:
        """The released JSON form."""
        values = {_KEYS.get(name, name): getattr(self, name) for name in self.__slots__}
        unknown = {k: None for k, v in values.items() if isinstance(v, float) and math.isnan(v)}
        return values | unknown


#: JSON keys that differ from the attributes.
_KEYS = {
    "of_optimum_1": "of_optimum@1",
    "of_optimum_5": "of_optimum@5",
    "gain": "got",
    "predicted": "promised",
}


class _Answer(NamedTuple):
    """The outcome of one answer, its predicted log gain, and 1 or 0 for a gain in or out of the
    predicted interval; nan without a prediction."""

    outcome: Outcome
    predicted: float = math.nan
    covered: float = math.nan


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
    rows: list[AcrossRow] = []
    for op, scope in scopes if scopes is not None else db.scopes():
        bench = Bench(db, op, scope)
        able = [i for i in _able(bench) if not instances or i in instances]
        for instance in able:
            rows += _Instance(bench, instance, tuple(curve)).rows(seeds, folds, progress)
    if not rows:
        raise NothingFound(
            "no machine to leave out: an op needs two instances of one portable platform, one "
            f"of them with {_FEWEST_GROUPS} groups of matrices",
            hint="`embeddb calibrate` measures this machine",
        )
    return rows


def _able(bench: Bench) -> list[str]:
    """Instances with enough groups, if there is another machine."""
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
    """One instance held out of a bench."""

    def __init__(self, bench: Bench, instance: str, curve: tuple[int, ...]) -> None:
        self.of = np.array([row.platform for row in bench.evidence.rows])
        self.bench = bench
        self.instance, self.curve = instance, curve
        self.facts = {i: p.environment for i, p in bench.platforms.items()}
        #: Rows on the same processor, whatever the build: they are no evidence of another machine.
        self.kin = np.array([same_machine(name, instance, self.facts) for name in self.of])

    def rows(
        self, seeds: Sequence[int], folds: int, progress: Progress | None
    ) -> Iterator[AcrossRow]:
        done: dict[tuple[str, int], list[_Answer]] = {}
        mine = self.bench.counted[self.of[self.bench.counted] == self.instance]
        groups = self.bench.evidence.groups
        what, total = f"{self.bench.op} without {self.instance}", len(seeds) * folds
        for at, seed in enumerate(seeds):
            fold = split_groups(groups, min(folds, np.unique(groups[mine]).size), seed)
            for number in range(int(fold.max()) + 1):
                if progress is not None:
                    progress(what, at * folds + number, total)
                test = mine[fold[mine] == number]
                if test.size:
                    for method, local, one in self._fold(fold != number, mine, test, seed):
                        done.setdefault((method, local), []).append(one)
        for (method, local), answers in done.items():
            yield self._row(method, local, answers, len(seeds))

    def _fold(
        self, train: NDArray[np.bool_], mine: Rows, test: Rows, seed: int
    ) -> Iterator[tuple[str, int, _Answer]]:
        bench = self.bench
        others = bench.evidence.take(np.flatnonzero(train & ~self.kin)).pruned()
        facts = {row.platform: self.facts[row.platform] for row in others.rows}
        whole = AnswerIndex.build(FitInput(others, bench.unlearned, facts), scope=bench.scope)
        available = np.random.default_rng(seed).permutation(mine[train[mine]])
        for local in [n for n in self.curve if n <= len(available)]:
            own = bench.evidence.take(np.sort(available[:local])).pruned()
            vectors = bench.vectors[whole.featurizer]
            new = {row.pattern_id for row in own.rows} - set(whole.ids)
            partition = whole
            if local:
                fresh = {i: vectors[i] for i in new if i in vectors}
                partition = whole.grown(own, fresh, self.facts)
            alone = AnswerIndex.build(FitInput(own, bench.unlearned), scope="") if local else None
            for row in test:
                truth, query = bench.truth(int(row)), bench.query(int(row), partition)
                yield from self._pooled(truth, query, local)
                if alone is not None:
                    yield from self._alone(truth, bench.query(int(row), alone), local)

    def _pooled(self, truth: Truth, query: Query, local: int) -> Iterator[tuple[str, int, _Answer]]:
        """Methods with the evidence of all machines."""
        if local == 0:
            yield "default", -1, _Answer(judge(truth, [query.default]))
            ranked = sorted(truth.times, key=lambda c: truth.times[c])
            yield "oracle", -1, _Answer(judge(truth, ranked))
            if query.vote.configs:
                yield "static-best-elsewhere", -1, _Answer(judge(truth, _static(query)))
        if query.vote.neighbours and np.isfinite(query.vote.gains[0]).any():
            copied = np.argsort(-np.nan_to_num(query.vote.gains[0], nan=-math.inf), kind="stable")
            winners = [query.vote.configs[i] for i in copied[:_K]]
            yield "nearest-winner", local, _Answer(judge(truth, winners))
        yield "embeddb", local, _answer(truth, query)

    def _alone(self, truth: Truth, query: Query, local: int) -> Iterator[tuple[str, int, _Answer]]:
        """Methods with the evidence of this machine only."""
        yield "static-best-here", local, _Answer(judge(truth, _static(query)))
        yield "neighbours-here", local, _Answer(_answer(truth, query).outcome)

    def _row(self, method: str, local: int, answers: list[_Answer], seeds: int) -> AcrossRow:
        def mean(values: list[float]) -> float:
            finite = [value for value in values if math.isfinite(value)]
            return float(np.mean(finite)) if finite else math.nan

        outcomes = [one.outcome for one in answers]
        return AcrossRow(
            op=str(self.bench.op),
            instance=self.instance,
            method=method,
            local=local,
            matrices=len(outcomes) // seeds,
            of_optimum_1=math.exp(mean([one.of_optimum_1 for one in outcomes])),
            of_optimum_5=math.exp(mean([one.of_optimum_5 for one in outcomes])),
            gain=math.exp(mean([one.gain_1 for one in outcomes])),
            predicted=math.exp(mean([one.predicted for one in answers])),
            covered=mean([one.covered for one in answers]),
            slower=mean([one.slower for one in outcomes]),
        )


def _static(query: Query) -> list[Config]:
    """The configurations with the best mean gain."""
    order = np.argsort(-query.vote.mean, kind="stable")[:_K]
    return [query.vote.configs[i] for i in order]


def _answer(truth: Truth, query: Query) -> _Answer:
    candidates = answer(query, _K).candidates
    outcome = judge(truth, [Config(c.config) for c in candidates])
    first = candidates[0] if candidates else None
    predicted = covered = math.nan
    if first is not None and first.expected_gain is not None:
        predicted = math.log(first.expected_gain)
        if first.gain_low is not None and first.gain_high is not None:
            low, high = math.log(first.gain_low), math.log(first.gain_high)
            # The bounds of the default are equal: its gain is exact.
            covered = float(low - 1e-9 <= outcome.gain_1 <= high + 1e-9)
    return _Answer(outcome, predicted, covered)
