"""What a kernel computes and moves, counted from its operations alone."""

from __future__ import annotations

from dataclasses import dataclass

from embeddb.tensors.computation import Computation
from embeddb.tensors.reduced import reduced

__all__ = ["Work", "work_of"]

_FREE = frozenset(
    """
    bitcast broadcast concatenate constant copy dynamic-slice dynamic-update-slice gather
    get-tuple-element iota pad parameter reshape reverse slice transpose tuple
    """.split()  # noqa: SIM905 - a table of words
)
_TRANSCENDENTAL = frozenset(
    """
    acos acosh asin asinh atan2 atanh cbrt cosh cosine erf exponential exponential-minus-one log
    log-plus-one logistic power rsqrt sine sinh sqrt tan tanh
    """.split()  # noqa: SIM905 - a table of words
)


@dataclass(frozen=True, slots=True)
class Work:
    """Of one kernel: floating-point operations, calls of transcendental functions, bytes."""

    flops: int
    transcendentals: int
    bytes_read: int
    bytes_written: int


def work_of(kernel: Computation) -> Work:
    """Parameters are read and outputs written once."""
    flops = calls = 0
    for at, op in enumerate(kernel.operations):
        terms = reduced(op, kernel.operand_shapes(at))
        if op.opcode in _TRANSCENDENTAL:
            calls += op.shape.elements
        elif op.opcode in ("dot", "convolution"):
            flops += 2 * terms * op.shape.elements
        elif op.opcode not in _FREE:
            flops += terms * op.shape.elements
    operations = kernel.operations
    read = sum(shape.bytes for at in kernel.parameters for shape in operations[at].results)
    written = sum(shape.bytes for at in kernel.outputs for shape in operations[at].results)
    return Work(flops, calls, read, written)
