"""The displayed form of a tensor kernel: its operations, or the count of each opcode. It is stored
with an answer, which can so be drawn without the kernel."""

from __future__ import annotations

from collections import Counter

import msgspec

from embeddb.tensors.analysis import work_of
from embeddb.tensors.tensor_graph import TensorGraph

#: Of kernels with more operations only the opcodes are counted: a drawing would be unreadable.
MOST_SHOWN = 64
#: Longest opcode or shape, which come from untrusted files.
_MOST_TEXT = 80
_MOST_OPCODES = 24


class OperationView(msgspec.Struct, frozen=True, kw_only=True):
    """One operation: `operands` are positions among the kernel's operations, `is_output` marks a
    result of the kernel."""

    opcode: str
    shape: str
    operands: list[int]
    is_output: bool = msgspec.field(name="given", default=False)


class KernelView(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel of `count` operations. `operations` has all of them, operands first, or none if
    there are more than `MOST_SHOWN`; `opcodes` counts the 24 most frequent. `flops` and `bytes`
    (read and written) are those of `embeddb.tensors.analysis`."""

    count: int
    opcodes: dict[str, int]
    flops: float
    bytes: float
    operations: list[OperationView] = []


def kernel_view(kernel: TensorGraph) -> KernelView:
    """Return the displayed form of a kernel or a program."""
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
                is_output=at in outputs,
            )
            for at, op in enumerate(shown)
        ],
    )


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 1] + "…"
