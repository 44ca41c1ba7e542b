"""What answers the calls of a handle at a time: a compiled kernel with its matrix, or scipy."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError
from embeddb.handle.matrix import Buffers, Matrix, address
from embeddb.kernels import build as cpu_build
from embeddb.kernels.called import NO_MEMORY, NOT_A_NUMBER, BoundKernel, CalledKernel
from embeddb.kernels.forms import FormSpec, Refusal, as_scipy

Floats = NDArray[Any]
#: Terms of SDDMM computed together without a kernel.
_CHUNK = 1 << 15
#: A form of the matrix is refused beyond this.
_MAX_BYTES = 1 << 34


class _Process:
    """What became of OpenMP in this process: after a fork libgomp waits for threads that are not
    there, unless it is asked for one only."""

    most = 0
    used = False


def _forked() -> None:
    _Process.most = 1 if _Process.used else 0


os.register_at_fork(after_in_child=_forked)


class FormRefused(EmbeddbError):
    """A matrix does not go into a form: it would store too much, or take too long to make."""


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A matrix and the kernel bound to it (None: scipy computes). `buffers` are for operands whose
    rows are no multiple of a block: b, then c."""

    matrix: Matrix
    sparse: Any
    op: Op
    kernel: CalledKernel | None = None
    bound: BoundKernel | None = None
    buffers: tuple[Buffers | None, Buffers | None] = (None, None)
    conversion_s: float = 0.0

    def compute(self, b: Floats, c: Floats | None, out: Floats | None) -> Floats:
        """The result in `out`, which must be as `operands.result_of` says, or in a new array; b is
        dtype[n,k] (SpMV: also dtype[n]), c dtype[m,k] for SDDMM."""
        bound = self.bound
        if bound is None:
            return _taking(self._by_scipy(b, c), out)
        m = self.matrix.pattern.shape[0]
        shape = (self.matrix.values.size,) if c is not None else (m, *b.shape[1:])
        beyond = bound.rows[2] > m
        if beyond:
            made = np.empty((bound.rows[2], *shape[1:]), dtype=b.dtype)
        else:
            made = np.empty(shape, dtype=b.dtype) if out is None else out
        first, second = self.buffers
        held_b = b if first is None else first.filled(b.reshape(b.shape[0], -1))
        held_c = c if second is None or c is None else second.filled(c)
        _Process.used = True
        at_c = 0 if held_c is None else address(held_c)
        done = bound(address(held_b), at_c, address(made), _Process.most)
        if first is not None:
            first.give_back(held_b)
        if second is not None and held_c is not None:
            second.give_back(held_c)
        if done == NO_MEMORY:
            raise MemoryError("no room for what the kernel's threads need beside the result")
        if done == NOT_A_NUMBER:
            return _taking(self._by_scipy(b, c), out)
        return _taking(made[:m], out) if beyond else made

    def with_values(self, matrix: Matrix) -> Served:
        """The same with other values of the same pattern."""
        sparse = as_scipy(matrix.form())
        if self.bound is None or self.kernel is None:
            return replace(self, matrix=matrix, sparse=sparse)
        bound = self.bound
        if not is_plain(self.kernel.launch.form) and bound.form.order is None:
            form = self.kernel.convert(self.matrix.form(), max_bytes=_MAX_BYTES, ordered=True)
            if isinstance(form, Refusal):
                raise MemoryError(form.reason)
            bound = self.kernel.bind(form, matrix.values.size)
        return replace(self, matrix=matrix, sparse=sparse, bound=bound.with_values(matrix.values))

    def _by_scipy(self, b: Floats, c: Floats | None) -> Floats:
        if c is None:
            return np.asarray(self.sparse @ b)
        ptr, idx = self.matrix.pattern.indptr, self.matrix.pattern.indices
        made = np.empty(idx.size, dtype=b.dtype)
        step = max(1, _CHUNK // max(1, self.op.width))
        for low in range(0, idx.size, step):
            part = slice(low, min(low + step, idx.size))
            rows = np.searchsorted(ptr, np.arange(part.start, part.stop), side="right") - 1
            dots = np.einsum("ij,ij->i", c[rows], b[idx[part]])
            made[part] = self.matrix.values[part] * dots
        return made


def by_scipy(matrix: Matrix, op: Op) -> Served:
    """Nothing compiled."""
    return Served(matrix, as_scipy(matrix.form()), op)


def by_kernel(matrix: Matrix, op: Op, config: Config) -> Served:
    """The matrix in the form of a configuration, with its code, which is built if need be.

    Raises: RunnerUnavailable if it cannot be built or trusted here; FormRefused; SpaceError for a
    configuration that is none.
    """
    made_by = cpu_build.compiler(), cpu_build.flags(), cpu_build.cache_folder()
    kernel = _kernel(config, op, made_by)
    ordered = op.name == "sddmm" and not is_plain(kernel.launch.form)
    form = kernel.convert(matrix.form(), max_bytes=_MAX_BYTES, ordered=ordered)
    if isinstance(form, Refusal):
        raise FormRefused(f"the matrix does not go into that form: {form.reason}")
    bound = kernel.bind(form, matrix.values.size)
    m, n = matrix.pattern.shape
    dtype, k = matrix.values.dtype, op.width
    rows_b, rows_c, _ = bound.rows
    buffers = (
        Buffers((rows_b, k), dtype) if rows_b > n else None,
        Buffers((rows_c, k), dtype) if rows_c > m else None,
    )
    sparse = as_scipy(matrix.form())
    return Served(matrix, sparse, op, kernel, bound, buffers, form.conversion_s)


@lru_cache(maxsize=128)
def _kernel(config: Config, op: Op, _made_by: tuple[object, ...]) -> CalledKernel:
    """Loaded and checked once in a process, however many matrices it is bound to."""
    return CalledKernel(config, op)


def is_plain(spec: FormSpec) -> bool:
    """Whether a form is the matrix as it comes."""
    return spec == FormSpec("csr")


def _taking(made: Floats, out: Floats | None) -> Floats:
    if out is None:
        return made
    out[...] = made
    return out
