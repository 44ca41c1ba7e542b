"""All measurements of one op on one platform, as arrays: the evidence.

It is a view over runs and can be rebuilt at any time: per (pattern, platform) row the median
seconds of every configuration that ran, and the default's. Configurations are compared across rows
only by the *gain* log(t_default / t), never by seconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op, Value
from embeddb.core.timing import TimingSummary
from embeddb.core.wording import many_of, one_of, plural

#: Gain of a failed configuration in votes: as if four times slower than the default. It must be
#: finite (one failure is not certainty for another matrix) and clearly worse than any reasonable
#: schedule. It marks failures in arrays of gains, so it is no ratio that small whole numbers, such
#: as cycles, have.
FAILED_GAIN = math.log(0.25) - 1e-6

#: Gain of a winner where only winners were recorded, so that its actual gain is unknown.
WINNER_GAIN = math.log(1.25)
#: Times faster than any other configuration from which a time is implausible.
_FAR_AHEAD = 30


class MatrixRow(NamedTuple):
    """Key and group of a row of times; `op` is the op that ran if it is not the evidence's own."""

    pattern_id: str
    platform: str
    group: str
    op: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """The unique key of a row."""
        return self.pattern_id, self.platform, self.op


class Extent(NamedTuple):
    """Distinct `patterns` and `machines` of `rows`, one for each pattern and machine: several
    machines may have run the same pattern, which is one pattern."""

    patterns: int
    machines: int
    rows: int

    @classmethod
    def of(cls, rows: Iterable[MatrixRow]) -> Extent:
        """Count the rows of the evidence's own op; others are of the same patterns."""
        pairs = {(row.pattern_id, row.platform) for row in rows if not row.op}
        patterns, machines = ({pair[at] for pair in pairs} for at in (0, 1))
        return cls(len(patterns), len(machines), len(pairs))

    def words(self, *kinds: str) -> str:
        """`238 matrices on 4 machines (594 pairs)`; the patterns alone where one machine ran."""
        patterns = plural(self.patterns, one_of(*kinds), many_of(*kinds))
        if self.machines < 2:
            return patterns
        return f"{patterns} on {self.machines:,} machines ({self.rows:,} pairs)"


class RowRuns(NamedTuple):
    """The runs of one row, for its x configurations; slices of the arrays of `RunMatrix`."""

    column: NDArray[np.int32]
    seconds: NDArray[np.float64]
    conversion: NDArray[np.float64]
    spread: NDArray[np.float32]

    @property
    def fastest(self) -> int | None:
        """The position of the least seconds, the first of several; None where all failed."""
        at = int(self.seconds.argmin()) if self.seconds.size else 0
        return at if self.seconds.size and np.isfinite(self.seconds[at]) else None


@dataclass(frozen=True, slots=True, eq=False)
class RunMatrix:
    """Ragged rows: entries `indptr[i]:indptr[i+1]` belong to `rows[i]`.

    Shapes: `indptr` int64[r+1]; `column` int32[x], positions in `configs`; `seconds` float64[x]
    (inf: failed); `conversion` float64[x] seconds; `spread` float32[x]; `default_s` float64[r]
    (nan: the default was not run or failed there). `winners`: only the best
    configuration of each pattern was recorded, so that the others did not win.
    """

    op: Op
    rows: tuple[MatrixRow, ...]
    configs: tuple[Config, ...]
    indptr: NDArray[np.int64]
    column: NDArray[np.int32]
    seconds: NDArray[np.float64]
    conversion: NDArray[np.float64]
    spread: NDArray[np.float32]
    default_s: NDArray[np.float64]
    winners: bool = False

    @property
    def extent(self) -> Extent:
        """Number of patterns and machines."""
        return Extent.of(self.rows)

    @property
    def groups(self) -> NDArray[np.str_]:
        return np.array([row.group for row in self.rows], dtype=np.str_)

    @property
    def neighbour_ids(self) -> set[str]:
        """Ids of the patterns that can be neighbours: for nests those with two configurations, as
        counting leaves a run of the default alone, which does not compare any. All where none
        has."""
        every = {row.pattern_id for row in self.rows}
        if not self.op.workload.two_runs:
            return every
        rows = np.flatnonzero(np.diff(self.indptr) > 1)
        return {self.rows[at].pattern_id for at in rows} or every

    def part(self, row: int) -> slice:
        """The entries of one row."""
        return slice(int(self.indptr[row]), int(self.indptr[row + 1]))

    def row(self, row: int) -> RowRuns:
        """The runs of one row."""
        return RowRuns(**self._entries(self.part(row)))

    def _entries(self, at: Any) -> dict[str, Any]:
        """The arrays of entries by field, indexed by a slice, a mask or positions."""
        return {name: getattr(self, name)[at] for name in RowRuns._fields}

    def winner(self, row: int) -> int | None:
        """The position in `configs` of a row's fastest configuration; None where all failed."""
        runs = self.row(row)
        return None if runs.fastest is None else int(runs.column[runs.fastest])

    def implausible(self) -> Counter[Config]:
        """Configurations by the number of rows where three or more ran, and theirs took less than a
        thirtieth of the time of any other. On 38 logs and operations none did, on one 41 matrices,
        with 5 us where others took up to 26,000 times as long: most likely failed launches."""
        counts = Counter[Config]()
        for start, stop in pairwise(self.indptr.tolist()):
            times = self.seconds[start:stop]
            first = np.argsort(times)[:3]
            several = len(first) == 3 and math.isfinite(times[first[2]])
            if several and _FAR_AHEAD * times[first[0]] < times[first[1]]:
                counts[self.configs[self.column[start + first[0]]]] += 1
        return counts

    def gains(
        self,
        rows: NDArray[np.int64] | None = None,
        *,
        calls: float = math.inf,
        failed: float = FAILED_GAIN,
    ) -> Gains:
        """float64[r,c] of log(t_default / t); nan where not run, `failed` where it failed.

        With a finite number of `calls` the conversion is amortised over them. A row whose default
        did not run (`knows_default`) is relative to the geometric mean of its own times.
        """
        chosen = np.arange(len(self.rows)) if rows is None else np.asarray(rows, dtype=np.int64)
        out = np.full((len(chosen), len(self.configs)), 0.0 if self.winners else np.nan)
        lengths = np.diff(self.indptr)[chosen]
        pick, at = _ranges(self.indptr[chosen], lengths), np.repeat(np.arange(len(chosen)), lengths)
        cost = self.seconds[pick] + self.conversion[pick] / calls
        out[at, self.column[pick]] = failed
        ok = np.isfinite(cost)
        at, column = at[ok], self.column[pick[ok]]
        if self.winners:
            out[at, column] = WINNER_GAIN
            return out
        logs, default = np.log(cost[ok]), self.default_s[chosen]
        base = np.log(np.where(np.isfinite(default), default, 1.0))
        own = np.bincount(at, logs, len(chosen)) / np.maximum(np.bincount(at, None, len(chosen)), 1)
        out[at, column] = np.where(np.isfinite(default), base, own)[at] - logs
        return out

    @property
    def knows_default(self) -> NDArray[np.bool_]:
        """Mask bool[r] of the rows whose default ran, so that their gains are over the default."""
        return np.isfinite(self.default_s) & (not self.winners)

    def times(self, row: int) -> NDArray[np.float64]:
        """float64[c] seconds of one row; nan where not run, inf where it failed."""
        runs = self.row(row)
        out = np.full(len(self.configs), np.nan)
        out[runs.column] = runs.seconds
        return out

    @property
    def noise(self) -> float:
        """Median relative spread between repeated runs; 0 where nothing ran twice."""
        return _noise(self.spread)

    def noise_on(self, platform: str) -> float:
        """The `noise` of one machine's own rows; that of all rows where it ran nothing twice."""
        here = np.array([row.platform == platform for row in self.rows], dtype=np.bool_)
        spread = self.spread[np.repeat(here, np.diff(self.indptr))]
        return _noise(spread) or self.noise

    def take(self, keep: NDArray[np.int64]) -> RunMatrix:
        """Only some rows; all configurations stay."""
        lengths = np.diff(self.indptr)[keep]
        return replace(
            self,
            rows=tuple(self.rows[i] for i in keep),
            indptr=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            default_s=self.default_s[keep],
            **self._entries(_ranges(self.indptr[keep], lengths)),
        )

    def where(self, wanted: Callable[[MatrixRow], bool]) -> RunMatrix:
        """Only the wanted rows; all configurations stay."""
        return self.take(np.flatnonzero(list(map(wanted, self.rows))))

    def of_platform(self, platform_id: str) -> RunMatrix:
        """Only the rows of one platform instance, and their configurations."""
        return self.where(lambda row: row.platform == platform_id).pruned()

    def without(self, configs: Iterable[Config]) -> RunMatrix:
        """Without some configurations and those that no row ran; all rows stay."""
        barred = set(configs)
        keep = np.array([c not in barred for c in self.configs], dtype=np.bool_)[self.column]
        indptr = np.concatenate([[0], np.cumsum(keep)])[self.indptr].astype(np.int64)
        return replace(self, indptr=indptr, **self._entries(keep)).pruned()

    def pruned(self) -> RunMatrix:
        """Without the configurations that no row ran."""
        used = np.unique(self.column)
        place = np.zeros(len(self.configs), dtype=np.int32)
        place[used] = np.arange(used.size, dtype=np.int32)
        configs = tuple(self.configs[i] for i in used)
        return replace(self, configs=configs, column=place[self.column])

    def over(self, configs: tuple[Config, ...]) -> RunMatrix:
        """The same with columns of `configs`, which contain all of its own."""
        position = {config: at for at, config in enumerate(configs)}
        places = np.array([position[c] for c in self.configs], dtype=np.int32)
        return replace(self, configs=configs, column=places[self.column])

    def in_order(self) -> RunMatrix:
        """The configurations that ran in order of their text, and each row's entries in theirs."""
        ran = self.pruned()
        ran = ran.over(tuple(sorted(ran.configs, key=lambda c: c.json)))
        row = np.repeat(np.arange(len(ran.rows)), np.diff(ran.indptr))
        return replace(ran, **ran._entries(np.lexsort((ran.column, row))))

    def followed_by(self, other: RunMatrix) -> RunMatrix:
        """With further rows, whose new configurations come last."""
        own = set(self.configs)
        configs = (*self.configs, *(c for c in other.configs if c not in own))
        further = other.over(configs)
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(further, name)])
            for name in (*RowRuns._fields, "default_s")
        }
        return replace(
            self,
            rows=self.rows + further.rows,
            configs=configs,
            indptr=np.concatenate([self.indptr, further.indptr[1:] + self.indptr[-1]]),
            **joined,
        )

    def merged(self, other: RunMatrix) -> RunMatrix:
        """Both, with the rows of `other` in place of rows of the same pattern, platform and op."""
        replaced = {row.key for row in other.rows}
        configs = tuple(sorted({*self.configs, *other.configs}, key=lambda c: c.json))
        rest = self.where(lambda row: row.key not in replaced)
        both = rest.over(configs).followed_by(other.over(configs))
        order = sorted(range(len(both.rows)), key=lambda i: both.rows[i])
        return both.take(np.array(order, dtype=np.int64))


Gains = NDArray[np.float64]


def _noise(spread: NDArray[np.float32]) -> float:
    repeated = spread[spread > 0]
    return float(np.median(repeated)) if repeated.size else 0.0


def coded(configs: Sequence[Mapping[str, Value]]) -> NDArray[np.int64]:
    """Parameter values int64[c,p] as codes, parameters by name: equal values of a parameter have
    equal codes."""
    names = sorted({name for config in configs for name in config})
    codes = np.empty((len(configs), len(names)), dtype=np.int64)
    for at, name in enumerate(names):
        values: dict[object, int] = {}
        for row, config in enumerate(configs):
            codes[row, at] = values.setdefault(config.get(name), len(values))
    return codes


def _ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    offsets = np.repeat(starts - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    positions: NDArray[np.int64] = np.arange(len(offsets)) + offsets
    return positions


def join(
    op: Op,
    rows: Iterable[tuple[MatrixRow, Config, dict[Config, TimingSummary]]],
    *,
    winners: bool = False,
) -> RunMatrix:
    """Evidence from rows with the default configuration and the timings of each.

    Rows are ordered by pattern and platform, configurations by their canonical text, so that the
    same runs give the same arrays whatever order they were stored in.
    """
    entries = sorted(map(_row_entries, rows), key=lambda entry: entry.row)
    configs = sorted(set().union(*(entry.configs for entry in entries)), key=lambda c: c.json)
    position = {config: at for at, config in enumerate(configs)}
    columns = [np.array([position[c] for c in entry.configs], dtype=np.int32) for entry in entries]
    orders = [column.argsort() for column in columns]
    indptr = np.zeros(len(entries) + 1, dtype=np.int64)
    np.cumsum([len(column) for column in columns], out=indptr[1:])
    figures = [entry.figures[order] for entry, order in zip(entries, orders, strict=True)]
    joined = np.concatenate([np.zeros((0, 3)), *figures])
    ordered = [column[order] for column, order in zip(columns, orders, strict=True)]
    return RunMatrix(
        op,
        tuple(entry.row for entry in entries),
        tuple(configs),
        indptr,
        np.concatenate([np.zeros(0, dtype=np.int32), *ordered]),
        joined[:, 0].copy(),
        joined[:, 2].copy(),
        joined[:, 1].astype(np.float32),
        np.array([entry.default_s for entry in entries], dtype=np.float64),
        winners,
    )


class _RowEntries(NamedTuple):
    """A row's timings without an object a run: `figures` float64[e,3] of seconds, spread,
    conversion of its e configurations."""

    row: MatrixRow
    configs: list[Config]
    figures: NDArray[np.float64]
    default_s: float


def _row_entries(entry: tuple[MatrixRow, Config, dict[Config, TimingSummary]]) -> _RowEntries:
    row, default, timings = entry
    figures = np.array([timing[:3] for timing in timings.values()], dtype=np.float64)
    timing = timings.get(default)
    timed = timing is not None and math.isfinite(timing.seconds)
    default_s = timing.seconds if timing is not None and timed else math.nan
    return _RowEntries(row, list(timings), figures.reshape(-1, 3), default_s)
