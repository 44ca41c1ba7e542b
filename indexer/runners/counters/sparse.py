"""Counters of sparse kernels by external tools: cachegrind, and hardware counters by perf.

Each tool runs the same program with two numbers of calls; the difference is the cost of a call with
warm caches. A counter that a tool lacks stays absent, with the reason.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embeddb.core.errors import InputError, MissingDependency, NothingFound
from embeddb.dynamics import TABLE_5, Cache, Counter
from indexer.runners.counters.driver import Program, build_program

if TYPE_CHECKING:
    from embeddb.core.config import Config, Op
    from embeddb.core.pattern import Pattern

#: Calls whose average is taken; a simulator needs no average.
_PERF_CALLS = 20
#: Events counted together: more than a processor has counters for would be estimated.
_TOGETHER = 3
_MAX_OUTPUT = 64 << 20
#: Valgrind supports up to AVX2. It emulates a fused multiply-add lane by lane and counts a load
#: for each, so instructions come from the first build, loads and stores from the second.
_BUILDS = (("-march=haswell",), ("-march=haswell", "-mno-fma"))

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
            sizes = _cache_options(caches, last)
            one, two = (
                _simulate(tool, program, calls, sizes, timeout_s=timeout_s) for calls in (1, 2)
            )
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


def _simulate(
    tool: str, program: Program, calls: int, sizes: list[str], *, timeout_s: float
) -> dict[str, int]:
    out = program.problem.with_name("counts")
    options = ["--tool=cachegrind", "--cache-sim=yes", "--branch-sim=yes", *sizes]
    command = [tool, *options, f"--cachegrind-out-file={out}", *program.command(calls)]
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
                parse_perf(_run([*stat, *program.command(calls)], timeout_s=timeout_s), events)
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
        done = subprocess.run(
            [tool, "stat", "-x,", "-e", event, "--", "true"],
            capture_output=True, timeout=30, env=_environment(), check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


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


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C", "OMP_WAIT_POLICY": "passive", "OMP_DYNAMIC": "false"}


def _run(command: list[str], *, timeout_s: float) -> str:
    """stderr of a successful program."""
    tool = Path(command[0]).name
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout_s,
            env=_environment(), check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise NothingFound(f"{tool} took more than {timeout_s:.0f} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1].strip()
        raise NothingFound(f"{tool} failed with {done.returncode}: {last[:200]}")
    return done.stderr
