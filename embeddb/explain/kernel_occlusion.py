"""Which operations, or which sizes, of a tensor kernel count: what changes when one is left out
(occlusion: Zeiler and Fergus 2014, Section 4.2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import EmbeddbError
from embeddb.featurizers.base import Occluding
from embeddb.index.lookup import Lookup
from embeddb.ranking.diagnostics import Occluded
from embeddb.ranking.kernels.view import MOST_SHOWN
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import Ranker
from embeddb.tensors.computation import Computation

__all__ = ["kernel_occlusion"]

_MOST_SIZES = 12


def kernel_occlusion(
    ranker: Ranker, db: Lookup, kernel: Computation | None
) -> tuple[str, list[Occluded]]:
    """By what it was found out (`Diagnostics.occluded_by`), and each part, what changes most first;
    ("", []) where nothing can be said. A kernel of more than `MOST_SHOWN` operations is not looked
    at one by one."""
    few = kernel if kernel is not None and len(kernel.operations) <= MOST_SHOWN else None
    try:
        if ranker.by_model and few is not None:
            return "model", _by_model(ranker.query, db, few)
        return _by_neighbours(ranker.query, db, few)
    except EmbeddbError:
        return "", []


def _by_model(query: Query, db: Lookup, kernel: Computation) -> list[Occluded]:
    """How much more the best tile promises over the default without an operation."""
    model, _ = db.graph_model(query.platform, query.op)
    if model is None or query.default not in query.prediction.configs:
        return []
    others = [c for c in query.prediction.configs if c != query.default]
    if not others:
        return []
    gain = dict(zip(query.prediction.configs, query.prediction.gain.tolist(), strict=True))
    asked = (query.default, max(others, key=lambda c: gain[c]))
    slope = float(model.card["calibration"]["slope"])
    whole = model.predict(kernel, asked)
    said = model.without(kernel, asked)
    moved = slope * ((said[:, 0] - said[:, 1]) - (whole[0] - whole[1]))
    return _operations(kernel, moved)


def _by_neighbours(
    query: Query, db: Lookup, kernel: Computation | None
) -> tuple[str, list[Occluded]]:
    partition = db.answering(query.op, query.platform)
    if partition is None or partition.featurizer != query.vote.featurizer:
        return "", []
    plug = db.featurizers().named(partition.featurizer)
    whole = partition.metric.apply(query.vote.vector[None])[0]
    if isinstance(plug, Occluding):
        if kernel is None:
            return "", []
        placed = partition.metric.apply(np.array(plug.without(kernel), dtype=np.float32))
        return "operations", _operations(kernel, np.linalg.norm(placed - whole, axis=1))
    usual = np.repeat(query.vote.vector[None], len(plug.names), axis=0)
    usual[np.diag_indices(len(plug.names))] = partition.metric.center
    moved = np.linalg.norm(partition.metric.apply(usual) - whole, axis=1)
    found = [Occluded(what=n, moved=float(m)) for n, m in zip(plug.names, moved, strict=True)]
    return "sizes", sorted(found, key=lambda one: -one.moved)[:_MOST_SIZES]


def _operations(kernel: Computation, moved: NDArray[np.float64]) -> list[Occluded]:
    found = [
        Occluded(what=op.opcode, place=at, moved=float(moved[at]))
        for at, op in enumerate(kernel.operations)
    ]
    return sorted(found, key=lambda one: -abs(one.moved))
