"""SpMV inside its nests: sums along rows, blocks, or slices of rows side by side."""

from __future__ import annotations

from embeddb.kernels.variant import MAX_LANES, WORK, Variant, indent, walk

__all__ = ["body"]


def body(v: Variant) -> str:
    """C of `work`, or of `scatter` for columns of A."""
    if v.nest == "OUTER":
        return """INLINE void scatter(const problem *z, int64_t s, int64_t k, int64_t last, T *d)
{
    (void)k, (void)last;
    const T b = z->b[s];
    for (int64_t p = z->ptr[s]; p < z->ptr[s + 1]; p++)
        d[z->idx[p]] += z->val[p] * b;
}"""
    if v.form in ("sell", "ell"):
        lines = _slices(v)
    elif v.form == "bcsr":
        lines = _blocks(v)
    else:
        lines = _row_sum(v)
    return f"{WORK}\n    (void)s, (void)k, (void)last;\n{indent(lines)}\n}}"


def _gather(lanes: int, first: str) -> str:
    """A vector of x at the `lanes` columns from idx[first] on."""
    return "{" + ", ".join(f"z->b[z->idx[{first} + {t}]]" for t in range(lanes)) + "}"


def _row_sum(v: Variant) -> list[str]:
    """One row: `lanes` products at a time, `unroll` sums side by side."""
    lanes, unroll = v.lanes, v.unroll
    lines = ["T total = 0;"]
    if lanes * unroll > 1:
        kind = "T" if lanes == 1 else f"vec{lanes}"
        lines.append(f"if (end - p >= {lanes * unroll}) {{")
        lines.append(f"    {kind} {', '.join(f's{u} = {{0}}' for u in range(unroll))};")
        lines.append(f"    {walk(lanes * unroll)} {{")
        for u in range(unroll):
            at = f"p + {u * lanes}"
            x = f"z->b[z->idx[{at}]]" if lanes == 1 else f"({kind}){_gather(lanes, at)}"
            lines.append(f"        s{u} += *(const {kind} *)(z->val + {at}) * {x};")
        both = " + ".join(f"s{u}" for u in range(unroll))
        lines += [
            "    }",
            f"    total = {both if lanes == 1 else f'sum{lanes}({both})'};",
            "}",
        ]
    lines += ["for (; p < end; p++)", "    total += z->val[p] * z->b[z->idx[p]];"]
    return [*lines, "*d = mode == ADD ? *d + total : total;"]


def _blocks(v: Variant) -> list[str]:
    """A block row: one vector of sums where the block is a column, one per row otherwise."""
    r, c = v.block
    power = c & (c - 1) == 0 and r & (r - 1) == 0
    if c == 1 and r > 1 and power:
        lines = [f"vec{r} s0 = {{0}};", "for (; p < end; p++)"]
        lines.append(f"    s0 += *(const vec{r} *)(z->val + p * {r}) * z->b[z->idx[p]];")
        return [*lines, "(void)mode;", f"*(vec{r} *)d = s0;"]
    kind = f"vec{c}" if power and c > 1 else "T"
    step = 1 if kind == "T" else c
    lines = [
        f"{kind} {', '.join(f's{y} = {{0}}' for y in range(r))};",
        "for (; p < end; p++) {",
    ]
    lines.append(f"    const T *a = z->val + p * {r * c}, *b = z->b + (int64_t)z->idx[p] * {c};")
    for x in range(0, c, step):
        lines.append(f"    const {kind} b{x} = *(const {kind} *)(b + {x});")
    for y in range(r):
        for x in range(0, c, step):
            lines.append(f"    s{y} += *(const {kind} *)(a + {y * c + x}) * b{x};")
    lines += ["}", "(void)mode;"]
    return [
        *lines,
        *(f"d[{y}] = {f's{y}' if step == 1 else f'sum{c}(s{y})'};" for y in range(r)),
    ]


def _slices(v: Variant) -> list[str]:
    """A slice of rows side by side, one lane each; `d` is the first of them, so the whole result
    is reached through z."""
    lanes = min(v.slice, MAX_LANES)
    kind = "T" if lanes == 1 else f"vec{lanes}"
    parts = range(v.slice // lanes)
    lines = [f"{kind} {', '.join(f's{x} = {{0}}' for x in parts)};"]
    lines.append(f"for (; p < end; p += {v.slice}) {{")
    for x in parts:
        at = f"p + {x * lanes}"
        gathered = f"z->b[z->idx[{at}]]" if lanes == 1 else f"({kind}){_gather(lanes, at)}"
        lines.append(f"    s{x} += *(const {kind} *)(z->val + {at}) * {gathered};")
    lines += [
        "}",
        "(void)mode, (void)d;",
        f"const int32_t *row = z->row + s * {v.slice};",
    ]
    for x in parts:
        for t in range(lanes):
            value = f"s{x}" if lanes == 1 else f"s{x}[{t}]"
            lines.append(f"z->d[row[{x * lanes + t}]] = {value};")
    return lines
