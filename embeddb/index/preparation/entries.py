"""What was prepared on which rows, and which parameters tell what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Op, Value
from embeddb.index.run_matrix import RunMatrix

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: A parameter tells classes apart if it takes this share of the scatter away.
_WORTH = 0.05
#: Rounds of the additive fits; more change nothing that counts.
_ROUNDS = 3
#: How far a configuration without preparation stands from the others, as a log ratio.
_FREE = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """What was prepared: `row` and `column` int64[x] where the default ran too, `log_ratio`
    float64[x] as if one dense column wide. Of each row `pattern` int64[r] and `source` int64[r], of
    each configuration `ran` int64[c] how often it ran, `paid` int64[c] how often it was prepared;
    those that mostly were not have no entries."""

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
        told = np.isfinite(evidence.seconds) & np.isfinite(default_s)[row]
        some = told & (evidence.conversion > 0)
        count = len(evidence.configs)
        ran = np.bincount(evidence.column[told], minlength=count)
        paid = np.bincount(evidence.column[some], minlength=count)
        at = np.flatnonzero(some & (2 * paid >= ran)[evidence.column])
        row = row[at]
        ratio = np.log(evidence.conversion[at]) - np.log(default_s / width)[row]
        column = evidence.column[at].astype(np.int64)
        return cls(row, column, ratio, pattern, source, tuple(sources), ran, paid)

    def additive(self) -> tuple[Floats, Floats]:
        """log ratio = row float64[r] + configuration float64[c], by alternating means."""
        by_row, by_config = np.zeros(len(self.pattern)), np.zeros(len(self.ran))
        for _ in range(_ROUNDS):
            by_row = means(self.row, self.log_ratio - by_config[self.column], len(by_row))
            by_config = means(self.column, self.log_ratio - by_row[self.row], len(by_config))
        return by_row, by_config

    def levels(self, by_row: Floats, patterns: int) -> tuple[Floats, Floats]:
        """Row = pattern float64[p] (nan: nothing known) + source float64[s]."""
        told = np.unique(self.row)
        pattern, source = self.pattern[told], self.source[told]
        level, by_source = np.zeros(patterns), np.zeros(len(self.sources))
        for _ in range(_ROUNDS):
            level = means(pattern, by_row[told] - by_source[source], patterns)
            by_source = means(source, by_row[told] - level[pattern], len(by_source))
        return np.where(np.bincount(pattern, minlength=patterns) > 0, level, np.nan), by_source

    def offsets(
        self, by_row: Floats, class_of: Ints, shape: tuple[int, int]
    ) -> tuple[Floats, Floats]:
        """float64[p,k] and float64[k]: by how much a class costs more than its row does."""
        off, of = self.log_ratio - by_row[self.row], class_of[self.column]
        flat = self.pattern[self.row] * shape[1] + of
        mean = means(flat, off, shape[0] * shape[1])
        known = np.bincount(flat, minlength=mean.size) > 0
        return np.where(known, mean, np.nan).reshape(shape), means(of, off, shape[1])


def means(at: Ints, values: Floats, count: int) -> Floats:
    """float64[count] mean of the values at each place; 0 where there are none."""
    total = np.bincount(at, weights=values, minlength=count)
    mean: Floats = total / np.maximum(np.bincount(at, minlength=count), 1)
    return mean


def telling_parameters(
    configs: Sequence[Mapping[str, Value]], entries: Entries, by_row: Floats, by_config: Floats
) -> tuple[str, ...]:
    """The parameters, one after the other, that take most of the scatter within classes away."""
    left = entries.log_ratio - by_row[entries.row] - by_config[entries.column]
    within = float((left**2).sum()), float(len(left))
    free = 2 * entries.paid < entries.ran
    ran = np.flatnonzero(entries.ran).tolist()
    lowest = float(by_config[entries.column].min())
    effect = np.where(free, lowest - _FREE, by_config)[ran]
    weight = np.where(free, entries.ran, entries.paid)[ran].astype(np.float64)
    names = sorted({name for at in ran for name in configs[at]})
    codes = {name: _codes([configs[at].get(name) for at in ran]) for name in names}
    chosen: list[str] = []
    code = np.zeros(len(ran), dtype=np.int64)
    best = _scatter(code, effect, weight, within)
    while len(chosen) < len(names):
        tried = {name: _merged(code, codes[name]) for name in names if name not in chosen}
        scatter = {name: _scatter(c, effect, weight, within) for name, c in tried.items()}
        name = min(scatter, key=lambda n: scatter[n])
        if scatter[name] > (1.0 - _WORTH) * best:
            break
        best, code = scatter[name], tried[name]
        chosen.append(name)
    return tuple(sorted(chosen))


def _codes(values: Sequence[object]) -> Ints:
    seen: dict[object, int] = {}
    return np.array([seen.setdefault(value, len(seen)) for value in values], dtype=np.int64)


def _merged(one: Ints, other: Ints) -> Ints:
    code: Ints = np.unique(one * (int(other.max()) + 1) + other, return_inverse=True)[1]
    return code


def _scatter(code: Ints, effect: Floats, weight: Floats, within: tuple[float, float]) -> float:
    """Variance of an entry within its class, given the sum of squares and the number of entries
    about their own configuration's mean; each class takes one entry's worth."""
    mean = np.bincount(code, weights=weight * effect) / np.bincount(code, weights=weight)
    off = float((weight * (effect - mean[code]) ** 2).sum())
    return (within[0] + off) / max(within[1] - len(mean), 1.0)
