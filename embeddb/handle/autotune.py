"""Amortisation of a faster kernel, and its selection by measurement."""

from __future__ import annotations

import copy
import itertools
import math
import os
import statistics
import time
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.files.safe_write import whole_file
from embeddb.handle.choice import Choice, CompileOptions
from embeddb.handle.kernel_call import (
    KernelCall,
    built_kernel,
    forkable_lock,
    forked,
    is_ready,
)
from embeddb.handle.matrix import Matrix
from embeddb.kernels import build as cpu_build
from embeddb.kernels.called import CalledKernel, code_place, is_built
from embeddb.kernels.forms import spread_of_rows

#: Multiply-adds below which scipy computes: a kernel call costs more than it saves.
SMALL = 4096
#: Non-zeros below which scipy's SpMV on one thread may be as fast, and from which a team may be
#: faster than one thread: waking the others takes 0.1 ms, or nothing where calls follow each other
#: (benchmarks/handle_grid.py).
_LEVEL_SPMV, _TEAM_SPMV = 300_000, 20_000
#: The same for a team on CSR in place of scipy, where slices are mostly fill.
_TEAM_CSR = 80_000
#: Seconds that a kernel saves over scipy per multiply-add, measured by benchmarks/handle.py; of a
#: query with a cached answer; and of copying, checking and converting per non-zero.
_SAVED_S, _ASK_S, _PREPARE_S = 1.5e-10, 0.01, 2e-8
#: Seconds that an answer saves over the usual kernel per multiply-add: a fifth of what that takes
#: for dense columns, and a twentieth for SpMV.
_SAVED_BY_ANSWER_S = 3e-11
#: Seconds per non-zero that a call of slices saves over scipy's SpMV with columns of 16 bits and of
#: 32 (of a vector that no inner cache holds), and that converting to them takes; and seconds that
#: binding any kernel takes (benchmarks/handle_grid.py).
_SHORT_SAVES_S, _LONG_SAVES_S, _SLICES_PREPARE_S, _BIND_S = 4e-10, 1e-10, 4e-9, 3e-4
#: What Linux says of gathers that may read other programs' data, for which microcode slows them.
_GATHERS = Path("/sys/devices/system/cpu/vulnerabilities/gather_data_sampling")
#: Columns that 16 bits count.
_SHORT_COLUMNS = 1 << 16
#: Least loss for which a build is accounted, in seconds; writing the account takes a tenth of it.
_LEAST_OWED_S = 1e-3
#: Most processors on which one thread replaces the team while other programs keep them busy.
_FEW_PROCESSORS = 4
_TEAM_ROWS = "format=csr,lanes=4,order=ij,reorder=none,schedule=guided,threads=all,unroll=1"
_SLICES = "format={},order=ij,sigma={},slice={},threads=one"
_LONG_ROWS = "format=csr,lanes={},order=ij,reorder=none,threads=one,unroll=4"
#: Mean entries of a row from which vectors of a row's products are full.
_LONG = 32
#: Windows of rows that slices may sort, and the largest bound of fill per non-zero: filled up by a
#: third, slices are no faster than half of what they are without.
_WINDOWS, _MOST_FILL = (256, 16_384), 0.6
#: Parameters of the launch on several threads. Those of SpMV take chunks of rows or slices as they
#: come, since rows sorted by length are unequal work: large chunks if each thread has two of them.
_TEAM = ("schedule", "chunk")
_LARGE_CHUNK, _SMALL_CHUNK = 32, 4
#: Most work of a thread, in equal parts, for a team whose parts are fixed.
_EVEN = 1.2
#: Orders of loops that one thread runs with the same code.
_ROW_ORDERS = ("ijk", "ik1jk0", "i1k1i0jk0", "k1ijk0", "j1ik1j0k0", "ij", "j1ij0")
_USUAL_DENSE = "format=csr,ktile={},order=ik1jk0,reorder=none,schedule=guided,threads=all,unroll={}"
#: Best block of dense columns by smallest width, and its unroll factor.
_BLOCKS = {
    "spmm": ({0: 32, 65: 64, 128: 128}, 1),
    "sddmm": ({0: 32, 33: 64, 65: 128}, 4),
}
_parsed = lru_cache(maxsize=64)(Config.parse)
#: Number of latest builds whose median is the estimate, and the estimate without any, in seconds.
_LATEST, _BUILD_S = 5, 1.0
#: Upper bound of a build time: a file with more is damaged.
_MOST_OWED_S = 1e6


def too_little(matrix: Matrix, op: Op, options: CompileOptions) -> str:
    """Reason not to query a configuration; empty if it pays."""
    calls = options.calls
    work = matrix.values.size * op.width
    if work < SMALL:
        return f"fewer than {SMALL} multiply-adds"
    if calls is None or options.build:
        return ""
    cost = _ASK_S + _PREPARE_S * matrix.values.size
    little = calls * work * _SAVED_S < cost
    if not little and calls * work * _SAVED_BY_ANSWER_S < cost:
        usual = usual_config(op, matrix)
        little = usual is not None and is_ready(usual, op)
    if little:
        return (
            f"does not pay for {calls:.0f} calls: choosing and preparing a faster kernel takes "
            "longer than it saves"
        )
    return ""


def too_soon(matrix: Matrix, op: Op, options: CompileOptions, preparing_s: float) -> str:
    """Reason not to wait `preparing_s` seconds for an answer; empty if that pays."""
    if options.calls is None or saved_s(op, matrix, options.calls) >= preparing_s:
        return ""
    return (
        f"does not pay for {options.calls:.0f} calls: preparing answers for {op} takes about "
        f"{max(preparing_s, 0.1):.1f} s the first time, longer than it saves"
    )


def too_costly(op: Op, choice: Choice, matrix: Matrix, options: CompileOptions) -> str:
    """Reason not to use the chosen kernel; empty if it is used."""
    calls = options.calls
    if is_built(Config(choice.config), op):
        return ""
    if cpu_build.compiler() is None:
        return cpu_build.no_compiler()
    if options.build:
        return ""
    if options.build is False:
        return "the kernel is not built, and build=False"
    if calls is None:
        return ""
    lost_s, cost_s = lost_without(Config(choice.config), op, saved_s(op, matrix, calls))
    if lost_s >= cost_s:
        return ""
    return (
        f"building a better kernel takes {cost_s:.1f} s; it is built after {cost_s:.1f} s have "
        f"been lost without it, so far {lost_s:.2f} s"
    )


def level_with_scipy(op: Op, matrix: Matrix, config: Config) -> bool:
    """True if scipy may be as fast as any kernel."""
    few = matrix.values.size < _LEVEL_SPMV
    return op.name == "spmv" and (few or config.get("format") == "csr")


def team_of(op: Op, matrix: Matrix, config: Config) -> Config | None:
    """SpMV of the same code by all threads, where a configuration is for one and they may be
    faster; only calls show which (docs/howto/compile.md)."""
    one = op.name == "spmv" and config.get("threads") == "one"
    if not one or matrix.values.size < _TEAM_SPMV or not _has_team():
        return None
    return _on_team(config, matrix)


def _on_team(config: Config, matrix: Matrix) -> Config:
    pieces = matrix.pattern.shape[0] // int(config.get("slice", 1))
    large = pieces >= 2 * _LARGE_CHUNK * cpu_build.threads_used(0)
    return _in_chunks(config, _LARGE_CHUNK if large else _SMALL_CHUNK)


def in_equal_parts(team: Config, matrix: Matrix) -> Config:
    """The same team with a fixed part of the rows for each thread, if these are equal work: in each
    call a thread then finds its part in its own caches."""
    ptr, threads = matrix.pattern.indptr, cpu_build.threads_used(0)
    rows = ptr.size - 1
    if rows < threads * max(int(team.get("sigma", 1)), _LARGE_CHUNK):
        return team
    ends = [int(ptr[rows * part // threads]) for part in range(threads + 1)]
    most = max(high - low for low, high in itertools.pairwise(ends))
    return _fixed(team) if most * threads <= _EVEN * matrix.values.size else team


@lru_cache(maxsize=64)
def _in_chunks(config: Config, chunk: int) -> Config:
    return config.replace(threads="all", schedule="dynamic", chunk=chunk)


@lru_cache(maxsize=64)
def _fixed(team: Config) -> Config:
    return _on_one(team).replace(threads="all", schedule="static")


def _has_team() -> bool:
    """True if kernels have several threads here and processors for them."""
    alone = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip() == "1" or forked()
    return not alone and cpu_build.threads_used(0) > 1 and not crowded()


def usual_config(op: Op, matrix: Matrix) -> Config | None:
    """The static best configuration: on plain CSR that of the highest geometric mean share of the
    optimum over the matrices of the starter, on most of its instances; for other widths, over eight
    matrices on one machine (docs/howto/compile.md). For SpMV slices, with 16-bit columns where
    those suffice, which are converted to in a few calls' time. Long rows that 16 bits do not count
    stay CSR, summed in vectors, and so do rows that would be mostly fill, if there is a team for
    them; else None."""
    if op.name == "spmv":
        if _wide(matrix) and _long_rows(matrix):
            return _parsed(_LONG_ROWS.format(4 if op.dtype == "f64" else 8))
        rows = window(matrix)
        team = matrix.values.size >= (_LEVEL_SPMV if rows else _TEAM_CSR) and _has_team()
        if not rows:
            return in_equal_parts(_parsed(_TEAM_ROWS), matrix) if team else None
        wide = _wide(matrix)
        together = 4 if wide and op.dtype == "f64" else 8
        form = "sell" if wide else f"sell16,gather={_gather()}"
        one = _parsed(_SLICES.format(form, rows, together))
        return in_equal_parts(_on_team(one, matrix), matrix) if team else one
    blocks, unroll = _BLOCKS[op.name]
    ktile = next(blocks[least] for least in sorted(blocks, reverse=True) if least <= op.width)
    usual = _parsed(_USUAL_DENSE.format(ktile, unroll))
    return one_thread(usual) if crowded() else usual


@cache
def _gather() -> str:
    """Value of `gather`: `hardware` on Intel's processors with AVX-512 where no microcode slows the
    instruction (it took 0.85 times as long on an Emerald Rapids; the first that had it are slow),
    else `loads`, which was timed on AMD's."""
    with suppress(OSError):
        if cpu_build.cpu_model().startswith("Intel") and "avx512f" in cpu_build.cpu_flags():
            return "hardware" if _GATHERS.read_text().startswith("Not affected") else "loads"
    return "loads"


def _wide(matrix: Matrix) -> bool:
    return matrix.pattern.shape[1] > _SHORT_COLUMNS


def _long_rows(matrix: Matrix) -> bool:
    return matrix.values.size >= _LONG * matrix.pattern.shape[0]


def window(matrix: Matrix) -> int:
    """Smallest window of rows to sort so that slices of 8 rows are little fill; 0 if none is. In a
    window, each slice's longest row is at most as long as the shortest of the slice before, so fill
    is at most 8 times the difference between the longest row and the shortest."""
    for rows in _WINDOWS if matrix.pattern.indptr.size > 1 else ():
        spread = spread_of_rows(matrix.pattern.indptr, rows)
        if 8 * spread <= _MOST_FILL * matrix.values.size:
            return rows
    return 0


def one_thread(config: Config) -> Config:
    """The same code on one thread; the same configuration if its loops need several."""
    if config.get("threads") != "all" or config.get("order") not in _ROW_ORDERS:
        return config
    return _on_one(config)


def _on_one(team: Config) -> Config:
    serial = {name: value for name, value in team.items() if name not in _TEAM}
    return Config({**serial, "threads": "one"})


def alone(choice: Choice, op: Op, matrix: Matrix) -> Choice:
    """The choice with its configurations on one thread; the static best one in place of a first
    whose loops need several."""
    named = (choice.config, choice.default, *choice.others)
    first, default, *others = (dict(one_thread(Config(one))) for one in named)
    others = [one for one in others if one.get("threads") != "all"]
    note = "one thread: other programs keep the processors busy"
    if first.get("threads") == "all":
        note = f"not {Config(first)}: it needs several threads, but other programs keep them busy"
        usual = usual_config(op, matrix)
        first = default if usual is None else dict(one_thread(usual))
        about = {"source": "best on average on one thread", "sure": ""}
        choice = msgspec.structs.replace(choice, gain=None, break_even=0.0, **about)
    elif (first, default) == named[:2]:
        return msgspec.structs.replace(choice, others=others)
    return msgspec.structs.replace(
        choice, config=first, default=default, others=others, warnings=[*choice.warnings, note]
    )


def crowded() -> bool:
    """True if this process has few processors, and programs that want to run, here or elsewhere,
    are more than the machine has: a team of threads then waits for its slowest, which took 25 times
    as long as scipy's one (docs/results/compile.md)."""
    processors = cpu_build.threads_used(0)
    if processors == 1 or processors > _FEW_PROCESSORS:
        return False
    return _busy(int(time.monotonic()))


@lru_cache(maxsize=1)
def _busy(_second: int) -> bool:
    """True if the load average exceeds 1.25 times the number of processors by 0.5; read once a
    second, since it is an average over a minute, and reading it takes as long as a small product.
    """
    try:
        return os.getloadavg()[0] > 1.25 * (os.cpu_count() or 1) + 0.5
    except OSError:
        return False


def usual_pays(op: Op, matrix: Matrix, options: CompileOptions) -> bool:
    """True if preparing the usual configuration pays for the number of calls. That of SpMV is
    converted to; all others take the matrix as it is."""
    nnz = matrix.values.size
    if nnz * op.width < SMALL:
        return False
    if op.name != "spmv":
        return True
    calls = math.inf if options.calls is None else options.calls
    return saved_by_usual_s(op, matrix, calls) >= nnz * _SLICES_PREPARE_S + _BIND_S


def saved_by_usual_s(op: Op, matrix: Matrix, calls: float) -> float:
    """Seconds that a number of calls of the usual configuration saves over scipy."""
    if op.name != "spmv":
        return saved_s(op, matrix, calls)
    slow = _wide(matrix) and not _long_rows(matrix)
    return calls * matrix.values.size * (_LONG_SAVES_S if slow else _SHORT_SAVES_S)


def usual_kernel(
    op: Op, config: Config, matrix: Matrix, options: CompileOptions
) -> CalledKernel | None:
    """The kernel of a usual configuration if it is built, or programs have lost enough without it,
    so that it may be built now."""
    if is_ready(config, op):
        return built_kernel(config, op)
    if options.calls is None or options.build is False or cpu_build.compiler() is None:
        return None
    lost_s = saved_by_usual_s(op, matrix, options.calls)
    if lost_s < _LEAST_OWED_S:
        return None
    all_s, cost_s = lost_without(config, op, lost_s)
    return built_kernel(config, op) if all_s >= cost_s else None


def lost_without(config: Config, op: Op, lost_s: float) -> tuple[float, float]:
    """Seconds that programs on this machine have lost without this kernel, `lost_s` of them by this
    one, and those of its build. Single programs may not amortise the build, but all together do:
    the account is closed once the former are as many."""
    file, cost_s = code_place(config, op).with_suffix(".owed"), usual_build_s()
    with suppress(OSError, ValueError):
        earlier_s = float(file.read_bytes()[:32])
        lost_s += earlier_s if 0 < earlier_s < _MOST_OWED_S else 0.0
    with suppress(OSError):
        if lost_s >= cost_s:
            file.unlink()
        else:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with whole_file(file) as written:
                written.write(f"{lost_s:.6f}".encode())
    return lost_s, cost_s


def worth_building(op: Op, matrix: Matrix, options: CompileOptions) -> bool:
    """True if a kernel may be built and amortises its build; an unknown number of calls does."""
    if options.build is not None:
        return options.build
    return options.calls is None or saved_s(op, matrix, options.calls) >= usual_build_s()


def saved_s(op: Op, matrix: Matrix, calls: float) -> float:
    """Seconds that a number of kernel calls saves over scipy."""
    return calls * matrix.values.size * op.width * _SAVED_S


def usual_build_s() -> float:
    """Estimated seconds of a kernel build: the median of the latest in the cache."""
    with suppress(OSError):
        objects = cpu_build.cache_folder().glob("*.so")
        latest = sorted(objects, key=lambda path: path.stat().st_mtime)[-_LATEST:]
        if times := [s for path in latest if (s := cpu_build.seconds_of(path)) is not None]:
            return statistics.median(times)
    return _BUILD_S


#: Calls of each rival; the first one is a warm-up and not counted.
TRIED = 4
#: A kernel call and its configuration; None for scipy.
Rival = tuple[KernelCall, Config | None]


class Trial:
    """Autotuning in the first calls: rivals, the answer first, with the seconds of their calls. An
    answer transferred from other machines may be wrong here by a factor of two."""

    def __init__(self, rivals: tuple[Rival, ...]) -> None:
        self.rivals, self._lock = rivals, forkable_lock()
        self._seconds: tuple[list[float], ...] = tuple([] for _ in rivals)
        # CPU time tells rivals on one thread apart even while other programs interrupt them.
        team = any(config and config.get("threads") == "all" for _, config in rivals)
        self._clock = time.perf_counter if team else time.thread_time

    def with_values(self, first: KernelCall) -> Trial:
        """The same trial, with its times so far, for the values of `first`, the first rival's new
        call."""
        others = ((one.with_values(first.matrix), config) for one, config in self.rivals[1:])
        trial = copy.copy(self)
        trial.rivals = ((first, self.rivals[0][1]), *others)
        return trial

    def compute(self, b: Any, c: Any, out: Any) -> NDArray[Any]:
        """`KernelCall.compute` by the first rival that lacks calls: one after the other, each finds
        its own data in the caches and its threads awake, as it will later."""
        with self._lock:
            counts = [len(seconds) for seconds in self._seconds]
        at = next((i for i, count in enumerate(counts) if count < TRIED), 0)
        start = self._clock()
        result = self.rivals[at][0].compute(b, c, out)
        with self._lock:
            self._seconds[at].append(self._clock() - start)
        return result

    @property
    def over(self) -> bool:
        """True if all rivals had enough calls."""
        return min(map(len, self._seconds)) >= TRIED

    @property
    def winner(self) -> Rival:
        """The fastest rival; of equals the first."""
        took = self._shortest()
        return self.rivals[took.index(min(took))]

    def summary(self) -> str:
        """One line: the shortest time of each rival, and the winner."""
        each = zip(map(_name, self.rivals), self._shortest(), strict=True)
        tried = ", ".join(f"{name} {1e3 * took:.3f} ms" for name, took in each)
        return f"first calls tried {tried}; {_name(self.winner)} stays"

    def _shortest(self) -> list[float]:
        return [min(of[1:]) for of in self._seconds]


def _name(rival: Rival) -> str:
    return "scipy" if rival[1] is None else str(rival[1])
