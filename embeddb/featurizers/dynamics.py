"""Simulated hardware counters of canonical runs of a matrix: the dynamic encoding of "Performance
Embeddings" (Section 3.2). The runs are SpMV, which shows how columns share cache lines, and SpMM
with 32 dense columns, which shows what fits the caches: rows in order, one block of rows for each
of 16 threads, on fixed cache sizes, so that a vector means the same on every machine."""

from __future__ import annotations

import math
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.core.extras import install_hint
from embeddb.core.pattern import Pattern
from embeddb.core.records import WorkloadInfo
from embeddb.dynamics.profile import profile
from embeddb.dynamics.record import Cache
from embeddb.dynamics.walk import middle_of, plain
from embeddb.featurizers.base import Featurizer
from embeddb.nests.counters import COUNTERS, STATISTICS

_THREADS = 16
#: As for modelled nests on an unknown machine: 32 KiB, 1 MiB, and a part of 32 MiB.
_CACHES = (Cache(1, 32 << 10, False), Cache(2, 1 << 20, False), Cache(3, 32 << 20, True))
#: Largest number of simulated accesses to dense rows; beyond, a window of each thread's accesses
#: stands for all: some hundredths of a second in total.
_ACCESSES = 1 << 18
#: Largest number of non-zeros visited, some 100 bytes each.
_WALKED = 20_000_000
#: Counters that a cache simulation provides; arithmetic of the other type is 0.
COUNTED = (
    "f32_scalar",
    "memory_reads",
    "memory_writes",
    "l2_lines_in",
    "l2_writebacks",
    "l1_lines_in",
    "l1_modified_evictions",
)
_PLACES = [
    COUNTERS.index(name) * len(STATISTICS) + at for name in COUNTED for at in range(len(STATISTICS))
]
#: Further quantities, without a logarithm.
_RATIOS = (
    *(f"{what}_l{level}" for what in ("miss_ratio", "locality") for level in (1, 2, 3)),
    *(f"imbalance_{kind}" for kind in ("static", "dynamic", "guided", "position")),
)
#: Canonical runs, and the quantities of each.
_OPS = (Op("spmv"), Op("spmm", 32))
_EACH = (
    *(f"log_{counter}_{statistic}" for counter in COUNTED for statistic in STATISTICS),
    *_RATIOS,
    "log_intensity",
)


class DynamicsFeatures:
    """float32[46] for each run: 7 counters as minimum, maximum, mean, deviation and sum over
    threads, as log2(1 + x); then miss ratios, locality Q/D and imbalance, and log2 of flops per
    compulsory byte.

    A simulation provides 35 of the paper's 95 numbers; the others have no coordinate.
    """

    name = "dynamics"
    version = "1"
    names = tuple(f"{op}_{name}" for op in _OPS for name in _EACH)
    dim = len(names)

    def missing(self) -> str:
        """Names numba where it is not installed."""
        return "" if find_spec("numba") else f"numba is missing ({install_hint('dynamics')})"

    def embed(self, pattern: Pattern) -> NDArray[np.float32]:
        """float32[d] of the structure, of rows in the middle where it has more than 20,000,000
        non-zeros. Raises: MissingDependency without numba."""
        part = middle_of(pattern, _WALKED)
        return np.concatenate([_of_run(part, op) for op in _OPS]).astype(np.float32)

    def from_info(self, info: WorkloadInfo) -> NDArray[np.float32] | None:
        """Return None: the structure is needed."""
        return None


PLUGIN: type[Featurizer] = DynamicsFeatures


def _of_run(pattern: Pattern, op: Op) -> NDArray[np.float64]:
    dynamics = profile(pattern, op, plain(_THREADS), caches=_CACHES, max_accesses=_ACCESSES)
    values = {name: counter.value for name, counter in dynamics.quantities.items()}
    counts = np.log2(1.0 + dynamics.over_threads().values[_PLACES].astype(np.float64))
    intensity = math.log2(1.0 + values["flops"] / max(values["bytes_compulsory"], 1.0))
    return np.array([*counts, *(values[name] for name in _RATIOS), intensity])
