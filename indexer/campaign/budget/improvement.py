"""The strategy of the samples with the largest expected improvement of the answers.

A Gaussian process (`embeddb.cost_model.gaussian`) learns from the samples so far, with gains cut
below (`Measured.cut`): by uncut ones, which predict gains better, it bought worse. An answer for a
matrix is its five configurations with the highest posterior means; the next sample is the one that
raises the expected sum of these means most, over all matrices in hand: the knowledge gradient, with
two points for the normal distribution of what is measured. Within a round, chosen samples count
as measured: they change the covariances, but not the means.

Source: Frazier, Powell and Dayanik, "The Knowledge-Gradient Policy for Correlated Normal Beliefs"
(INFORMS Journal on Computing 21(4), 2009); five answers, many matrices and rounds are ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embeddb.core.blas import one_thread
from embeddb.core.config import Config
from embeddb.cost_model.gaussian import GaussianProcess, Inputs, Measured, joined
from embeddb.learning.samples import fastest_and_others
from indexer.campaign.budget.designs import Spread, binned
from indexer.campaign.budget.sampler import (
    Allocation,
    BudgetState,
    Pool,
    Sample,
    centred,
    share_samples,
)

Floats = NDArray[np.float64]
#: A matrix, and the position of one of its configurations.
Candidate = tuple[int, int]

#: Matrices of the first round, and samples of each.
_FIRST, _EACH = 10, 5
#: Answers that count, and configurations of a matrix that may be among them.
_ANSWERS, _RIVALS = 5, 15
#: Matrices and configurations of each that are considered in a round.
_MOST_MATRICES, _MOST_CONFIGS = 200, 300
#: Samples in a round, samples considered, and evaluations.
_MOST_ROUND, _CANDIDATES, _EVALUATIONS = 500, 300, 80
#: Samples that the process learns from; beyond it, samples are spread.
_MOST_SAMPLES = 2000
#: The points that stand for a standard normal distribution, beside zero: Gauss-Hermite of three.
_POINT = math.sqrt(3.0)


@dataclass(frozen=True, slots=True)
class Improvement:
    """A first round of equal shares, then rounds of half as many samples as there are."""

    judged = False

    @one_thread()
    def allocate(self, ledger: BudgetState, rng: np.random.Generator) -> Allocation:
        spent = int(ledger.counts.sum())
        if not spent:
            each = min(_EACH, ledger.budget)
            chosen = binned(ledger.pool, min(_FIRST, ledger.budget // each), rng)
            return [(at, each) for at in chosen]
        samples = compared(ledger)
        count = min(max(spent // 2, _FIRST * _EACH), _MOST_ROUND, ledger.left)
        bought: dict[int, list[Config]] = {}
        if samples and spent < _MOST_SAMPLES:
            for at, config in _Round(ledger, samples, rng).choose(count):
                bought.setdefault(at, []).append(config)
        return list(bought.items()) or Spread().allocate(ledger, rng)


def compared(ledger: BudgetState) -> list[Sample]:
    """The samples of matrices that have several and on which not everything failed."""
    shares = [share for one in ledger.rounds for share in one.shares]
    samples = [sample for share in shares for sample in share_samples(share)]
    return [s for s in samples if ledger.counts[s.matrix] > 1 and s.matrix not in ledger.failed]


class _Round:
    """The choice of one round; a candidate is a matrix and the position of a configuration."""

    def __init__(
        self, ledger: BudgetState, samples: Sequence[Sample], rng: np.random.Generator
    ) -> None:
        pool, self._rng = ledger.pool, rng
        self._process = process_of(pool, samples, rng)
        opened = sorted({sample.matrix for sample in samples})
        others = rng.permutation(np.setdiff1d(np.arange(len(ledger.counts)), opened)).tolist()
        able = [at for at in [*opened, *others] if at not in ledger.closed][:_MOST_MATRICES]
        self._opened = np.array(opened)
        self._configs = {at: pool.configs(at)[:_MOST_CONFIGS] for at in able}
        self._inputs = {at: _inputs(pool, at, configs) for at, configs in self._configs.items()}
        self._bought = {
            (share.matrix, Config(c))
            for r in ledger.rounds
            for share in r.shares
            for c in share.configs
        }

    def choose(self, count: int) -> list[tuple[int, Config]]:
        """Samples in the order in which they are chosen, fewer where there are not as many."""
        if not self._configs:
            return []
        mean, best = self._answers()
        defaults = [(at, 0) for at in self._configs if at not in self._opened]
        candidates = self._free([*defaults, *self._drawn(best, count)])
        if not candidates:
            return []
        rows = np.array([at for at, _ in candidates])
        rivals = joined([self._inputs[at].take(own) for at, own in best.items()])
        inputs = joined([self._inputs[at].take(np.array([i])) for at, i in candidates])
        gradient = _Gradient(
            mean, *self._process.covariances(inputs, rows, rivals), self._process.level
        )
        places = _chosen(gradient, candidates, np.isin(rows, self._opened), count)
        return [(at, self._configs[at][i]) for at, i in (candidates[place] for place in places)]

    def _answers(self) -> tuple[Floats, dict[int, NDArray[np.int64]]]:
        """Posterior means float64[r,v] of the configurations that may be among the answers for each
        matrix, and their positions."""
        width = min(_RIVALS, *(len(configs) for configs in self._configs.values()))
        means, best = [], {}
        for at, inputs in self._inputs.items():
            mean = self._process.on(inputs).gain
            best[at] = np.argsort(-mean, kind="stable")[:width]
            means.append(mean[best[at]])
        return np.array(means), best

    def _drawn(self, best: Mapping[int, NDArray[np.int64]], count: int) -> list[Candidate]:
        """Candidates: half of them among the best, half among all configurations."""
        half = max(_CANDIDATES, 3 * count // 2) // 2
        near = self._free([(at, i) for at, own in best.items() for i in own.tolist()])
        matrices = self._rng.choice(list(self._configs), size=half).tolist()
        far = [(at, int(self._rng.integers(len(self._configs[at])))) for at in matrices]
        return [*(near[i] for i in self._rng.permutation(len(near))[:half].tolist()), *far]

    def _free(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Candidates that were not bought, each once."""
        return [
            (at, i)
            for at, i in dict.fromkeys(candidates)
            if (at, self._configs[at][i]) not in self._bought
        ]


def _chosen(
    gradient: _Gradient, candidates: Sequence[Candidate], opened: NDArray[np.bool_], count: int
) -> list[int]:
    """Positions of the candidates to buy. A matrix that is not `opened` bool[c] is bought with its
    default, which shows its level."""
    rows, is_default = np.array(candidates).T
    is_default = is_default == 0
    default = {int(rows[place]): int(place) for place in np.flatnonzero(is_default)}
    free, chosen = np.ones(len(candidates), dtype=np.bool_), list[int]()
    step = math.ceil(count / _EVALUATIONS)
    while len(chosen) < count and free.any():
        # One sample of a matrix compares nothing.
        able = free & (opened | (~is_default & (count - len(chosen) > 1)))
        gains = np.where(able if able.any() else free, gradient.gains(opened), -np.inf)
        for place in _best(gains, rows, step):
            first = place if opened[place] else default.get(int(rows[place]), place)
            for bought in dict.fromkeys([first, place]):
                if len(chosen) < count:
                    chosen.append(bought)
                    free[bought] = False
                    gradient.buy(bought)
            opened = opened | (rows == rows[place])
    return chosen


class _Gradient:
    """Expected improvement of candidates. Shapes: `mean` float64[r,v] of the rivals of r matrices,
    `to_answers` float64[c,r*v] covariances of candidates with them, `among` float64[c,c]."""

    def __init__(self, mean: Floats, to_answers: Floats, among: Floats, level: float) -> None:
        self._mean, self._to, self._among, self._level = mean, to_answers, among, level

    def gains(self, opened: NDArray[np.bool_]) -> Floats:
        """float64[c]: the expected sum of the answers' means, up to a factor and a constant. The
        level of a matrix that is not `opened` bool[c] is taken as measured."""
        variance = np.diag(self._among) - np.where(opened, 0.0, self._level)
        scale = np.sqrt(np.maximum(variance, 1e-9 * self._level))
        slope = _POINT * (self._to / scale[:, None]).reshape(-1, *self._mean.shape)
        gains: Floats = _answered(self._mean + slope) + _answered(self._mean - slope)
        return gains

    def buy(self, at: int) -> None:
        """Count a candidate as measured."""
        weight = self._among[at] / self._among[at, at]
        self._to -= np.outer(weight, self._to[at])
        self._among -= np.outer(weight, self._among[at])


def _answered(values: Floats) -> Floats:
    """float64[c]: sums of the five largest of each row of float64[c,r,v]."""
    count = min(_ANSWERS, values.shape[2])
    first = values.shape[2] - count
    sums: Floats = np.partition(values, first, axis=2)[:, :, first:].sum(axis=(1, 2))
    return sums


def _best(gains: Floats, rows: NDArray[np.int64], count: int) -> list[int]:
    """Positions of the highest finite gains float64[c], one of each matrix int64[c]."""
    best: dict[int, int] = {}
    for place in np.argsort(-gains, kind="stable").tolist():
        if len(best) == count or not np.isfinite(gains[place]):
            break
        best.setdefault(int(rows[place]), place)
    return list(best.values())


def process_of(pool: Pool, samples: Sequence[Sample], rng: np.random.Generator) -> GaussianProcess:
    """Learn from samples of several on each matrix."""
    gains, rows = centred(samples), np.array([s.matrix for s in samples])
    matrices = np.unique(rows).tolist()
    each = max(2, _MOST_SAMPLES // len(matrices))
    inputs, gain, row = [], [], []
    for at in matrices:
        own = np.flatnonzero(rows == at)
        few = own[fastest_and_others(gains[own], each, rng)]
        inputs.append(_inputs(pool, at, [samples[i].config for i in few]))
        gain.append(gains[few])
        row.append(np.full(len(few), at, dtype=np.int64))
    measured = Measured(joined(inputs), np.concatenate(gain), np.concatenate(row))
    return GaussianProcess.fit(measured.cut())


def _inputs(pool: Pool, at: int, configs: Sequence[Config]) -> Inputs:
    assert pool.inputs is not None
    return pool.inputs(at, configs)
