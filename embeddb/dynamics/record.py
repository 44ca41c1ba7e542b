"""Counters with their sources, and the vector of 19."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddb.core.errors import InputError, NothingFound
from embeddb.nests.counters import CounterVector

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: Sources of values, the most trusted last.
SOURCES = ("model", "simulated", "cachegrind", "perf")

#: The 19 counters of Table 5 of the performance-embeddings paper, in its order. The paper has
#: them per Xeon Gold 6140 event; FP_ARITH events count instructions, a fused multiply-add twice.
TABLE_5 = (
    "INSTR_RETIRED_ANY",
    "FP_ARITH_INST_RETIRED_SCALAR_SINGLE",
    "FP_ARITH_INST_RETIRED_128B_PACKED_SINGLE",
    "FP_ARITH_INST_RETIRED_256B_PACKED_SINGLE",
    "FP_ARITH_INST_RETIRED_512B_PACKED_SINGLE",
    "FP_ARITH_INST_RETIRED_SCALAR_DOUBLE",
    "FP_ARITH_INST_RETIRED_128B_PACKED_DOUBLE",
    "FP_ARITH_INST_RETIRED_256B_PACKED_DOUBLE",
    "FP_ARITH_INST_RETIRED_512B_PACKED_DOUBLE",
    "BR_INST_RETIRED_ALL_BRANCHES",
    "BR_MISP_RETIRED_ALL_BRANCHES",
    "MEM_INST_RETIRED_ALL_LOADS",
    "MEM_INST_RETIRED_ALL_STORES",
    "CAS_COUNT_RD",
    "CAS_COUNT_WR",
    "L2_LINES_IN_ALL",
    "L2_TRANS_L2_WB",
    "L1D_REPLACEMENT",
    "L1D_M_EVICT",
)


@dataclass(frozen=True, slots=True)
class Counter:
    """One value: its unit (`instructions`, `lines` of 64 bytes, `flops`, `bytes`, `ratio`) and its
    source, one of `SOURCES`. `note` names omissions of the value, if any. Raises: InputError for an
    unknown source or a value that is not finite."""

    value: float
    unit: str
    source: str
    note: str = ""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise InputError(f"source {self.source!r} is none of {', '.join(SOURCES)}")
        if not np.isfinite(self.value):
            raise InputError(f"a counter cannot be {self.value}: omit it and give the reason")


@dataclass(frozen=True, slots=True)
class ReuseHistogram:
    """LRU reuse distances of the dense rows, over all threads, each with a cache of its own.

    The distance of an access is the number of distinct units accessed since the last access to the
    same unit. `counts[0]` are distances of 0, `counts[b]` those in [2^(b-1), 2^b). `cold` are first
    accesses. A unit has `unit_bytes`: a dense row, a tile of it, or a cache line where that is
    larger. `share` is the simulated fraction of the matrix: 1 unless it was sampled.
    """

    counts: tuple[int, ...]
    cold: int
    unit_bytes: int
    share: float

    @property
    def accesses(self) -> int:
        return sum(self.counts) + self.cold


@dataclass(frozen=True, slots=True)
class Dynamics:
    """Dynamic features of one op on one pattern, for one call from cold caches unless a counter's
    source says otherwise.

    `counters`: values by name in `TABLE_5`; `missing`: reasons for the absent ones. `quantities`:
    further values (flops, bytes, miss ratios, imbalance). `by_thread` float64[threads, 19]:
    simulated values by thread, nan where there are none; counts by tools are over all threads and
    do not change them. `notes` are general remarks, one line each.
    """

    counters: Mapping[str, Counter]
    missing: Mapping[str, str]
    quantities: Mapping[str, Counter]
    reuse: ReuseHistogram
    by_thread: NDArray[np.float64] = field(compare=False)
    notes: tuple[str, ...] = field(default=())

    def vector(self) -> NDArray[np.float32]:
        """float32[19] in the order of `TABLE_5`, NaN where there is no value."""
        values = [self.counters[n].value if n in self.counters else np.nan for n in TABLE_5]
        return np.array(values, dtype=np.float32)

    def mask(self) -> NDArray[np.bool_]:
        """bool[19]: true where `vector` has a value."""
        return np.array([name in self.counters for name in TABLE_5], dtype=np.bool_)

    def over_threads(self) -> CounterVector:
        """float32[95]: each of the 19 as minimum, maximum, mean, deviation and sum over threads, as
        in the paper's dynamic encoding (Section 3.2); nan where there are no simulated values."""
        about = f"simulated, {len(self.by_thread)} threads"
        return CounterVector.of_threads(self.by_thread, "model", about=about)

    def merged(
        self,
        counted: Mapping[str, Counter],
        missing: Mapping[str, str],
        notes: tuple[str, ...] = (),
    ) -> Dynamics:
        """Merge counts of a tool: a value replaces one of a less trusted source; a reason replaces
        the old one where there is still no value. Raises: InputError for a name that is not in
        `TABLE_5`."""
        counters = dict(self.counters)
        for name, counter in counted.items():
            if name not in TABLE_5:
                raise InputError(f"{name} is not a counter of Table 5")
            old = counters.get(name)
            if old is None or SOURCES.index(old.source) <= SOURCES.index(counter.source):
                counters[name] = counter
        reasons = {**self.missing, **missing}
        left = {name: reasons[name] for name in TABLE_5 if name not in counters}
        return replace(self, counters=counters, missing=left, notes=self.notes + notes)


#: Size of a cache line in bytes, on x86 and most others.
LINE_BYTES = 64
MACHINE = Path("/sys/devices/system/cpu/cpu0/cache")
_SCALES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Cache:
    """One level of data cache; `shared` if several cores use it."""

    level: int
    size_bytes: int
    shared: bool


def caches_of(
    traits: Mapping[str, Any], *, here: bool = True, folder: Path = MACHINE
) -> tuple[Cache, ...]:
    """L1 to L3, from the traits `l1_bytes`, `l2_bytes`, `l3_bytes` of a platform if it has any (L3
    is then taken as shared), else, if its kernels run `here`, from the system's description of the
    first processor. Raises: NothingFound if neither has a cache; InputError for an invalid trait.
    """
    stated = [(level, traits.get(f"l{level}_bytes", 0)) for level in (1, 2, 3)]
    for level, size in stated:
        number = isinstance(size, int | float) and not isinstance(size, bool)
        if not number or not (size == 0 or LINE_BYTES <= size <= 1 << 40):
            raise InputError(f"the trait l{level}_bytes = {size!r} is not a cache size in bytes")
    caches = tuple(Cache(level, int(size), level == 3) for level, size in stated if size)
    caches = caches or (tuple(_machine(folder)) if here else ())
    if not caches:
        raise NothingFound(
            "the cache sizes of the platform are unknown",
            hint="give the platform file the traits l1_bytes, l2_bytes, l3_bytes",
        )
    return caches


def _machine(folder: Path) -> list[Cache]:
    caches = []
    for read in data_caches(folder):
        level, size = read("level"), size_bytes(read("size"))
        if level in ("1", "2", "3") and size:
            shared = not read("shared_cpu_list").isdigit()
            caches.append(Cache(int(level), size, shared))
    return sorted(caches, key=lambda cache: cache.level)


def data_caches(folder: Path = MACHINE) -> Iterator[Callable[[str], str]]:
    """For each data cache of the first processor, as the system describes it, a function that
    returns an attribute by its name; empty if the system lacks it."""
    for index in sorted(folder.glob("index[0-9]*")):
        read = partial(_text, index)
        if read("type") in ("Data", "Unified"):
            yield read


def size_bytes(text: str) -> int:
    """Bytes of a size such as `32K`; 0 for anything else."""
    size = re.fullmatch(r"(\d{1,12})([KMG]?)", text)
    return int(size[1]) * _SCALES[size[2]] if size else 0


def _text(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
