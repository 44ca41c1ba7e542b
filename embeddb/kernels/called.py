"""Kernels called in this process: built if requested, checked before loading.

Loaded code has all rights of the process, so nothing is loaded from a folder that others can write
to, nor code compiled for a processor with more extensions than this one.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import RunnerUnavailable
from embeddb.kernels import build as cpu_build
from embeddb.kernels import codegen as cpu_codegen
from embeddb.kernels.bodies import Variant
from embeddb.kernels.codegen import Launch
from embeddb.kernels.forms import Converter, Form, Refusal, address, aligned

#: Return codes of a call: `outcome` of the generated C.
DONE, NO_MEMORY, NOT_A_NUMBER = range(3)
#: Macros of extensions; the system uses the same names without underscores.
_EXTENSION = re.compile(r"^#define __((?:AVX|FMA|BMI|SSE4_)\w*?)__ ", re.MULTILINE)
_OTHERS_WRITE = 0o022
#: Variables for waiting threads of libgomp.
_SPIN, _POLICY = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"


class Problem(ctypes.Structure):
    """`problem` of the generated C."""

    _fields_ = (
        *((n, ctypes.c_int64) for n in ("m", "n", "width", "segments", "strip", "panels")),
        *((n, ctypes.c_void_p) for n in ("ptr", "panel", "idx", "row")),
        *((n, ctypes.c_void_p) for n in ("val", "b", "c", "d", "work")),
    )


class Plan(ctypes.Structure):
    """`plan` of the generated C: scheduling, and number of runs."""

    _fields_ = (
        *((n, ctypes.c_int64) for n in ("threads", "schedule", "chunk")),
        *((n, ctypes.c_int64) for n in ("warmups", "repeats", "max_repeats")),
        ("min_time_s", ctypes.c_double),
    )


class _Held(ctypes.Structure):
    """`held` of the generated C."""

    _fields_ = (
        ("q", Problem),
        *((n, ctypes.c_int64) for n in ("one", "schedule", "chunk", "pieces", "stored", "count")),
        ("place", ctypes.c_void_p),
    )


@dataclass(frozen=True, slots=True, eq=False)
class BoundKernel:
    """A kernel bound to a matrix, called by addresses without the GIL.

    `rows` are the required rows of the operands b and c, and of the result d; rows of operands
    beyond the matrix must be zero. `place` int64[nnz] are the positions of CSR values in the form,
    for SDDMM in another form; `at` is the address of `arguments`.
    """

    call: Any
    arguments: ctypes.Structure
    at: int
    form: Form
    rows: tuple[int, int, int]
    place: NDArray[np.int64] | None

    def __call__(self, b: int, c: int, d: int, most: int = 0) -> int:
        """Run the kernel; DONE, NO_MEMORY or NOT_A_NUMBER. At most `most` threads, 0: OpenMP's."""
        done: int = self.call(self.at, b, c, d, most)
        return done

    def with_values(self, values: NDArray[Any]) -> BoundKernel:
        """The same matrix with other values dtype[nnz] in CSR order; a form other than plain CSR
        needs its `order`."""
        order = self.form.order
        stored = aligned(self.form.val.shape, values.dtype)
        if order is None:
            stored[:] = values
        elif stored.size:
            np.take(values, order, out=stored, mode="clip")
            stored[order < 0] = 0
        arguments = _Held.from_buffer_copy(self.arguments)
        arguments.q.val = stored.ctypes.data
        form = replace(self.form, val=stored)
        return replace(self, arguments=arguments, at=ctypes.addressof(arguments), form=form)


class CalledKernel:
    """Loaded code of a configuration, which can be bound to any matrix. `builder` selects flags and
    cache of the code.

    Raises: SpaceError for an illegal configuration; RunnerUnavailable if it cannot be compiled,
    stored or trusted here.
    """

    def __init__(self, config: Config, op: Op, builder: tuple[object, ...] = ()) -> None:
        self.op, self.builder = op, builder
        self.variant, self.launch = _plan(config, op)
        built = cpu_build.build(cpu_codegen.source(self.variant, entry="called"))
        if built.error:
            raise RunnerUnavailable(f"the kernel does not compile: {built.error}")
        _require_trusted(built)
        _require_runnable()
        self._call = _library(str(built.path)).embeddb_call
        self._call.restype = ctypes.c_int64
        self._call.argtypes = (*4 * (ctypes.c_void_p,), ctypes.c_int64)
        self._converter: Converter | None = None

    def convert(self, csr: Form, *, max_bytes: int, ordered: bool = False) -> Form | Refusal:
        """A matrix in plain CSR converted to the kernel's form."""
        if self._converter is None:
            library = ""
            if self.launch.form.compiled:
                built = cpu_build.build(cpu_codegen.conversions())
                _require_trusted(built)
                library = str(built.path)
            self._converter = Converter(library)
        return self._converter.convert(csr, self.launch.form, max_bytes=max_bytes, ordered=ordered)

    def bind(self, form: Form, count: int, like: BoundKernel | None = None) -> BoundKernel:
        """Bind the kernel to a form of a matrix with `count` non-zeros. SDDMM needs its `order`,
        unless the form is plain CSR. `like`: another binding of the same form."""
        launch = self.launch
        strip = max(1, launch.strip // launch.form.rows)
        if like is None:
            place = None
            if self.op.name == "sddmm" and form.order is not None:
                place = np.empty(count, dtype=np.int64)
                real = np.flatnonzero(form.order >= 0)
                place[form.order[real]] = real
            arguments = _Held(problem_of(form, self.op.width, strip))
            arguments.stored, arguments.count = form.val.size, count
            arguments.place = None if place is None else place.ctypes.data
        else:
            place, arguments = like.place, _Held.from_buffer_copy(like.arguments)
            arguments.q.strip = strip
        arguments.one = launch.threads == "one"
        arguments.schedule = cpu_codegen.SCHEDULES[launch.schedule]
        arguments.chunk, arguments.pieces = launch.chunk, launch.pieces
        rows = _rows(self.variant, *form.shape)
        return BoundKernel(self._call, arguments, ctypes.addressof(arguments), form, rows, place)


def is_built(config: Config, op: Op) -> bool:
    """True if a configuration's code is cached, with that of its conversion. Raises: SpaceError,
    RunnerUnavailable."""
    variant, launch = _plan(config, op)
    if launch.form.compiled and cpu_build.cached(cpu_codegen.conversions()) is None:
        return False
    return cpu_build.cached(cpu_codegen.source(variant, entry="called")) is not None


def code_place(config: Config, op: Op) -> Path:
    """Path of a configuration's code in the cache. Raises: SpaceError, RunnerUnavailable."""
    variant, _ = _plan(config, op)
    return cpu_build.place_of(cpu_codegen.source(variant, entry="called"))


def _plan(config: Config, op: Op) -> tuple[Variant, Launch]:
    return cpu_codegen.plan(config, op, vector_bytes=cpu_build.vector_bytes())


def _rows(variant: Variant, m: int, n: int) -> tuple[int, int, int]:
    """Rows of b, c and d that a kernel accesses: whole blocks, and a dummy row."""
    r, c = variant.block
    tall, wide = -(-m // r) * r, -(-n // c) * c
    if variant.kernel == "sddmm":
        return wide, tall, 0
    if variant.slice and m % variant.slice:
        return wide, 0, m + 1
    return wide, 0, tall


@cache
def _library(path: str) -> ctypes.CDLL:
    try:
        with _short_waits():
            return ctypes.CDLL(path)
    except OSError as error:
        raise RunnerUnavailable(f"a compiled kernel cannot be loaded: {error}") from None


@contextmanager
def _short_waits() -> Iterator[None]:
    """Load OpenMP, with the first kernel, so that its waiting threads spin for about 0.05 ms: calls
    that follow each other find them awake.

    By default they spin for milliseconds, which blocks processors for the threads of the caller's
    BLAS: conjugate gradients took 6 times as long. OpenMP reads the setting once, when it is
    loaded; the user's own setting has precedence."""
    if _SPIN in os.environ or _POLICY in os.environ:
        yield
        return
    os.environ[_SPIN] = "2000"
    try:
        yield
    finally:
        os.environ.pop(_SPIN, None)


def _require_trusted(built: cpu_build.Built) -> None:
    """Check ownership. Raises: RunnerUnavailable if others own or may write the object or
    folder."""
    for place in (built.path.parent, built.path):
        try:
            about = place.stat()
        except OSError as error:
            raise RunnerUnavailable(f"{place}: {error.strerror}") from None
        if about.st_uid != os.geteuid() or about.st_mode & _OTHERS_WRITE:
            raise RunnerUnavailable(
                f"{place}: other users can write here, so no code is loaded from it",
                hint=f"chmod go-w {place}, or set XDG_CACHE_HOME to a folder of your own",
            )


def _require_runnable() -> None:
    """Check extensions. Raises: RunnerUnavailable if this processor lacks one of the target's."""
    march = cpu_build.flags()[1]
    own_compiler = cpu_build.compiler()
    if march == "-march=native":
        return
    if own_compiler is None:
        raise RunnerUnavailable(
            f"cannot check without a compiler whether this processor supports {march}",
            hint=f"unset {cpu_build.MARCH_VARIABLE}",
        )
    # Linux calls the compiler's BMI bmi1.
    own = {name.replace("_", "").replace("bmi1", "bmi") for name in cpu_build.cpu_flags()}
    needed = _EXTENSION.findall(cpu_build.macros(own_compiler[0], march))
    missing = [name for name in needed if name.lower().replace("_", "") not in own]
    if missing:
        raise RunnerUnavailable(
            f"this processor has no {missing[0].lower()}, which {march} requires",
            hint=f"unset {cpu_build.MARCH_VARIABLE}",
        )


#: Dense operands `b` dtype[n+64,width] and, for SDDMM, `c` dtype[m+64,width], the result, and the
#: scratch array, which may be empty but is no null pointer.
Operands = tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any], NDArray[Any]]


def problem_of(form: Form, width: int, strip: int, operands: Operands | None = None) -> Problem:
    """The C structure of a matrix form and `width` dense columns; without `operands` their pointers
    are null. The arrays must outlive it."""
    segments, panels = form.ptr.size - 1, 0 if form.panel is None else form.panel.size - 1
    arrays = (form.ptr, form.panel, form.idx, form.row, form.val, *(operands or ()))
    places = (None if a is None else address(a) for a in arrays)
    return Problem(*form.shape, width, segments, strip, panels, *places)


def timed_function(path: str) -> Any:
    """The timing entry of a shared object, for `timed`."""
    function = ctypes.CDLL(path).embeddb_run
    function.restype = ctypes.c_int64
    return function


def timed(kernel: Any, problem: Problem, plan: Plan) -> tuple[dict[str, list[float]], int]:
    """Times of every repeat, and the number of involuntary context switches."""
    out = np.zeros((3, plan.max_repeats))
    rows = [ctypes.c_void_p(row.ctypes.data) for row in out]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    done = kernel(ctypes.byref(problem), ctypes.byref(plan), *rows)
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - before
    names = ("times_s", "cpu_max_s", "cpu_sum_s")
    return {n: row[:done].tolist() for n, row in zip(names, out, strict=True)}, switches


def strip_of(form: Form, *, strip: int, rows: int, tasks: int) -> int:
    """`strip` of the kernels' `problem`: non-zeros per task if the launch has `tasks`, else
    segments of `rows` rows in a strip of `strip` rows."""
    if tasks:
        return max(1, -(-form.idx.size // tasks))
    return max(1, strip // rows)


def scratch_values(kind: str, form: Form, *, strip: int, width: int, threads: int) -> int:
    """Number of values in `work` of the kernels' `problem`: a row of the result per task (`fixup`),
    a result for every thread but the first (`private`), or none ("")."""
    if kind == "fixup":
        return -(-form.idx.size // strip) * width
    if kind == "private":
        return (threads - 1) * form.shape[0] * width
    return 0
