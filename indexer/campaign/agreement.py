"""Agreement of repeated rounds of measurements on the order of configurations.

Rank correlation alone is not enough: where many configurations are equally fast, their order is
random and Spearman is low. So rounds *disagree* only if the rank correlation is low and the pairs
of configurations that are not near-ties are ordered differently too.

A near-tie is a pair whose times differ by less than three standard errors of the measured noise.
The noise of two rounds is the robust standard deviation of one log time, from the differences of
the same configuration (1.4826 MAD / sqrt 2), without the common drift of the whole round. It is
capped at 5 %: times that are less certain need a new round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Spearman below which the order of pairs decides.
AGREE = 0.9
#: Fewest common configurations for which the ranks of two rounds are compared.
FEWEST = 10
#: Largest relative noise of one measurement.
_MOST_NOISE = 0.05
#: Standard errors within which two configurations tie.
_TIE = 3.0
#: Larger rounds are compared on evenly spaced configurations, since all pairs are compared.
_MOST_COMPARED = 1500


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two rounds on one matrix, over the configurations that were ok in both.

    `spearman`, `kendall` (tau-b) over all of them (nan where a round is constant); `decided` is
    (concordant - discordant) / (both) over the pairs that are not near-ties, 1 if there are none.
    `difference` is the median relative difference of the same configuration, drift included.
    """

    configs: int
    spearman: float
    kendall: float
    decided: float
    difference: float
    near_ties: int
    pairs: int

    def agrees(self, least: float = AGREE) -> bool:
        return not (self.spearman < least and self.decided < least)


def compare(first: Floats, second: Floats) -> Comparison:
    """Two rounds of positive seconds float64[c] of the same c >= 2 configurations."""
    if first.size > _MOST_COMPARED:
        keep = np.linspace(0, first.size - 1, _MOST_COMPARED).astype(np.int64)
        first, second = first[keep], second[keep]
    from scipy.stats import kendalltau, spearmanr

    a, b = np.log(first), np.log(second)
    constant = a.min() == a.max() or b.min() == b.max()
    upper = np.triu_indices(a.size, 1)
    order_a, order_b = (np.sign(x[:, None] - x[None])[upper] for x in (a, b))
    concord = order_a * order_b
    decisive = _apart(a, b, upper)
    counted = np.abs(concord[decisive]).sum()
    return Comparison(
        configs=a.size,
        spearman=math.nan if constant else float(spearmanr(a, b).statistic),
        kendall=float(kendalltau(a, b).statistic),
        decided=float(concord[decisive].sum() / counted) if counted else 1.0,
        difference=float(np.median(2 * np.abs(first - second) / (first + second))),
        near_ties=int(decisive.size - decisive.sum()),
        pairs=int(decisive.size),
    )


def _apart(a: Floats, b: Floats, upper: tuple[NDArray[np.intp], ...]) -> NDArray[np.bool_]:
    """Pairs of configurations that differ by more than the noise, bool[p].

    The mean of two rounds has a standard error of noise / sqrt 2, the difference of two such means
    one of noise.
    """
    moved = b - a
    spread = np.median(np.abs(moved - np.median(moved)))
    noise = min(1.4826 * float(spread) / math.sqrt(2), _MOST_NOISE)
    middle = (a + b) / 2
    far: NDArray[np.bool_] = np.abs(middle[:, None] - middle[None])[upper] > _TIE * noise
    return far


def comparisons(rounds: Sequence[Mapping[int, float]]) -> list[Comparison]:
    """Every two rounds of one matrix, given as seconds by configuration (infinite: failed), that
    have enough in common. Rounds are trusted if any two of them agree: the median of all is then
    near both."""
    compared = []
    for first, second in combinations(rounds, 2):
        both = [at for at in first if _timed(first[at]) and _timed(second.get(at, math.inf))]
        if len(both) >= FEWEST:
            times = (np.array([r[at] for at in both], dtype=np.float64) for r in (first, second))
            compared.append(compare(*times))
    return compared


def _timed(seconds: float) -> bool:
    return 0 < seconds < math.inf


class Agreement(msgspec.Struct, frozen=True):
    """Rank agreement of the rounds of one op, over matrices with two or more rounds.

    `matrices` are those with enough common configurations, `too_few` the others. Medians and 5th
    percentiles are over the comparisons of two rounds, nan where there are none; `difference` is
    relative. `near_ties` of `pairs` pairs of configurations differ by no more than the noise.
    `disagreeing` are the names of matrices no two rounds of which agree, `settled` of those whose
    first rounds disagree and that agree with a later one.
    """

    op: str
    matrices: int
    too_few: int
    spearman: float
    spearman_p5: float
    kendall: float
    kendall_p5: float
    difference: float
    near_ties: int
    pairs: int
    disagreeing: list[str]
    settled: list[str]


def summary(
    op: str, rounds: Iterable[tuple[str, Sequence[Mapping[int, float]]]], *, least: float = AGREE
) -> Agreement:
    """Agreement from (name, rounds) of each matrix with two or more rounds of `op`."""
    every: list[Comparison] = []
    disagreeing, settled = [], []
    matrices = too_few = 0
    for name, measured in rounds:
        compared = comparisons(measured)
        every += compared
        matrices += bool(compared)
        too_few += not compared
        if compared and not any(c.agrees(least) for c in compared):
            disagreeing.append(name)
        elif compared and not compared[0].agrees(least):
            settled.append(name)
    spearman, kendall = ([getattr(c, name) for c in every] for name in ("spearman", "kendall"))
    return Agreement(
        op=op,
        matrices=matrices,
        too_few=too_few,
        spearman=_quantile(spearman, 0.5),
        spearman_p5=_quantile(spearman, 0.05),
        kendall=_quantile(kendall, 0.5),
        kendall_p5=_quantile(kendall, 0.05),
        difference=_quantile([c.difference for c in every], 0.5),
        near_ties=sum(c.near_ties for c in every),
        pairs=sum(c.pairs for c in every),
        disagreeing=disagreeing,
        settled=settled,
    )


def _quantile(values: Sequence[float], at: float) -> float:
    finite = [v for v in values if math.isfinite(v)]
    return float(np.quantile(finite, at)) if finite else math.nan
