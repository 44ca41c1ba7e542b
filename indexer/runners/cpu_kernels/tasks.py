"""What a kernel is called with: its matrix, how its work is cut into tasks, and their room."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from indexer.runners.cpu_kernels.forms import Form

__all__ = ["Problem", "problem_of", "scratch_values", "strip_of"]


class Problem(ctypes.Structure):
    """`problem` of the generated C."""

    _fields_ = (
        *((n, ctypes.c_int64) for n in ("m", "n", "width", "segments", "strip", "panels")),
        *((n, ctypes.c_void_p) for n in ("ptr", "panel", "idx", "row")),
        *((n, ctypes.c_void_p) for n in ("val", "b", "c", "d", "work")),
    )


def problem_of(form: Form, width: int, strip: int) -> Problem:
    """A matrix in its form and `width` dense columns; operands, result and scratch are left to be
    set. The arrays of the form must outlive it."""
    segments, panels = form.ptr.size - 1, 0 if form.panel is None else form.panel.size - 1
    arrays = (form.ptr, form.panel, form.idx, form.row, form.val)
    places = (None if a is None else a.ctypes.data for a in arrays)
    return Problem(*form.shape, width, segments, strip, panels, *places)


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
