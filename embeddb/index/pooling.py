"""Runs of several machines and widths as evidence for one of them: partial pooling.

A *source* is one platform instance at one op. For a *target*, a source s predicts of configuration
c on matrix p

    g_target(p, c) = g_s(p, c) + shift_s(c) + error,    Var(error) = variance_s

g the log gain over the own default. The shift is estimated on the target's own measurements: per
configuration the mean difference, shrunk towards the prediction from the configuration's parameters
and, without runs, to zero (a Gaussian process over configurations; hyperparameters by moments). The
variance is that of the residuals, shrunk towards the one expected of instances as unlike as these
two. On each pattern the sources are averaged by their precision, and such a pooled row votes like a
row of the target's own, with less weight, by the ratio of their error variances. So one run of the
target moves all answers a little, and many outweigh the other sources.

Source: hierarchical (partial) pooling as in Gelman and Hill 2007, chapter 12; the crossed effects
(machine x configuration, machine x parameter, machine x matrix) are ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.index.held_out import centred_votes
from embeddb.index.run_matrix import FAILED_GAIN, RunMatrix, coded
from embeddb.index.vote import is_default, votes
from embeddb.platforms.machines import Facts, unlike

Floats = NDArray[np.float64]

#: Variance of a repeated measurement of a log gain: 5 %.
_NOISE = 0.05**2
#: Patterns by which the expectation from how unlike two sources are counts beside their own data.
_PRIOR_PATTERNS = 3.0
#: With fewer patterns in common, sources are compared through neighbours: so many.
_FEWEST_SHARED = 3
_COMPARED_WITH = 5
#: Expected variance where there are too few instances to fit it: constant, per unit of `unlike`,
#: per doubling of the width, for another value type.
_EXPECTED = (0.02, 0.02, 0.02, 0.02)
#: Shares of the shift's variance that lie in all, in parameters, in like configurations, in one.
_COMPONENTS = (0.3, 0.3, 0.2)
#: Similarity of configurations falls by e over this share of parameters that differ.
_REACH = 0.15
_NO_FACTS: Facts = {}


class Source(NamedTuple):
    """A platform instance and the op it ran."""

    platform: str
    op: Op


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Measurements of one source: `rows` int64[r] positions of patterns, `gains` float64[r,c]."""

    source: Source
    rows: NDArray[np.int64]
    gains: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """Transfer model from a source to the target: `shift` float64[c] is added to its gains, whose
    error then has `variance`; `patterns` of the target's own were used to fit it."""

    source: Source
    shift: Floats
    variance: float
    patterns: int


@dataclass(frozen=True, slots=True, eq=False)
class Pooled:
    """One row per pattern for a target: `gains` float64[p,c] (nan: ran nowhere), `trust`
    float64[p,c] the weight of each as a vote relative to the target's own runs (0..1), `shares`
    float64[p,s] the part of each source in a row, in the order of the beliefs, `failing`
    float64[p,c] the part of the runs that failed."""

    gains: Floats
    trust: Floats
    shares: Floats
    failing: Floats


def layers_of(
    evidence: RunMatrix, ids: Sequence[str], *, calls: float = math.inf, failed: float = FAILED_GAIN
) -> list[Layer]:
    """The evidence by source, over the patterns `ids`; sources in a fixed order.

    Where there are several, rows whose default did not run have no gains: they would be relative to
    their own mean and so not comparable.
    """
    at = {pattern_id: i for i, pattern_id in enumerate(ids)}
    by_source: dict[Source, list[int]] = {}
    for i, row in enumerate(evidence.rows):
        if row.pattern_id in at:
            op = Op.parse(row.op) if row.op else evidence.op
            by_source.setdefault(Source(row.platform, op), []).append(i)
    layers, has_default = [], evidence.knows_default
    for source in sorted(by_source):
        rows = np.array(by_source[source], dtype=np.int64)
        places = np.array([at[evidence.rows[i].pattern_id] for i in rows], dtype=np.int64)
        gains = evidence.gains(rows, calls=calls, failed=failed)
        if len(by_source) > 1 and not evidence.winners and has_default.any():
            gains[~has_default[rows]] = np.nan
        layers.append(Layer(source, places, gains))
    return layers


def pooled(layers: Sequence[Layer], beliefs: Sequence[Belief], count: int, apart: float) -> Pooled:
    """Sources averaged by precision on each of `count` patterns; `apart` is the variance between a
    pattern and its neighbours, beside which a source's own error counts."""
    width = layers[0].gains.shape[1] if layers else 0
    total, mass, best, failed = np.zeros((4, count, width))
    shares = np.zeros((count, len(layers)))
    for at, (layer, belief) in enumerate(zip(layers, beliefs, strict=True)):
        ran = np.isfinite(layer.gains)
        weight = 1.0 / (belief.variance + _NOISE)
        total[layer.rows] += np.where(ran, layer.gains + belief.shift, 0.0) * weight
        mass[layer.rows] += ran * weight
        failed[layer.rows] += (layer.gains == FAILED_GAIN) * weight
        best[layer.rows] = np.maximum(best[layer.rows], ran * weight)
        shares[layer.rows, at] = weight * ran.sum(axis=1) / max(width, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        gains = total / mass
        trust = (apart + _NOISE) / (apart + 1.0 / best)
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1e-12)
    failing = failed / np.maximum(mass, 1e-12)
    return Pooled(gains, np.where(best > 0, trust, 0.0), shares, failing)


def beliefs_of(
    target: Source,
    layers: Sequence[Layer],
    configs: Sequence[Config],
    facts: Mapping[str, Facts],
    near: NDArray[np.int64],
    *,
    apart: float,
    gaps: Gaps,
) -> list[Belief]:
    """The target's belief about each layer, its own included. `near` int64[p,k] are the nearest
    patterns of other groups of each pattern (-1: none), `apart` the variance between neighbours."""
    own = next((layer for layer in layers if layer.source == target), None)
    others = [layer for layer in layers if layer.source != target]
    moving = ~is_default(np.vstack([layer.gains for layer in layers]))
    between = gaps.between(layers, moving)
    weights = _expected_weights(between, facts, gaps)
    apart_by = {la.source: gaps.apart(target, la.source, facts) for la in others}
    expected = {source: float(weights @ np.array(by)) for source, by in apart_by.items()}
    prior = {source: max(variance, 1e-4) for source, variance in expected.items()}
    level = _levels(between, prior)
    kernel = np.zeros((0, 0))
    if own is not None:
        kernel = correlation_of(configs) * np.outer(moving, moving)
    beliefs = []
    for layer in layers:
        if layer.source == target:
            beliefs.append(Belief(target, np.zeros(len(configs)), 0.0, len(layer.rows)))
            continue
        variance, patterns = prior[layer.source], 0
        shift = np.asarray(moving * level[layer.source], dtype=np.float64)
        rest = None if own is None else _differences(own, layer, near)
        if rest is not None:
            gap, extra = rest
            more, left = shift_of(gap - shift, kernel, variance)
            # The variance added by comparing through neighbours is not the source's.
            shift = np.asarray(shift + more, dtype=np.float64)
            variance = max(left - extra * apart, 0.25 * left)
            patterns = len(gap)
        beliefs.append(Belief(layer.source, shift, variance, patterns))
    return beliefs


class Gap(NamedTuple):
    """Difference of the gains at two sources on the patterns that both ran: the mean of the
    configurations other than the default, and the variance (nan: nothing to compare, or for the
    variance too few patterns)."""

    one: Source
    other: Source
    mean: float
    variance: float

    @classmethod
    def of(cls, one: Layer, other: Layer, moving: NDArray[np.bool_]) -> Gap:
        _, mine, theirs = np.intersect1d(one.rows, other.rows, return_indices=True)
        gap: Floats = votes(one.gains[mine]) - votes(other.gains[theirs])
        moved, mean, variance = gap[:, moving], math.nan, math.nan
        if np.isfinite(moved).any():
            mean = float(np.nanmean(moved))
        if len(gap) >= _FEWEST_SHARED and np.isfinite(gap).any():
            # A shift of all configurations alike does not change which is best.
            variance = float(np.nanmean((gap - np.nanmean(gap)) ** 2))
        return cls(one.source, other.source, mean, variance)


class Gaps:
    """The gaps between pairs of layers, and within layers. Those of `lasting` ones are computed
    once for all targets: 300 machines are 45,000 pairs, and each machine is left out in turn."""

    def __init__(self, lasting: Iterable[Layer] = ()) -> None:
        self._lasting = frozenset(lasting)
        self._computed: dict[tuple[Layer, Layer, bytes], Gap] = {}
        self._within: dict[Layer, tuple[NDArray[np.int64], float, int]] = {}
        self._unlike: dict[tuple[str, str], tuple[Facts, Facts, float]] = {}

    def between(self, layers: Sequence[Layer], moving: NDArray[np.bool_]) -> list[Gap]:
        """The gap of every pair; `moving` bool[c] are the configurations that are no default."""
        mask, lasting = moving.tobytes(), [layer in self._lasting for layer in layers]
        gaps = []
        for i, j in combinations(range(len(layers)), 2):
            key = (layers[i], layers[j], mask)
            if (gap := self._computed.get(key)) is None:
                gap = Gap.of(layers[i], layers[j], moving)
                if lasting[i] and lasting[j]:
                    self._computed[key] = gap
            gaps.append(gap)
        return gaps

    def within(self, layer: Layer, near: NDArray[np.int64]) -> tuple[float, int]:
        """The sum and the number of squared differences of the gains at one source between its
        patterns and their nearest ones of other groups, `near` int64[p,k] (-1: none)."""
        if (seen := self._within.get(layer)) is not None and seen[0] is near:
            return seen[1:]
        place = np.full(len(near) + 1, -1)
        place[layer.rows] = np.arange(len(layer.rows))
        gains = centred_votes(layer.gains)
        beside = place[near[layer.rows][:, :_COMPARED_WITH]]
        rows, at = np.nonzero(beside >= 0)
        square = (gains[rows] - gains[beside[rows, at]]) ** 2
        total, count = float(np.nansum(square)), int(np.isfinite(square).sum())
        if layer in self._lasting:
            self._within[layer] = near, total, count
        return total, count

    def apart(self, one: Source, other: Source, facts: Mapping[str, Facts]) -> tuple[float, ...]:
        """Four terms of the variance between two sources: constant, unlikeness, doublings of the
        width, another value type."""
        far = 0.0
        if one.platform != other.platform:
            these, those = facts.get(one.platform, _NO_FACTS), facts.get(other.platform, _NO_FACTS)
            key = (one.platform, other.platform)
            seen = self._unlike.get(key)
            if seen is None or seen[0] is not these or seen[1] is not those:
                seen = self._unlike[key] = (these, those, unlike(these, those))
            far = seen[2]
        wider = abs(math.log2(one.op.width / other.op.width))
        return 1.0, far, wider, float(one.op.dtype != other.op.dtype)


def _levels(gaps: Sequence[Gap], prior: Mapping[Source, float]) -> dict[Source, float]:
    """Offset of each source with a `prior` variance that aligns its gains with the
    precision-weighted mean of all: where the default is slow, all other configurations gain."""
    place = {source: at for at, source in enumerate(prior)}
    count = len(place)
    if not count:
        return {}
    both = [gap for gap in gaps if gap.one in place and gap.other in place]
    compared = [gap for gap in both if math.isfinite(gap.mean)]
    one = np.array([place[gap.one] for gap in compared], dtype=np.int64)
    other = np.array([place[gap.other] for gap in compared], dtype=np.int64)
    mean = np.array([gap.mean for gap in compared])
    # Least squares of one level less the other, and of each level with a weight of 0.01, by their
    # normal equations: a row for each of 45,000 pairs of 300 sources takes seconds.
    square = np.diag(0.01 + np.bincount(np.concatenate([one, other]), minlength=count))
    np.subtract.at(square, (np.concatenate([one, other]), np.concatenate([other, one])), 1.0)
    wanted = np.bincount(one, mean, count) - np.bincount(other, mean, count)
    level = np.linalg.solve(square, wanted)
    weight = np.array([1.0 / variance for variance in prior.values()])
    common = float(weight @ level / weight.sum())
    return {source: common - float(x) for source, x in zip(prior, level, strict=True)}


def _differences(own: Layer, other: Layer, near: NDArray[np.int64]) -> tuple[Floats, float] | None:
    """Differences float64[r,c] of the gains at the target to those at the source, on patterns both
    ran or else to the mean of the neighbours, and the multiple of the variance between neighbours
    that is in each; None where nothing can be compared."""
    place = {int(p): i for i, p in enumerate(other.rows)}
    both = [(i, place[int(p)]) for i, p in enumerate(own.rows) if int(p) in place]
    if len(both) >= _FEWEST_SHARED:
        mine, theirs = np.array(both).T
        gap = votes(own.gains[mine]) - votes(other.gains[theirs])
        return (gap, 0.0) if np.isfinite(gap).any() else None
    rows = []
    for i, pattern in enumerate(own.rows):
        beside = [place[int(q)] for q in near[pattern] if int(q) in place][:_COMPARED_WITH]
        if int(pattern) in place:
            beside = [place[int(pattern)]]
        if beside:
            rows.append(votes(own.gains[i]) - _mean(votes(other.gains[beside])))
    gap = np.array(rows)
    return (gap, 1.0 + 1.0 / _COMPARED_WITH) if gap.size and np.isfinite(gap).any() else None


def _mean(gains: Floats) -> Floats:
    """float64[c] mean of the rows that ran each; nan where none did."""
    ran = np.isfinite(gains)
    count = ran.sum(axis=0)
    mean: Floats = np.where(ran, gains, 0.0).sum(axis=0) / np.maximum(count, 1)
    return np.where(count > 0, mean, np.nan)


def shift_of(gap: Floats, kernel: Floats, prior: float) -> tuple[Floats, float]:
    """Posterior mean float64[c] of a shift from differences float64[r,c] (nan: none), and their
    residual variance.

    `kernel` float64[c,c] has ones on its diagonal; `prior` is the variance expected of a
    difference, half of it of the shift and half of the rest, and counts as `_PRIOR_PATTERNS` rows.
    """
    ran = np.isfinite(gap)
    count = ran.sum(axis=0)
    mean = np.where(ran, gap, 0.0).sum(axis=0) / np.maximum(count, 1)
    rows = int(ran.any(axis=1).sum())  # errors of one row are correlated, so rows count
    spread = float((np.where(ran, gap - mean, 0.0) ** 2).sum())
    free = float(max(ran.sum() - (count > 0).sum(), 0))
    within = spread / free if free else prior / 2
    weight = max(rows - 1, 0)
    left = (weight * within + _PRIOR_PATTERNS * prior / 2) / (weight + _PRIOR_PATTERNS)
    seen = np.flatnonzero(count)
    if not seen.size:
        return np.zeros(gap.shape[1]), prior
    raw = float((mean[seen] ** 2).mean() - (left / count[seen]).mean())
    # A single row cannot tell a shift from what is peculiar to its pattern.
    signal = max(weight * raw + _PRIOR_PATTERNS * prior / 2, 1e-6) / (weight + _PRIOR_PATTERNS)
    inner = signal * kernel[np.ix_(seen, seen)] + np.diag(left / count[seen])
    shift: Floats = signal * kernel[:, seen] @ np.linalg.solve(inner, mean[seen])
    return shift, left


def correlation_of(configs: Sequence[Config]) -> Floats:
    """Prior correlation float64[c,c] of shifts: common, by parameters, by similarity, own."""
    codes = coded(configs).T
    same = np.zeros((len(configs), len(configs)))
    for code in codes:
        same += code[:, None] == code[None, :]
    same /= max(len(codes), 1)
    common, linear, like = _COMPONENTS
    near = np.exp(-(1.0 - same) / _REACH)
    own = (1.0 - common - linear - like) * np.eye(len(configs))
    correlation: Floats = common + linear * same + like * near + own
    return correlation


# -- how much two sources differ -------------------------------------------------------------------


def _expected_weights(between: Sequence[Gap], facts: Mapping[str, Facts], gaps: Gaps) -> Floats:
    """Weights float64[4] of `Gaps.apart` in the expected variance of two sources, fitted to the
    mean squared differences between sources with patterns in common, all non-negative; `_EXPECTED`
    counts as one more pair."""
    compared = [gap for gap in between if math.isfinite(gap.variance)]
    rows = [gaps.apart(gap.one, gap.other, facts) for gap in compared]
    design = np.vstack([*rows, *(np.diag(np.ones(4)) * 0.3)])
    wanted = np.array([*(gap.variance for gap in compared), *(0.3 * np.array(_EXPECTED))])
    return _non_negative(design, wanted)


def _non_negative(design: Floats, wanted: Floats) -> Floats:
    """Least squares with weights >= 0, by trying every set of columns: there are four."""
    best, least = np.zeros(design.shape[1]), math.inf
    for size in range(1, design.shape[1] + 1):
        for columns in combinations(range(design.shape[1]), size):
            part = design[:, columns]
            weights = np.linalg.lstsq(part, wanted, rcond=None)[0]
            error = float(((part @ weights - wanted) ** 2).sum())
            if (weights >= 0).all() and error < least - 1e-12:
                best, least = np.zeros(design.shape[1]), error
                best[list(columns)] = weights
    return best
