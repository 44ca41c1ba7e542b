"""What a kernel is called with: its matrix, how its work is cut into tasks, and their room; and the
call that times it."""

from __future__ import annotations

import ctypes
import resource
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from embeddb.kernels.forms import Form

__all__ = [
    "Operands",
    "Plan",
    "Problem",
    "problem_of",
    "scratch_values",
    "strip_of",
    "timed",
    "timed_function",
]

#: The dense operands `b` dtype[n+64,width] and, for SDDMM, `c` dtype[m+64,width], the result, and
#: the scratch, which may be of no size but is no null pointer.
Operands = tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any], NDArray[Any]]


class Problem(ctypes.Structure):
    """`problem` of the generated C."""

    _fields_ = (
        *((n, ctypes.c_int64) for n in ("m", "n", "width", "segments", "strip", "panels")),
        *((n, ctypes.c_void_p) for n in ("ptr", "panel", "idx", "row")),
        *((n, ctypes.c_void_p) for n in ("val", "b", "c", "d", "work")),
    )


class Plan(ctypes.Structure):
    """`plan` of the generated C: how it is shared out, and how often it runs."""

    _fields_ = (
        *((n, ctypes.c_int64) for n in ("threads", "schedule", "chunk")),
        *((n, ctypes.c_int64) for n in ("warmups", "repeats", "max_repeats")),
        ("min_time_s", ctypes.c_double),
    )


def problem_of(form: Form, width: int, strip: int, operands: Operands | None = None) -> Problem:
    """A matrix in its form and `width` dense columns; without `operands` these are left to be set.
    The arrays must outlive it."""
    segments, panels = form.ptr.size - 1, 0 if form.panel is None else form.panel.size - 1
    arrays = (form.ptr, form.panel, form.idx, form.row, form.val, *(operands or ()))
    places = (None if a is None else a.ctypes.data for a in arrays)
    return Problem(*form.shape, width, segments, strip, panels, *places)


def timed_function(path: str) -> Any:
    """The kernel of a shared object, as `timed` calls it."""
    function = ctypes.CDLL(path).embeddb_run
    function.restype = ctypes.c_int64
    return function


def timed(kernel: Any, problem: Problem, plan: Plan) -> tuple[dict[str, list[float]], int]:
    """Times of every repeat, and how often the system took a CPU away meanwhile."""
    out = np.zeros((3, plan.max_repeats))
    rows = [ctypes.c_void_p(row.ctypes.data) for row in out]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    done = kernel(ctypes.byref(problem), ctypes.byref(plan), *rows)
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - before
    names = ("times_s", "cpu_max_s", "cpu_sum_s")
    return {n: row[:done].tolist() for n, row in zip(names, out, strict=True)}, switches


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
