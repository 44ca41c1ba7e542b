"""Bodies of sparse kernels in C, with their shared parts: variant, vectors, tiles of columns."""

from __future__ import annotations

from dataclasses import dataclass

from embeddb.core.errors import SpaceError

#: Largest block edge; dense operands and results are padded by at least MAX_BLOCK - 1 rows.
MAX_BLOCK = 16
_TYPES = {"f32": ("float", 4), "f64": ("double", 8)}
#: Widest vector type; gcc splits what the processor's registers cannot hold.
MAX_LANES = 16
#: Head of the function that every nest except that of outer products calls.
WORK = """INLINE void work(const problem *z, int64_t s, int64_t p, int64_t end, int64_t k,
                 int64_t last, T *d, int mode)
{"""


@dataclass(frozen=True, slots=True)
class Variant:
    """Compile-time parameters of a kernel.

    `tile` is the number of dense columns in registers, 0 for the plain loop and for SpMV;
    `meeting` the synchronisation of threads that write the same result ("" if none do); `mapped`
    is True if the format stores the row of each segment, `gathers` if the processor's own
    instruction loads x, where it has one.
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
    gathers: bool = False
    dtype: str = "f32"
    vector_bytes: int = 16

    @property
    def filled(self) -> bool:
        """True if fill values of its form take part in sums."""
        return self.form in ("bcsr", "sell", "ell", "sell16") and self.kernel != "sddmm"

    @property
    def short(self) -> bool:
        """True if its form has columns of 16 bits."""
        return self.form == "sell16"

    @property
    def hardware_lanes(self) -> int:
        return max(1, self.vector_bytes // _TYPES[self.dtype][1])


def types(v: Variant) -> str:
    """C of `T` and its vectors of 2 to 16 lanes, with sums over their lanes: to 1, or to 4."""
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


def indent(lines: list[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)


def widths(tile: int) -> list[int]:
    return [tile >> shift for shift in range(tile.bit_length())]


def columns(v: Variant, call: str) -> list[str]:
    """Calls that cover the dense columns k..last; `%d` is the width of the tile."""
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


def spmm_body(v: Variant) -> str:
    """C of `work`, or of `scatter` for columns of A."""
    if v.nest == "OUTER":
        return _outer(v)
    if not v.tile:
        return _PLAIN
    strips = "\n\n".join(_strip(v, width) for width in widths(v.tile))
    calls = columns(v, "tile_%d(z, p, end, k, d, mode);")
    return f"{strips}\n\n{WORK}\n    (void)s;\n{indent(calls)}\n}}"


#: The plain loop: it accumulates in the row of D; the compiler vectorises over k.
_PLAIN = f"""{WORK}
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


def _strip(v: Variant, width: int) -> str:
    """C of a tile of columns. Unrolled steps have their own accumulators while registers last, to
    hide the latency of additions."""
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
    """C of one block: `at` is its offset from p and its set of accumulators."""
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
    """C for one column of A: a tile of the row of B stays in registers, rows of D are updated."""
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


def spmv_body(v: Variant) -> str:
    """C of `work`, or of `scatter` for columns of A."""
    if v.nest == "OUTER":
        return """INLINE void scatter(const problem *z, int64_t s, int64_t k, int64_t last, T *d)
{
    (void)k, (void)last;
    const T b = z->b[s];
    for (int64_t p = z->ptr[s]; p < z->ptr[s + 1]; p++)
        d[z->idx[p]] += z->val[p] * b;
}"""
    if v.slice:
        lines = _slices(v)
    elif v.form == "bcsr":
        lines = _blocks(v)
    else:
        lines = _row_sum(v)
    if v.short:
        lines = [*_SHORT_COLUMNS, *lines]
    head = _AVX2 if v.gathers else ""
    return f"{head}{WORK}\n    (void)s, (void)k, (void)last;\n{indent(lines)}\n}}"


#: 16-bit columns count from panel[s], or from 0 without it.
_SHORT_COLUMNS = (
    "const uint16_t *idx = (const uint16_t *)z->idx;",
    "const T *b = z->b + (z->panel ? z->panel[s] : 0);",
)


#: Bytes of the widest vector that one instruction loads from 16-bit columns, and that instruction
#: by type and lanes.
_MOST_GATHERED = 32
_INSTRUCTIONS = {
    ("f32", 8): "_mm256_i32gather_ps(b, _mm256_cvtepu16_epi32(_mm_loadu_si128({at})), 4)",
    ("f32", 4): "_mm_i32gather_ps(b, _mm_cvtepu16_epi32(_mm_loadl_epi64({at})), 4)",
    ("f64", 4): "_mm256_i32gather_pd(b, _mm_cvtepu16_epi32(_mm_loadl_epi64({at})), 8)",
}
_AVX2 = "#ifdef __AVX2__\n#include <immintrin.h>\n#endif\n\n"


def _slice_lanes(v: Variant) -> int:
    """Rows of a slice in one vector."""
    if not v.short:
        return min(v.slice, MAX_LANES)
    most = _MOST_GATHERED // _TYPES[v.dtype][1] if v.gathers else MAX_LANES
    return min(v.slice, v.hardware_lanes, most)


def _x(v: Variant, at: str) -> str:
    """The value of x for the entry `at`."""
    return f"b[idx[{at}]]" if v.short else f"z->b[z->idx[{at}]]"


def _gather(v: Variant, lanes: int, first: str) -> str:
    """A vector of x at the `lanes` columns from idx[first] on."""
    return "{" + ", ".join(_x(v, f"{first} + {t}") for t in range(lanes)) + "}"


def _products(v: Variant, lanes: int, at: str, total: str) -> list[str]:
    """C that adds `lanes` products from entry `at` on to a vector. Four 16-bit columns are one
    load, since loads are what such a kernel waits for."""
    kind = "T" if lanes == 1 else f"vec{lanes}"
    values = f"*(const {kind} *)(z->val + {at})"
    if lanes == 1:
        return [f"{total} += {values} * {_x(v, at)};"]
    loads = _loads(v, lanes, at, f"{total} += {values} * ({kind})")
    if not v.gathers or (v.dtype, lanes) not in _INSTRUCTIONS:
        return loads
    whole = _INSTRUCTIONS[v.dtype, lanes].format(at=f"(const __m128i *)(idx + {at})")
    added = f"{total} += {values} * ({kind}){whole};"
    return ["#ifdef __AVX2__", added, "#else", *loads, "#endif"]


def _loads(v: Variant, lanes: int, at: str, adding: str) -> list[str]:
    """C that adds a vector of products, loaded entry by entry, from its beginning `adding`."""
    if not v.short or lanes < 4:
        return [f"{adding}{_gather(v, lanes, at)};"]
    words = range(lanes // 4)
    lines = [f"{{ uint64_t {', '.join(f'w{w}' for w in words)};"]
    lines += [f"  memcpy(&w{w}, idx + {at} + {4 * w}, 8);" for w in words]
    of = [f"b[(uint16_t)(w{w} >> {bits})]" for w in words for bits in (0, 16, 32, 48)]
    return [*lines, f"  {adding}{{{', '.join(of)}}}; }}"]


def _row_sum(v: Variant) -> list[str]:
    """C of one row: `lanes` products at a time, `unroll` independent sums."""
    lanes, unroll = v.lanes, v.unroll
    lines = ["T total = 0;"]
    if lanes * unroll > 1:
        kind = "T" if lanes == 1 else f"vec{lanes}"
        lines.append(f"if (end - p >= {lanes * unroll}) {{")
        lines.append(f"    {kind} {', '.join(f's{u} = {{0}}' for u in range(unroll))};")
        lines.append(f"    {walk(lanes * unroll)} {{")
        for u in range(unroll):
            products = _products(v, lanes, f"p + {u * lanes}", f"s{u}")
            lines += [f"        {line}" for line in products]
        both = " + ".join(f"s{u}" for u in range(unroll))
        lines += [
            "    }",
            f"    total = {both if lanes == 1 else f'sum{lanes}({both})'};",
            "}",
        ]
    lines += ["for (; p < end; p++)", f"    total += z->val[p] * {_x(v, 'p')};"]
    return [*lines, "*d = mode == ADD ? *d + total : total;"]


def _blocks(v: Variant) -> list[str]:
    """C of a block row: one vector of sums if the block is a column, otherwise one per row."""
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
    """C of a slice of rows, one lane each; `d` is the first of them, so the result is addressed
    through z."""
    lanes = _slice_lanes(v)
    kind = "T" if lanes == 1 else f"vec{lanes}"
    parts = range(v.slice // lanes)
    lines = [f"{kind} {', '.join(f's{x} = {{0}}' for x in parts)};"]
    lines.append(f"for (; p < end; p += {v.slice}) {{")
    for x in parts:
        lines += [f"    {line}" for line in _products(v, lanes, f"p + {x * lanes}", f"s{x}")]
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


#: Largest number of sums in registers.
_MAX_SUMS = 16
#: Largest number of vectors of the own row in registers during a segment.
_MAX_HELD = 8


def sddmm_body(v: Variant) -> str:
    """C of dot products of a row of C with rows of B; for columns of A the operands are swapped. A
    tile of the row stays in registers during the segment; a tile narrower than the width leaves
    partial sums in E, which the last one multiplies by A: products of an infinite value may differ
    in sign.

    Raises: SpaceError for blocks that exceed the registers.
    """
    r, c = v.block
    if r * c > _MAX_SUMS:
        raise SpaceError(f"block = {r}x{c}: SDDMM holds at most {_MAX_SUMS} sums in registers")
    own, other = ("z->b", "z->c") if v.form == "csc" else ("z->c", "z->b")
    row = f"(int64_t)z->row[s] * {r}" if v.mapped else f"s * {r}"
    if not v.tile:
        return f"{_PLAIN_DOTS}\n\n{_work(own, other, row, ['dots(z, p, end, own, other);'])}"
    strips = "\n\n".join(_dots(v, width) for width in widths(v.tile))
    calls = columns(v, "tile_%d(z, p, end, own + k, other + k, k);")
    return f"{strips}\n\n{_work(own, other, row, calls)}"


#: The plain loop, with permission to reorder the sum.
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
    """C of `width` columns of the own row (of each row of a block) with the other rows."""
    r, _ = v.block
    kind, lanes, parts = vector(v, width)
    in_registers = r * parts <= _MAX_HELD
    lines = ["const int64_t K = z->width;", f"const int add = k > 0, done = k + {width} == K;"]
    if in_registers:
        lines += [
            f"const {kind} c{y}_{x} = *(const {kind} *)(own + {y} * K + {x * lanes});"
            for y in range(r)
            for x in range(parts)
        ]
    lines += [f"{walk(v.unroll)} {{", *_dot_step(v, width, v.unroll, in_registers), "}"]
    if v.unroll > 1:
        lines += ["for (; p < end; p++) {", *_dot_step(v, width, 1, in_registers), "}"]
    return f"""INLINE void tile_{width}(const problem *z, int64_t p, int64_t end, const T *own,
                    const T *other, int64_t k)
{{
{indent(lines)}
}}"""


def _dot_step(v: Variant, width: int, unroll: int, in_registers: bool) -> list[str]:
    """C of the sums of `unroll` blocks, interleaved to hide latency."""
    r, c = v.block
    kind, lanes, parts = vector(v, width)
    cells = [(u, y, x) for u in range(unroll) for y in range(r) for x in range(c)]
    lines = [
        f"    const T *o{u} = other + (int64_t)z->idx[p + {u}] * ({c} * K);" for u in range(unroll)
    ]
    lines.append(f"    {kind} {', '.join(f's{u}_{y}_{x}' for u, y, x in cells)};")
    for part in range(parts):
        lines.append("    {")
        for y in range(0 if in_registers else r):
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
        lines += [
            f"    {{ const T e = {total} + (add ? z->d[{place}] : 0);",
            f"      z->d[{place}] = done ? z->val[{place}] * e : e; }}",
        ]
    return lines


def _four_sums(names: list[str], lanes: int, at: int, block: int) -> list[str]:
    """C of four sums over lanes at once, of neighbours in E: their halves share registers."""
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
        "        vec4 e = __builtin_shufflevector(g0, g1, 0, 1, 4, 5)",
        "            + __builtin_shufflevector(g0, g1, 2, 3, 6, 7);",
        "        if (add)",
        f"            e += *(const vec4 *)(z->d + {place});",
        "        if (done)",
        f"            e *= *(const vec4 *)(z->val + {place});",
        f"        *(vec4 *)(z->d + {place}) = e;",
        "    }",
    ]
