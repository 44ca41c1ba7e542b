"""Which events of which processors stand for the counters of a nest.

Encodings are facts of the makers' lists: Intel's "Events for Intel Microarchitecture Code Name
Skylake", AMD's "Processor Programming Reference" of families 17h and 19h, both as in the tables of
the Linux kernel and of LIKWID. What was learnt of AMD's by measuring: `stores` (0x29:2) misses
those of vectors and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["FLOPS", "Event", "Events", "events_of"]

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
    """`processor` in words; `given`: the key of `embeddb.nests.counters.GIVEN`."""

    processor: str
    given: str
    events: tuple[Event, ...]


def _events(processor: str, given: str, told: Mapping[str, int]) -> Events:
    raw = tuple(Event(name, _RAW, (code & 0xFF) << 8 | code >> 8) for name, code in told.items())
    first = Event("instructions", _HARDWARE, _INSTRUCTIONS)
    return Events(processor, given, (first, *raw))


#: Event and mask, as 0xEEMM.
_SKYLAKE = _events(
    "Intel Skylake",
    "intel",
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
    told = {"branches": 0xC200, "mispredictions": 0xC300, "loads": 0x2901, "l2_lines_in": 0x6409}
    fills = {"l1_lines_in": filled, "memory_reads": from_memory}
    return _events(f"AMD {name}", "amd", {**told, FLOPS: flops, **fills})


_ZEN2 = _zen("Zen 2", flops=0x03FF, filled=0x435B, from_memory=0x4348)
_ZEN3 = _zen("Zen 3", flops=0x03FF, filled=0x445F, from_memory=0x4448)
_ZEN4 = _zen("Zen 4", flops=0x031F, filled=0x445F, from_memory=0x4448)

#: Models of Intel's family 6 whose events are those of Skylake.
_SKYLAKES = frozenset({78, 85, 94, 142, 158, 165, 166})


def events_of(cpuinfo: Mapping[str, str]) -> Events | None:
    """By the fields of a processor in /proc/cpuinfo; None where its events are not known here."""
    vendor = cpuinfo.get("vendor_id", "")
    family, model = (_number(cpuinfo.get(key, "")) for key in ("cpu family", "model"))
    if vendor == "GenuineIntel" and family == 6 and model in _SKYLAKES:
        return _SKYLAKE
    if vendor == "AuthenticAMD" and family == 0x17 and model >= 0x30:
        return _ZEN2
    if vendor == "AuthenticAMD" and family == 0x19:
        return _ZEN4 if 0x10 <= model <= 0x1F or 0x60 <= model <= 0xAF else _ZEN3
    return None


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else -1
