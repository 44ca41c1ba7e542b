"""Input and result of a baseline, the same for every library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from embeddb.kernels.forms import Form
    from indexer.runners.cpu_kernels.job import Loaded


class Failed(Exception):
    """A baseline that cannot run here: the status of its measurement, and why in one line."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """One SpMM, SpMV or SDDMM on CSR, in memory that the library need not allocate.

    `csr` has `ptr` int64[m+1], `idx` int32[nnz], `val` float[nnz]; `b` float[n,width], or float[n]
    for SpMV; `c` float[m,width], for SDDMM only; `out` is the result: float[m,width], float[m] or
    float[nnz].
    """

    kernel: str
    csr: Form
    b: NDArray[Any]
    c: NDArray[Any] | None
    out: NDArray[Any]

    def ptr32(self) -> NDArray[np.int32]:
        """int32[m+1], a copy. Raises: Failed where 32 bits do not hold the positions."""
        if self.csr.idx.size >= 2**31:
            raise Failed("invalid", f"{self.csr.idx.size} non-zeros: its positions have 32 bits")
        return self.csr.ptr.astype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """A call that can be repeated; it returns the result in the shape of `Problem.out`.

    `conversion_s` is paid once per matrix, `compile_s` once per kernel; `threads` is the number
    that the call uses.
    """

    call: Callable[[], NDArray[Any]]
    threads: int
    conversion_s: float
    compile_s: float | None = None


def problem_of(job: Loaded) -> Problem:
    """The loaded problem; its result holds no number yet.

    The result of an earlier kernel lies in the same memory and is right: a library that writes
    nothing must not be taken for one that computes.
    """
    b, c, shape = job.b[: job.n], None, (job.m, job.width)
    flat = job.d.reshape(-1)
    if job.kernel == "spmv":
        b, out = b.reshape(-1), flat[: job.m]
    elif job.kernel == "sddmm":
        assert job.c is not None, "an SDDMM has two dense operands"
        c, out = job.c[: job.m], flat[: job.csr.idx.size]
    else:
        out = flat[: job.m * job.width].reshape(shape)
    out.fill(np.nan)
    return Problem(job.kernel, job.csr, b, c, out)
