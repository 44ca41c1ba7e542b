"""MKL's sparse BLAS: the inspector-executor interface of the `mkl` wheel, and sparse_dot_mkl."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.kernels.forms import as_scipy
from indexer.runners.baselines.problem import Failed, Problem, Ready

#: Constants of mkl_spblas.h: row-major dense operands, A not transposed, a general matrix.
_ROW_MAJOR, _AS_IT_IS, _GENERAL = 101, 10, 20
_ALLOC_FAILED = 2
_REALS: dict[int, tuple[str, Any]] = {4: ("s", ctypes.c_float), 8: ("d", ctypes.c_double)}
#: Expected calls, a hint for the optimiser: many, since optimising pays off for many calls only.
_CALLS = 1000


class _Description(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("mode", ctypes.c_int), ("diagonal", ctypes.c_int))


_ANY_MATRIX = _Description(_GENERAL, 0, 0)


@cache
def library() -> Path | None:
    """The wheel's libmkl_rt, which lies outside every search path; None without the wheel."""
    try:
        files = importlib.metadata.files("mkl") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    candidates = (Path(str(f.locate())) for f in files if f.name.startswith("libmkl_rt.so"))
    return next((path.resolve() for path in candidates if path.exists()), None)


@cache
def _load() -> Any:
    path = library()
    assert path is not None, "check `library` first"
    # Measured: where libgomp is loaded already (our kernels need it) MKL takes its GNU layer even
    # if set to INTEL, and the two are equally fast; alone, INTEL brings libiomp, a second pool of
    # threads beside ours on the same processors. One runtime also means one wait policy, ours.
    os.environ["MKL_THREADING_LAYER"] = "GNU"
    os.environ["MKL_INTERFACE_LAYER"] = "LP64"
    os.environ["MKL_RT"] = str(path)  # where sparse_dot_mkl looks
    mkl = ctypes.CDLL(str(path))
    mkl.MKL_Set_Dynamic(0)  # or it uses fewer threads than requested
    empty = np.zeros(2, dtype=np.int32)
    # The first handle loads the rest of MKL: now, and not within somebody's conversion.
    mkl.mkl_sparse_destroy(_handle(mkl, (1, 1), (empty, empty, np.ones(1, np.float32))))
    return mkl


def _handle(mkl: Any, shape: tuple[int, int], csr: tuple[NDArray[Any], ...]) -> Any:
    """A handle that refers to the arrays `ptr`, `idx`, `val` and must not outlive them."""
    handle = ctypes.c_void_p()
    ptr, idx, val = csr
    ends = ctypes.c_void_p(ptr.ctypes.data + ptr.itemsize)
    create = getattr(mkl, f"mkl_sparse_{_REALS[val.itemsize][0]}_create_csr")
    status = create(ctypes.byref(handle), 0, *shape, _at(ptr), ends, _at(idx), _at(val))
    _check(status, "create_csr")
    return handle


@contextmanager
def prepare(problem: Problem, threads: int, *, optimize: bool) -> Iterator[Ready]:
    """SpMM and SpMV by handle; with `optimize` its hints and optimisation are the conversion."""
    mkl = _load()
    mkl.MKL_Set_Num_Threads(threads)
    start = time.perf_counter()
    csr = (problem.ptr32(), problem.csr.idx, problem.csr.val)
    handle = _handle(mkl, problem.csr.shape, csr)
    try:
        if optimize:
            _optimize(mkl, handle, problem)
        seconds = time.perf_counter() - start
        yield Ready(_call(mkl, handle, problem), threads, seconds)
    finally:
        mkl.mkl_sparse_destroy(handle)


def _optimize(mkl: Any, handle: Any, problem: Problem) -> None:
    if problem.kernel == "spmv":
        status = mkl.mkl_sparse_set_mv_hint(handle, _AS_IT_IS, _ANY_MATRIX, _CALLS)
    else:
        how = (_AS_IT_IS, _ANY_MATRIX, _ROW_MAJOR, problem.b.shape[1], _CALLS)
        status = mkl.mkl_sparse_set_mm_hint(handle, *how)
    _check(status, "hint")
    _check(mkl.mkl_sparse_optimize(handle), "optimize")


def _call(mkl: Any, handle: Any, problem: Problem) -> Callable[[], NDArray[Any]]:
    letter, real = _REALS[problem.csr.val.itemsize]
    product = "mv" if problem.kernel == "spmv" else "mm"
    function = getattr(mkl, f"mkl_sparse_{letter}_{product}")
    layout: tuple[int, ...] = ()
    step: tuple[int, ...] = ()
    if product == "mm":
        layout, step = (_ROW_MAJOR,), (problem.b.shape[1],)
    head = (_AS_IT_IS, real(1), handle, _ANY_MATRIX, *layout)
    arguments = (*head, _at(problem.b), *step * 2, real(0), _at(problem.out), *step)

    def call() -> NDArray[Any]:
        _check(function(*arguments), product)
        return problem.out

    return call


def _at(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _check(status: int, what: str) -> None:
    if status:
        kind = "oom" if status == _ALLOC_FAILED else "invalid"
        raise Failed(kind, f"MKL's {what} failed with status {status}")


@contextmanager
def wrapped(problem: Problem, threads: int) -> Iterator[Ready]:
    """SpMM and SpMV as sparse_dot_mkl calls them: a new handle for every product."""
    mkl = _load()
    from sparse_dot_mkl import dot_product_mkl

    mkl.MKL_Set_Num_Threads(threads)
    start = time.perf_counter()
    a = as_scipy(problem.csr)
    seconds = time.perf_counter() - start

    def call() -> NDArray[Any]:
        # Without the 0 it would add to the old result.
        return np.asarray(dot_product_mkl(a, problem.b, out=problem.out, out_scalar=0.0))

    yield Ready(call, threads, seconds)
