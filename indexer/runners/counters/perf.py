"""Hardware counters, by `perf_event_open`, for each thread of this process.

At most four events are opened together: with more the kernel multiplexes, and its extrapolations
jump by multiples of 2^48. One value in sixty jumps even so, hence differences are taken modulo
2^44, and the median of three runs. Reads that were not counted all the time are discarded.

Event codes are facts of the makers' lists: Intel's "Events for Intel Microarchitecture Code Name
Skylake", AMD's "Processor Programming Reference" of families 17h and 19h, both as in the tables of
the Linux kernel and of LIKWID. Measured on AMD: `stores` (0x29:2) misses those of vectors and is
left out.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embeddb.kernels.build import cpuinfo

#: Events counted at one time.
TOGETHER = 4
_REPEATS = 3
_WRAP = 1 << 44
_SYSCALL = 298  # x86-64: the only processors whose events are known here
_ENABLE = 0x2400
_ALL_OF_GROUP = 1
#: Time enabled, time running, all values of the group in one read.
_READ_FORMAT = 1 | 2 | 8
_DISABLED, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1, 1 << 5, 1 << 6
#: Type, size, config, period, sample type, read format, flags, wake-up, breakpoint, address.
_ATTRIBUTE = struct.Struct("=IIQQQQQIIQ")
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")


class Linux:
    """The Linux kernel's system calls for counters; each raises OSError."""

    def __init__(self) -> None:
        self._c = ctypes.CDLL(None, use_errno=True)

    def open(self, attribute: bytes, thread: int, group: int) -> int:
        """A descriptor that counts for one thread, in the group of another descriptor or -1."""
        any_processor, close_on_exec = -1, 8
        arguments = (ctypes.c_long(x) for x in (thread, any_processor, group, close_on_exec))
        return self._checked(self._c.syscall(ctypes.c_long(_SYSCALL), attribute, *arguments))

    def control(self, descriptor: int, request: int, argument: int) -> None:
        self._checked(self._c.ioctl(descriptor, ctypes.c_ulong(request), ctypes.c_ulong(argument)))

    def read(self, descriptor: int, size: int) -> bytes:
        return os.read(descriptor, size)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    @staticmethod
    def _checked(result: int) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result


def events_here() -> Events | None:
    """The events of this machine's processor; None if they are unknown."""
    return events_of(cpuinfo())


def available(kernel: Linux | None = None, events: Events | None = None) -> str | None:
    """Reason why nothing can be counted here, in a line; None if counters are available."""
    events = events or events_here()
    if events is None:
        return "the counter events of this processor are unknown"
    kernel = kernel or Linux()
    try:
        descriptor = kernel.open(_attribute(events.events[0], leads=True), 0, -1)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            return f"the system forbids counting (kernel.perf_event_paranoid is {_paranoid()})"
        if error.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV, errno.ENOSYS):
            return f"{events.processor}: this machine shows no counters, as most virtual ones do"
        return f"counters cannot be opened: {error.strerror}"
    kernel.close(descriptor)
    return None


def count_threads(
    call: Callable[[], object],
    threads: Sequence[int],
    events: Sequence[Event],
    *,
    kernel: Linux,
    idle: Callable[[], object] = lambda: None,
    prepare: Callable[[], object] = lambda: None,
) -> NDArray[np.float64]:
    """float64[t,e]: counts of each thread (by its system id) and event in one call; nan where it
    was not counted for the whole time. The counts of `idle` are subtracted; `prepare` runs before
    each call and is not counted.

    Raises: OSError if an event cannot be opened.
    """
    counts = np.full((len(threads), len(events)), np.nan)
    for at in range(0, len(events), TOGETHER):
        group = events[at : at + TOGETHER]
        with _opened(kernel, threads, group) as leaders:
            run, empty = (_median(c, prepare, kernel, leaders, len(group)) for c in (call, idle))
        counts[:, at : at + len(group)] = np.maximum(run - empty, 0)
    return counts


@contextmanager
def _opened(kernel: Linux, threads: Sequence[int], events: Sequence[Event]) -> Iterator[list[int]]:
    """The first descriptor of each thread; all of them count."""
    opened: list[int] = []
    leaders: list[int] = []
    try:
        for thread in threads:
            leader = -1
            for event in events:
                attribute = _attribute(event, leads=leader < 0)
                opened.append(kernel.open(attribute, thread, leader))
                if leader < 0:
                    leader = opened[-1]
                    leaders.append(leader)
        for leader in leaders:
            kernel.control(leader, _ENABLE, _ALL_OF_GROUP)
        yield leaders
    finally:
        for descriptor in reversed(opened):
            with suppress(OSError):
                kernel.close(descriptor)


def _median(
    call: Callable[[], object],
    prepare: Callable[[], object],
    kernel: Linux,
    leaders: Sequence[int],
    events: int,
) -> NDArray[np.float64]:
    """float64[t,e]: median over the runs that were counted all the time."""
    samples = np.full((_REPEATS, len(leaders), events), np.nan)
    for sample in samples:
        prepare()
        before = [_read(kernel, leader, events) for leader in leaders]
        call()
        after = [_read(kernel, leader, events) for leader in leaders]
        for row, old, new in zip(sample, before, after, strict=True):
            enabled, running, *counted = (int(n) for n in new - old)
            if enabled == running:
                row[:] = [count % _WRAP for count in counted]
    whole = ~np.isnan(samples[:, :, 0]).any(axis=1)
    return np.asarray(np.median(samples[whole], axis=0) if whole.any() else samples[0])


def _read(kernel: Linux, leader: int, events: int) -> NDArray[np.uint64]:
    """uint64[2 + e]: the time that the group was enabled, that it ran, and its counts."""
    size = 8 * (3 + events)
    data = kernel.read(leader, size)
    if len(data) != size:
        raise OSError(errno.EIO, "a group of counters was read in part")
    numbers = np.frombuffer(data, np.uint64)
    if numbers[0] != events:
        raise OSError(errno.EIO, f"a group of {events} counters has {numbers[0]}")
    return numbers[1:]


def _attribute(event: Event, *, leads: bool) -> bytes:
    flags = _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR | (_DISABLED if leads else 0)
    fields = (event.type, _ATTRIBUTE.size, event.config, 0, 0, _READ_FORMAT, flags, 0, 0, 0)
    return _ATTRIBUTE.pack(*fields)


def _paranoid() -> str:
    try:
        return _PARANOID.read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


#: AMD's count of floating operations, of both types.
FLOPS = "flops"
_HARDWARE, _RAW = 0, 4
_INSTRUCTIONS = 1


@dataclass(frozen=True, slots=True)
class Event:
    """`counter` is one of `embeddb.nests.counters.COUNTERS`, or `FLOPS`; `type` and `config` are
    those of perf_event_open."""

    counter: str
    type: int
    config: int


@dataclass(frozen=True, slots=True)
class Events:
    processor: str
    events: tuple[Event, ...]


def _events(processor: str, codes: Mapping[str, int]) -> Events:
    raw = tuple(Event(name, _RAW, (code & 0xFF) << 8 | code >> 8) for name, code in codes.items())
    first = Event("instructions", _HARDWARE, _INSTRUCTIONS)
    return Events(processor, (first, *raw))


#: Event and mask, as 0xEEMM.
_SKYLAKE = _events(
    "Intel Skylake",
    {
        "branches": 0xC400,
        "mispredictions": 0xC500,
        "f64_scalar": 0xC701,
        "f32_scalar": 0xC702,
        "f64_128": 0xC704,
        "f32_128": 0xC708,
        "f64_256": 0xC710,
        "f32_256": 0xC720,
        "f64_512": 0xC740,
        "f32_512": 0xC780,
        "loads": 0xD081,
        "stores": 0xD082,
        "memory_reads": 0x2E41,  # lines that missed the last cache
        "l2_lines_in": 0xF11F,
        "l2_writebacks": 0xF040,
        "l1_lines_in": 0x5101,
        "l1_modified_evictions": 0x5104,
    },
)


def _zen(name: str, *, flops: int, filled: int, from_memory: int) -> Events:
    codes = {"branches": 0xC200, "mispredictions": 0xC300, "loads": 0x2901, "l2_lines_in": 0x6409}
    fills = {"l1_lines_in": filled, "memory_reads": from_memory}
    return _events(f"AMD {name}", {**codes, FLOPS: flops, **fills})


_ZEN2 = _zen("Zen 2", flops=0x03FF, filled=0x435B, from_memory=0x4348)
_ZEN3 = _zen("Zen 3", flops=0x03FF, filled=0x445F, from_memory=0x4448)
_ZEN4 = _zen("Zen 4", flops=0x031F, filled=0x445F, from_memory=0x4448)

#: Models of Intel's family 6 whose events are those of Skylake.
_SKYLAKES = frozenset({78, 85, 94, 142, 158, 165, 166})


def events_of(cpuinfo: Mapping[str, str]) -> Events | None:
    """Events by the fields of a processor in /proc/cpuinfo; None if they are unknown."""
    vendor = cpuinfo.get("vendor_id", "")
    family, model = (_digits(cpuinfo.get(key, "")) for key in ("cpu family", "model"))
    if vendor == "GenuineIntel" and family == 6 and model in _SKYLAKES:
        return _SKYLAKE
    if vendor == "AuthenticAMD" and family == 0x17 and model >= 0x30:
        return _ZEN2
    if vendor == "AuthenticAMD" and family == 0x19:
        return _ZEN4 if 0x10 <= model <= 0x1F or 0x60 <= model <= 0xAF else _ZEN3
    return None


def _digits(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else -1
