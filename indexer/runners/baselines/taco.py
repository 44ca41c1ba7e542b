"""TACO: C printed by an external `taco` for a few schedules, compiled and called like our own."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.kernels import build as cpu_build
from indexer.runners.baselines.problem import Failed, Problem, Ready

_TIMEOUT_S = 5.0
#: Values of OpenMP's omp_sched_t.
_STATIC, _DYNAMIC = 1, 2
#: As in our kernels, the last operand of SDDMM has as many rows as A.
_EXPRESSIONS = {
    "spmm": "D(i,k)=A(i,j)*B(j,k)",
    "spmv": "D(i)=A(i,j)*B(j)",
    "sddmm": "D(i,j)=A(i,j)*B(j,k)*C(i,k)",
}
#: A flag of taco when it compiles what it prints. Without it gcc may not vectorise the sums of
#: SDDMM and SpMV, and the comparison would be one of compiler flags.
_FAST_MATH = '#pragma GCC optimize("fast-math")\n'


@dataclass(frozen=True, slots=True)
class Schedule:
    """A text for `-s=` (empty: none), and the OpenMP schedule of its `schedule(runtime)`."""

    text: str = ""
    openmp: int = _DYNAMIC
    chunk: int = 1


_ROWS = "split(i,i0,i1,16)"
_PARALLEL = "parallelize(i0,CPUThread,NoRaces)"
_BY_EIGHT = "pos(j,jpos,A),split(jpos,jpos0,jpos1,8),reorder(i0,i1,jpos0,k,jpos1)"
#: By name and kernel. `default` has no schedule; `rows` and `unrolled` are the CPU
#: schedules of Senanayake et al. 2020 (OOPSLA), section 8; `nonzeros` gives each task as many
#: non-zeros. SDDMM needs its result inserted, not appended, before rows can run in parallel.
SCHEDULES = {
    "default": {kernel: Schedule(openmp=_STATIC, chunk=0) for kernel in _EXPRESSIONS},
    "rows": {
        "spmm": Schedule(f"{_ROWS},{_PARALLEL}"),
        "spmv": Schedule(f"{_ROWS},{_PARALLEL}"),
        "sddmm": Schedule(f"assemble(D,Insert),{_ROWS},{_PARALLEL}"),
    },
    "unrolled": {
        "spmm": Schedule(f"{_ROWS},{_BY_EIGHT},{_PARALLEL},parallelize(k,CPUVector,IgnoreRaces)"),
    },
    "nonzeros": {
        "spmv": Schedule(
            "fuse(i,j,f),pos(f,fpos,A),split(fpos,fpos0,fpos1,4096),"
            "parallelize(fpos0,CPUThread,Atomics)"
        ),
    },
}


class _Tensor(ctypes.Structure):
    """`taco_tensor_t` of the printed C."""

    _fields_ = (
        ("order", ctypes.c_int32),
        ("dimensions", ctypes.POINTER(ctypes.c_int32)),
        ("csize", ctypes.c_int32),
        ("mode_ordering", ctypes.POINTER(ctypes.c_int32)),
        ("mode_types", ctypes.POINTER(ctypes.c_int)),
        ("indices", ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p))),
        ("vals", ctypes.c_void_p),
        ("fill_value", ctypes.c_void_p),
        ("vals_size", ctypes.c_int32),
    )


@contextmanager
def prepare(problem: Problem, threads: int, *, schedule: str) -> Iterator[Ready]:
    """One schedule of `SCHEDULES`. Its compile time is taco's and gcc's."""
    chosen = SCHEDULES[schedule][problem.kernel]
    sizes = [array.size for array in (problem.b, problem.c, problem.out) if array is not None]
    if max(sizes) >= 2**31:
        raise Failed("invalid", f"an operand of {max(sizes)} values: taco counts in 32 bits")
    begin = time.perf_counter()
    source = _printed(problem, chosen)
    printed_s = time.perf_counter() - begin
    built = cpu_build.build(source)
    if built.error:
        raise Failed("build", built.error)
    loaded = ctypes.CDLL(str(built.path))
    loaded.omp_set_num_threads(threads)
    loaded.omp_set_schedule(chosen.openmp, chosen.chunk)
    begin = time.perf_counter()
    tensors, alive = _tensors(problem)
    seconds = time.perf_counter() - begin
    arguments = [ctypes.byref(tensor) for tensor in tensors]

    def call() -> NDArray[Any]:
        assert alive, "the arrays that the tensors point to"
        loaded.compute(*arguments)
        return problem.out

    body = source.partition("int compute(")[2].partition("\n}")[0]
    used = threads if "omp parallel" in body else 1
    yield Ready(call, used, seconds, printed_s + built.compile_s)


def _printed(problem: Problem, schedule: Schedule) -> str:
    """The C of taco's kernel. Raises: Failed if taco does not give it, or not in time."""
    path = shutil.which("taco")
    assert path is not None, "check that taco is installed first"
    kind = "float" if problem.csr.val.itemsize == 4 else "double"
    expression = _EXPRESSIONS[problem.kernel]
    command = [path, expression, "-f=A:ds", "-print-nocolor"]
    command += [f"-t={name}:{kind}" for name in "DABC" if f"{name}(" in expression]
    if problem.kernel == "sddmm":
        command.append("-f=D:ds")
    if schedule.text:
        command.append(f"-s={schedule.text}")
    with tempfile.TemporaryDirectory(prefix="embeddb-") as folder:
        file = Path(folder) / "kernel.c"
        command.append(f"-write-source={file}")
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S
            )
            text = file.read_text(encoding="utf-8") if file.exists() else ""
        except subprocess.TimeoutExpired:
            raise Failed("timeout", f"taco took more than {_TIMEOUT_S:.0f} s") from None
        except (OSError, UnicodeDecodeError) as error:
            raise Failed("build", f"taco cannot be used: {error}") from None
    if done.returncode or "int compute(" not in text:
        last_line = (done.stderr.strip().splitlines() or ["no message"])[-1].strip()
        raise Failed("build", f"taco failed: {last_line[:200]}")
    # The comments name the temporary file: equal kernels would be compiled again.
    lines = [line for line in text.splitlines() if not line.startswith("//")]
    return _FAST_MATH + "\n".join(lines) + "\n"


def _tensors(problem: Problem) -> tuple[list[_Tensor], list[NDArray[np.int32]]]:
    """Result and operands in the order of the expression, and arrays that must outlive them."""
    m, n = problem.csr.shape
    # taco counts with the result's positions while it computes, so they are its own copy.
    alive = [problem.ptr32(), problem.ptr32()]
    a = _tensor(problem.csr.val, (m, n), (alive[0], problem.csr.idx))
    if problem.c is None:
        operands = [_tensor(problem.b, problem.b.shape)]
        result = _tensor(problem.out, problem.out.shape)
    else:
        operands = [_tensor(x, x.shape) for x in (problem.b, problem.c)]
        result = _tensor(problem.out, (m, n), (alive[1], problem.csr.idx))
    return [result, a, *operands], alive


def _tensor(
    values: NDArray[Any],
    shape: tuple[int, ...],
    compressed: tuple[NDArray[np.int32], NDArray[np.int32]] | None = None,
) -> _Tensor:
    """Dense, or CSR with positions and column indices in `compressed`."""
    order = len(shape)
    tensor = _Tensor(order=order, csize=values.itemsize, vals_size=values.size)
    tensor.dimensions = (ctypes.c_int32 * order)(*shape)
    tensor.mode_ordering = (ctypes.c_int32 * order)(*range(order))
    tensor.mode_types = (ctypes.c_int * order)(*[0] * (order - 1), compressed is not None)
    tensor.vals = values.ctypes.data
    if compressed is not None:
        level = (ctypes.c_void_p * 2)(*(array.ctypes.data for array in compressed))
        none = ctypes.POINTER(ctypes.c_void_p)()
        first = ctypes.cast(level, ctypes.POINTER(ctypes.c_void_p))
        tensor.indices = (ctypes.POINTER(ctypes.c_void_p) * 2)(none, first)
    return tensor
