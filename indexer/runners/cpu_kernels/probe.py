"""Capabilities of this machine, measured in about a second, and its current state, in a twentieth.

The long form are the measured *facts* of an instance, from which the distance of two machines is
computed. The short form is its *state*: hosts are shared, and between two hours the same runs took
up to 1.9 times longer. Both run in the worker process, where the kernels run.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from importlib.resources import files
from typing import Any

from embeddb.dynamics.record import data_caches, size_bytes

#: Bytes per thread of the streams, whole bytes of the gathers.
_STREAMS = {
    "stream_l1_gb_s": 24 << 10,
    "stream_l2_gb_s": 384 << 10,
    "stream_l3_gb_s": 6 << 20,
    "stream_memory_gb_s": 96 << 20,
}
_GATHERS = {"gather_l2_m_s": 256 << 10, "gather_memory_m_s": 64 << 20}
#: Facts that are measured; `embeddb.platforms.machines` has them in words and units.
FACTS = (*_STREAMS, "multiply_add_gflop_s", *_GATHERS, "wake_us")
#: Facts repeated by the short form.
STATE = ("stream_l2_gb_s", "stream_l3_gb_s", "multiply_add_gflop_s", "gather_memory_m_s")
_TABLE_FLOATS = max(_GATHERS.values()) // 4
#: All threads' arrays together stay within this, and within an eighth of the memory there is.
_MOST_BYTES = 1 << 30


#: Number of samples of each figure, and the rank of the one used, counted from the fastest. On
#: shared hosts the long form measures the capability of the machine, the short one its current
#: speed.
_LONG, _SHORT = (41, 8), (9, 4)
#: One sample: seconds of a stream, steps of multiply-adds, random places.
_SAMPLE_S, _STEPS, _PLACES = 5e-4, 1 << 16, 1 << 15
#: Places of the gathers that stay in a cache.
_FEW_PLACES = 1 << 14


@cache
def source(vector_bytes: int) -> str:
    """The C text of the probe, for vectors of so many bytes."""
    text = files("indexer.runners.cpu_kernels").joinpath("probe.c.in").read_text(encoding="utf-8")
    return text.replace("VECTOR_BYTES", str(vector_bytes))


def measured(library: str, *, threads: int, short: bool) -> dict[str, float]:
    """Figures by name, those of `STATE` if `short`; in the calling process. Figures without memory
    for them are left out."""
    lib = _functions(library)
    effort, wanted = (_SHORT, STATE) if short else (_LONG, FACTS)
    lib.probe_effort(*effort)
    figures = {name: _figure(lib, name, threads) for name in wanted}
    return {name: float(f"{value:.4g}") for name, value in figures.items() if value > 0}


def _functions(library: str) -> ctypes.CDLL:
    lib = ctypes.CDLL(library)
    lib.probe_stream.argtypes = (ctypes.c_int64, ctypes.c_int, ctypes.c_double)
    lib.probe_gather.argtypes = (ctypes.c_int64,) * 4
    lib.probe_multiply_add.argtypes = (ctypes.c_int64,)
    lib.probe_wake.argtypes = (ctypes.c_int, ctypes.c_int64)
    lib.probe_effort.argtypes = (ctypes.c_int, ctypes.c_int)
    lib.probe_effort.restype = None
    for name in ("stream", "gather", "multiply_add", "wake"):
        getattr(lib, f"probe_{name}").restype = ctypes.c_double
    return lib


def _figure(lib: Any, name: str, threads: int) -> float:
    """One figure in the unit of its name."""
    if name in _STREAMS:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        stream_bytes = min(_STREAMS[name], min(_MOST_BYTES, memory // 8) // threads)
        return float(lib.probe_stream(stream_bytes, threads, _SAMPLE_S)) / 1e9
    if name in _GATHERS:
        cached = _GATHERS[name] < _STREAMS["stream_l3_gb_s"]
        how = (_FEW_PLACES, 2 * _PLACES // _FEW_PLACES) if cached else (_PLACES, 1)
        return float(lib.probe_gather(_GATHERS[name] // 4, _TABLE_FLOATS, *how)) / 1e6
    if name == "multiply_add_gflop_s":
        return float(lib.probe_multiply_add(_STEPS)) / 1e9
    return float(lib.probe_wake(threads, 200)) * 1e6


@cache
def static_facts() -> dict[str, str]:
    """Facts that need no measuring: processors, and the sizes in bytes of the first one's caches.
    Facts that the system lacks are left out."""
    facts = {"processors": str(os.cpu_count() or 1)}
    for read in data_caches():
        if size := size_bytes(read("size")):
            facts[f"l{read('level')}_bytes"] = str(size)
    return facts
