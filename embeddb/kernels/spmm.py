"""SpMM inside its nests: a row (or block row) of the result times a tile of dense columns.

The tile stays in named vector variables, because gcc keeps arrays of vectors in memory; what it
leaves over is done in halving widths.
"""

from __future__ import annotations

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


def body(v: Variant) -> str:
    """C of `work`, or of `scatter` for columns of A."""
    if v.nest == "OUTER":
        return _outer(v)
    return _tiled(v) if v.tile else _plain(v)


def _plain(v: Variant) -> str:
    """The accumulator is the row of D itself; the compiler vectorises over k."""
    return f"""{WORK}
    (void)s;
    const int64_t K = z->width;
    if (mode == SET)
        for (int64_t x = k; x < last; x++)
            d[x] = 0;
    for (; p < end; p++) {{
        const T a = z->val[p];
        const T *restrict b = z->b + z->idx[p] * K;
        T *restrict o = d;
        for (int64_t x = k; x < last; x++)
            o[x] += a * b[x];
    }}
}}"""


def _tiled(v: Variant) -> str:
    strips = "\n\n".join(_strip(v, width) for width in widths(v.tile))
    calls = columns(v, "tile_%d(z, p, end, k, d, mode);")
    return f"{strips}\n\n{WORK}\n    (void)s;\n{indent(calls)}\n}}"


def _strip(v: Variant, width: int) -> str:
    """Unrolled steps get accumulators of their own while registers last, to hide the latency of
    the additions."""
    r, _ = v.block
    kind, lanes, parts = vector(v, width)
    room = 16 if v.vector_bytes == 64 else 8
    sets = v.unroll if v.unroll * r * parts <= room else 1
    names = [f"s{u}_{y}_{x}" for u in range(sets) for y in range(r) for x in range(parts)]
    lines = ["const int64_t K = z->width;"]
    lines.append(f"{kind} {', '.join(f'{name} = {{0}}' for name in names)};")
    lines.append(f"{walk(v.unroll)} {{")
    for u in range(v.unroll):
        lines += _step(v, width, (u, u % sets))
    lines.append("}")
    if v.unroll > 1:
        lines += ["for (; p < end; p++) {", *_step(v, width, (0, 0)), "}"]
    for y in range(r):
        for x in range(parts):
            at = f"*({kind} *)(d + {y} * K + k + {x * lanes})"
            total = " + ".join(f"s{u}_{y}_{x}" for u in range(sets))
            lines.append(f"if (mode == ADD) {at} += {total}; else {at} = {total};")
    return f"""INLINE void tile_{width}(const problem *z, int64_t p, int64_t end, int64_t k, T *d,
                    int mode)
{{
{indent(lines)}
}}"""


def _step(v: Variant, width: int, at: tuple[int, int]) -> list[str]:
    """One block: `at` is its offset from p and the set of accumulators it adds to."""
    r, c = v.block
    kind, lanes, parts = vector(v, width)
    offset, chosen = at
    lines = [
        f"    {{ const T *a = z->val + (p + {offset}) * {r * c};",
        f"      const T *b = z->b + (int64_t)z->idx[p + {offset}] * ({c} * K) + k;",
        f"      for (int x = 0; x < {c}; x++, a++, b += K) {{",
    ]
    for x in range(parts):
        lines.append(f"        const {kind} b{x} = *(const {kind} *)(b + {x * lanes});")
    for y in range(r):
        for x in range(parts):
            lines.append(f"        s{chosen}_{y}_{x} += a[{y * c}] * b{x};")
    return [*lines, "      } }"]


def _outer(v: Variant) -> str:
    """One column of A: a tile of the row of B stays in registers, rows of D pass by."""
    strips = []
    for width in widths(v.tile):
        kind, lanes, parts = vector(v, width)
        lines = ["const int64_t K = z->width;", "const T *b = z->b + s * K + k;"]
        lines += [f"const {kind} b{x} = *(const {kind} *)(b + {x * lanes});" for x in range(parts)]
        lines.append("for (int64_t p = z->ptr[s]; p < z->ptr[s + 1]; p++) {")
        lines.append("    const T a = z->val[p];")
        lines.append("    T *o = d + z->idx[p] * K + k;")
        lines += [f"    *({kind} *)(o + {x * lanes}) += a * b{x};" for x in range(parts)]
        lines.append("}")
        head = f"INLINE void tile_{width}(const problem *z, int64_t s, int64_t k, T *d)"
        strips.append(f"{head}\n{{\n{indent(lines)}\n}}")
    calls = indent(columns(v, "tile_%d(z, s, k, d);"))
    head = "INLINE void scatter(const problem *z, int64_t s, int64_t k, int64_t last, T *d)"
    return "\n\n".join([*strips, f"{head}\n{{\n{calls}\n}}"])
