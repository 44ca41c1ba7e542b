"""SDDMM inside its nests: dot products of a row of C with rows of B."""

from __future__ import annotations

from embeddb.core.errors import SpaceError
from embeddb.kernels.variant import (
    WORK,
    Variant,
    columns,
    indent,
    vector,
    walk,
    widths,
)

__all__ = ["body"]

#: More sums than this at a time would leave the registers.
_MAX_SUMS = 16
#: Vectors of the own row that are kept in registers while the segment passes.
_MAX_HELD = 8


def body(v: Variant) -> str:
    """Dot products of a row of C with rows of B; for columns of A the operands change places. A
    tile of the row stays in registers while the segment passes; one narrower than the width leaves
    partial sums in E.

    Raises: SpaceError for blocks that there are no registers for.
    """
    r, c = v.block
    if r * c > _MAX_SUMS:
        raise SpaceError(f"block = {r}x{c}: SDDMM holds at most {_MAX_SUMS} sums in registers")
    own, other = ("z->b", "z->c") if v.form == "csc" else ("z->c", "z->b")
    row = f"(int64_t)z->row[s] * {r}" if v.mapped else f"s * {r}"
    if not v.tile:
        return f"{_PLAIN_DOTS}\n\n{_work(own, other, row, ['dots(z, p, end, own, other);'])}"
    strips = "\n\n".join(_dots(v, width) for width in widths(v.tile))
    calls = columns(v, "tile_%d(z, p, end, own + k, other + k, k > 0);")
    return f"{strips}\n\n{_work(own, other, row, calls)}"


#: What a compiler makes of the plain loop, were it allowed to reorder the sum.
_PLAIN_DOTS = """INLINE void dots(const problem *z, int64_t p, int64_t end, const T *own,
                    const T *other)
{
    const int64_t K = z->width;
    for (; p < end; p++) {
        const T *o = other + z->idx[p] * K;
        T sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t q = 0; q < K; q++)
            sum += own[q] * o[q];
        z->d[p] = z->val[p] * sum;
    }
}"""


def _work(own: str, other: str, row: str, calls: list[str]) -> str:
    lines = [
        "(void)d, (void)mode, (void)k, (void)last;",
        f"const T *own = {own} + {row} * z->width, *other = {other};",
        *calls,
    ]
    return f"{WORK}\n{indent(lines)}\n}}"


def _dots(v: Variant, width: int) -> str:
    """`width` columns of the own row (of each row of a block) against the rows that pass by."""
    r, _ = v.block
    kind, lanes, parts = vector(v, width)
    held = r * parts <= _MAX_HELD
    lines = ["const int64_t K = z->width;"]
    if held:
        lines += [
            f"const {kind} c{y}_{x} = *(const {kind} *)(own + {y} * K + {x * lanes});"
            for y in range(r)
            for x in range(parts)
        ]
    lines += [f"{walk(v.unroll)} {{", *_dot_step(v, width, v.unroll, held), "}"]
    if v.unroll > 1:
        lines += ["for (; p < end; p++) {", *_dot_step(v, width, 1, held), "}"]
    return f"""INLINE void tile_{width}(const problem *z, int64_t p, int64_t end, const T *own,
                    const T *other, int add)
{{
{indent(lines)}
}}"""


def _dot_step(v: Variant, width: int, unroll: int, held: bool) -> list[str]:
    """All sums of `unroll` blocks side by side, so that they hide each other's latency."""
    r, c = v.block
    kind, lanes, parts = vector(v, width)
    cells = [(u, y, x) for u in range(unroll) for y in range(r) for x in range(c)]
    lines = [
        f"    const T *o{u} = other + (int64_t)z->idx[p + {u}] * ({c} * K);" for u in range(unroll)
    ]
    lines.append(f"    {kind} {', '.join(f's{u}_{y}_{x}' for u, y, x in cells)};")
    for part in range(parts):
        lines.append("    {")
        for y in range(0 if held else r):
            at = f"own + {y} * K + {part * lanes}"
            lines.append(f"        const {kind} c{y}_{part} = *(const {kind} *)({at});")
        for u in range(unroll):
            for x in range(c):
                at = f"o{u} + {x} * K + {part * lanes}"
                lines.append(f"        const {kind} b{u}_{x} = *(const {kind} *)({at});")
        sign = "+=" if part else "="
        lines += [f"        s{u}_{y}_{x} {sign} c{y}_{part} * b{u}_{x};" for u, y, x in cells]
        lines.append("    }")
    fours = len(cells) // 4 * 4 if lanes >= 4 else 0
    names = [f"s{u}_{y}_{x}" for u, y, x in cells]
    for first in range(0, fours, 4):
        lines += _four_sums(names[first : first + 4], lanes, first, r * c)
    for nth, name in enumerate(names[fours:], fours):
        total = name if lanes == 1 else f"sum{lanes}({name})"
        place = f"p * {r * c} + {nth}"
        lines.append(f"    z->d[{place}] = z->val[{place}] * {total} + (add ? z->d[{place}] : 0);")
    return lines


def _four_sums(names: list[str], lanes: int, at: int, block: int) -> list[str]:
    """Four sums over lanes together, of neighbours in E: their halves share registers."""
    parts = [f"four{lanes}({name})" if lanes > 4 else name for name in names]
    pair = (
        "__builtin_shufflevector({0}, {1}, 0, 4, 2, 6)"
        " + __builtin_shufflevector({0}, {1}, 1, 5, 3, 7)"
    )
    place = f"p * {block} + {at}"
    return [
        "    {",
        f"        const vec4 {', '.join(f'f{i} = {part}' for i, part in enumerate(parts))};",
        f"        const vec4 g0 = {pair.format('f0', 'f1')};",
        f"        const vec4 g1 = {pair.format('f2', 'f3')};",
        f"        vec4 e = *(const vec4 *)(z->val + {place})",
        "            * (__builtin_shufflevector(g0, g1, 0, 1, 4, 5)",
        "            + __builtin_shufflevector(g0, g1, 2, 3, 6, 7));",
        "        if (add)",
        f"            e += *(const vec4 *)(z->d + {place});",
        f"        *(vec4 *)(z->d + {place}) = e;",
        "    }",
    ]
