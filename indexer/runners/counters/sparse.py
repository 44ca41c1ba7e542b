"""Counters of sparse kernels by external tools: cachegrind, and hardware counters by perf.

Each tool runs a program with one generated kernel and nothing else. It reads the sparse matrix from
a file in the kernel's own form, fills the dense operands with ones, and calls the kernel as many
times as its argument. The difference between two numbers of calls is the cost of a call with warm
caches; it excludes start, reading and first touches. A counter that a tool lacks stays absent, with
the reason.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from embeddb.core.errors import InputError, MissingDependency, NothingFound, RunnerUnavailable
from embeddb.dynamics import TABLE_5, Cache, Counter
from embeddb.kernels import build as cpu_build
from embeddb.kernels import codegen as cpu_codegen
from embeddb.kernels.build import compile_to
from embeddb.kernels.called import scratch_values, strip_of
from embeddb.kernels.forms import PADDING, Converter, Form, Refusal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embeddb.core.config import Config, Op
    from embeddb.core.pattern import Pattern
    from embeddb.kernels.bodies import Variant

#: Calls whose average is taken; a simulator needs no average.
_PERF_CALLS = 20
#: Events counted together: more than a processor has counters for would be estimated.
_TOGETHER = 3
_MAX_OUTPUT = 64 << 20
#: Valgrind supports up to AVX2. It emulates a fused multiply-add lane by lane and counts a load
#: for each, so instructions come from the first build, loads and stores from the second.
_BUILDS = (("-march=haswell",), ("-march=haswell", "-mno-fma"))

_SIMULATION = ("--tool=cachegrind", "--cache-sim=yes", "--branch-sim=yes")
_CACHEGRIND = frozenset("Ir Dr Dw D1mr D1mw DLmr DLmw ILmr Bc Bcm Bi Bim".split())  # noqa: SIM905
#: Table 5 to perf's events, user space alone. Processors without an event of that name have none.
_EVENTS = {
    "INSTR_RETIRED_ANY": "instructions:u",
    "BR_INST_RETIRED_ALL_BRANCHES": "branches:u",
    "BR_MISP_RETIRED_ALL_BRANCHES": "branch-misses:u",
    "MEM_INST_RETIRED_ALL_LOADS": "mem_inst_retired.all_loads:u",
    "MEM_INST_RETIRED_ALL_STORES": "mem_inst_retired.all_stores:u",
    "L2_LINES_IN_ALL": "l2_lines_in.all:u",
    "L2_TRANS_L2_WB": "l2_trans.l2_wb:u",
    "L1D_REPLACEMENT": "l1d.replacement:u",
} | {
    f"FP_ARITH_INST_RETIRED_{kind}_{size}": f"fp_arith_inst_retired.{kind.lower()}_{size.lower()}:u"
    for kind in ("SCALAR", "128B_PACKED", "256B_PACKED", "512B_PACKED")
    for size in ("SINGLE", "DOUBLE")
}
_NO_EVENT = {
    "CAS_COUNT_RD": "the memory controller counts for the whole machine, not for one program",
    "CAS_COUNT_WR": "the memory controller counts for the whole machine, not for one program",
    "L1D_M_EVICT": "perf has no name for this event",
}


@dataclass(frozen=True, slots=True)
class Counted:
    """Counters of a tool, and why the rest of the 19 is absent."""

    counters: Mapping[str, Counter]
    missing: Mapping[str, str]


def cachegrind(
    pattern: Pattern, op: Op, config: Config, *, caches: Sequence[Cache], timeout_s: float = 300.0
) -> Counted:
    """One call on one thread of the kernel built for AVX2, simulated with these caches. Cachegrind
    has two levels: a second simulation takes L2 as the last one.

    Raises: MissingDependency without valgrind; NothingFound if it fails or takes longer than
    `timeout_s`; all exceptions of `build_program`.
    """
    tool = _find("valgrind")
    levels = {cache.level for cache in caches}
    with tempfile.TemporaryDirectory(prefix="embeddb-") as name:
        differences = []
        for build, last in zip(_BUILDS, (3, 2), strict=True):
            folder = Path(name) / build[-1].removeprefix("-m")
            folder.mkdir()
            program = build_program(pattern, op, config, folder=folder, target=build)
            out = folder / "counts"
            run = [tool, *_SIMULATION, *_cache_options(caches, last)]
            run += [f"--cachegrind-out-file={out}", *program]
            one, two = (_simulate([*run, calls], out, timeout_s=timeout_s) for calls in ("1", "2"))
            differences.append({key: max(0, two[key] - one[key]) for key in one})
    return _from_cachegrind(differences[0], differences[1], levels)


def _find(tool: str) -> str:
    path = shutil.which(tool)
    if path is None:
        raise MissingDependency(f"{tool} is not on the PATH", hint=f"install {tool}")
    return path


def _cache_options(caches: Sequence[Cache], last: int) -> list[str]:
    named = {"D1": 1, "LL": last}
    size = {cache.level: cache.size_bytes for cache in caches}
    options = [
        f"--{name}={_geometry(size[level])}" for name, level in named.items() if level in size
    ]
    return [*options, "--I1=32768,8,64"]


def _geometry(size_bytes: int) -> str:
    """Size, ways and line of a cache whose number of sets is a power of two, as it must be: the
    fewest ways from 8 up."""
    lines = size_bytes // 64
    ways = lines
    while ways % 2 == 0 and ways // 2 >= 8:
        ways //= 2
    return f"{lines * 64},{ways},64"


def _simulate(command: list[str], out: Path, *, timeout_s: float) -> dict[str, int]:
    _run(command, timeout_s=timeout_s)
    if out.stat().st_size > _MAX_OUTPUT:
        raise InputError("cachegrind wrote too much", where=str(out))
    return parse_cachegrind(out.read_text(encoding="utf-8", errors="replace"))


def parse_cachegrind(text: str) -> dict[str, int]:
    """Totals by event from a cachegrind output file.

    Raises: InputError if its `events:` and `summary:` lines do not fit together.
    """
    lines = dict(re.findall(r"^(events|summary): *(.*)$", text, re.MULTILINE))
    names, totals = lines.get("events", "").split(), lines.get("summary", "").split()
    if not names or len(names) != len(totals) or not all(t.isdigit() for t in totals):
        raise InputError("not an output of cachegrind: events and summary do not fit")
    totals_by_event = dict(zip(names, map(int, totals), strict=True))
    if absent := _CACHEGRIND - totals_by_event.keys():
        raise InputError(f"not an output of cachegrind: no event {min(absent)}")
    return totals_by_event


def _from_cachegrind(
    e: Mapping[str, int], unfused: Mapping[str, int], levels: Collection[int]
) -> Counted:
    """Counters of one call: with L3 as the last level, and, built without fused multiply-adds, with
    L2 as the last one."""
    build = "one warm call, one thread, built for AVX2"
    some = f"{build}; conditional and indirect branches alone"
    lines = {name: (x["DLmr"] + x["DLmw"] + x["ILmr"]) for name, x in (("3", e), ("2", unfused))}
    rows = [
        ("INSTR_RETIRED_ANY", e["Ir"], "instructions", build),
        ("BR_INST_RETIRED_ALL_BRANCHES", e["Bc"] + e["Bi"], "instructions", some),
        ("BR_MISP_RETIRED_ALL_BRANCHES", e["Bcm"] + e["Bim"], "instructions",
         f"{some}; a simple predictor"),
        ("MEM_INST_RETIRED_ALL_LOADS", unfused["Dr"], "instructions", build),
        ("MEM_INST_RETIRED_ALL_STORES", unfused["Dw"], "instructions", build),
    ]  # fmt: skip
    if 1 in levels:
        rows.append(("L1D_REPLACEMENT", e["D1mr"] + e["D1mw"], "lines", build))
    if 2 in levels:
        rows.append(("L2_LINES_IN_ALL", lines["2"], "lines", build))
    if 3 in levels:
        rows.append(("CAS_COUNT_RD", lines["3"], "lines", build))
    counters = {name: Counter(float(v), unit, "cachegrind", note) for name, v, unit, note in rows}
    reasons = {
        name: "cachegrind does not count arithmetic by type and width"
        for name in TABLE_5
        if name.startswith("FP_")
    }
    unfollowed = ("CAS_COUNT_WR", "L2_TRANS_L2_WB", "L1D_M_EVICT")
    reasons |= dict.fromkeys(unfollowed, "cachegrind does not track modified lines")
    return Counted(counters, reasons)


def perf(
    pattern: Pattern, op: Op, config: Config, *, threads: int, timeout_s: float = 300.0
) -> Counted:
    """Hardware counters, the average of a warm call, all threads together.

    Raises: MissingDependency without perf; NothingFound if the program fails or takes longer than
    `timeout_s`; all exceptions of `build_program`.
    """
    tool = _find("perf")
    with tempfile.TemporaryDirectory(prefix="embeddb-") as name:
        program = build_program(pattern, op, config, folder=Path(name), threads=threads)
        supported: dict[str, str] = {}
        missing = dict(_NO_EVENT)
        for counter, event in _EVENTS.items():
            if _accepts(tool, event):
                supported[counter] = event
            else:
                missing[counter] = f"this processor has no event {event[:-2]}"
        counters: dict[str, Counter] = {}
        names = list(supported)
        for at in range(0, len(names), _TOGETHER):
            part = {counter: supported[counter] for counter in names[at : at + _TOGETHER]}
            events = list(part.values())
            stat = [tool, "stat", "-x,", "-e", ",".join(events), "--"]
            few, many = (
                parse_perf(_run([*stat, *program, str(calls)], timeout_s=timeout_s), events)
                for calls in (1, 1 + _PERF_CALLS)
            )
            for counter, event in part.items():
                value = _per_call(few[event], many[event], _PERF_CALLS)
                if isinstance(value, str):
                    missing[counter] = value
                else:
                    unit = "lines" if counter.startswith("L") else "instructions"
                    counters[counter] = Counter(value, unit, "perf", "one warm call")
    return Counted(counters, missing)


def _accepts(tool: str, event: str) -> bool:
    """True if perf accepts the event here; it may still not be supported."""
    try:
        _run([tool, "stat", "-x,", "-e", event, "--", "true"], timeout_s=30)
    except (OSError, NothingFound):
        return False
    return True


def parse_perf(text: str, events: Sequence[str]) -> dict[str, float | str]:
    """Count of each event in the output of `perf stat -x,`, or the reason why there is none."""
    counts: dict[str, float | str] = dict.fromkeys(events, "perf did not report this event")
    for line in text.splitlines():
        fields = line.split(",")
        if len(fields) < 5 or fields[2] not in counts:
            continue
        value, share = fields[0], fields[4]
        if value.startswith("<"):
            counts[fields[2]] = f"perf reports {value} on this machine"
        elif not value.isdigit():
            counts[fields[2]] = f"perf reports {value[:40]!r} instead of a count"
        elif not re.fullmatch(r"100(\.0*)?", share):
            counts[fields[2]] = f"the counter ran {share} % of the time: an estimate"
        else:
            counts[fields[2]] = float(value)
    return counts


def _per_call(few: float | str, many: float | str, calls: int) -> float | str:
    for value in (few, many):
        if isinstance(value, str):
            return value
    if many == 0:
        return "the counter stayed at zero: it is not connected on this machine"
    return max(0.0, (float(many) - float(few)) / calls)


def _run(command: list[str], *, timeout_s: float) -> str:
    """stderr of a successful program."""
    tool = Path(command[0]).name
    more = {"LC_ALL": "C", "OMP_WAIT_POLICY": "passive", "OMP_DYNAMIC": "false"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout_s,
            env={**os.environ, **more}, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise NothingFound(f"{tool} took more than {timeout_s:.0f} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1].strip()
        raise NothingFound(f"{tool} failed with {done.returncode}: {last[:200]}")
    return done.stderr


#: Matrix, dense operands and scratch together; more is refused before anything is allocated.
MAX_BYTES = 4 << 30
_AVX2_BYTES = 32
_TYPES = {"f32": np.float32, "f64": np.float64}


def build_program(
    pattern: Pattern,
    op: Op,
    config: Config,
    *,
    folder: Path,
    threads: int = 1,
    target: Sequence[str] = (),
) -> list[str]:
    """Compile the kernel of a configuration of the cpu platform into `folder`, for this machine or
    for the processor of the flags `target`, which must have AVX2. Returns a command, to which the
    number of calls is to be appended.

    Raises: SpaceError for a configuration without a kernel; NothingFound if the matrix does not
    fit in that form; RunnerUnavailable without a compiler or if it fails.
    """
    width = _AVX2_BYTES if target else cpu_build.vector_bytes()
    variant, launch = cpu_codegen.plan(config, op, vector_bytes=width)
    if launch.threads == "one":
        threads = 1
    if op.dtype not in _TYPES:
        raise NothingFound(f"the kernel cannot be counted: no {op.dtype}, only f32 and f64")
    dtype = _TYPES[op.dtype]
    csr = Form(pattern.shape, pattern.indptr, pattern.indices, np.ones(pattern.nnz, dtype=dtype))
    conversions = cpu_build.build(cpu_codegen.conversions())
    if conversions.error:
        raise RunnerUnavailable(conversions.error)
    form = Converter(str(conversions.path)).convert(csr, launch.form, max_bytes=MAX_BYTES)
    if isinstance(form, Refusal):
        raise NothingFound(f"the kernel cannot be counted: {form.reason}")
    padded = tuple((rows + PADDING) * op.width for rows in (pattern.shape[1], pattern.shape[0]))
    sampled = op.name == "sddmm"
    sizes = (padded[0], padded[1] if sampled else 0, form.val.size if sampled else padded[1])
    head = head_of(form, op, launch, threads=threads, sizes=sizes)
    need = form.nbytes + np.dtype(dtype).itemsize * int(head[11:15].sum())
    if need > MAX_BYTES:
        raise NothingFound(f"the kernel cannot be counted: it needs {need} bytes > {MAX_BYTES}")
    problem = folder / "problem.bin"
    with problem.open("wb") as out:
        write_problem(out, head, form)
    executable = folder / "kernel"
    compile_program(program_text(variant), executable, target or ("-march=native",))
    return [str(executable), str(problem)]


def program_text(variant: Variant) -> str:
    """The C of a program that runs one variant on the problems of a file: `FILE CALLS [RESULTS]`.

    With RESULTS the dense operands are read too, and every result is written there, an int64 with
    the number of its values ahead of it.
    """
    columns = f"#define COLUMN_BYTES {2 if variant.short else 4}\n"
    main = files("indexer.runners.counters").joinpath("program.c.in").read_text(encoding="utf-8")
    return f"{cpu_codegen.source(variant)}{columns}\n{main}"


def head_of(
    form: Form, op: Op, launch: cpu_codegen.Launch, *, threads: int, sizes: tuple[int, int, int]
) -> NDArray[np.int64]:
    """int64[18]: sizes, lengths of the arrays and the launch, as the program reads them. `sizes`
    are the values of B, of C (0 but for SDDMM) and of the result, padding and fill included."""
    cut = {"strip": launch.strip, "rows": launch.form.rows, "tasks": threads * launch.pieces}
    strip = strip_of(form, **cut)
    scratch = scratch_values(launch.scratch, form, strip=strip, width=op.width, threads=threads)
    lengths = [0 if a is None else a.size for a in _arrays(form)]
    matrix = (*form.shape, op.width, form.ptr.size - 1, strip, max(0, lengths[1] - 1))
    how = (threads, cpu_codegen.SCHEDULES[launch.schedule], launch.chunk)
    return np.array([*matrix, *lengths, *sizes, scratch, *how], dtype=np.int64)


def write_problem(
    out: BinaryIO, head: NDArray[np.int64], form: Form, dense: Sequence[NDArray[Any]] = ()
) -> None:
    """Append a problem to a file; `dense` are B and, for SDDMM, C, for a program that keeps its
    results."""
    for array in (head, *_arrays(form), *dense):
        if array is not None:
            out.write(np.ascontiguousarray(array).data)


def _arrays(form: Form) -> tuple[NDArray[Any] | None, ...]:
    return form.ptr, form.panel, form.idx, form.row, form.val


def compile_program(text: str, executable: Path, target: Sequence[str]) -> None:
    """Compile C with the kernels' flags and those of `target`, which come last.

    Raises: RunnerUnavailable without a compiler or if it fails.
    """
    compiler = cpu_build.compiler()
    if compiler is None:
        raise RunnerUnavailable("gcc not found: install a C compiler to count what a kernel does")
    dropped = (cpu_build.flags()[1], "-shared", "-fPIC")
    flags = [flag for flag in cpu_build.flags() if flag not in dropped] + list(target)
    if problem := compile_to(executable, text, [compiler[0], *flags]):
        raise RunnerUnavailable(problem)
