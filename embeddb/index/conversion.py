"""Cost of converting a matrix to a configuration's format, in calls of the platform's default.

Preparation (a format, a reordering) depends on few of the parameters and hardly on the machine, so
it is predicted separately: configurations with the same preparation are one *class*, and the
neighbours vote on the logarithm of

    ratio = conversion seconds / the default's seconds per call

of each class, over the rows of all instances and widths. The parameters that define a class are
those that reduce the variance of conversion seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op, Value
from embeddb.index.run_matrix import RunMatrix, coded

#: A parameter defines classes if it removes this share of the variance.
_WORTH = 0.05
#: Rounds of the additive fits, which have then converged.
_ROUNDS = 3
#: Distance of a configuration without preparation from the others, as a log ratio.
_FREE = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Conversions on rows whose default ran: `row` and `column` int64[x], `log_ratio` float64[x]
    for one dense column. Of each row `pattern` int64[r] and `source` int64[r], of each
    configuration the number of runs `ran` int64[c] and of conversions `paid` int64[c];
    configurations that were mostly not converted have no entries."""

    row: Ints
    column: Ints
    log_ratio: Floats
    pattern: Ints
    source: Ints
    sources: tuple[tuple[str, str], ...]
    ran: Ints
    paid: Ints

    @classmethod
    def of(cls, evidence: RunMatrix, ids: Sequence[str]) -> Entries:
        place = {pattern_id: at for at, pattern_id in enumerate(ids)}
        pattern = np.array([place.get(row.pattern_id, -1) for row in evidence.rows], dtype=np.int64)
        named = [(row.platform, row.op or str(evidence.op)) for row in evidence.rows]
        sources = {name: at for at, name in enumerate(sorted(set(named)))}
        source = np.array([sources[name] for name in named], dtype=np.int64)
        width = np.array([Op.parse(op).width for _, op in sources], dtype=np.float64)[source]
        default_s = np.where(pattern >= 0, evidence.default_s, np.nan)
        row = np.repeat(np.arange(len(evidence.rows)), np.diff(evidence.indptr))
        timed = np.isfinite(evidence.seconds) & np.isfinite(default_s)[row]
        some = timed & (evidence.conversion > 0)
        count = len(evidence.configs)
        ran = np.bincount(evidence.column[timed], minlength=count)
        paid = np.bincount(evidence.column[some], minlength=count)
        at = np.flatnonzero(some & (2 * paid >= ran)[evidence.column])
        row = row[at]
        ratio = np.log(evidence.conversion[at]) - np.log(default_s / width)[row]
        column = evidence.column[at].astype(np.int64)
        return cls(row, column, ratio, pattern, source, tuple(sources), ran, paid)


def _additive(
    one: Ints, other: Ints, values: Floats, counts: tuple[int, int], *, none: float = 0.0
) -> tuple[Floats, Floats]:
    """Values float64[x] = float64[n] at one place (`none`: no values) + float64[m] at another, by
    alternating means."""
    by_one, by_other = (np.zeros(count) for count in counts)
    for _ in range(_ROUNDS):
        by_one = _means(one, values - by_other[other], counts[0], none)
        by_other = _means(other, values - by_one[one], counts[1])
    return by_one, by_other


def _means(at: Ints, values: Floats, count: int, none: float = 0.0) -> Floats:
    """float64[count] mean of the values at each place; `none` where there are none."""
    total = np.bincount(at, weights=values, minlength=count)
    counts = np.bincount(at, minlength=count)
    return np.where(counts > 0, total / np.maximum(counts, 1), none)


def _class_means(pattern: Ints, of: Ints, values: Floats, shape: tuple[int, int]) -> Floats:
    """float64[p,k] mean of the values at each pattern and class; nan where there are none."""
    flat = pattern * shape[1] + of
    return _means(flat, values, shape[0] * shape[1], none=np.nan).reshape(shape)


def class_parameters(
    configs: Sequence[Mapping[str, Value]], entries: Entries, by_row: Floats, by_config: Floats
) -> tuple[str, ...]:
    """The parameters that reduce the variance within classes most, chosen greedily."""
    left = entries.log_ratio - by_row[entries.row] - by_config[entries.column]
    within = float((left**2).sum()), float(len(left))
    free = 2 * entries.paid < entries.ran
    ran = np.flatnonzero(entries.ran).tolist()
    lowest = float(by_config[entries.column].min())
    effect = np.where(free, lowest - _FREE, by_config)[ran]
    weight = np.where(free, entries.ran, entries.paid)[ran].astype(np.float64)
    names = sorted({name for at in ran for name in configs[at]})
    codes = dict(zip(names, coded([configs[at] for at in ran]).T, strict=True))
    chosen: list[str] = []
    code = np.zeros(len(ran), dtype=np.int64)
    best = _variance(code, effect, weight, within)
    while len(chosen) < len(names):
        tried = {name: _merged(code, codes[name]) for name in names if name not in chosen}
        variance = {name: _variance(c, effect, weight, within) for name, c in tried.items()}
        name = min(variance, key=lambda n: variance[n])
        if variance[name] > (1.0 - _WORTH) * best:
            break
        best, code = variance[name], tried[name]
        chosen.append(name)
    return tuple(sorted(chosen))


def _merged(one: Ints, other: Ints) -> Ints:
    code: Ints = np.unique(one * (int(other.max()) + 1) + other, return_inverse=True)[1]
    return code


def _variance(code: Ints, effect: Floats, weight: Floats, within: tuple[float, float]) -> float:
    """Variance of an entry within its class, from the sum of squares about their configuration's
    mean and the number of entries; each class takes one degree of freedom."""
    mean = np.bincount(code, weights=weight * effect) / np.bincount(code, weights=weight)
    off = float((weight * (effect - mean[code]) ** 2).sum())
    return (within[0] + off) / max(within[1] - len(mean), 1.0)


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Key = tuple[Value | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PreparationCost:
    """The expected ratios on one matrix: `names` the parameters that define a class, `log_ratio` by
    class (-inf: no preparation), `spread` the standard deviation of a log ratio. A class without
    runs costs as much as the most expensive one."""

    names: tuple[str, ...]
    log_ratio: Mapping[Key, float]
    spread: float

    def of(self, configs: Sequence[Config]) -> Floats:
        """float64[c] conversion seconds over the default's seconds per call."""
        dearest = max(self.log_ratio.values())
        keys = (_key(config, self.names) for config in configs)
        ratios: Floats = np.exp(np.array([self.log_ratio.get(key, dearest) for key in keys]))
        return ratios


@dataclass(frozen=True, slots=True, eq=False)
class PreparationTable:
    """Log ratios by pattern and class, of p patterns, k classes and s sources (a platform instance
    at an op).

    `off` float64[p,k] is the offset of a class from the mean of all classes on a pattern (nan: not
    run), `usual` float64[k] the same over all patterns, `free` bool[k] the classes without
    preparation; `level` float64[p] (nan: no entries) and `source` float64[s] add up to the mean of
    all classes on a pattern and source.
    """

    names: tuple[str, ...]
    classes: tuple[Key, ...]
    free: NDArray[np.bool_]
    off: Floats
    usual: Floats
    level: Floats
    sources: tuple[tuple[str, str], ...]
    source: Floats

    @classmethod
    def of(cls, evidence: RunMatrix, ids: Sequence[str]) -> PreparationTable | None:
        """Over the patterns `ids`; None where no row has a conversion and its default's time."""
        entries = Entries.of(evidence, ids)
        if not entries.row.size:
            return None
        shape = len(entries.pattern), len(entries.ran)
        by_row, by_config = _additive(entries.row, entries.column, entries.log_ratio, shape)
        configs = [dict(config) for config in evidence.configs]
        names = class_parameters(configs, entries, by_row, by_config)
        places: dict[Key, int] = {}
        ran = (entries.ran > 0).tolist()
        keys = [_key(config, names) for config in configs]
        class_of = np.array(
            [places.setdefault(k, len(places)) if r else -1 for k, r in zip(keys, ran, strict=True)]
        )
        rows = np.unique(entries.row)
        shape = len(ids), len(entries.sources)
        of_row = entries.pattern[rows], entries.source[rows], by_row[rows]
        level, source = _additive(*of_row, shape, none=np.nan)
        above, of = entries.log_ratio - by_row[entries.row], class_of[entries.column]
        pattern = entries.pattern[entries.row]
        off = _class_means(pattern, of, above, (len(ids), len(places)))
        usual = _means(of, above, len(places))
        free = np.ones(len(places), dtype=np.bool_)
        free[of] = False
        return cls(names, tuple(places), free, off, usual, level, entries.sources, source)

    def beside(self, newer: RunMatrix, ids: Sequence[str]) -> PreparationTable:
        """With further patterns, by the costs of classes and sources on the earlier ones."""
        entries = Entries.of(newer, ids)
        place = {key: at for at, key in enumerate(self.classes)}
        keys = [place.get(_key(config, self.names), -1) for config in newer.configs]
        source = dict(zip(self.sources, self.source.tolist(), strict=True))
        at_source = np.array([source.get(s, np.nan) for s in entries.sources])
        ratio = entries.log_ratio - at_source[entries.source[entries.row]]
        of = np.array(keys, dtype=np.int64)[entries.column]
        usable = (of >= 0) & np.isfinite(ratio)
        pattern, of, ratio = entries.pattern[entries.row][usable], of[usable], ratio[usable]
        level = _means(pattern, ratio - self.usual[of], len(ids), none=np.nan)
        off = _class_means(pattern, of, ratio - level[pattern], (len(ids), len(self.classes)))
        return replace(
            self, off=np.vstack([self.off, off]), level=np.concatenate([self.level, level])
        )

    def cost(self, rows: Ints, weights: Floats, platform: str, op: Op) -> PreparationCost | None:
        """Expected cost on an instance at an op by a vote of neighbours int64[q] with weights
        float64[q]; without any, by all patterns alike. None where none of them has entries."""
        if not len(rows):
            rows, weights = np.arange(len(self.level)), np.ones(len(self.level))
        usable = np.isfinite(self.level[rows]) & (weights > 0)
        if not usable.any():
            return None
        rows, weights = rows[usable], weights[usable] / weights[usable].sum()
        off = np.where(np.isfinite(self.off[rows]), self.off[rows], self.usual)
        every = self.level[rows][:, None] + off + self._at(platform, op)
        mean = weights @ every
        spread = math.sqrt(float((weights @ (every - mean) ** 2).mean()))
        log_ratio = np.where(self.free, -np.inf, mean).tolist()
        return PreparationCost(self.names, dict(zip(self.classes, log_ratio, strict=True)), spread)

    def _at(self, platform: str, op: Op) -> float:
        """Offset of a source, the mean of all where it never ran; a call takes time proportional to
        the width."""
        source = (platform, str(op))
        own = self.source[self.sources.index(source)] if source in self.sources else None
        return float(self.source.mean() if own is None else own) - math.log(op.width)


def _key(config: Mapping[str, Value], names: Sequence[str]) -> Key:
    return tuple(config.get(name) for name in names)
