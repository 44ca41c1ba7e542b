"""The learned model's part of a question about the tiles of a tensor kernel.

A kernel's space is too large to be predicted whole. What is predicted are tiles that measured
kernels ran and that are legal here, and some of the kernel's own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from embeddb.core.config import Config
from embeddb.core.errors import EmbeddbError, ModelError
from embeddb.core.files.safe_read import refusing
from embeddb.cost_model import Problem
from embeddb.index.lookup import Lookup
from embeddb.platforms.designed_tiles import drawn_tiles
from embeddb.ranking.prediction import sensible, with_judgement
from embeddb.ranking.query import Query
from embeddb.tensors.tensor_graph import TensorGraph

if TYPE_CHECKING:
    from embeddb.cost_model.graph_model import GraphModel

#: So many tiles are predicted; by a network, of larger kernels as many as come to so many
#: operations, and so many of the largest: about 0.1 s of one thread for networks of 128 numbers a
#: node.
MOST_TILES, MOST_NODES, LEAST_TILES = 500, 6000, 50
#: What the model reads, as answers tell it.
READS = "operations"


def predicted_tiles(query: Query, lookup: Lookup, kernel: TensorGraph | None) -> Query | None:
    """The query with what the learned model says of the kernel's tiles, or with a note why it says
    nothing; None where there is no such model, and of op `fused`, where nothing is to be chosen
    (`fused_seconds`). `kernel` is None where it is known by name only."""
    if query.op.name == "fused":
        return None
    model, note = lookup.graph_model(query.platform, query.op)
    if model is None:
        return _noted(query, note) if note else None
    if kernel is None:
        why = "it needs the kernel itself, which is known by name only"
        return _noted(query, f"the learned model {model.version} is not used: {why}")
    try:
        with refusing(ModelError):
            most = MOST_TILES if model.flat else MOST_NODES // len(kernel.operations)
            configs = tiles_of(query, min(max(most, LEAST_TILES), MOST_TILES))
            found = with_tiles(query, model, kernel, configs)
            return with_judgement(found, model, reads=READS)
    except EmbeddbError as e:
        return _noted(query, f"the learned model {model.version} is not used: {e}")


def tiles_of(query: Query, most: int = MOST_TILES) -> tuple[Config, ...]:
    """The legal tiles that are predicted, the default first: half of them those that measured
    kernels ran, the neighbours' first, then the kernel's own. None where the kernel has none."""
    if query.space.reason(query.default) is not None:
        return ()
    known_to = np.isfinite(query.vote.gains).sum(axis=0).reshape(-1)
    ran = [query.vote.configs[at] for at in np.argsort(known_to == 0, kind="stable")]
    known = dict.fromkeys([query.default, *ran[: most // 2]])
    rng = np.random.default_rng(0)
    own = drawn_tiles(query.space, query.default, most - len(known), rng=rng)
    return tuple(dict.fromkeys([*known, *own]))


def with_tiles(
    query: Query, model: GraphModel, kernel: TensorGraph, configs: tuple[Config, ...]
) -> Query:
    """The query with what a model says of these tiles of the kernel.

    Raises: ModelError if what it says cannot be told as gains.
    """
    if not configs:
        return query
    scorer = model.of(kernel)
    nothing = np.zeros(0, dtype=np.float32)
    problem = Problem(nothing, query.platform, query.op, kernel.sizes)
    gain, spread = sensible(*scorer.score(problem, configs))
    found = replace(query.prediction, configs=configs, gain=gain, spread=spread, guard=model.guard)
    return replace(query, prediction=found)


def _noted(query: Query, note: str) -> Query:
    return replace(query, prediction=replace(query.prediction, note=note))
