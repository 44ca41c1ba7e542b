"""What the README of a library in C says of its own operation and configurations."""

from __future__ import annotations

from collections.abc import Sequence

from embeddb.core.config import Op
from embeddb.emit.part import Part

__all__ = ["readme_parts"]

_ARGUMENTS = {"spmm": "k, b, d", "spmv": "x, y", "sddmm": "k, c, b, values"}
_DENSE = {
    "spmm": "int64_t k, const @T@ *b, @T@ *d",
    "spmv": "const @T@ *x, @T@ *y",
    "sddmm": "int64_t k, const @T@ *c, const @T@ *b, @T@ *values",
}
_OPERANDS = {
    "spmm": "b has n rows of k values, the result m",
    "spmv": "x has n values, the result m",
    "sddmm": "c has m rows of k values, b has n; the result has a value for each of the matrix",
}
_PACK = """\
- **Choice**: `@p@_create` takes the configuration that the rule in @p@_rule.h names, from sizes,
  row pointers and some of the columns, or the first where that one's format would be mostly fill.
  What the rule was learned from, and how good it is, is said there.
"""
_EXAMPLE = """\
int multiply(int64_t m, int64_t n, int64_t nnz, const int64_t *ptr, const int32_t *col,
    const @T@ *val, {dense})
{{
    @p@_matrix *a;
    int code = @p@_create(&a, m, n, nnz, ptr, col, val);
    if (code == @P@_OK)
        code = @p@_run(a, {arguments}, 0);
    @p@_destroy(a);
    return code; /* @p@_message(code) is what it means */
}}"""


def readme_parts(op: Op, parts: Sequence[Part], made_from: str, *, pack: bool) -> dict[str, str]:
    """Texts by their marks. `pack`: a rule chooses among the configurations."""
    blocks = any(part.launch.form.rows > 1 or part.launch.form.block[1] > 1 for part in parts)
    fills = any(part.fills for part in parts)
    one = all(part.launch.threads == "one" for part in parts)
    atomic = any(part.variant.meeting == "atomic" for part in parts)
    return {
        "FROM": f" from {made_from}" if made_from else "",
        "EXAMPLE": _EXAMPLE.format(dense=_DENSE[op.kernel], arguments=_ARGUMENTS[op.kernel]),
        "OPERANDS": _OPERANDS[op.kernel],
        "BLOCKS": " Where their rows fill no whole block,\n  each call copies them."
        if blocks
        else "",
        "THREADS": " What was chosen uses one." if one else "",
        "FILLED": " A result with NaN is computed again\n  value by value, which is slow."
        if fills
        else "",
        "ORDER": "it varies, and with it the last bits, with more than one thread"
        if atomic
        else "the same in every call with as many threads, and so are the bits",
        "PACK": _PACK if pack else "",
        "KERNELS": "\n".join(f"    {part.config}" for part in parts),
    }
