"""Rounding errors that results of generated code may have."""

from __future__ import annotations

from embeddb.tensors.tensor_graph import TensorGraph

_UNITS = {"f32": 2.0**-24, "f64": 2.0**-53}
#: Roundings that one operation may cost: vector functions and reciprocals are not exact.
_COST = 16.0
#: Operations that turn rounded numbers into whole ones or into a decision.
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
    """Relative error that rounding explains in sums of `length` terms of type `f32` or `f64`:
    random as its root, and beyond that in one direction."""
    return float(_UNITS[dtype] * (_COST + 4 * length**0.5 + length / 32))


def kernel_error(kernel: TensorGraph) -> float:
    """The relative error of a tensor kernel, of the type that computes and its longest sum; 0 for
    whole numbers."""
    types = {shape.dtype for op in kernel.operations for shape in op.results}
    if not types & set(_UNITS):
        return 0.0
    return relative_error("f32" if "f32" in types else "f64", kernel.reduced)


def may_jump(kernel: TensorGraph) -> bool:
    """Whether rounding can turn a decision; a few elements may then be anything."""
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
    """Whether an operation of the kernel is not defined for negative numbers."""
    return any(op.opcode in _POSITIVE for op in kernel.operations)
