"""`KernelCall`: the current code of a handle, a compiled kernel with its matrix, or scipy."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError
from embeddb.handle.matrix import Buffers, Matrix
from embeddb.kernels import build as cpu_build
from embeddb.kernels.called import NO_MEMORY, BoundKernel, CalledKernel, is_built
from embeddb.kernels.forms import CSR, Refusal, address, as_scipy

Floats = NDArray[Any]
#: Terms of SDDMM computed at a time by scipy.
_CHUNK = 1 << 15
#: Largest form of a matrix.
_MAX_BYTES = 1 << 34


#: Flag of Linux for a process that was forked and has not called exec.
_FORKED = 0x40


def _after_fork() -> bool:
    """True in a forked child with libgomp, which its parent may have used before this module was
    imported."""
    try:
        flags = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[6])
        return bool(flags & _FORKED) and "libgomp" in Path("/proc/self/maps").read_text()
    except (OSError, ValueError, IndexError):
        return False


class _Process:
    """Largest number of threads of a call, 0 for OpenMP's own: after a fork libgomp waits for
    missing threads, whichever library started them, unless only one is requested."""

    most = 1 if _after_fork() else 0


#: Locks of handles: the threads that held them at a fork are not there in the child.
_locks: weakref.WeakSet[threading.Lock] = weakref.WeakSet()


def forkable_lock() -> threading.Lock:
    """A lock that is free in a forked child."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def _forked() -> None:
    _Process.most = 1
    for lock in _locks:
        if lock.locked():
            lock.release()


os.register_at_fork(after_in_child=_forked)


def forked() -> bool:
    """True in a forked child: kernels run on one thread there."""
    return _Process.most == 1


class FormRefused(EmbeddbError):
    """A form is refused for a matrix: too large, or too slow to convert."""


@dataclass(frozen=True, slots=True, eq=False)
class KernelCall:
    """A matrix and the kernel bound to it (None: scipy). `buffers` are for operands whose rows are
    no multiple of a block: b, then c. `direct`: SpMM or SpMV that takes b as it is. `sparse`: the
    matrix for scipy, created when it is first needed."""

    matrix: Matrix
    op: Op
    kernel: CalledKernel | None = None
    bound: BoundKernel | None = None
    buffers: tuple[Buffers | None, Buffers | None] = (None, None)
    direct: bool = False
    sparse: Any = None

    @property
    def conversion_s(self) -> float:
        """Seconds of bringing the matrix into its form."""
        return 0.0 if self.bound is None else self.bound.form.conversion_s

    def compute(self, b: Floats, c: Floats | None, out: Floats | None) -> Floats:
        """Compute into `out`, for which `result_of` must be true, or a new array; b is dtype[n,k]
        (SpMV: also dtype[n]), c dtype[m,k] for SDDMM."""
        bound = self.bound
        if bound is None:
            return _taking(self._by_scipy(b, c), out)
        if self.direct:
            return self.directly(b, out)
        m = self.matrix.pattern.shape[0]
        shape = (self.matrix.values.size,) if c is not None else (m, *b.shape[1:])
        beyond = bound.rows[2] > m
        if beyond:
            result = np.empty((bound.rows[2], *shape[1:]), dtype=b.dtype)
        else:
            result = np.empty(shape, dtype=b.dtype) if out is None else out
        first, second = self.buffers
        operand_b = b if first is None else first.filled(b.reshape(b.shape[0], -1))
        operand_c = c if second is None or c is None else second.filled(c)
        at_c = 0 if operand_c is None else address(operand_c)
        done = bound(address(operand_b), at_c, address(result), _Process.most)
        if first is not None:
            first.give_back(operand_b)
        if second is not None and operand_c is not None:
            second.give_back(operand_c)
        if done:
            return self._instead(done, b, c, out)
        return _taking(result[:m], out) if beyond else result

    def directly(self, b: Floats, out: Floats | None) -> Floats:
        """`compute` without the branches for buffers, which take as long as a small product; only
        if `direct`."""
        bound, shape = self.bound, b.shape
        assert bound is not None
        m, rows, whole = self.matrix.pattern.shape[0], bound.rows[2], out
        if whole is None or rows > m:
            whole = np.empty(rows if len(shape) == 1 else (rows, shape[1]), b.dtype)
        done = bound.call(bound.at, address(b), 0, address(whole), _Process.most)
        if done:
            return self._instead(done, b, None, out)
        return whole if rows == m else _taking(whole[:m], out)

    def _instead(self, done: int, b: Floats, c: Floats | None, out: Floats | None) -> Floats:
        """The result by scipy, in place of a kernel that ended with another code than DONE."""
        if done == NO_MEMORY:
            raise MemoryError("no memory for the threads' scratch space beside the result")
        return _taking(self._by_scipy(b, c), out)

    def with_values(self, matrix: Matrix) -> KernelCall:
        """The same with other values of the same pattern."""
        if self.bound is None or self.kernel is None:
            return replace(self, matrix=matrix, sparse=None)
        bound = self.bound
        if self.kernel.launch.form != CSR and bound.form.order is None:
            form = self.kernel.convert(self.matrix.form(), max_bytes=_MAX_BYTES, ordered=True)
            if isinstance(form, Refusal):
                raise MemoryError(form.reason)
            bound = self.kernel.bind(form, matrix.values.size)
        return replace(self, matrix=matrix, bound=bound.with_values(matrix.values), sparse=None)

    def _by_scipy(self, b: Floats, c: Floats | None) -> Floats:
        if c is None:
            if self.sparse is None:
                object.__setattr__(self, "sparse", as_scipy(self.matrix.form()))
            return np.asarray(self.sparse @ b)
        ptr, idx = self.matrix.pattern.indptr, self.matrix.pattern.indices
        result = np.empty(idx.size, dtype=b.dtype)
        step = max(1, _CHUNK // max(1, self.op.width))
        for low in range(0, idx.size, step):
            part = slice(low, min(low + step, idx.size))
            rows = np.searchsorted(ptr, np.arange(part.start, part.stop), side="right") - 1
            dots = np.einsum("ij,ij->i", c[rows], b[idx[part]])
            result[part] = self.matrix.values[part] * dots
        return result


def by_scipy(matrix: Matrix, op: Op) -> KernelCall:
    """A call that scipy computes."""
    return KernelCall(matrix, op)


def by_kernel(
    matrix: Matrix,
    op: Op,
    config: Config,
    *,
    like: KernelCall | None = None,
    kernel: CalledKernel | None = None,
) -> KernelCall:
    """The matrix in the form of a configuration, with its kernel, built if necessary. `like`: a
    call for the same matrix, whose form is shared if the configuration has the same.

    Raises: RunnerUnavailable if it cannot be built or trusted here; FormRefused; SpaceError for a
    illegal configuration.
    """
    other = None if like is None else like.kernel
    if kernel is None:
        kernel = _kernel(config, op, _builder() if other is None else other.builder)
    spec = kernel.launch.form
    shared = None if like is None else like.bound
    if other is not None and shared is not None and other.launch.form == spec:
        bound = kernel.bind(shared.form, matrix.values.size, shared)
    else:
        ordered = op.name == "sddmm" and spec != CSR
        form = kernel.convert(matrix.form(), max_bytes=_MAX_BYTES, ordered=ordered)
        if isinstance(form, Refusal):
            raise FormRefused(f"the form is refused for this matrix: {form.reason}")
        bound = kernel.bind(form, matrix.values.size)
    m, n = matrix.pattern.shape
    dtype, k = matrix.values.dtype, op.width
    rows_b, rows_c, _ = bound.rows
    buffers = (
        Buffers((rows_b, k), dtype) if rows_b > n else None,
        Buffers((rows_c, k), dtype) if rows_c > m else None,
    )
    direct = op.name != "sddmm" and buffers == (None, None)
    return KernelCall(matrix, op, kernel, bound, buffers, direct)


#: Variables that select flags and cache.
_BUILDER_VARIABLES = (cpu_build.MARCH_VARIABLE, "XDG_CACHE_HOME", "HOME")
#: Configurations with their operations and builders whose kernels this process has loaded.
_loaded: set[tuple[object, ...]] = set()


def is_ready(config: Config, op: Op) -> bool:
    """True if a configuration's kernel is loaded or built. Raises: SpaceError,
    RunnerUnavailable."""
    return (config, op, *_builder()) in _loaded or is_built(config, op)


def built_kernel(config: Config, op: Op) -> CalledKernel:
    """The kernel of a configuration, built if necessary. Raises: SpaceError, RunnerUnavailable."""
    return _kernel(config, op, _builder())


def _builder() -> tuple[object, ...]:
    return cpu_build.compiler(), *_flags_and_folder(*map(os.environ.get, _BUILDER_VARIABLES))


@lru_cache(maxsize=8)
def _flags_and_folder(*_environment: str | None) -> tuple[object, ...]:
    return cpu_build.flags(), cpu_build.cache_folder()


@lru_cache(maxsize=128)
def _kernel(config: Config, op: Op, builder: tuple[object, ...]) -> CalledKernel:
    """A kernel, loaded and checked once per process."""
    kernel = CalledKernel(config, op, builder)
    _loaded.add((config, op, *builder))
    return kernel


def _taking(result: Floats, out: Floats | None) -> Floats:
    if out is None:
        return result
    out[...] = result
    return out
