"""A tensor kernel as it is shown: its operations, or only how many there are of which, so that an
answer can be drawn where the kernel itself is not at hand."""

from __future__ import annotations

from collections import Counter

import msgspec

from embeddb.tensors.analysis import work_of
from embeddb.tensors.tensor_graph import TensorGraph

#: Of kernels with more operations only the opcodes are counted: nobody reads such a drawing.
MOST_SHOWN = 64
#: Characters of an opcode or a shape: texts come from strangers' files.
_MOST_TEXT = 80
_MOST_OPCODES = 24


class OperationView(msgspec.Struct, frozen=True, kw_only=True):
    """One operation: its `operands` are places among the kernel's, `given` says that it is a result
    of the kernel."""

    opcode: str
    shape: str
    operands: list[int]
    given: bool = False


class KernelView(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel of `count` operations. `operations` has all of them in an order in which operands
    come first, or none where they are more than `MOST_SHOWN`; `opcodes` counts them, the most first
    (at most 24 opcodes). `flops` and `bytes` (read and written) as `embeddb.tensors.analysis`."""

    count: int
    opcodes: dict[str, int]
    flops: float
    bytes: float
    operations: list[OperationView] = []


def kernel_view(kernel: TensorGraph) -> KernelView:
    """Of a kernel or a program."""
    counts = Counter(_cut(op.opcode) for op in kernel.operations)
    work, outputs = work_of(kernel), set(kernel.outputs)
    shown = kernel.operations if len(kernel.operations) <= MOST_SHOWN else ()
    return KernelView(
        count=len(kernel.operations),
        opcodes=dict(counts.most_common(_MOST_OPCODES)),
        flops=float(work.flops),
        bytes=float(work.bytes),
        operations=[
            OperationView(
                opcode=_cut(op.opcode),
                shape=_cut(f"{op.shape.dtype}[{','.join(map(str, op.shape.dims))}]"),
                operands=list(op.operands),
                given=at in outputs,
            )
            for at, op in enumerate(shown)
        ],
    )


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 1] + "…"
