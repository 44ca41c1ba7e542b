"""Expected shares of the optimum of answers that are learned from few samples.

On a matrix of few samples the best of these is mostly slower than the optimum, so a share of it is
too high. Here the choices for a matrix are among the configurations that ran on any, and others at
random where few ran: a few that ran seldom include the optimum. Their share is of the best of
these, on average over draws from the posterior of a Gaussian process: what its samples, those of
the matrix included, leave open counts as chances of being the best.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.cost_model.gaussian import GaussianProcess
from embeddb.learning.comparison import COUNT, HeldOutChoices
from embeddb.learning.left_out import inputs_of, without_group
from embeddb.learning.samples import Samples
from embeddb.platforms.space.space import ConfigSpace

Floats = NDArray[np.float64]
#: Positions int64[c<=5] of the first choices among the candidates, best first, by row.
Choices = Mapping[int, NDArray[np.int64]]

#: Most configurations to choose from, fewest where the space has as many, and draws from the
#: posterior of each matrix. Expected beside true shares: docs/results/few-samples.md.
_MOST_CANDIDATES, _FEWEST_CANDIDATES, _DRAWS = 512, 128, 64
#: Shares of the samples of a learning curve, and choices of each.
_PARTS, _REPEATS = (0.25, 0.5, 1.0), 3
#: Root mean square in points between expected and true shares at 1, by number of samples, in
#: replays of an H200: docs/results/few-samples.md.
_ERRORS = {50: 10.0, 100: 6.0, 250: 3.6, 500: 2.0, 1000: 2.7}


def error_in_replays(samples: int) -> tuple[int, float]:
    """The entry of `_ERRORS` with the most samples that are no more than these; else the first."""
    return max((one for one in _ERRORS.items() if one[0] <= samples), default=(50, _ERRORS[50]))


class Candidates(NamedTuple):
    """Configurations that ran on any matrix, of more than 512 those with the largest gains, then
    others drawn from the space up to 128. `columns` int64[<=c] has the positions of the former in
    the samples, `legal` bool[r,c] what is legal for the sizes of each row (all, where nothing is).
    """

    columns: NDArray[np.int64]
    configs: Sequence[Config]
    legal: NDArray[np.bool_]

    @classmethod
    def of(cls, samples: Samples) -> Candidates:
        """The candidates of samples of one op."""
        (op,), most = samples.ops, np.full(len(samples.configs), -np.inf)
        np.maximum.at(most, samples.column, samples.gain)
        fastest = np.argsort(-most, kind="stable")[: min(_MOST_CANDIDATES, np.isfinite(most).sum())]
        ran = np.sort(fastest).astype(np.int64)
        spaces = [samples.platform.space(op, row.sizes) for row in samples.rows]
        # The same sizes, of those that the space reads, have the same space.
        symbols = [tuple(sorted(space.symbols.items())) for space in spaces]
        distinct = dict(zip(symbols, spaces, strict=True))
        configs = _filled([samples.configs[at] for at in ran], list(distinct.values()))
        legal_by = {}
        for key, space in distinct.items():
            legal = np.array([space.reason(config) is None for config in configs])
            legal_by[key] = legal if legal.any() else ~legal
        return cls(ran, configs, np.array([legal_by[key] for key in symbols]))

    def scores(self, by_column: Floats) -> Floats:
        """float64[c]: scores of configurations as the samples number them, the lowest number for
        candidates that did not run."""
        scores = np.full(len(self.configs), np.finfo(np.float64).min)
        scores[: len(self.columns)] = by_column[self.columns]
        return scores

    def best(self, row: int, scores: Floats) -> NDArray[np.int64]:
        """Positions of the five legal ones with the highest scores float64[c]."""
        order = np.argsort(-np.where(self.legal[row], scores, -np.inf), kind="stable")
        return order[: min(COUNT, int(self.legal[row].sum()))]


def _filled(configs: Sequence[Config], spaces: Sequence[ConfigSpace]) -> list[Config]:
    """The configurations, and if they are fewer than 128, random others: about the same number
    from each space."""
    rng, filled = np.random.default_rng(0), dict.fromkeys(configs)
    for left, space in zip(range(len(spaces), 0, -1), spaces, strict=True):
        share = -(-(_FEWEST_CANDIDATES - len(filled)) // left)
        if share > 0:
            drawn = space.sample(share + len(filled), rng=rng)
            filled |= dict.fromkeys([config for config in drawn if config not in filled][:share])
    return list(filled)


def expected(
    process: GaussianProcess,
    samples: Samples,
    among: Candidates,
    choices: Sequence[Choices],
) -> list[HeldOutChoices]:
    """Judge choices of several methods for the same rows, which the process was trained on; in
    place of measurements `HeldOutChoices` has their posterior means, with the same draws for all.
    """
    lost: list[list[tuple[float, float, float]]] = [[] for _ in choices]
    rows, targets = sorted(choices[0]), samples.targets
    for row in rows:
        configs, count = [*among.configs, *samples.ran(row)], len(among.configs)
        drawn = process.draws(inputs_of(samples, row, configs), row, _DRAWS, row)
        # The level is that of the matrix's own runs, whose gains are over its default.
        level = targets[samples.part(row)].mean() - drawn[:, count:].mean()
        top = drawn[:, :count][:, among.legal[row]].max(axis=1)
        for figures, chosen in zip(lost, choices, strict=True):
            of_chosen = drawn[:, chosen[row]]
            first = of_chosen[:, 0]
            at_5 = (of_chosen.max(axis=1) - top).mean()
            figures.append(((first - top).mean(), at_5, level + first.mean()))
    by_figure = (np.array(one).T for one in lost)
    return [
        HeldOutChoices(at_1, at_5, gain, samples.groups[rows]) for at_1, at_5, gain in by_figure
    ]


def by_mean(
    process: GaussianProcess,
    samples: Samples,
    among: Candidates,
    rows: Iterable[int],
    subset: NDArray[np.bool_] | None = None,
) -> Choices:
    """The five of some rows with the best posterior means, their groups left out and with a
    `subset` bool[n] of the process's samples only."""
    some = set(rows)
    return {
        row: among.best(row, rest.on(inputs_of(samples, row, among.configs)).gain)
        for row, rest in without_group(process, samples, range(len(samples.rows)), subset)
        if row in some
    }


class CurvePoint(NamedTuple):
    """Expected share of the optimum at 1 with this number of samples; `lost` float64[r] is its log
    by row, the mean of the repeats."""

    samples: int
    share: float
    lost: Floats


def learning_curve(
    process: GaussianProcess,
    samples: Samples,
    among: Candidates,
    *,
    matrices: bool,
    seed: int = 0,
) -> list[CurvePoint]:
    """A quarter, half and all of the samples of one op, judged on the same rows with their groups
    left out: some of the matrices, or with `matrices` False some runs of each."""
    of, sizes, choices = process.tensors["row"], [], list[Choices]()
    for part in _PARTS:
        for repeat in range(1 if part == 1.0 else _REPEATS):
            rng = np.random.default_rng([seed, repeat])
            drawn = rng.random(len(samples.rows))[of] if matrices else rng.random(len(of))
            subset = drawn <= np.quantile(drawn, part)
            sizes.append(round(part * len(of)))
            choices.append(by_mean(process, samples, among, range(len(samples.rows)), subset))
    lost = np.array([one.at_1 for one in expected(process, samples, among, choices)])
    points = []
    for size in dict.fromkeys(sizes):
        mean = lost[np.array(sizes) == size].mean(axis=0)
        points.append(CurvePoint(size, float(np.exp(mean.mean())), mean))
    return points
