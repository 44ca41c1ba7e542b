"""Performance counters of one nest: 19 counters, each as five statistics over the threads.

Source: "Performance Embeddings", Section 3.2 and Table 5 (an Intel Xeon Gold 6140, by LIKWID).
Counters that a source cannot measure are absent (nan), never 0. Counters are comparable only within
one source and one machine: a simulated store is of one element, a processor's may be of sixteen.
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

#: Table 5, in its order. The first thirteen count instructions, arithmetic by type and width
#: (scalar where the source has no width); the last six count cache lines.
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
#: Statistics over the threads of the nest, idle ones included. `std` is the population's.
STATISTICS = ("min", "max", "mean", "std", "sum")
#: `perf`: the processor's own counters; `model`: an instrumented build with simulated caches.
SOURCES = ("perf", "model")
LINE_BYTES = 64

_PACKED = frozenset(name for name in COUNTERS if name.endswith(("_128", "_256", "_512")))
_FORM = 1
_MOST_BYTES = 1 << 14
_MOST_THREADS = 1 << 14
#: Relative tolerance of sums over thousands of threads in single precision.
_ROUNDING = 1e-5

#: Available counters by the kind of source. Memory controllers count for the whole machine, so
#: memory reads are misses of the last cache on Intel and fills from memory on AMD. AMD's event of
#: stores excludes vector stores, and its flops have no type (that of the nest is used, where there
#: is only one).
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
    nan where the counter is absent. `about` describes in one line how they were obtained.

    Raises: NestError for an invalid vector.
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

    def of(self, counter: str, statistic: str = "sum") -> float:
        """One value; nan where it is absent."""
        return float(self.table[COUNTERS.index(counter), STATISTICS.index(statistic)])

    @property
    def text(self) -> str:
        """JSON of one line, for the store; absent counters are left out."""
        rows = zip(COUNTERS, self.table.tolist(), strict=True)
        fields = {
            "counters": _FORM,
            "source": self.source,
            "threads": self.threads,
            "about": self.about,
            "values": {name: row for name, row in rows if not math.isnan(row[0])},
        }
        return json.dumps(fields, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_text(cls, text: bytes | str, *, where: str = "") -> CounterVector:
        """Read `text` back and check it. Raises: NestError, one line that names the field."""
        with refusing(NestError, where=where):
            if len(text) > _MOST_BYTES:
                raise NestError(f"counters: longer than {_MOST_BYTES} bytes")
            fields = json.loads(text)
            if not isinstance(fields, dict) or fields.get("counters") != _FORM:
                raise NestError(f'is not a set of counters: it needs "counters": {_FORM}')
            values, threads = fields.get("values"), fields.get("threads")
            source, about = fields.get("source"), fields.get("about", "")
            if not isinstance(values, dict) or type(threads) is not int:
                raise NestError("counters need values by name and a number of threads")
            if not isinstance(source, str) or not isinstance(about, str):
                raise NestError("source and about must be texts")
            return cls(_read_values(values), source, threads, about)


def _read_values(rows: Mapping[str, Any]) -> NDArray[np.float32]:
    table = np.full((len(COUNTERS), len(STATISTICS)), np.nan, dtype=np.float32)
    for name, row in rows.items():
        if name not in COUNTERS:
            raise NestError(f"there is no counter {name[:40]!r}")
        if not isinstance(row, list) or len(row) != len(STATISTICS):
            raise NestError(f"{name}: needs {', '.join(STATISTICS)}")
        if not all(type(x) in (int, float) and 0 <= x < 1e30 for x in row):
            raise NestError(f"{name}: a count is a number of at least 0")
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
        raise NestError(f"{name}: {row} cannot be minimum, maximum, mean, deviation and sum")
