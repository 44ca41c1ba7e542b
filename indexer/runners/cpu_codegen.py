"""C source of one SpMM loop nest.

The four orders follow the loop names of the common loop nest (i rows, j columns of A, k columns
of B; 1 the outer, 0 the inner part of a split loop): `ijk` is the plain loop that the compiler
vectorises; in the others one row (or block row) times `ktile` columns of D stays in registers
while the row's non-zeros pass by.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from embeddb.config import Config
from embeddb.errors import SpaceError

__all__ = ["MAX_BLOCK", "Launch", "Variant", "plan", "source"]

ORDERS = ("ijk", "ik1jk0", "i1k1i0jk0", "k1ijk0")
#: Values of OpenMP's omp_sched_t.
SCHEDULES = {"static": 1, "dynamic": 2, "guided": 3}
#: Largest block edge; B and D carry one row less than this as padding.
MAX_BLOCK = 16
_TYPES = {"f32": ("float", 4), "f64": ("double", 8)}


@dataclass(frozen=True, slots=True)
class Variant:
    """Everything fixed at compile time. CSR is the block size 1x1; `ktile` is 0 for `ijk`."""

    order: str
    block: tuple[int, int] = (1, 1)
    ktile: int = 0
    unroll: int = 1
    dtype: str = "f32"
    vector_bytes: int = 16


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything one shared object takes at run time besides matrix, width and threads."""

    schedule: str = "static"
    chunk: int = 0
    itile: int = 0


def plan(config: Config, *, dtype: str = "f32", vector_bytes: int = 16) -> tuple[Variant, Launch]:
    """What to compile and how to launch it.

    Raises: SpaceError naming the parameter that is missing, unknown or out of range.
    """
    left = dict(config)
    order = _choice(left, "order", ORDERS)
    block = (1, 1)
    if _choice(left, "format", ("csr", "bcsr")) == "bcsr":
        block = _block(left.pop("block", None))
    ktile = 0 if order == "ijk" else _number(left, "ktile", 1, 256)
    if ktile & (ktile - 1):
        raise SpaceError(f"ktile = {ktile}: allowed are powers of two")
    itile = _number(left, "itile", 1, 1 << 30) if order == "i1k1i0jk0" else 0
    unroll = _number(left, "unroll", 1, 16)
    schedule = _choice(left, "schedule", tuple(SCHEDULES))
    chunk = _number(left, "chunk", 0, 1 << 30) if "chunk" in left else 0
    if left:
        raise SpaceError(f"{min(left)} is not a parameter of this kernel (order = {order})")
    return Variant(order, block, ktile, unroll, dtype, vector_bytes), Launch(schedule, chunk, itile)


def source(variant: Variant) -> str:
    """The complete C file of a variant."""
    kernel = _plain(variant) if variant.order == "ijk" else _tiled(variant)
    text = _frame().replace("@TYPES@", _types(variant))
    return text.replace("@KERNEL@", kernel)


@cache
def _frame() -> str:
    return files("indexer.runners").joinpath("cpu_kernel.c.in").read_text(encoding="utf-8")


def _choice(left: dict[str, Any], name: str, allowed: tuple[str, ...]) -> str:
    value = left.pop(name, None)
    if value not in allowed:
        raise SpaceError(f"{name} = {value}: allowed are {', '.join(allowed)}")
    return str(value)


def _number(left: dict[str, Any], name: str, low: int, high: int) -> int:
    value = left.pop(name, None)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise SpaceError(f"{name} = {value}: allowed are whole numbers {low}..{high}")
    return value


def _block(value: Any) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)x(\d+)", value) if isinstance(value, str) else None
    if found and all(1 <= int(edge) <= MAX_BLOCK for edge in found.groups()):
        return int(found[1]), int(found[2])
    raise SpaceError(f"block = {value}: allowed are RxC with edges 1..{MAX_BLOCK}")


def _types(v: Variant) -> str:
    name, size = _TYPES[v.dtype]
    lines = [f"typedef {name} T;"]
    lanes = 2
    while lanes * size <= v.vector_bytes:
        attributes = f"vector_size({lanes * size}), aligned({size}), may_alias"
        lines.append(f"typedef T vec{lanes} __attribute__(({attributes}));")
        lanes *= 2
    return "\n".join(lines)


def _plain(v: Variant) -> str:
    """for i, for each (block of) j, for k: the accumulator is the row of D itself."""
    r, _ = v.block
    body = [f"{_walk(v.unroll)} {{", *_plain_step(v, v.unroll), "}"]
    if v.unroll > 1:
        body += ["for (; p < end; p++) {", *_plain_step(v, 1), "}"]
    inner = "\n".join(f"        {line}" for line in body)
    return f"""static void kernel(const problem z)
{{
    const int64_t K = z.width;
#pragma omp parallel for schedule(runtime) firstprivate(z)
    for (int64_t i = 0; i < z.rows; i++) {{
        T *restrict d = z.d + i * {r} * K;
        for (int64_t k = 0; k < {r} * K; k++)
            d[k] = 0;
        int64_t p = z.ptr[i];
        const int64_t end = z.ptr[i + 1];
{inner}
    }}
}}"""


def _plain_step(v: Variant, unroll: int) -> list[str]:
    r, c = v.block
    lines, terms = [], []
    for u in range(unroll):
        lines.append(f"    const T *restrict a{u} = z.val + (p + {u}) * {r * c};")
        lines.append(f"    const T *restrict b{u} = z.b + (int64_t)z.idx[p + {u}] * ({c} * K);")
        for x in range(c):
            terms.append(f"a{u}[s * {c} + {x}] * b{u}[{x} * K + k]")
    lines.append(f"    for (int s = 0; s < {r}; s++)")
    lines.append("        for (int64_t k = 0; k < K; k++)")
    lines.append(f"            d[s * K + k] += {' + '.join(terms)};")
    return lines


def _walk(unroll: int) -> str:
    return "for (; p < end; p++)" if unroll == 1 else f"for (; p + {unroll} <= end; p += {unroll})"


def _tiled(v: Variant) -> str:
    widths = [v.ktile >> s for s in range(v.ktile.bit_length())]
    strips = "\n\n".join(_strip(v, width) for width in widths)
    return f"{strips}\n\n{_nest(v, widths)}"


def _nest(v: Variant, widths: list[int]) -> str:
    """The loops around the register tile; what `ktile` leaves over is done in halving widths."""
    if v.order == "k1ijk0":
        call = """{
#pragma omp for schedule(runtime) nowait
            for (int64_t i = 0; i < z.rows; i++)
                strip_%d(z, i, i + 1, k);
        }"""
        return f"""static void kernel(const problem z)
{{
    const int64_t K = z.width;
#pragma omp parallel firstprivate(z)
    {{
        int64_t k = 0;
{_columns(widths, call)}
    }}
}}"""
    count, low, high = "z.rows", "i", "i + 1"
    if v.order == "i1k1i0jk0":
        count = "(z.rows + z.strip - 1) / z.strip"
        low = "i * z.strip"
        high = "((i + 1) * z.strip < z.rows ? (i + 1) * z.strip : z.rows)"
    return f"""static void kernel(const problem z)
{{
    const int64_t K = z.width, count = {count};
#pragma omp parallel for schedule(runtime) firstprivate(z)
    for (int64_t i = 0; i < count; i++) {{
        const int64_t low = {low}, high = {high};
        int64_t k = 0;
{_columns(widths, "strip_%d(z, low, high, k);")}
    }}
}}"""


def _columns(widths: list[int], call: str) -> str:
    lines = []
    for n, width in enumerate(widths):
        head = "for (" if n == 0 else "if ("
        test = f"; k + {width} <= K; k += {width})" if n == 0 else f"k + {width} <= K)"
        step = "" if n == 0 else f" k += {width};"
        lines.append(f"        {head}{test} {{ {call % width}{step} }}")
    return "\n".join(lines)


def _strip(v: Variant, width: int) -> str:
    """Rows low..high times `width` columns from k: the tile lives in named vector variables.

    Named, because gcc keeps arrays of vectors in memory. Unrolled steps get accumulators of their
    own while registers last, to hide the latency of the additions.
    """
    r, _ = v.block
    size = _TYPES[v.dtype][1]
    lanes = min(width, v.vector_bytes // size)
    kind, parts = ("T" if lanes == 1 else f"vec{lanes}"), width // lanes
    room = 16 if v.vector_bytes == 64 else 8
    sets = v.unroll if v.unroll * r * parts <= room else 1
    names = [f"s{u}_{y}_{x}" for u in range(sets) for y in range(r) for x in range(parts)]
    body = [f"{_walk(v.unroll)} {{"]
    for u in range(v.unroll):
        body += _step(v, kind, (u, u % sets), parts)
    body.append("}")
    if v.unroll > 1:
        body += ["for (; p < end; p++) {", *_step(v, kind, (0, 0), parts), "}"]
    for y in range(r):
        for x in range(parts):
            total = " + ".join(f"s{u}_{y}_{x}" for u in range(sets))
            body.append(f"*({kind} *)(d + {y} * K + {x * lanes}) = {total};")
    inner = "\n".join(f"        {line}" for line in body)
    return f"""static inline __attribute__((always_inline)) void strip_{width}(
    const problem z, int64_t low, int64_t high, int64_t k)
{{
    const int64_t K = z.width;
    for (int64_t i = low; i < high; i++) {{
        {kind} {", ".join(f"{name} = {{0}}" for name in names)};
        T *d = z.d + i * {r} * K + k;
        int64_t p = z.ptr[i];
        const int64_t end = z.ptr[i + 1];
{inner}
    }}
}}"""


def _step(v: Variant, kind: str, at: tuple[int, int], parts: int) -> list[str]:
    """One block: `at` is its offset from p and the set of accumulators it adds to."""
    r, c = v.block
    lanes = 1 if kind == "T" else int(kind[3:])
    offset, chosen = at
    lines = [
        f"    {{ const T *a = z.val + (p + {offset}) * {r * c};",
        f"      const T *b = z.b + (int64_t)z.idx[p + {offset}] * ({c} * K) + k;",
        f"      for (int x = 0; x < {c}; x++, a++, b += K) {{",
    ]
    for x in range(parts):
        lines.append(f"        const {kind} b{x} = *(const {kind} *)(b + {x * lanes});")
    for y in range(r):
        for x in range(parts):
            lines.append(f"        s{chosen}_{y}_{x} += a[{y * c}] * b{x};")
    return [*lines, "      } }"]
