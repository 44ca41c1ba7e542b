"""Calling a compiled kernel of `kernel.c.in`: what it is given, and what it tells."""

from __future__ import annotations

import ctypes
import resource
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.runners.cpu_kernels.forms import Form

__all__ = ["Operands", "Plan", "Problem", "function_of", "problem_of", "timed"]

#: The dense operands `b` dtype[n+64,width] and, for SDDMM, `c` dtype[m+64,width], the result, and
#: the scratch, which may be of no size but is no null pointer.
Operands = tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any], NDArray[Any]]


class Problem(ctypes.Structure):
    """`problem` in C. It holds addresses: the arrays must live as long."""

    _fields_ = (
        *((n, ctypes.c_int64) for n in ("m", "n", "width", "segments", "strip", "panels")),
        *((n, ctypes.c_void_p) for n in ("ptr", "panel", "idx", "row")),
        *((n, ctypes.c_void_p) for n in ("val", "b", "c", "d", "work")),
    )


class Plan(ctypes.Structure):
    """`plan` in C: how it is shared out, and how often it runs."""

    _fields_ = (
        *((n, ctypes.c_int64) for n in ("threads", "schedule", "chunk")),
        *((n, ctypes.c_int64) for n in ("warmups", "repeats", "max_repeats")),
        ("min_time_s", ctypes.c_double),
    )


def function_of(path: str) -> Any:
    """The kernel of a shared object."""
    function = ctypes.CDLL(path).embeddb_run
    function.restype = ctypes.c_int64
    return function


def problem_of(form: Form, operands: Operands, *, width: int, strip: int) -> Problem:
    """A matrix in some form, with dense operands of so many columns."""
    segments, panels = form.ptr.size - 1, 0 if form.panel is None else form.panel.size - 1
    arrays = (form.ptr, form.panel, form.idx, form.row, form.val, *operands)
    return Problem(
        *(*form.shape, width, segments, strip, panels),
        *(None if a is None else a.ctypes.data for a in arrays),
    )


def timed(kernel: Any, problem: Problem, plan: Plan) -> tuple[dict[str, list[float]], int]:
    """Times of every repeat, and how often the system took a CPU away meanwhile."""
    out = np.zeros((3, plan.max_repeats))
    rows = [ctypes.c_void_p(row.ctypes.data) for row in out]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    done = kernel(ctypes.byref(problem), ctypes.byref(plan), *rows)
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - before
    names = ("times_s", "cpu_max_s", "cpu_sum_s")
    return {n: row[:done].tolist() for n, row in zip(names, out, strict=True)}, switches
