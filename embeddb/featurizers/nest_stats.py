"""Statistics of a loop nest: size, accessed data and strides, arithmetic, parallel loops. For the
nest as written; no schedule, nothing is learned."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.sizes import log_size
from embeddb.featurizers.base import Exported, Travelling
from embeddb.nests.check import canonical_schedule
from embeddb.nests.dependence.legality import parallel_loops, reduction_loops
from embeddb.nests.encoding.features import (
    FEATURES,
    KINDS,
    OPERATIONS,
    groups_of,
    operations,
    spans,
    strides_of,
)
from embeddb.nests.encoding.graph import graph_of, rows_of
from embeddb.nests.nest import Nest
from embeddb.nests.parts import DTYPES, MOST_LOOPS, Access

_LINE_BYTES = 64
#: Loops with separate strides, and classes of strides.
_LOOPS = ("innermost", "second", "outermost")
_STRIDES = ("none", "unit", "line", "far", "indirect")
_INDICES = ("range", "permutation", "below", "offsets")

_NAMES = (
    "depth",
    "log_points",
    *(f"log_trip_{at + 1}" for at in range(MOST_LOOPS)),
    *("triangular", "data_bounds", "statements", "masked", "reductions", "log_target"),
    *(f"log_{name}_bytes" for name in ("all", "read", "written", "touched")),
    *(f"log_reach_{at + 1}" for at in range(MOST_LOOPS)),
    *("log_arrays", "log_reads", "log_writes", "log_groups", "indirect"),
    *(f"share_{name}" for name in DTYPES),
    *(f"indices_{name}" for name in _INDICES),
    "log_unevenness",
    *(f"{loop}_{stride}" for loop in _LOOPS for stride in _STRIDES),
    *(f"log_{name}" for name in OPERATIONS),
    *("log_operations", "log_reuse", "log_intensity"),
    *("parallel_loops", "reduction_loops", "outermost_parallel", "innermost_parallel"),
)


class NestStats(Exported):
    """Statistics of a nest as a raw vector, float32[d]; standardise before comparing.

    `log_` is log2(1 + x), or log2 of a ratio; the others are counts of loops or shares in 0..1.
    Loops are numbered from the innermost. `log_reach_K`: distinct bytes that the K innermost loops
    access for fixed outer loops; `touched`: distinct bytes in total; `reuse`: bytes accessed over
    distinct bytes; `intensity`: operations over distinct bytes. An access's stride in a loop is
    `none`, `unit` (one element), `line` (below a cache line), `far`, or `indirect`.
    """

    name = "nest-stats"
    version = "1"
    kinds = ("nest",)
    names: tuple[str, ...] = _NAMES
    dim = len(_NAMES)

    def embed(self, pattern: Any) -> NDArray[np.float32]:
        """float32[d] of a `Nest`; its names and group do not enter."""
        nest: Nest = pattern
        values = {"depth": float(nest.depth), "log_points": log_size(nest.points)}
        values |= _loops(nest)
        values |= _data(nest)
        values |= _strides(nest)
        values |= _work(nest)
        values |= _carried(nest)
        return np.array([values.get(name, 0.0) for name in self.names], dtype=np.float32)


PLUGIN: type[Travelling] = NestStats


def _loops(nest: Nest) -> dict[str, float]:
    bounds = [(loop.lower, loop.upper) for loop in nest.loops]
    inwards = enumerate(reversed(nest.trips))
    return {
        **{f"log_trip_{at + 1}": log_size(trip) for at, trip in inwards},
        "triangular": sum(any(b.affine.coefs for b in pair) for pair in bounds),
        "data_bounds": sum(any(b.of is not None for b in pair) for pair in bounds),
        "statements": len(nest.body),
        "masked": _share(s.where is not None for s in nest.body),
        "reductions": _share(s.reduction for s in nest.body),
        "log_target": log_size(min(nest.arrays[a].elements for a in nest.written)),
    }


def _data(nest: Nest) -> dict[str, float]:
    arrays = nest.arrays
    total = sum(a.bytes for a in arrays)
    read = {access.array for _, access, writes in nest.accesses() if not writes}
    fills = [array.fill.split(":") for array in arrays]
    reach = {
        f"log_reach_{depth}": log_size(_reach(nest, nest.depth - depth))
        for depth in range(1, nest.depth + 1)
    }
    return {
        "log_all_bytes": log_size(total),
        "log_read_bytes": log_size(sum(arrays[a].bytes for a in read)),
        "log_written_bytes": log_size(sum(arrays[a].bytes for a in nest.written)),
        "log_touched_bytes": reach[f"log_reach_{nest.depth}"],
        **reach,
        **{
            f"share_{dtype}": sum(a.bytes for a in arrays if a.dtype == dtype) / total
            for dtype in DTYPES
        },
        **{f"indices_{name}": sum(parts[0] == name for parts in fills) for name in _INDICES},
        "log_arrays": log_size(len(arrays)),
        "log_unevenness": log_size(max(array.unevenness for array in arrays)),
    }


def _strides(nest: Nest) -> dict[str, float]:
    """Fraction of the statements' accesses with each class of stride in a loop."""
    reads = [access for statement in nest.body for access in statement.reads()]
    accesses = [*reads, *(statement.target for statement in nest.body)]
    features = {
        "log_reads": log_size(len(reads)),
        "log_writes": log_size(len(nest.body)),
        "log_groups": log_size(len(groups_of(accesses))),
        "indirect": _share(not access.affine for access in accesses),
    }
    inwards = range(nest.depth - 1, -1, -1)
    for name, loop in zip(_LOOPS, (inwards[0], inwards[min(1, nest.depth - 1)], 0), strict=True):
        strides = [_stride(nest, access, loop) for access in accesses]
        features |= {f"{name}_{kind}": strides.count(kind) / len(strides) for kind in _STRIDES}
    return features


def _stride(nest: Nest, access: Access, loop: int) -> str:
    if any(index.of is not None and loop in index.of.loops for index in access.at):
        return "indirect"
    size = DTYPES[nest.arrays[access.array].dtype]
    stride = abs(strides_of(nest, access)[loop])
    if not stride:
        return "none"
    if stride == size:
        return "unit"
    return "line" if stride < _LINE_BYTES else "far"


def _work(nest: Nest) -> dict[str, float]:
    counted = operations(nest.body)
    touched = _reach(nest, 0)
    moved = sum(
        DTYPES[nest.arrays[access.array].dtype] for at, access, _ in nest.accesses() if at >= 0
    )
    total = sum(counted.values())
    return {
        **{f"log_{name}": log_size(count) for name, count in counted.items()},
        "log_operations": log_size(total * nest.points),
        "log_reuse": math.log2(max(moved * nest.points, 1) / touched),
        "log_intensity": log_size(total * nest.points / touched),
    }


def _carried(nest: Nest) -> dict[str, float]:
    parallel = parallel_loops(nest)
    return {
        "parallel_loops": len(parallel),
        "reduction_loops": len(reduction_loops(nest)),
        "outermost_parallel": 0 in parallel,
        "innermost_parallel": nest.depth - 1 in parallel,
    }


def _reach(nest: Nest, around: int) -> int:
    """Distinct bytes accessed for fixed first `around` loops; groups of accesses to one array are
    added up, each at most the whole array."""
    fixed, turns = dict.fromkeys(range(around), 0), math.prod(nest.trips[around:])
    total = 0
    for group in groups_of([access for _, access, _ in nest.accesses()]):
        array = nest.arrays[group[0].array]
        extents = zip(spans(nest, group, fixed), array.shape, strict=True)
        most = math.prod(size if span is None else min(span.most, size) for span, size in extents)
        total += min(most, turns * len(group)) * DTYPES[array.dtype]
    return total


def _share(flags: Iterable[bool]) -> float:
    each = list(flags)
    return sum(each) / len(each)


# -- pooled graph features -------------------------------------------------------------------------

#: Columns of the features of each kind of node.
_OWN = {kind: [at for at, n in enumerate(FEATURES) if n.startswith(f"{kind}.")] for kind in KINDS}
_POOLED = [FEATURES[at] for own in _OWN.values() for at in own]


class NestGraphFeatures(Exported):
    """Features of a nest under its canonical schedule as a raw vector, float32[d]; standardise
    before comparing. log2(1 + number of nodes) of each kind, then for each feature the mean over
    the nodes of its kind, then the value of largest magnitude."""

    name = "nest-graph"
    version = "1"
    kinds = ("nest",)
    names: tuple[str, ...] = (
        *(f"nodes.{kind}" for kind in KINDS),
        *(f"mean.{name}" for name in _POOLED),
        *(f"most.{name}" for name in _POOLED),
    )
    dim = len(names)

    def embed(self, pattern: Any) -> NDArray[np.float32]:
        """float32[d] of a `Nest`; its names and group do not enter."""
        graph = graph_of(pattern, canonical_schedule(pattern))
        counts, means, most = [], [], []
        for kind, own in _OWN.items():
            rows = graph.features[rows_of(graph.nodes, kind=kind)][:, own]
            counts.append(np.log2(1 + len(rows)))
            means.append(rows.mean(axis=0))
            far = np.abs(rows).argmax(axis=0)
            most.append(rows[far, np.arange(len(own))])
        return np.concatenate([counts, *means, *most]).astype(np.float32)
