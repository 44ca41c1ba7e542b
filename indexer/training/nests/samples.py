"""Training samples of measured nests."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import InputError
from embeddb.nests.check import canonical_schedule
from embeddb.nests.counters import COUNTERS, LINE_BYTES, STATISTICS, CounterVector
from embeddb.nests.encoding.forward import encoding_version
from embeddb.nests.encoding.graph import NestGraph, graph_of
from embeddb.nests.nest import Nest

#: Operations that one count stands for, by counter.
_LANES = {
    f"{dtype}_{width}": lanes
    for dtype, most in (("f32", 16), ("f64", 8))
    for width, lanes in (("scalar", 1), ("128", most // 4), ("256", most // 2), ("512", most))
}

_Metric = Callable[[CounterVector, float], float]


def _bandwidth(*counters: str) -> _Metric:
    """Bytes per second, in lines of a cache."""
    return lambda counted, seconds: LINE_BYTES * _sum(counted, *counters) / seconds


def _misses(missed: str, *requested: str) -> _Metric:
    """Miss rate, at most 1: with prefetching more lines may be fetched than requested."""
    return lambda counted, _: min(_rate(counted.of(missed), _sum(counted, *requested)), 1.0)


def _sum(counted: CounterVector, first: str, *others: str) -> float:
    """Sum of counters, without absent ones of the others."""
    more = (counted.of(name) for name in others)
    return counted.of(first) + sum(count for count in more if not math.isnan(count))


def _rate(part: float, whole: float) -> float:
    return part / whole if whole else 0.0 * part


def _flops(counted: CounterVector) -> float:
    each = [lanes * counted.of(name) for name, lanes in _LANES.items()]
    there = [count for count in each if not math.isnan(count)]
    return sum(there) if there else math.nan


def _per_instruction(count: Callable[[CounterVector], float]) -> _Metric:
    return lambda counted, seconds: _rate(count(counted), counted.of("instructions"))


_METRICS: Mapping[str, _Metric] = {
    "runtime": lambda counted, seconds: seconds,
    "instructions_per_second": lambda c, seconds: c.of("instructions") / seconds,
    "flops_per_second": lambda c, seconds: _flops(c) / seconds,
    "memory_bandwidth": _bandwidth("memory_reads", "memory_writes"),
    "memory_read_bandwidth": _bandwidth("memory_reads"),
    "memory_write_bandwidth": _bandwidth("memory_writes"),
    "l3_bandwidth": _bandwidth("l2_lines_in", "l2_writebacks"),
    "l3_read_bandwidth": _bandwidth("l2_lines_in"),
    "l3_write_bandwidth": _bandwidth("l2_writebacks"),
    "l2_bandwidth": _bandwidth("l1_lines_in", "l1_modified_evictions"),
    "l2_read_bandwidth": _bandwidth("l1_lines_in"),
    "l2_write_bandwidth": _bandwidth("l1_modified_evictions"),
    "l1_misses": _misses("l1_lines_in", "loads", "stores"),
    "l2_misses": _misses("l2_lines_in", "l1_lines_in"),
    "l3_misses": _misses("memory_reads", "l2_lines_in"),
    "mispredictions": _misses("mispredictions", "branches"),
    "load_rate": _per_instruction(lambda c: c.of("loads")),
    "store_rate": _per_instruction(lambda c: c.of("stores")),
    "branch_rate": _per_instruction(lambda c: c.of("branches")),
    "flop_rate": _per_instruction(_flops),
    "imbalance": lambda c, _: _rate(c.of("instructions", "max"), c.of("instructions", "mean")),
}

TARGETS: tuple[str, ...] = tuple(_METRICS)
#: Targets transformed by log2(1 + x), seconds by log2(x); the others are shares and ratios.
LOGARITHMS = frozenset(
    name for name in TARGETS if name == "runtime" or name.endswith(("_bandwidth", "_per_second"))
)


def targets_of(counted: CounterVector, seconds: float) -> NDArray[np.float32]:
    """float32[t] transformed targets, in the order of `TARGETS`; nan where absent. `seconds`: the
    time of the same nest without counting."""
    targets = [_learned(name, metric(counted, seconds)) for name, metric in _METRICS.items()]
    return np.array(targets, dtype=np.float32)


def _learned(target: str, value: float) -> float:
    if target == "runtime":
        return math.log2(value)
    return math.log2(1 + value) if target in LOGARITHMS else value


#: Numbers of a vector of counters.
COUNTED = len(COUNTERS) * len(STATISTICS)
#: With fewer, a single group in the validation part decides the result.
FEWEST_GROUPS = 8
_VALID_SHARE = 0.2
#: A target that fewer of the samples have is not learned.
_FEWEST_THERE = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class NestSample:
    """One nest under its canonical schedule. `id` and `group` are the nest's.

    Shapes: `counters` float32[95], `targets` float32[t] in the order of `TARGETS`; nan where
    absent.
    """

    id: str
    group: str
    graph: NestGraph
    counters: NDArray[np.float32]
    targets: NDArray[np.float32]


def sample_of(nest: Nest, counted: CounterVector, seconds: float) -> NestSample:
    """Sample of a nest from counters of its canonical schedule and `seconds` without counting."""
    graph = graph_of(nest, canonical_schedule(nest))
    return NestSample(nest.id, nest.group, graph, counted.values, targets_of(counted, seconds))


def held_out(samples: Sequence[NestSample], seed: int) -> frozenset[str]:
    """Groups for early stopping and the figures: a fifth of them, by seed. Raises: InputError for
    fewer than `FEWEST_GROUPS`."""
    groups = sorted({sample.group for sample in samples})
    if len(groups) < FEWEST_GROUPS:
        raise InputError(
            f"nests of {len(groups)} groups are too few to learn from, at least {FEWEST_GROUPS} "
            "are needed",
            hint="add nests of other programs",
        )
    order = np.random.default_rng(seed).permutation(groups)
    return frozenset(order[: max(round(len(groups) * _VALID_SHARE), 2)].tolist())


def targets_there(samples: Sequence[NestSample]) -> NDArray[np.int64]:
    """Indices of the targets that enough of the samples have. Raises: InputError if there is
    none."""
    shares = np.mean([~np.isnan(sample.targets) for sample in samples], axis=0)
    present = np.flatnonzero(shares >= _FEWEST_THERE)
    if not present.size:
        raise InputError("no nest has a target to learn", hint="measure some nests first")
    return present


def content_of(samples: Sequence[NestSample]) -> str:
    """16 hex digits of the nests and all their measurements."""
    parts = [encoding_version()]
    for sample in sorted(samples, key=lambda s: s.id):
        measured = json.dumps([sample.counters.tolist(), sample.targets.tolist()])
        parts += [sample.id, sample.group, measured]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()
