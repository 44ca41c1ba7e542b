"""The processor's counters against a kernel that is played: this code has to be right where the
machine that tests it has none."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from counted_nests import access, histogram, matmul, relaxed, upto

from embeddb.core.errors import NothingFound, UsageError
from embeddb.kernels.build import cpuinfo
from embeddb.nests.counters import COUNTERS, GIVEN, CounterVector
from embeddb.nests.nest import Nest
from embeddb.nests.parts import Array, Read, Statement
from indexer.runners.counters import nest as nest_counters
from indexer.runners.counters.nest import by_counter, count_nest
from indexer.runners.counters.perf import (
    FLOPS,
    TOGETHER,
    Event,
    Events,
    Linux,
    available,
    count_threads,
    events_here,
    events_of,
)
from indexer.runners.counters.source import PLAIN

INTEL = {"vendor_id": "GenuineIntel", "cpu family": "6", "model": "85"}


def amd(family: int, model: int) -> Events | None:
    told = {"vendor_id": "AuthenticAMD", "cpu family": str(family), "model": str(model)}
    return events_of(told)


@dataclass
class Played:
    """A kernel: `work` is what each event counts in a call, by (thread, config)."""

    work: Callable[[int, int], int] = lambda thread, config: 1000 * thread + config
    share: float = 1.0
    jumps: list[int] = field(default_factory=list)
    refused: int = 0
    short: bool = False
    opened: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    groups: dict[int, list[int]] = field(default_factory=dict)
    enabled: set[int] = field(default_factory=set)
    most: int = 0
    calls: int = 0
    noise: int = 0

    def open(self, attribute: bytes, thread: int, group: int) -> int:
        if self.refused:
            raise OSError(self.refused, "refused")
        kind, size, config, *_, flags, _, _, _ = struct.unpack("=IIQQQQQIIQ", attribute)
        assert size == len(attribute) == 64 and flags & (1 << 5), "the kernel itself is counted"
        assert not flags & 2, "threads that are made later would be counted too"
        assert bool(flags & 1) == (group == -1), "members count as soon as their leader does"
        descriptor = 100 + len(self.opened)
        self.opened[descriptor] = (kind, config, thread)
        self.groups.setdefault(descriptor if group == -1 else group, []).append(descriptor)
        self.most = max(self.most, *map(len, self.groups.values()))
        return descriptor

    def control(self, descriptor: int, request: int, argument: int) -> None:
        assert (request, argument) == (0x2400, 1) and descriptor in self.groups
        self.enabled.add(descriptor)

    def read(self, descriptor: int, size: int) -> bytes:
        assert descriptor in self.enabled
        members = self.groups[descriptor]
        values = []
        for member in members:
            _, config, thread = self.opened[member]
            jump = sum(self.jumps[: self.calls])
            values.append((self.calls * self.work(thread, config) + self.noise + jump) % (1 << 64))
        self.noise += 7
        time = 1000 * self.calls
        told = struct.pack(
            f"={3 + len(values)}Q", len(values), time, int(time * self.share), *values
        )
        return told[: size - 8] if self.short else told

    def close(self, descriptor: int) -> None:
        for leader, members in list(self.groups.items()):
            if descriptor in members:
                members.remove(descriptor)
            if not members:
                del self.groups[leader]

    def call(self) -> None:
        self.calls += 1


EVENTS = tuple(
    Event(name, 4, config) for name, config in zip("abcdefghij", range(10, 20), strict=True)
)


def test_each_thread_counts_for_itself_four_events_at_a_time() -> None:
    kernel = Played()
    counts = count_threads(kernel.call, [5, 6, 9], EVENTS, kernel=kernel)
    expected = [[1000 * thread + e.config for e in EVENTS] for thread in (5, 6, 9)]
    np.testing.assert_array_equal(counts, expected)
    assert kernel.most == TOGETHER == 4
    assert not kernel.groups, "descriptors are left open"
    assert kernel.calls == 3 * 3  # three groups, three runs each


@pytest.mark.parametrize("jump", [1 << 48, 3 << 48, -(1 << 48)])
def test_jumps_of_the_kernel_are_seen(jump: int) -> None:
    kernel = Played(jumps=[0, 0, jump, 0, jump])
    counts = count_threads(kernel.call, [5], EVENTS[:4], kernel=kernel)
    assert counts.tolist() == [[5010, 5011, 5012, 5013]]


def test_one_run_that_was_disturbed_does_not_count() -> None:
    kernel = Played(jumps=[0, 123_456])
    assert count_threads(kernel.call, [5], EVENTS[:1], kernel=kernel).tolist() == [[5010]]


def test_what_was_not_counted_all_the_time_is_absent() -> None:
    kernel = Played(share=0.9)
    assert np.isnan(count_threads(kernel.call, [5, 6], EVENTS[:2], kernel=kernel)).all()


def test_what_a_call_of_nothing_counts_is_taken_off() -> None:
    kernel = Played()

    def twice() -> None:
        kernel.calls += 2

    counts = count_threads(twice, [5], EVENTS[:2], kernel=kernel, idle=kernel.call)
    assert counts.tolist() == [[5010, 5011]]


def test_a_group_that_is_read_in_part_is_an_error() -> None:
    kernel = Played(short=True)
    with pytest.raises(OSError, match="in part"):
        count_threads(kernel.call, [5], EVENTS, kernel=kernel)
    assert not kernel.groups


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (errno.ENOENT, "no counters"),
        (errno.EOPNOTSUPP, "no counters"),
        (errno.EACCES, "forbids"),
        (errno.EMFILE, "cannot be opened"),
        (0, None),
    ],
)
def test_why_nothing_can_be_counted(code: int, said: str | None) -> None:
    kernel = Played(refused=code)
    told = available(kernel, events_of(INTEL))
    assert told is None if said is None else said in str(told)
    assert not kernel.groups


def test_events_by_processor() -> None:
    skylake = events_of(INTEL)
    assert skylake is not None
    assert {e.counter for e in skylake.events} == GIVEN["intel"]
    told = {e.counter: e.config for e in skylake.events}
    assert told["stores"] == 0x82D0 and told["f64_512"] == 0x40C7
    for family, model, name in ((0x17, 0x31, "Zen 2"), (0x19, 1, "Zen 3"), (0x19, 0x61, "Zen 4")):
        zen = amd(family, model)
        assert zen is not None and zen.processor.endswith(name)
        named = {e.counter for e in zen.events}
        assert named - {FLOPS} | {"f32_scalar", "f64_scalar"} == GIVEN["amd"] and FLOPS in named
    assert amd(0x17, 1) is None and events_of({}) is None and events_of({"model": "x"}) is None
    assert len(COUNTERS) > len(skylake.events) - 1


def test_the_processor_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("".join(f"{k}\t: {v}\n" for k, v in INTEL.items()) + "\nmodel\t: 1\n")
    assert events_of(cpuinfo(path)) == events_of(INTEL)
    assert events_of(cpuinfo(tmp_path / "none")) is None


def test_this_kernel_answers() -> None:
    """Whatever this machine has: a reason, or counts of real instructions."""
    reason = available()
    if reason is not None:
        assert reason and "\n" not in reason
        return
    events = events_here()
    assert events is not None
    counts = count_threads(lambda: sum(range(10_000)), [0], events.events[:1], kernel=Linux())
    assert counts[0, 0] > 10_000


# -- a nest that runs ------------------------------------------------------------------------------

#: In a process of its own: the threads of OpenMP stay until it ends.
RUN = """
import sys
from pathlib import Path
from counted_nests import copy
from test_nest_perf import EVENTS, Played
from embeddb.nests.check import canonical_schedule
from indexer.runners.nest_code.job import MeasuredNest
from indexer.runners.counters.nest import count

nest = copy(5000)
schedule = canonical_schedule(nest)
built = MeasuredNest(nest).build([schedule], Path(sys.argv[1]))[schedule]
kernel = Played(work=lambda thread, config: 0)
counts = count(nest, str(built.library), threads=3, kernel=kernel, events=EVENTS[:5])
threads = {thread for _, _, thread in kernel.opened.values()}
print(counts.shape, len(threads), counts.sum(), len(kernel.groups))
"""


@pytest.mark.gcc
def test_the_threads_of_a_nest_are_found(tmp_path: Path) -> None:
    here = Path(__file__).parent
    path = os.pathsep.join(map(str, (here, here.parents[1] / "fixtures", here.parents[2])))
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["(3, 5) 3 0.0 0"]


# -- which source ----------------------------------------------------------------------------------


def test_flops_without_a_type_are_those_of_the_nest() -> None:
    zen3 = amd(0x19, 1)
    assert zen3 is not None
    counts = np.arange(2.0 * len(zen3.events)).reshape(2, -1)
    flops = next(at for at, e in enumerate(zen3.events) if e.counter == FLOPS)
    single, double = COUNTERS.index("f32_scalar"), COUNTERS.index("f64_scalar")
    told = by_counter(matmul(4), zen3, counts)
    assert told[:, single].tolist() == counts[:, flops].tolist() and not told[:, double].any()
    assert {COUNTERS[at] for at in np.flatnonzero(~np.isnan(told[0]))} == GIVEN["amd"]
    twice = by_counter(matmul(4, "f64"), zen3, counts)
    assert twice[:, double].tolist() == counts[:, flops].tolist()
    arrays = (Array("f32", (9,)), Array("f64", (9,)))
    mixed = Nest((upto(9),), arrays, (Statement(access(0, 0), "=", Read(access(1, 0))),))
    assert np.isnan(by_counter(mixed, zen3, counts)[:, [single, double]]).all()
    whole = by_counter(histogram(9, 3), zen3, counts)
    assert not whole[:, [single, double]].any()


def test_what_cannot_be_counted_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nest_counters, "available", lambda: "this machine shows no counters")
    with pytest.raises(NothingFound, match="shows no counters"):
        count_nest(matmul(4), threads=1, source="perf")
    with pytest.raises(UsageError, match="'guess' is none of"):
        count_nest(matmul(4), threads=1, source="guess")
    with pytest.raises(UsageError, match="at least 1, not 0"):
        count_nest(matmul(4), threads=0)


@pytest.mark.gcc
def test_the_model_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nest_counters, "available", lambda: "this machine shows no counters")
    vector = count_nest(relaxed(50), threads=2, caches=PLAIN)
    assert vector.source == "model" and "no loop parallel" in vector.about
    assert vector.of("loads", "min") == 0 < vector.of("loads", "max")


def test_the_processor_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = np.ones((2, len(COUNTERS)))
    real = CounterVector.of_threads(counts, "perf")
    monkeypatch.setattr(nest_counters, "available", lambda: None)
    monkeypatch.setattr(nest_counters, "perf_counts", lambda nest, threads: real)
    assert count_nest(matmul(4), threads=2) is real
    assert count_nest(matmul(4), threads=2, source="perf") is real
