"""Measured nests as the network learns from them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import InputError
from embeddb.nests.check import canonical_schedule
from embeddb.nests.counters import COUNTERS, STATISTICS, CounterVector
from embeddb.nests.encoding.forward import encoding_version
from embeddb.nests.encoding.graph import NestGraph, graph_of
from embeddb.nests.nest import Nest
from indexer.training.nests.targets import targets_of

#: Numbers of a vector of counters.
COUNTED = len(COUNTERS) * len(STATISTICS)
#: With fewer, one group more or less in the validation decides what is learned.
FEWEST_GROUPS = 8
_VALID_SHARE = 0.2
#: A target that fewer of the samples have is not learned.
_FEWEST_THERE = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class NestSample:
    """One nest under its canonical schedule. `id` and `group` are the nest's.

    Shapes: `counters` float32[95] or None, `targets` float32[t] in the order of `TARGETS`; nan
    where absent.
    """

    id: str
    group: str
    graph: NestGraph
    counters: NDArray[np.float32] | None
    targets: NDArray[np.float32]


def sample_of(nest: Nest, counted: CounterVector, seconds: float) -> NestSample:
    """A nest whose canonical schedule was counted once and took `seconds` when it was not."""
    graph = graph_of(nest, canonical_schedule(nest))
    return NestSample(nest.id, nest.group, graph, counted.values, targets_of(counted, seconds))


def held_out(samples: Sequence[NestSample], seed: int) -> frozenset[str]:
    """The groups that early stopping and the figures look at: a fifth of them, by seed.

    Raises: InputError for fewer than `FEWEST_GROUPS`.
    """
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
    """The places of the targets that enough of the samples have.

    Raises: InputError where there is none.
    """
    shares = np.mean([~np.isnan(sample.targets) for sample in samples], axis=0)
    found = np.flatnonzero(shares >= _FEWEST_THERE)
    if not found.size:
        raise InputError("no nest has a target to learn", hint="measure some nests first")
    return found


def counters_of(samples: Sequence[NestSample]) -> NDArray[np.float32]:
    """float32[s,95], nan where absent."""
    found = np.full((len(samples), COUNTED), np.nan, dtype=np.float32)
    for row, sample in zip(found, samples, strict=True):
        if sample.counters is not None:
            row[:] = sample.counters
    return found


def content_of(samples: Sequence[NestSample]) -> str:
    """16 hex digits that stand for the nests and all that was measured of them."""
    parts = [encoding_version()]
    for sample in sorted(samples, key=lambda s: s.id):
        told = [] if sample.counters is None else sample.counters.tolist()
        parts += [sample.id, sample.group, json.dumps([told, sample.targets.tolist()])]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()
