"""Stand-in for SPADE: simulated runs by a timing model at the level of tiles, marked as such.

The model is our own, based on COGNATE's description of SPADE (Sections 3.2 and 4.1, Appendix B and
E) and on assumptions named in the platform file; docs/explanation/decisions.md has the details. It
computes no numbers, only times, and needs numba once `Model.estimate` is called.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import PlatformError, RunnerUnavailable
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement
from embeddb.dynamics.traffic import VALUE_BYTES
from embeddb.platforms.platform import Platform, load_platform
from indexer.runners.base import RunOptions

if TYPE_CHECKING:
    from indexer.runners.spade_tiles import Tiling

#: Parameters that the model needs.
_NEEDED = ("row_panels", "column_panels", "split", "barrier", "bypass", "reorder")
#: Upper bounds of the bytes for timing one configuration, per non-zero, and per row and column.
_ENTRY_BYTES, _SIDE_BYTES = 120, 60
_BOUNDS = ("elements_s", "memory_s", "shared_s")


class SpadeRunner:
    """Time configurations with `Model`; nothing is executed and no result is computed. A
    platform file with `runner = "spade"`, SPADE's parameters and the traits of `Hardware` is timed
    by its traits. The model is deterministic: there is one time regardless of the requested
    repeats, and neither threads nor the time limit apply."""

    name = "spade"

    def __init__(self, platform: Platform | None = None) -> None:
        self._platform = platform

    @classmethod
    def for_platform(cls, platform: Platform) -> SpadeRunner:
        return cls(platform)

    def available(self) -> str | None:
        if find_spec("numba") is None:
            return "the timing model of SPADE needs numba: install the extra `dynamics`"
        try:
            Hardware.from_traits(self._described().traits)
        except PlatformError as error:
            return f"platform {self._described().id}: {error}"
        return None

    def platform(self, *, threads: int = 0) -> Platform:
        """The platform; its instance is the digest of the model's version and of every trait it
        uses, so that times under other assumptions are of another instance.

        Raises: RunnerUnavailable.
        """
        platform, hardware = self._ready()
        facts = {name: f"{value:g}" for name, value in asdict(hardware).items()}
        return platform.at("", {"timing model": VERSION, **facts})

    def run(
        self, pattern: Pattern, op: Op, configs: Sequence[Config], *, options: RunOptions
    ) -> Iterator[tuple[Config, Measurement]]:
        """Raises: UsageError for an operation the platform lacks, RunnerUnavailable."""
        platform, hardware = self._ready()
        space = platform.space(op, pattern.sizes)
        m, n = pattern.shape
        need = pattern.nnz * _ENTRY_BYTES + (m + n) * _SIDE_BYTES
        room = max(0, min(KEEP_BYTES, options.limit_bytes - need))
        model = Model(hardware, pattern, op, keep_bytes=room)
        for config in configs:
            reason = space.reason(config)
            lacking = [name for name in _NEEDED if name not in config]
            if reason is None and lacking:
                reason = f"the timing model needs the parameter {lacking[0]!r}"
            if reason is not None:
                yield config, _measurement("invalid", error=reason)
            elif need > options.limit_bytes:
                reason = f"the model may need {need} bytes of {options.limit_bytes}"
                yield config, _measurement("oom", error=reason)
            else:
                estimate = model.estimate(space.numeric(config))
                bounds = {n: getattr(estimate, n) for n in ("bound", *_BOUNDS)}
                yield config, _measurement("ok", (estimate.seconds,), **bounds)

    def _described(self) -> Platform:
        return self._platform or load_platform("spade")

    def _ready(self) -> tuple[Platform, Hardware]:
        reason = self.available()
        if reason is not None:
            raise RunnerUnavailable(reason)
        return self._described(), Hardware.from_traits(self._described().traits)


def _measurement(
    status: str, times: tuple[float, ...] = (), error: str = "", **bounds: float | str
) -> Measurement:
    context: dict[str, float | str] = {"made_by": "timing model", **bounds}
    return Measurement(status, times, "simulator", error=error, when=time.time(), context=context)


#: Changes when the same assumptions would give other times.
VERSION = "1"
#: All caches of a platform file together: the tags of these take some 128 MB here.
_MOST_CACHE_KIB = 1 << 20
#: Largest number of bytes of tilings that are kept for further configurations of a pattern.
KEEP_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Hardware:
    """The machine. Each field is a trait of the platform file, which states its source."""

    processing_elements: float
    clock_ghz: float
    vector_bytes: float
    line_bytes: float
    private_cache_kib: float
    private_cache_ways: float
    shared_cache_kib: float
    shared_cache_ways: float
    shared_latency_ns: float
    memory_latency_ns: float
    outstanding_lines: float
    shared_gb_s: float
    memory_gb_s: float
    entry_index_bytes: float
    reduce_cycles: float
    dispatch_cycles: float
    tile_start_cycles: float
    barrier_cycles: float
    launch_cycles: float

    @classmethod
    def from_traits(cls, traits: Mapping[str, Any]) -> Hardware:
        """Hardware from traits. Raises: PlatformError naming the trait that is missing or no such
        quantity."""
        values = {field.name: _positive(field.name, traits) for field in fields(cls)}
        for name in ("processing_elements", "private_cache_ways", "shared_cache_ways"):
            if values[name] != int(values[name]) or values[name] > 4096:
                raise PlatformError(f"the trait {name} must be a whole number up to 4096")
        private = values["processing_elements"] * values["private_cache_kib"]
        if private + values["shared_cache_kib"] > _MOST_CACHE_KIB or values["line_bytes"] < 16:
            raise PlatformError(
                f"the traits describe caches of more than {_MOST_CACHE_KIB} KiB together, or lines "
                "shorter than 16 bytes"
            )
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Time of one configuration. The three bounds are summed over phases, each as if it were the
    only one; the time is the sum of the largest in each phase, and of one-time costs."""

    seconds: float
    elements_s: float
    memory_s: float
    shared_s: float

    @property
    def bound(self) -> str:
        """`elements`, `memory` or `shared`: the largest of the three bounds."""
        return max(_BOUNDS, key=lambda name: getattr(self, name)).removesuffix("_s")


class Model:
    """Times of one operation on one pattern; tilings and orders of rows are computed once, as far
    as `keep_bytes` has room for them."""

    def __init__(
        self, hardware: Hardware, pattern: Pattern, op: Op, *, keep_bytes: int = KEEP_BYTES
    ) -> None:
        self._hardware, self._pattern, self._op = hardware, pattern, op
        self._keep_bytes = keep_bytes
        self._orders: dict[bool, NDArray[np.int64]] = {}
        self._tilings: dict[tuple[bool, int, int], Tiling] = {}

    def estimate(self, config: Mapping[str, Any]) -> Estimate:
        """The time of a legal configuration whose symbols are resolved.

        Raises: ImportError without numba.
        """
        hw, width = self._hardware, self._op.width
        split = min(int(config["split"]), width)
        parts = [(split, width // split)] + ([(width % split, 1)] if width % split else [])
        passes = sum(times for _, times in parts)
        cycles = np.array([hw.launch_cycles, 0.0, 0.0, 0.0])
        for columns, times in parts:
            cycles += times * np.array(self._pass(config, columns, passes))
        return Estimate(*(cycles / (hw.clock_ghz * 1e9)).tolist())

    def _pass(self, config: Mapping[str, Any], columns: int, passes: int) -> Any:
        """Cycles of one of the `passes` over the matrix, for a split of so many dense columns."""
        from indexer.runners.spade_tiles import simulate

        hw, pattern = self._hardware, self._pattern
        tiling = self._tiling(
            bool(config["reorder"]), int(config["row_panels"]), int(config["column_panels"])
        )
        every = np.arange(tiling.tiles.size)
        barrier, spmm = bool(config["barrier"]), self._op.name == "spmm"
        if barrier:  # one tile after the other of a column panel, to whoever is free
            plan = (tiling.columnwise, every, tiling.phases)
        else:  # a row panel at a time, with all its tiles
            plan = (every[:-1], tiling.panels, np.array([0, tiling.panels.size - 1]))
        m, n = pattern.shape
        slice_bytes = columns * VALUE_BYTES[self._op.dtype]
        per_slice = max(1, int(hw.line_bytes // slice_bytes))
        indices = pattern.indices if per_slice == 1 else pattern.indices // np.int32(per_slice)
        return simulate(
            (tiling.row, tiling.start, tiling.length, tiling.tiles),
            plan,
            (indices, np.zeros(m, dtype=np.bool_), -(-n // per_slice), per_slice),
            self._machine(slice_bytes, passes),
            (spmm, bool(config["bypass"]), barrier),
        )

    def _machine(self, slice_bytes: int, passes: int) -> tuple[NDArray[Any], ...]:
        """The `machine` of `simulate`: empty caches, counters, costs."""
        hw = self._hardware
        unit = max(slice_bytes, hw.line_bytes)
        sizes, ways = [], []
        for kib, most in (
            (hw.private_cache_kib, hw.private_cache_ways),
            (hw.shared_cache_kib, hw.shared_cache_ways),
        ):
            slices = max(1, int(kib * 1024 // unit))
            ways.append(min(int(most), slices))
            sizes.append(slices // ways[-1] * ways[-1])
        shape = (int(hw.processing_elements), sizes[0])
        return (
            np.full(shape, -1),
            np.full(sizes[1], -1),
            np.array(ways),
            np.zeros(2, dtype=np.int64),
            self._costs(slice_bytes, passes),
        )

    def _costs(self, slice_bytes: int, passes: int) -> NDArray[np.float64]:
        """float64[11] in cycles, in the order of the constants in `tiles.py`."""
        hw, value = self._hardware, VALUE_BYTES[self._op.dtype]
        unit = max(slice_bytes, hw.line_bytes)
        lines = math.ceil(unit / hw.line_bytes)
        vectors = math.ceil(slice_bytes / hw.vector_bytes)
        entry = hw.entry_index_bytes + value
        if self._op.name == "spmm":  # a segment loads its row of D and stores it
            per_entry, per_segment = float(vectors), 2 * vectors
        else:  # E is written in every pass, and read again in all but the first
            per_entry, per_segment = vectors + hw.reduce_cycles, vectors
            entry += value * (2 * passes - 1) / passes
        per_cycle = hw.memory_gb_s / hw.clock_ghz
        wait = lines * hw.clock_ghz / hw.outstanding_lines
        return np.array(
            [
                0.0,
                wait * hw.shared_latency_ns,
                wait * hw.memory_latency_ns,
                per_entry,
                per_segment,
                hw.tile_start_cycles,
                hw.dispatch_cycles,
                unit / per_cycle,
                entry / per_cycle,
                unit * hw.clock_ghz / hw.shared_gb_s,
                hw.barrier_cycles,
            ]
        )

    def _tiling(self, reorder: bool, row_panel: int, column_panel: int) -> Tiling:
        from indexer.runners.spade_tiles import similar_first, tiling_of

        key = (reorder, row_panel, column_panel)
        if key in self._tilings:
            return self._tilings[key]
        if reorder not in self._orders:
            natural = np.arange(self._pattern.shape[0])
            self._orders[reorder] = similar_first(self._pattern) if reorder else natural
        tiling = tiling_of(self._pattern, self._orders[reorder], row_panel, column_panel)
        if sum(one.nbytes for one in (*self._tilings.values(), tiling)) <= self._keep_bytes:
            self._tilings[key] = tiling
        return tiling


def _positive(name: str, traits: Mapping[str, Any]) -> float:
    value = traits.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PlatformError(f"the timing model needs the trait {name}, a number")
    if not (math.isfinite(value) and value > 0):
        raise PlatformError(f"the trait {name} must be larger than 0, not {value}")
    return float(value)


PLUGIN = SpadeRunner
