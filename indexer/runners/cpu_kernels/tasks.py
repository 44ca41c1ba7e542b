"""How a kernel's work is cut into tasks, and the room those need beside the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from indexer.runners.cpu_kernels.forms import Form

__all__ = ["scratch_values", "strip_of"]


def strip_of(form: Form, *, strip: int, rows: int, tasks: int) -> int:
    """`strip` of the kernels' `problem`: non-zeros per task where the launch asks for `tasks`, else
    segments of `rows` rows in a strip of `strip` rows."""
    if tasks:
        return max(1, -(-form.idx.size // tasks))
    return max(1, strip // rows)


def scratch_values(kind: str, form: Form, *, strip: int, width: int, threads: int) -> int:
    """Values of `work` in the kernels' `problem`: a row of the result per task (`fixup`), a result
    for every thread but the first (`private`), or none ("")."""
    if kind == "fixup":
        return -(-form.idx.size // strip) * width
    if kind == "private":
        return (threads - 1) * form.shape[0] * width
    return 0
