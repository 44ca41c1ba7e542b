"""Performance parameters of one thread of a machine, for the analytical model of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from embeddb.core.sizes import positive

#: Size of a cache line, and of a page, in bytes.
LINE, PAGE = 64, 4096
#: Vector units of a thread, of 32 bytes each, with one multiply-add per cycle; f32 flops per cycle.
_UNITS, _UNIT_BYTES = 2, 32
_SCATTERING = 64
FLOPS = 2.0 * _UNITS * _UNIT_BYTES / 4
#: Largest clock of a server: a machine with a higher multiply-add rate has units as wide as its
#: vectors, of which code by gcc uses half. A desktop above this with AVX-512 and units of 32 bytes
#: is taken for half its clock.
_MOST_HERTZ = 5e9
#: Entries of the first-level TLB; cost of a miss in cycles.
_PAGES, _ASKED = 64, 0.8
#: Ratio of moved to counted bytes in a stream: one of three arrays is written, and its lines are
#: read first.
_MOVED = 4 / 3
#: Usable fraction of each cache before arrays evict each other; the third level is shared with
#: other cores.
_SHARES = (0.9, 0.8, 0.5)
#: Default facts of a machine (`embeddb.platforms.machines`): those of an ordinary server of 2020.
_USUAL = {
    "vector_bytes": 32.0,
    "l1_bytes": 32768.0,
    "l2_bytes": 524288.0,
    "l3_bytes": 16777216.0,
    "multiply_add_gflop_s": 100.0,
    "stream_l2_gb_s": 90.0,
    "stream_l3_gb_s": 50.0,
    "stream_memory_gb_s": 12.0,
    "gather_l2_m_s": 1500.0,
    "gather_memory_m_s": 100.0,
}
#: Cycles of a function on a vector of 64 bytes of f32, and on a scalar: gcc 12 and glibc 2.36 on
#: a Zen 4, loops over 4 kB, less those of an addition there. Others are one operation.
_FUNCTIONS = {
    "exponential": (16.0, 11.0),
    "exponential-minus-one": (18.0, 23.0),
    "log": (16.0, 13.0),
    "log-plus-one": (28.0, 22.0),
    "logistic": (21.0, 13.0),
    "tanh": (21.0, 46.0),
    "erf": (40.0, 18.0),
    "sine": (17.0, 9.0),
    "cosine": (18.0, 9.0),
    "tan": (27.0, 26.0),
    "power": (150.0, 25.0),
    "atan2": (37.0, 59.0),
    "cbrt": (17.0, 49.0),
    "sqrt": (8.0, 4.0),
    "rsqrt": (10.0, 4.0),
    "divide": (7.0, 3.0),
    "remainder": (330.0, 19.0),
}
_FUNCTIONS_BYTES = 64


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache level, or the TLB: its size in bytes, in lines of `line` bytes; cycles of a miss for
    consecutive lines (`next`) and others (`other`)."""

    bytes: float
    line: int
    next: float
    other: float
    #: Distance in bytes of addresses that map to the same set; 0 for a fully associative cache.
    period: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """`hertz` of one thread, size of a vector in bytes, and caches, nearest first."""

    hertz: float
    vector_bytes: int
    caches: tuple[Cache, ...]

    @staticmethod
    def facts(environment: Mapping[str, str]) -> dict[str, str]:
        """The facts that this model uses."""
        return {name: environment[name] for name in _USUAL if name in environment}

    @classmethod
    def of(cls, facts: Mapping[str, str]) -> Machine:
        """Machine from the facts of a platform's instance; missing ones have default values."""
        values = {name: positive(facts.get(name)) or usual for name, usual in _USUAL.items()}
        hertz = values["multiply_add_gflop_s"] * 1e9 / FLOPS
        if hertz > _MOST_HERTZ:
            hertz *= _UNIT_BYTES / max(values["vector_bytes"], _UNIT_BYTES)
        near, far = (hertz / (values[f"gather_{n}_m_s"] * 1e6) for n in ("l2", "memory"))
        others = (0.0, (near * far) ** 0.5, far)  # the second level hides the distance of a line
        caches = []
        for level, beyond, share, other in zip(
            ("l1", "l2", "l3"), ("l2", "l3", "memory"), _SHARES, others, strict=True
        ):
            each = LINE * hertz / (values[f"stream_{beyond}_gb_s"] * 1e9 * _MOVED)
            size = share * values[f"{level}_bytes"]
            caches.append(Cache(size, LINE, each, max(each, other), PAGE if level == "l1" else 0))
        caches.append(Cache(_PAGES * PAGE, PAGE, _ASKED, _ASKED))
        return cls(hertz, int(values["vector_bytes"]), tuple(caches))

    def lanes(self, each: int) -> int:
        """Number of elements of `each` bytes in a vector."""
        return max(self.vector_bytes // each, 1)

    @property
    def units(self) -> float:
        """Cycles of an operation on a whole vector; `_UNITS` narrower ones are executed per
        cycle."""
        return self.vector_bytes / _UNIT_BYTES / _UNITS

    @property
    def scatters(self) -> bool:
        """Return true if it has scatter instructions: with AVX-512."""
        return self.vector_bytes >= _SCATTERING


def function_cycles(opcode: str, each: int, vector_bytes: int) -> tuple[float, float]:
    """Cycles on a vector and on a scalar, for elements of `each` bytes; 0 for other operations."""
    of_vector, of_one = _FUNCTIONS.get(opcode, (0.0, 0.0))
    return of_vector * vector_bytes / _FUNCTIONS_BYTES * max(each, 4) / 4, of_one
