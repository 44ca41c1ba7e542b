"""First choices of the vote for rows whose group is held out, and their losses.

One definition of quality everywhere (docs/explanation/evaluation.md): the choice is among the
configurations that ran on a matrix and in another group (no vote proposes others; where none did,
it is the default), a failed one costs what the default takes, and `of_optimum` is the geometric
mean over matrices of the best time of all that ran there over the chosen one's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.index.run_matrix import FAILED_GAIN, WINNER_GAIN
from embeddb.index.vote import (
    PSEUDO_RUNS,
    doubt,
    effects,
    is_default,
    mean_gain,
    votes,
    weigh,
)

Floats = NDArray[np.float64]

#: Numbers of neighbours and of pseudo-neighbours that are compared.
NEIGHBOURS = (3, 5, 8, 12, 20, 40)
SHRINKS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, np.inf)
#: Numbers gathered at once: bounds memory to about 8 MB.
_BLOCK = 1_000_000


class Near(NamedTuple):
    """Nearest patterns of other groups: `places` int64[p,k] (-1: none), `distances` float64[p,k]
    ascending (inf: none), in a metric that was fitted without the pattern's own group."""

    places: NDArray[np.int64]
    distances: Floats

    @classmethod
    def none(cls, count: int, k: int = 0) -> Near:
        """Rows of `count` patterns, each with `k` places for neighbours, all free."""
        return cls(np.full((count, k), -1, dtype=np.int64), np.full((count, k), np.inf))

    def among(self, patterns: NDArray[np.bool_]) -> Near:
        """Only neighbours among the patterns bool[p], nearest first."""
        there = patterns[self.places] & (self.places >= 0)
        order = np.argsort(~there, axis=1, kind="stable")
        places = np.where(there, self.places, -1)
        distances = np.where(there, self.distances, np.inf)
        return Near(
            np.take_along_axis(places, order, axis=1), np.take_along_axis(distances, order, axis=1)
        )


class Judged(NamedTuple):
    """Rows to judge a policy by: `rows` int64[q] positions, `truth` float64[q,c] log gains measured
    there (nan: not run), and `gains` (not clipped) and `trust` float64[p,c] of all patterns without
    them."""

    rows: NDArray[np.int64]
    truth: Floats
    gains: Floats
    trust: Floats


class FirstChoices(NamedTuple):
    """First choices of held-out rows, float64[q] log gains over the default: `predicted` by the
    vote (nan: the default did not run there), `measured`, the `best` that ran, and that of the
    `static` best of the other groups; with `group` int64[q] or str[q], and the `guard` float64[q]
    that was fitted without a row (nan: the policy's)."""

    predicted: Floats
    measured: Floats
    best: Floats
    static: Floats
    group: NDArray[Any]
    guard: Floats

    @classmethod
    def unknown(cls, group: NDArray[Any]) -> FirstChoices:
        """Rows of these groups without choices."""
        predicted, measured, best, static, guard = np.full((5, len(group)), np.nan)
        return cls(predicted, measured, best, static, group, guard)

    @classmethod
    def joined(cls, parts: Sequence[FirstChoices]) -> FirstChoices:
        if not parts:
            return cls.unknown(np.zeros(0, dtype=np.int64))
        return cls(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def of(self, rows: NDArray[np.bool_]) -> FirstChoices:
        """Only some rows, bool[q]."""
        return FirstChoices(*(column[rows] for column in self))

    def counted(self) -> FirstChoices:
        """Only the rows whose default ran; where none did, all that have a first choice."""
        over_default = np.isfinite(self.predicted)
        return self.of(over_default if over_default.any() else np.isfinite(self.measured))

    def lost(self, guard: float) -> Floats:
        """float64[q] log of the optimum over the answer, which is the default where the predicted
        gain does not exceed the row's guard, or else `guard`."""
        guards = np.where(np.isnan(self.guard), guard, self.guard)
        return self.best - np.where(self.predicted <= guards, 0.0, self.measured)

    @property
    def errors(self) -> Floats:
        """float64[q] measured less predicted log gain."""
        return self.measured - self.predicted


def split_groups(groups: NDArray[np.str_], folds: int, seed: int) -> NDArray[np.int64]:
    """The fold int64[r] of each row; a group is in one fold, folds are of near equal size."""
    names, member = np.unique(groups, return_inverse=True)
    size = np.bincount(member)
    load = np.zeros(folds)
    fold = np.zeros(len(names), dtype=np.int64)
    for at in np.random.default_rng(seed).permutation(len(names)):
        fold[at] = int(np.argmin(load))
        load[fold[at]] += size[at]
    chosen: NDArray[np.int64] = fold[member]
    return chosen


def failed(gains: Floats) -> NDArray[np.bool_]:
    """Mask of the log gains that stand for a failed run."""
    is_failure: NDArray[np.bool_] = np.abs(gains - FAILED_GAIN) < 1e-9
    return is_failure


def first_choices(
    near: Near, part: Judged, group: NDArray[np.int64], *, k: int, shrink: float
) -> FirstChoices:
    """The first choice for each judged row, its group int64[p] held out, by a vote of `k`
    neighbours and `shrink` with the `doubt` of answers, among the configurations that ran on the
    row and in another group, else the default. A failure has the default's gain, 0."""
    centred = centred_votes(part.gains)
    average = _others_mean(part.gains, group)
    prior = average if np.isinf(shrink) else _others_prior(centred, group)
    weighted, weight = _weighed(centred, part.trust)
    zeros = (part.gains == 0.0).sum(axis=0) * (knows := _knows_default(part.gains))
    chosen = FirstChoices.unknown(group[part.rows])
    ran, crashed = np.isfinite(part.truth), failed(part.truth)
    able = np.isfinite(near.distances[part.rows, :k]).any(axis=1)
    able &= (ran & ~crashed).sum(axis=1) >= 2
    votable = ran & _ran_elsewhere(part.gains, group)[part.rows]
    gain, best = np.where(crashed, 0.0, part.truth), np.where(ran, part.truth, -np.inf).max(axis=1)
    # Where nothing ran that another group ran, the default is the answer, as in `eval`.
    alone = able & ~votable.any(axis=1) & (part.truth == 0.0).any(axis=1) & knows
    chosen.predicted[alone] = chosen.measured[alone] = chosen.static[alone] = 0.0
    chosen.best[alone] = best[alone]
    able &= votable.any(axis=1)
    for at in _blocks(np.flatnonzero(able), k * part.gains.shape[1]):
        rows = part.rows[at]
        places, weights = near.places[rows, :k], weigh(near.distances[rows, :k])
        total, support = (weights[:, None] @ of[places] for of in (weighted, weight))
        score = shrunk(total[:, 0], support[:, 0], prior[rows], shrink)
        if not np.isinf(shrink):
            mass = support[:, 0] + max(shrink, 1e-6)
            score -= doubt(centred[places], weights, mass, prior[rows], shrink)
        first = np.where(votable[at], score, -np.inf).argmax(axis=1)
        static = np.where(votable[at], average[rows], -np.inf).argmax(axis=1)
        chosen.measured[at], chosen.best[at] = gain[at, first], best[at]
        chosen.static[at] = gain[at, static]
        # Others may take exactly as long as the row's default, but on fewer rows.
        base = np.where(part.truth[at] == 0.0, zeros, 0)
        each = np.arange(len(at))
        predicted = score[each, first] - score[each, base.argmax(axis=1)]
        chosen.predicted[at] = np.where(base.any(axis=1), predicted, np.nan)
    return chosen


def losses_of(
    near: Near, part: Judged, group: NDArray[np.int64]
) -> dict[tuple[int, float], Floats]:
    """Log loss [q] to the best run of each judged row with its group held out, per (k, shrink), by
    which a vote is fitted; without doubt and guard."""
    centred = centred_votes(part.gains)
    prior = _others_prior(centred, group)
    weighted, weight = _weighed(centred, part.trust)
    ks = sorted({min(k, near.places.shape[1]) for k in NEIGHBOURS})
    truth = votes(part.truth)
    ran = np.isfinite(truth)
    best = np.where(ran, truth, -np.inf).max(axis=1)
    votable = ran & _ran_elsewhere(part.gains, group)[part.rows]
    votable[~votable.any(axis=1)] = ran[~votable.any(axis=1)]
    lost = np.empty((len(ks), len(SHRINKS), len(truth)))
    for at in _blocks(np.arange(len(truth)), 2 * ks[-1] * part.gains.shape[1]):
        rows = part.rows[at]
        places, weights = near.places[rows, : ks[-1]], np.zeros((len(at), len(ks), ks[-1]))
        for way, k in enumerate(ks):
            weights[:, way, :k] = weigh(near.distances[rows, :k])
        total, support = weights @ weighted[places], weights @ weight[places]
        unrun = np.where(votable[at], 0.0, -np.inf)[:, None]
        for column, shrink in enumerate(SHRINKS):
            score = shrunk(total, support, prior[rows][:, None], shrink) + unrun
            taken = truth[at[:, None], score.argmax(axis=2)]
            lost[:, column, at] = best[at] - taken.T
    keys = [(k, shrink) for k in ks for shrink in SHRINKS]
    return dict(zip(keys, lost.reshape(len(keys), -1), strict=True))


def with_itself(near: Near) -> Near:
    """The same with each pattern the nearest to itself: other machines may have run it."""
    each = np.arange(len(near.places))[:, None]
    return Near(np.hstack([each, near.places]), np.hstack([np.zeros(each.shape), near.distances]))


def _blocks(places: NDArray[np.int64], each: int) -> Iterator[NDArray[np.int64]]:
    """Positions int64[q] in parts that gather at most `_BLOCK` numbers at once, `each` a place."""
    step = max(1, _BLOCK // max(each, 1))
    for start in range(0, len(places), step):
        yield places[start : start + step]


def centred_votes(gains: Floats) -> Floats:
    """Gains float64[r,c] as they vote, less the level of their row."""
    clipped = votes(gains)
    return clipped - effects(clipped)[0][:, None]


def _others_prior(centred: Floats, group: NDArray[np.int64]) -> Floats:
    """The prior [r,c] each row would have if its own group had never been measured."""
    ran = np.isfinite(centred)
    sums, counts = (
        _others_sum(of, group) for of in (np.where(ran, centred, 0.0), ran.astype(np.float64))
    )
    prior: Floats = sums / (counts + PSEUDO_RUNS)
    return prior


def _others_mean(gains: Floats, group: NDArray[np.int64]) -> Floats:
    """The mean gain [r,c] over rows of other groups, by which the static best is chosen; failed
    runs count as the default."""
    tried = np.where(failed(gains), 0.0, gains)
    return mean_gain(tried, lambda values: _others_sum(values, group))


def _knows_default(gains: Floats) -> bool:
    """True if the default ran and more than winners were recorded: of these all others have a gain
    of 0, and machines average to what lies between."""
    defaults, ran = int(is_default(gains).sum()), gains[np.isfinite(gains)]
    of_winners = defaults > 1 and bool(((ran >= 0.0) & (ran <= WINNER_GAIN + 1e-9)).all())
    return defaults > 0 and not of_winners


def _ran_elsewhere(gains: Floats, group: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool[r,c]: a row of another group ran the configuration."""
    elsewhere: NDArray[np.bool_] = _others_sum(np.isfinite(gains).astype(np.float64), group) > 0
    return elsewhere


def _others_sum(values: Floats, group: NDArray[np.int64]) -> Floats:
    """For each row the sum [r,c] of values [r,c] over the rows of other groups."""
    order = np.argsort(group, kind="stable")
    _, starts, place = np.unique(group[order], return_index=True, return_inverse=True)
    sums = np.add.reduceat(values[order], starts)
    others: Floats = np.empty(values.shape)
    others[order] = (sums.sum(0) - sums)[place]
    return others


def _weighed(centred: Floats, trust: Floats) -> tuple[Floats, Floats]:
    """Gains times their trust and that trust, both [p,c]; 0 where nothing ran."""
    weight = np.where(np.isfinite(centred), trust, 0.0)
    return np.where(weight > 0, centred, 0.0) * weight, weight


def shrunk(total: Floats, weight: Floats, prior: Floats, shrink: float) -> Floats:
    """Vote sums `total` of weight `weight`, with `shrink` pseudo-neighbours at the prior."""
    if np.isinf(shrink):
        return prior
    return (total + max(shrink, 1e-6) * prior) / (weight + max(shrink, 1e-6))
