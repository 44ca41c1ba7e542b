"""Sampling under a budget, round by round: a policy decides how many samples each matrix gets.

A sample is one configuration measured on one matrix. The data-selection paper spends 500 of them
(Section 4) where they are most informative (Section 3.2). Within a matrix the order is fixed by a
seed, the default first, the others drawn at random; so a policy only decides *how many more* each
matrix gets, or names configurations. A round is decided when the one before is complete. The
state is a JSON document with every round, so a strategy resumes after any stop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.core.errors import InputError, UsageError
from embeddb.cost_model.gaussian import Inputs
from embeddb.index.run_matrix import FAILED_GAIN
from embeddb.index.vote import votes

Floats = NDArray[np.float64]
#: Ridge penalty on a value's effect, in samples.
_RIDGE = 1.0


class Sample(NamedTuple):
    """A measured sample: seconds, infinite if it failed."""

    matrix: int
    config: Config
    seconds: float


#: Scores float64[c] of configurations; higher is faster.
Scorer = Callable[[Sequence[Config]], Floats]
#: A matrix of a round, and the accuracy of its samples' predictions, 0..1.
Rewarded = list[tuple[int, float]]


def rewarded(scorer: Scorer, samples: Sequence[Sample]) -> Rewarded:
    """Ordered pair accuracy on each matrix that has two samples that differ."""
    pairs = []
    for matrix in sorted({one.matrix for one in samples}):
        mine = [one for one in samples if one.matrix == matrix]
        scores = scorer([one.config for one in mine])
        opa = ordered_pairs(scores, np.array([one.seconds for one in mine]))
        if opa is not None:
            pairs.append((matrix, opa))
    return pairs


def round_rewards(earlier: Sequence[Sample], last: Sequence[Sample]) -> Rewarded:
    """Ordered pair accuracy on each matrix of the `last` round by an `additive` model that has not
    seen it.

    Each of two models learns from all earlier samples and one half of the matrices of this round,
    and predicts the other half. That is our reading: the paper does not state when it evaluates.
    """
    matrices = list(dict.fromkeys(sample.matrix for sample in last))
    rewards: Rewarded = []
    for half in (0, 1):
        if held_out := matrices[half::2]:
            training = [*earlier, *(one for one in last if one.matrix not in held_out)]
            tests = [one for one in last if one.matrix in held_out]
            rewards += rewarded(additive(training), tests)
    return sorted(rewards)


def ordered_pairs(scores: Floats, seconds: Floats) -> float | None:
    """Share of pairs of different seconds [c] that scores [c] put in their order (higher: faster);
    equal scores count half. None without such a pair."""
    i, j = np.triu_indices(len(seconds), 1)
    differ = seconds[i] != seconds[j]
    i, j = i[differ], j[differ]
    if not len(i):
        return None
    agree = np.sign(scores[i] - scores[j]) * np.sign(seconds[j] - seconds[i])
    return float(np.mean((agree + 1) / 2))


def additive(samples: Sequence[Sample]) -> Scorer:
    """Log gain as the sum of an effect of every parameter's value, fitted by ridge regression to
    the samples' log gains over their matrix's mean."""
    place: dict[tuple[str, object], int] = {}
    for one in samples:
        for item in one.config.items():
            place.setdefault(item, len(place))
    x = _indicators([one.config for one in samples], place)
    penalty = _RIDGE * np.eye(len(place))
    weights = np.linalg.solve(x.T @ x + penalty, x.T @ centred(samples))

    def score(configs: Sequence[Config]) -> Floats:
        scores: Floats = _indicators(configs, place) @ weights
        return scores

    return score


def _indicators(configs: Sequence[Config], place: dict[tuple[str, object], int]) -> Floats:
    x = np.zeros((len(configs), len(place)))
    for row, config in enumerate(configs):
        for item in config.items():
            if item in place:
                x[row, place[item]] = 1.0
    return x


def centred(samples: Sequence[Sample]) -> Floats:
    """Log gain float64[s] over the mean of the same matrix; failures count as in votes, and all are
    0 on a matrix where all failed."""
    matrix = np.array([one.matrix for one in samples], dtype=np.int64)
    seconds = np.array([one.seconds for one in samples])
    out = np.zeros(len(samples))
    for at in np.unique(matrix):
        mine = np.flatnonzero(matrix == at)
        ok = mine[np.isfinite(seconds[mine])]
        if len(ok):
            logs = np.log(seconds[ok])
            out[mine] = FAILED_GAIN
            out[ok] = logs.mean() - logs
    return votes(out)


#: The smallest budget: two configurations of one matrix can be compared.
LEAST = 2
#: Seconds, a failure, or not measured yet.
Outcome = float | Literal["failed"] | None
#: Further samples of matrices: how many, or which configurations.
Allocation = Sequence[tuple[int, int | Sequence[Config]]]


class Point(NamedTuple):
    """One sample: a position in the pool and a configuration."""

    matrix: int
    config: Config


class Share(msgspec.Struct):
    """One round's samples of one matrix; `outcomes` in seconds, in the order of `configs`."""

    matrix: int
    configs: list[dict[str, Any]]
    outcomes: list[Outcome]


class Round(msgspec.Struct):
    """`rewards`: accuracy of the predictions of each matrix's new samples, 0..1, once all are
    measured."""

    shares: list[Share]
    rewards: list[tuple[int, float]] = msgspec.field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Matrices to sample.

    Shapes: `sizes` int64[r,3] of m, n, nnz. `clusters` are the positions of each cluster's
    matrices, nearest to its centre first (empty where a policy needs none). `configs(at)` are the
    distinct configurations of a matrix in the order in which they are bought, always the same.
    `inputs(at, configs)` are the inputs of a process for configurations on a matrix.
    """

    sizes: NDArray[np.int64]
    clusters: Sequence[Sequence[int]]
    configs: Callable[[int], Sequence[Config]]
    inputs: Callable[[int, Sequence[Config]], Inputs] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class BudgetState:
    """Input of a policy. `counts` int64[r] are the samples of each matrix so far, `failed` the
    matrices on which everything failed, `closed` these and those with nothing left to buy."""

    pool: Pool
    budget: int
    rounds: Sequence[Round]
    counts: NDArray[np.int64]
    closed: frozenset[int]
    failed: frozenset[int]

    @property
    def left(self) -> int:
        return self.budget - int(self.counts.sum())


class SamplingPolicy(Protocol):
    """Allocation of a budget: a pure function of the ledger and the generator. `judged` is true if
    it needs rewards."""

    @property
    def judged(self) -> bool: ...

    def allocate(self, ledger: BudgetState, rng: np.random.Generator) -> Allocation:
        """Matrices of the next round, each once, and their numbers of samples, most important
        first: samples beyond the budget are cut off the end. Empty: there is nothing to buy."""


@dataclass(slots=True)
class Sampler:
    """Buys samples within a budget, round by round, as `policy` allocates them.

    Raises: UsageError for a budget below `LEAST`, or an empty pool; InputError for rounds that do
    not fit the pool or the budget.
    """

    policy: SamplingPolicy
    pool: Pool
    budget: int
    seed: int
    rounds: list[Round] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not len(self.pool.sizes):
            raise UsageError("no matrix to buy samples of", hint="check the folder and the limits")
        if self.budget < LEAST:
            raise UsageError(
                f"a budget of {self.budget} samples is less than the {LEAST} that one matrix needs",
                hint=f"ask for at least {LEAST}",
            )
        _check(self.rounds, len(self.pool.sizes), self.budget)

    @property
    def spent(self) -> int:
        """Samples bought, measured or not."""
        return sum(len(share.configs) for r in self.rounds for share in r.shares)

    def waiting(self) -> dict[Point, tuple[Share, int]]:
        """The bought samples without an outcome: their shares, and their places there."""
        return {
            Point(share.matrix, Config(config)): (share, at)
            for one in self.rounds
            for share in one.shares
            for at, config in enumerate(share.configs)
            if share.outcomes[at] is None
        }

    def tell(self, outcomes: Sequence[Sample]) -> None:
        """Record measured samples; infinite seconds: it failed.

        Raises: UsageError for a sample that was not bought or has an outcome, and for a time that
        is not positive. Nothing is recorded then.
        """
        waiting = self.waiting()
        places = []
        for matrix, config, seconds in outcomes:
            place = waiting.pop(Point(matrix, config), None)
            if place is None:
                raise UsageError(f"{config} on matrix {matrix} was not bought, or has an outcome")
            if not seconds > 0:
                raise UsageError(f"a time must be above zero, not {seconds} s")
            places.append((*place, seconds))
        for share, at, seconds in places:
            share.outcomes[at] = float(seconds) if math.isfinite(seconds) else "failed"
        if outcomes and not waiting and self.policy.judged:
            *before, last = [
                [one for share in r.shares for one in share_samples(share)] for r in self.rounds
            ]
            self.rounds[-1].rewards = round_rewards(list(chain(*before)), last)

    def buy(self) -> list[Point]:
        """Add the next round; its points. Empty at the end, and while outcomes of the last round
        are missing.

        Raises: InputError if everything that was measured failed.
        """
        if self.waiting():
            return []
        exhausted: set[int] = set()
        ledger = self._ledger(exhausted)
        if self.rounds and len(ledger.failed) == np.count_nonzero(ledger.counts):
            raise InputError(
                f"all {self.spent} samples so far failed: there is nothing to learn from",
                hint="see why with `embeddb campaign status`, and plan anew in another folder",
            )
        while ledger.left > 0:
            rng = np.random.default_rng([self.seed, len(self.rounds), len(exhausted)])
            wanted = self.policy.allocate(ledger, rng)
            shares = list(self._shares(wanted, ledger.left, exhausted))
            if shares:
                self.rounds.append(Round(shares))
            if shares or not wanted:
                break
            ledger = self._ledger(exhausted)
        return list(self.waiting())

    def _shares(self, wanted: Allocation, left: int, exhausted: set[int]) -> Iterator[Share]:
        """Available shares of an allocation; a matrix with fewer samples is added to
        `exhausted`."""
        bought: dict[int, set[Config]] = {matrix: set() for matrix, _ in wanted}
        for share in (s for r in self.rounds for s in r.shares if s.matrix in bought):
            bought[share.matrix].update(map(Config, share.configs))
        for matrix, more in wanted:
            fresh = self.pool.configs(matrix) if isinstance(more, int) else more
            count = min(more if isinstance(more, int) else len(more), left)
            configs = [dict(c) for c in fresh if c not in bought[matrix]][:count]
            left -= len(configs)
            if len(configs) < count:
                exhausted.add(matrix)
            if configs:
                yield Share(matrix, configs, [None] * len(configs))

    def _ledger(self, exhausted: set[int]) -> BudgetState:
        counts = np.zeros(len(self.pool.sizes), dtype=np.int64)
        worked = set()
        for share in (s for r in self.rounds for s in r.shares):
            counts[share.matrix] += len(share.configs)
            if any(isinstance(o, float) for o in share.outcomes):
                worked.add(share.matrix)
        failed = frozenset(np.flatnonzero(counts).tolist()) - worked
        closed = failed | exhausted
        return BudgetState(self.pool, self.budget, self.rounds, counts, closed, failed)


def share_samples(share: Share) -> Iterator[Sample]:
    """The measured samples of a share."""
    for config, outcome in zip(share.configs, share.outcomes, strict=True):
        if outcome is not None:
            seconds = math.inf if outcome == "failed" else float(outcome)
            yield Sample(share.matrix, Config(config), seconds)


def _check(rounds: Sequence[Round], matrices: int, budget: int) -> None:
    """Raises: InputError for rounds that are invalid for this pool and budget."""
    shares = [share for r in rounds for share in r.shares]
    points = [(s.matrix, Config(c)) for s in shares for c in s.configs]
    rewards = [pair for r in rounds for pair in r.rewards]
    times = [o for s in shares for o in s.outcomes if isinstance(o, float)]
    faults = {
        "a matrix that is not in the pool": any(
            not 0 <= at < matrices for at in [s.matrix for s in shares] + [m for m, _ in rewards]
        ),
        "an outcome too many or too few": any(len(s.configs) != len(s.outcomes) for s in shares),
        "the same sample twice": len(set(points)) != len(points),
        "more samples than the budget": len(points) > budget,
        "an impossible time or reward": not all(t > 0 and math.isfinite(t) for t in times)
        or not all(0 <= reward <= 1 for _, reward in rewards),
    }
    if reasons := [reason for reason, wrong in faults.items() if wrong]:
        raise InputError(f"not the rounds of a strategy: {reasons[0]}")
