"""What one thread of a machine can do, as far as the analytical model of kernels asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

#: Bytes of a line of a cache, and of a page.
LINE, PAGE = 64, 4096
#: Of a thread: vector units of 32 bytes, each of which multiplies and adds once a cycle.
_UNITS, _UNIT_BYTES = 2, 32
_SCATTERING = 64
_FLOPS = 2.0 * _UNITS * _UNIT_BYTES / 4
#: Servers are not clocked higher: what multiplies and adds more has units as wide as its vectors.
#: What gcc compiles does not use them whole: its vectors are half as wide on these machines. A
#: desktop above this with AVX-512 and units of 32 bytes is taken for half its clock.
_MOST_HERTZ = 5e9
#: Pages that are found without asking the second table of pages; what asking costs, in cycles.
_PAGES, _ASKED = 64, 0.8
#: Bytes that move in a stream for those that are counted: of three arrays one is written, and its
#: lines are read before.
_MOVED = 4 / 3
#: Shares of a cache that one kernel's arrays fill before they push each other out; the third level
#: is shared with other cores.
_SHARES = (0.9, 0.8, 0.5)
#: Facts of a machine (`embeddb.platforms.machines`), where a database does not tell them: those of
#: an ordinary server of 2020.
_USUAL = MappingProxyType(
    {
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
)
#: Cycles of a function of a vector of 64 bytes of f32, and of one number: gcc 12 and glibc 2.36 on
#: a Zen 4, loops over 4 kB, less those of an addition there. Others are one operation.
_FUNCTIONS = MappingProxyType(
    {
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
)
_FUNCTIONS_BYTES = 64


@dataclass(frozen=True, slots=True)
class Cache:
    """A level, or the table of pages: how many bytes fit, in lines of `line` bytes; cycles that
    each line costs which is not there and comes from beyond, in order (`next`) or not (`other`)."""

    bytes: float
    line: int
    next: float
    other: float
    #: Bytes after which addresses share a place again; 0 where any address may lie anywhere.
    period: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """`hertz` of one thread, bytes of a vector, and caches from the nearest on."""

    hertz: float
    vector_bytes: int
    caches: tuple[Cache, ...]

    @staticmethod
    def facts(told: Mapping[str, str]) -> dict[str, str]:
        """Those that are asked for here."""
        return {name: told[name] for name in _USUAL if name in told}

    @classmethod
    def of(cls, facts: Mapping[str, str]) -> Machine:
        """From what a platform's instance tells of its machine; what it does not tell is usual."""
        known = {name: _number(facts.get(name), usual) for name, usual in _USUAL.items()}
        hertz = known["multiply_add_gflop_s"] * 1e9 / _FLOPS
        if hertz > _MOST_HERTZ:
            hertz *= _UNIT_BYTES / max(known["vector_bytes"], _UNIT_BYTES)
        near, far = (hertz / (known[f"gather_{n}_m_s"] * 1e6) for n in ("l2", "memory"))
        others = (0.0, (near * far) ** 0.5, far)  # the second level hides where a line lies
        caches = []
        for level, beyond, share, other in zip(
            ("l1", "l2", "l3"), ("l2", "l3", "memory"), _SHARES, others, strict=True
        ):
            each = LINE * hertz / (known[f"stream_{beyond}_gb_s"] * 1e9 * _MOVED)
            size = share * known[f"{level}_bytes"]
            caches.append(Cache(size, LINE, each, max(each, other), PAGE if level == "l1" else 0))
        caches.append(Cache(_PAGES * PAGE, PAGE, _ASKED, _ASKED))
        return cls(hertz, int(known["vector_bytes"]), tuple(caches))

    def lanes(self, each: int) -> int:
        """Elements of so many bytes in a vector."""
        return max(self.vector_bytes // each, 1)

    @property
    def units(self) -> float:
        """Cycles of an operation on a whole vector, of which `_UNITS` narrower ones are done in
        one."""
        return self.vector_bytes / _UNIT_BYTES / _UNITS

    @property
    def scatters(self) -> bool:
        """Whether it writes the elements of a vector to places apart: with AVX-512."""
        return self.vector_bytes >= _SCATTERING

    @property
    def flops_a_cycle(self) -> float:
        """Of f32, at best."""
        return _FLOPS


def function_cycles(opcode: str, each: int, vector_bytes: int) -> tuple[float, float]:
    """Of a vector and of one number, for elements of so many bytes; 0 for what is no function."""
    of_vector, of_one = _FUNCTIONS.get(opcode, (0.0, 0.0))
    return of_vector * vector_bytes / _FUNCTIONS_BYTES * max(each, 4) / 4, of_one


def _number(text: str | None, usual: float) -> float:
    try:
        found = float(text) if text is not None else usual
    except ValueError:
        return usual
    return found if 0 < found < float("inf") else usual
