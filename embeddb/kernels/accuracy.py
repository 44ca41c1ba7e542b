"""Bounds on rounding errors in results of generated code."""

from __future__ import annotations

from embeddb.tensors.tensor_graph import Shape, TensorGraph

_UNITS = {"f32": 2.0**-24, "f64": 2.0**-53}
#: Rounding units of one operation: vector functions and reciprocals are not exact.
_COST = 16.0
#: Discontinuous operations: to integers, or comparisons.
_DECIDES = frozenset(
    "ceil compare floor is-finite remainder round-nearest-afz round-nearest-even sign".split()  # noqa: SIM905
)
_EXACT = frozenset(
    """
    parameter constant iota broadcast transpose reshape bitcast slice reverse copy pad concatenate
    maximum minimum negate abs select clamp
    """.split()  # noqa: SIM905 - a table of words
)
#: Operations that are not defined for negative numbers.
_POSITIVE = frozenset(("log", "log-plus-one", "sqrt", "rsqrt", "power", "cbrt"))


def relative_error(dtype: str, length: int) -> float:
    """Bound on the relative rounding error of sums of `length` terms of type `f32` or `f64`: a
    random part with the root of the length, and a systematic part."""
    return float(_UNITS[dtype] * (_COST + 4 * length**0.5 + length / 32))


def kernel_error(kernel: TensorGraph) -> float:
    """Bound on the relative error of a tensor kernel, by its type and longest sum; 0 for
    integers."""
    types = {shape.dtype for op in kernel.operations for shape in op.results}
    if not types & set(_UNITS):
        return 0.0
    return relative_error("f32" if "f32" in types else "f64", kernel.reduced)


def may_jump(kernel: TensorGraph) -> bool:
    """True if rounding can change a decision, so that a few elements may have any value."""
    exact: list[bool] = []
    for op in kernel.operations:
        before = all(exact[o] for o in op.operands)
        real = any(kernel.operations[o].shape.dtype.startswith("f") for o in op.operands)
        whole = op.opcode == "convert" and not op.shape.dtype.startswith("f")
        if real and not before and (op.opcode in _DECIDES or whole):
            return True
        exact.append(before and op.opcode in _EXACT)
    return False


def needs_positive(kernel: TensorGraph) -> bool:
    """True if an operation of the kernel is undefined for negative numbers."""
    return any(op.opcode in _POSITIVE for op in kernel.operations)


#: Size of inputs that `exp` of f32 overflows for.
LARGE = 100.0
_LARGE_IN = 64


def takes_large(kernel: TensorGraph, parameter: Shape) -> bool:
    """True if a check may set the first and last input of a parameter to -`LARGE` and `LARGE`:
    there is no sum, whose error bound they would raise for all elements, and these are few."""
    few = parameter.dtype in _UNITS and parameter.elements >= _LARGE_IN
    return few and kernel.reduced == 1 and not needs_positive(kernel)
