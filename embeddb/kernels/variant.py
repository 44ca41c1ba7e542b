"""What all generated bodies share: the variant, vector types, tiles of dense columns."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "MAX_BLOCK",
    "MAX_LANES",
    "WORK",
    "Variant",
    "columns",
    "indent",
    "types",
    "vector",
    "walk",
    "widths",
]

#: Largest block edge; dense operands and results carry at least one row less as padding.
MAX_BLOCK = 16
_TYPES = {"f32": ("float", 4), "f64": ("double", 8)}
#: Widest vector type; gcc splits what the processor's registers cannot hold.
MAX_LANES = 16
#: The head of the function that every nest but that of outer products calls.
WORK = """INLINE void work(const problem *z, int64_t s, int64_t p, int64_t end, int64_t k,
                 int64_t last, T *d, int mode)
{"""


@dataclass(frozen=True, slots=True)
class Variant:
    """Everything fixed at compile time.

    `tile` is the number of dense columns held in registers, 0 for the plain loop and for SpMV;
    `meeting` how threads that reach one place of the result meet ("" where none can); `mapped`
    whether the format says which row a segment belongs to.
    """

    kernel: str
    nest: str
    meeting: str = ""
    form: str = "csr"
    block: tuple[int, int] = (1, 1)
    slice: int = 0
    mapped: bool = False
    tile: int = 0
    lanes: int = 1
    unroll: int = 1
    dtype: str = "f32"
    vector_bytes: int = 16

    @property
    def hardware_lanes(self) -> int:
        return max(1, self.vector_bytes // _TYPES[self.dtype][1])


def types(v: Variant) -> str:
    """`T` and its vectors of 2 to 16 lanes, with sums over the lanes of each: all, or down to 4."""
    name, size = _TYPES[v.dtype]
    lines = [f"typedef {name} T;"]
    lanes = 2
    while lanes <= MAX_LANES:
        attributes = f"vector_size({lanes * size}), aligned({size}), may_alias"
        lines.append(f"typedef T vec{lanes} __attribute__(({attributes}));")
        half = lanes // 2
        parts = [", ".join(map(str, range(lo, lo + half))) for lo in (0, half)]
        total = "v[0] + v[1]"
        if half > 1:
            low, high = (f"__builtin_shufflevector(v, v, {part})" for part in parts)
            total = f"sum{half}({low} + {high})"
        head = "static inline __attribute__((always_inline, unused))"
        lines.append(f"{head} T sum{lanes}(vec{lanes} v) {{ return {total}; }}")
        if lanes > 4:
            four = f"{low} + {high}"
            folded = four if lanes == 8 else f"four{half}({four})"
            lines.append(f"{head} vec4 four{lanes}(vec{lanes} v) {{ return {folded}; }}")
        lanes *= 2
    return "\n".join(lines)


def walk(step: int) -> str:
    return "for (; p < end; p++)" if step == 1 else f"for (; p + {step} <= end; p += {step})"


def indent(lines: list[str], by: int = 4) -> str:
    return "\n".join(" " * by + line for line in lines)


def widths(tile: int) -> list[int]:
    return [tile >> shift for shift in range(tile.bit_length())]


def columns(v: Variant, call: str) -> list[str]:
    """Calls that cover the dense columns k..last, `%d` standing for the width of the tile."""
    lines = [f"for (; k + {v.tile} <= last; k += {v.tile})", f"    {call % v.tile}"]
    for width in widths(v.tile)[1:]:
        lines += [
            f"if (k + {width} <= last) {{",
            f"    {call % width}",
            f"    k += {width};",
            "}",
        ]
    return lines


def vector(v: Variant, width: int) -> tuple[str, int, int]:
    """Type, lanes and number of the vectors that hold `width` columns."""
    lanes = min(width, v.hardware_lanes)
    return ("T" if lanes == 1 else f"vec{lanes}"), lanes, width // lanes
