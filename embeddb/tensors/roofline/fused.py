"""Seconds of a fused kernel from the bytes it reads and writes, its flops and its calls of
functions: a roofline, up to a factor for each type of kernel.

Source: "A Learned Performance Model for Tensor Processing Units", Section 5.2: the analytical model
is scaled by type of kernel there.
"""

from __future__ import annotations

from embeddb.tensors.analysis import work_of
from embeddb.tensors.computation import Computation
from embeddb.tensors.roofline.machine import LINE, Machine, function_cycles

__all__ = ["TYPES", "fused_seconds", "type_of"]

#: From the one that decides first: a kernel is of the type of its heaviest operation.
TYPES = ("convolution", "dot", "window", "reduce", "moving", "element-wise")
_WINDOWS = frozenset(("reduce-window", "select-and-scatter"))
_MOVING = frozenset(("gather", "scatter", "sort", "transpose", "concatenate", "pad", "reverse"))
#: Of a call of some function on a vector of f32: that of an exponential.
_FUNCTION = "exponential"


def type_of(kernel: Computation) -> str:
    """One of `TYPES`."""
    opcodes = {operation.opcode for operation in kernel.operations}
    for name in ("convolution", "dot"):
        if name in opcodes:
            return name
    if opcodes & _WINDOWS:
        return "window"
    if "reduce" in opcodes:
        return "reduce"
    return "moving" if opcodes & _MOVING else "element-wise"


def fused_seconds(kernel: Computation, machine: Machine) -> float:
    """The larger of two: until its parameters and results came from the nearest cache that holds
    them all, and until its flops and functions are computed at the machine's best."""
    work = work_of(kernel)
    caches = [cache for cache in machine.caches if cache.line == LINE]
    nearest = next(
        (at for at, cache in enumerate(caches) if work.bytes <= cache.bytes), len(caches)
    )
    # What fits the first is read from it as fast as from the second: nobody asks for less.
    beyond = caches[max(nearest - 1, 0)]
    moved = work.bytes / LINE * beyond.next
    lanes = machine.lanes(4)
    functions = function_cycles(_FUNCTION, 4, machine.vector_bytes)[0] / lanes
    computed = work.flops / machine.flops_a_cycle + work.transcendentals * functions
    return max(moved, computed) / machine.hertz
