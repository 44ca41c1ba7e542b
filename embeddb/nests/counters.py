"""The performance counters of one nest: 19 of them, each by five statistics over the threads.

Source: "Performance Embeddings", Section 3.2 and Table 5 (an Intel Xeon Gold 6140, by LIKWID). What
a source cannot count is absent (nan), never 0. Counters are comparable within one source and one
machine only: a simulated store is one store, a processor's may be of sixteen elements.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import NestError
from embeddb.core.files.safe_read import refusing

#: Table 5, in its order. Of instructions: the first twelve and loads and stores; arithmetic by type
#: and width, in the scalar class where the source knows no width. Of cache lines: the last six.
COUNTERS = (
    "instructions",
    *(f"f32_{width}" for width in ("scalar", "128", "256", "512")),
    *(f"f64_{width}" for width in ("scalar", "128", "256", "512")),
    "branches",
    "mispredictions",
    "loads",
    "stores",
    "memory_reads",
    "memory_writes",
    "l2_lines_in",
    "l2_writebacks",
    "l1_lines_in",
    "l1_modified_evictions",
)
#: Over the threads of the nest; those that got no work count too. `std` is that of all of them.
STATISTICS = ("min", "max", "mean", "std", "sum")
#: `perf`: the processor's own counters; `model`: an instrumented build with simulated caches.
SOURCES = ("perf", "model")
LINE_BYTES = 64

_PACKED = frozenset(name for name in COUNTERS if name.endswith(("_128", "_256", "_512")))
_FORM = 1
_MOST_BYTES = 1 << 14
_MOST_THREADS = 1 << 14
#: Single precision, of sums of thousands of threads.
_ROUNDING = 1e-5

#: By what counts, the counters that it has. The controllers of the memory count for the whole
#: machine: on Intel, what missed the last cache stands for reads; on AMD, what was filled from
#: memory. AMD's event of stores misses those of vectors, and its flops know no type (the type is
#: that of the nest, where there is one only).
GIVEN: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "intel": frozenset(COUNTERS) - {"memory_writes"},
        "amd": frozenset(COUNTERS)
        - _PACKED
        - {"stores", "memory_writes", "l2_writebacks", "l1_modified_evictions"},
        "model": frozenset(COUNTERS) - _PACKED,
    }
)


@dataclass(frozen=True, eq=False)
class CounterVector:
    """Counters of one run of a nest's canonical schedule.

    Shapes: `values` float32[95], by counter (`COUNTERS`), within it by statistic (`STATISTICS`),
    nan where the counter is absent. `about` says how they were obtained, in a line.

    Raises: NestError for what is no such vector.
    """

    values: NDArray[np.float32]
    source: str
    threads: int
    about: str = ""

    def __post_init__(self) -> None:
        if self.values.shape != (len(COUNTERS) * len(STATISTICS),):
            raise NestError(f"{self.values.size} counters, not {len(COUNTERS)} x {len(STATISTICS)}")
        if self.source not in SOURCES:
            raise NestError(f"source: {self.source[:20]!r} is none of {', '.join(SOURCES)}")
        if not 1 <= self.threads <= _MOST_THREADS:
            raise NestError(f"threads: {self.threads} is not within 1 to {_MOST_THREADS}")
        if len(self.about) > 500 or not self.about.isprintable():
            raise NestError("about: must be a line of at most 500 characters")
        for name, row in zip(COUNTERS, self.table.tolist(), strict=True):
            _check_row(name, row)

    @classmethod
    def of_threads(
        cls, counts: NDArray[np.float64], source: str, *, about: str = ""
    ) -> CounterVector:
        """From `counts` float64[threads,19]; a counter that is nan for one thread is absent."""
        threads = counts.shape[0]
        columns = (counts.min(0), counts.max(0), counts.mean(0), counts.std(0), counts.sum(0))
        values = np.stack(columns, axis=1).astype(np.float32).ravel()
        return cls(values, source, threads, about)

    @property
    def table(self) -> NDArray[np.float32]:
        """float32[19,5]"""
        return self.values.reshape(len(COUNTERS), len(STATISTICS))

    @property
    def present(self) -> NDArray[np.bool_]:
        """bool[95]: where `values` holds a number."""
        return ~np.isnan(self.values)

    def of(self, counter: str, statistic: str = "sum") -> float:
        """One value; nan where it is absent."""
        return float(self.table[COUNTERS.index(counter), STATISTICS.index(statistic)])

    @property
    def memory_bytes(self) -> float:
        """Read from and written to main memory, all threads together; reads alone where writes are
        not counted; nan where neither is."""
        return self._moved("memory_reads", "memory_writes")

    @property
    def l3_bytes(self) -> float:
        """The same between L2 and what is behind it."""
        return self._moved("l2_lines_in", "l2_writebacks")

    @property
    def l2_bytes(self) -> float:
        """The same between L1 and L2."""
        return self._moved("l1_lines_in", "l1_modified_evictions")

    def _moved(self, reads: str, writes: str) -> float:
        out = self.of(writes)
        return LINE_BYTES * (self.of(reads) + (0.0 if math.isnan(out) else out))

    @property
    def text(self) -> str:
        """JSON of one line, for the store; absent counters are left out."""
        rows = zip(COUNTERS, self.table.tolist(), strict=True)
        told = {
            "counters": _FORM,
            "source": self.source,
            "threads": self.threads,
            "about": self.about,
            "values": {name: row for name, row in rows if not math.isnan(row[0])},
        }
        return json.dumps(told, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_text(cls, text: bytes | str, *, where: str = "") -> CounterVector:
        """`text` read back and checked. Raises: NestError, one line that names the field."""
        with refusing(NestError, where=where):
            if len(text) > _MOST_BYTES:
                raise NestError(f"counters: longer than {_MOST_BYTES} bytes")
            told = json.loads(text)
            if not isinstance(told, dict) or told.get("counters") != _FORM:
                raise NestError(f'are no counters: they need "counters": {_FORM}')
            values, threads = told.get("values"), told.get("threads")
            source, about = told.get("source"), told.get("about", "")
            if not isinstance(values, dict) or type(threads) is not int:
                raise NestError("counters need values by name and a number of threads")
            if not isinstance(source, str) or not isinstance(about, str):
                raise NestError("source and about must be texts")
            return cls(_read_values(values), source, threads, about)


def _read_values(told: Mapping[str, Any]) -> NDArray[np.float32]:
    table = np.full((len(COUNTERS), len(STATISTICS)), np.nan, dtype=np.float32)
    for name, row in told.items():
        if name not in COUNTERS:
            raise NestError(f"there is no counter {name[:40]!r}")
        if not isinstance(row, list) or len(row) != len(STATISTICS):
            raise NestError(f"{name}: needs {', '.join(STATISTICS)}")
        if not all(type(x) in (int, float) and 0 <= x < 1e30 for x in row):
            raise NestError(f"{name}: a count is a number from 0 up")
        table[COUNTERS.index(name)] = row
    return table.ravel()


def _check_row(name: str, row: list[float]) -> None:
    absent = [math.isnan(x) for x in row]
    if all(absent):
        return
    least, most, mean, std, total = row
    room = _ROUNDING * total
    ordered = 0 <= least <= mean + room and mean <= most + room and most <= total + room
    if any(absent) or not ordered or not 0 <= std <= most + room or math.isinf(total):
        raise NestError(f"{name}: {row} are no minimum, maximum, mean, deviation and sum")
