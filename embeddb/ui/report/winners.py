"""Winning configurations and parameter values of a scope, and the gain of one fixed choice for a
class of matrices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.core.records import WorkloadInfo
from embeddb.core.wording import many_of, value_text
from embeddb.index.run_matrix import Extent, RunMatrix

#: Largest numbers of items, so that a report stays small.
_MOST_GROUPS = 12
_MOST_VALUES = 6
#: Fewest matrices of a class: the best fixed choice for one is just its own best.
_CLASS = 3
#: Share of winners above which a parameter's value is settled.
_SETTLED = 0.95
#: Smallest share of the matrices of the most measured configuration on which a fixed choice was
#: measured: means over fewer matrices are not comparable.
_TRIED = 0.5
#: Pseudo-runs that shrink a configuration's mean gain to zero, as in answers.
_PSEUDO_RUNS = 1.0
#: Classes by nonzeros in a mean row, longest first: lower bound and name.
_ROWS = ((64, "64 or more"), (16, "16 to 64"), (4, "4 to 16"), (0, "under 4"))


class Winner(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration that was the fastest on `patterns` matrices, on any machine, and its
    geometric mean gain over the default there (None: the default did not run)."""

    config: dict[str, Any]
    patterns: int
    gain: float | None


class Preference(msgspec.Struct, frozen=True, kw_only=True):
    """Distribution of a parameter's values among the fastest configurations: shares of matrices,
    the most frequent first; `others` is the number of further values."""

    parameter: str
    shares: dict[str, float]
    others: int

    @property
    def settled(self) -> bool:
        """True if nearly all winners have one value."""
        return max(self.shares.values()) >= _SETTLED


class ClassChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The best fixed choice for a class of matrices: `kind` is `all`, `row length` or `group`.

    `gain` is the geometric mean over the `tried` matrices of the class on which it and the default
    ran (a failure counts as the default); `headroom` that of each matrix's best. Candidates are
    configurations measured on about as many matrices as any other.
    """

    kind: str
    name: str
    patterns: int
    config: dict[str, Any]
    gain: float | None
    tried: int
    headroom: float | None


@dataclass(frozen=True)
class Best:
    """Fastest configurations, for r rows and x entries of evidence: `column` int64[r] the fastest
    configuration (-1: all failed), `gain` float64[r] its log gain over the default (nan: unknown),
    `row` int64[x] the row of an entry, `entry` float64[x] its log gain, 0 for a failure, nan if
    unknown."""

    evidence: RunMatrix
    column: NDArray[np.int64]
    gain: NDArray[np.float64]
    row: NDArray[np.int64]
    entry: NDArray[np.float64]

    @classmethod
    def of(cls, e: RunMatrix) -> Best:
        row = np.repeat(np.arange(len(e.rows)), np.diff(e.indptr))
        has_default = e.knows_default[row]
        ok = np.isfinite(e.seconds)
        entry = np.where(has_default, 0.0, np.nan)
        entry[has_default & ok] = np.log(e.default_s[row] / np.where(ok, e.seconds, 1.0))[
            has_default & ok
        ]
        column = np.full(len(e.rows), -1, dtype=np.int64)
        gain = np.full(len(e.rows), np.nan)
        for at in range(len(e.rows)):
            runs = e.row(at)
            if runs.fastest is not None:
                column[at] = runs.column[runs.fastest]
                gain[at] = entry[e.part(at)][runs.fastest]
        return cls(e, column, gain, row, entry)

    def winners(self, most: int) -> list[Winner]:
        counts = Counter(int(c) for c in self.column if c >= 0)
        return [
            Winner(
                config=dict(self.evidence.configs[c]),
                patterns=self._patterns(self.column == c),
                gain=_mean_factor(self.gain[self.column == c]),
            )
            for c, _ in counts.most_common(most)
        ]

    def preferences(self) -> list[Preference]:
        """Preferences of parameters that have more than one value among winners."""
        won = [self.evidence.configs[c] for c in self.column if c >= 0]
        rows = []
        for name in sorted({n for config in won for n in config}):
            counts = Counter(value_text(config.get(name)) for config in won)
            if len(counts) > 1:
                shares = {v: n / len(won) for v, n in counts.most_common(_MOST_VALUES)}
                others = max(0, len(counts) - _MOST_VALUES)
                rows.append(Preference(parameter=name, shares=shares, others=others))
        return rows

    def choice(self, kind: str, name: str, rows: NDArray[np.bool_]) -> ClassChoice | None:
        """The best fixed choice for the rows with true `rows` bool[r]."""
        picked = rows[self.row]
        if not picked.any():
            return None
        used = picked & np.isfinite(self.entry)
        at, gain, among = self._most_frequent(rows), None, rows
        if used.any():
            size = len(self.evidence.configs)
            column = self.evidence.column[used]
            count = np.bincount(column, minlength=size)
            total = np.bincount(column, self.entry[used], minlength=size)
            mean = np.where(count >= _TRIED * count.max(), total / (count + _PSEUDO_RUNS), -np.inf)
            at = int(mean.argmax())
            gain = float(np.exp(total[at] / count[at]))
            among = np.zeros_like(rows)
            among[self.row[used & (self.evidence.column == at)]] = True
        return ClassChoice(
            kind=kind,
            name=name,
            patterns=self._patterns(rows),
            config=dict(self.evidence.configs[at]) if at >= 0 else {},
            gain=gain,
            tried=self._patterns(among) if gain is not None else 0,
            headroom=_mean_factor(self.gain[among]),
        )

    def _patterns(self, rows: NDArray[np.bool_]) -> int:
        """Number of matrices of the rows with true `rows` bool[r]."""
        return Extent.of(self.evidence.rows[at] for at in np.flatnonzero(rows)).patterns

    def _most_frequent(self, rows: NDArray[np.bool_]) -> int:
        won = Counter(int(c) for c in self.column[rows] if c >= 0)
        return won.most_common(1)[0][0] if won else -1


def is_shared(op: Op | str) -> bool:
    """True if configurations transfer between workloads: a fusion plan is one program's own, and a
    fused kernel has no configurations."""
    read = Op.parse(op) if isinstance(op, str) else op
    return read.workload.embedded and read.traits.tunable


def choices(
    best: Best, infos: Mapping[str, WorkloadInfo], *, kind: str = "matrix"
) -> list[ClassChoice]:
    """Best fixed choices: of all workloads of a kind, by mean row length, of the largest groups."""
    rows = best.evidence.rows
    lengths = [_row_length(infos.get(r.pattern_id)) for r in rows]
    groups = Counter(group for group, _ in {(r.group, r.pattern_id) for r in rows})
    large = [g for g, n in groups.most_common(_MOST_GROUPS) if n >= _CLASS]
    wanted = [("all", f"all {many_of(kind)}", np.ones(len(rows), dtype=np.bool_))]
    wanted += [
        ("row length", name, np.array([length == name for length in lengths], dtype=np.bool_))
        for _, name in reversed(_ROWS)
    ]
    wanted += [("group", g, np.array([r.group == g for r in rows], dtype=np.bool_)) for g in large]
    wanted = [w for w in wanted if w[0] == "all" or w[2].sum() >= _CLASS]
    return [c for kind, name, mask in wanted if (c := best.choice(kind, name, mask)) is not None]


def _row_length(info: WorkloadInfo | None) -> str:
    if info is None or info.m <= 0 or info.nnz < 0:
        return ""
    return next(name for least, name in _ROWS if info.nnz / info.m >= least)


def _mean_factor(logs: NDArray[np.float64]) -> float | None:
    finite = logs[np.isfinite(logs)]
    return float(np.exp(finite.mean())) if finite.size else None
