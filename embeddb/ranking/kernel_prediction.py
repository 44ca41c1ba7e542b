"""Predictions of the learned models of tensor kernels: gains of tiles, seconds of fused kernels.

The space of a kernel's tiles is too large to be predicted whole. Predicted are legal tiles that
measured kernels ran, and a sample of the kernel's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError, ModelError
from embeddb.core.files.safe_read import refusing
from embeddb.core.timing import summarise_runs
from embeddb.index.lookup import Lookup
from embeddb.platforms.designed_tiles import drawn_tiles
from embeddb.platforms.platform import Platform
from embeddb.ranking.prediction import sensible, with_judgement
from embeddb.ranking.query import Query
from embeddb.tensors.tensor_graph import TensorGraph

if TYPE_CHECKING:
    from embeddb.cost_model.graph_model import GraphModel

#: Predicted tiles; for a network tiles times operations at most, and the fewest tiles: about 0.1 s
#: of one thread for networks of 128 numbers a node.
MOST_TILES, MOST_NODES, LEAST_TILES = 500, 6000, 50
#: Input of the model, as displayed with an answer.
READS = "operations"
_FUSED = Op("fused")


def predicted_tiles(query: Query, lookup: Lookup, kernel: TensorGraph | None) -> Query | None:
    """The query with predictions for the kernel's tiles, or with a note why there are none. None
    without a model, and for op `fused`, which has no choice. `kernel` is None where it is known by
    name only."""
    if query.op.name == "fused":
        return None
    model, note = lookup.graph_model(query.platform, query.op)
    if model is None:
        return query.with_prediction(note=note) if note else None
    unused = f"the learned model {model.version} is not used"
    if kernel is None:
        why = "it needs the kernel itself, which is known by name only"
        return query.with_prediction(note=f"{unused}: {why}")
    try:
        with refusing(ModelError):
            most = MOST_TILES if model.flat else MOST_NODES // len(kernel.operations)
            configs = tiles_of(query, min(max(most, LEAST_TILES), MOST_TILES))
            scored = with_tiles(query, model, kernel, configs)
            return with_judgement(scored, model, reads=READS)
    except EmbeddbError as e:
        return query.with_prediction(note=f"{unused}: {e}")


def tiles_of(query: Query, most: int = MOST_TILES) -> tuple[Config, ...]:
    """The legal tiles to predict, the default first: up to half are tiles that measured kernels
    ran, the neighbours' first, then the kernel's own. Empty where the kernel has none."""
    if query.space.reason(query.default) is not None:
        return ()
    votes = np.isfinite(query.vote.gains).sum(axis=0).reshape(-1)
    ran = [query.vote.configs[at] for at in np.argsort(votes == 0, kind="stable")]
    tiles = dict.fromkeys([query.default, *ran[: most // 2]])
    rng = np.random.default_rng(0)
    own = drawn_tiles(query.space, query.default, most - len(tiles), rng=rng)
    return tuple(dict.fromkeys([*tiles, *own]))


def with_tiles(
    query: Query, model: GraphModel, kernel: TensorGraph, configs: tuple[Config, ...]
) -> Query:
    """The query with a model's predictions for these tiles of the kernel.

    Raises: ModelError if they are not `sensible`.
    """
    if not configs:
        return query
    gain, spread = sensible(*model.gains(kernel, configs))
    return query.with_prediction(configs=configs, gain=gain, spread=spread, guard=model.guard)


# -- fused kernels ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FusedSeconds:
    """Seconds of a fused kernel on one instance of a platform: `measured`, and `predicted` by the
    `model` of this version; `apart` is the ratio between its trees' and its network's prediction,
    `call` and `operations` (by place) are the parts of `predicted`. None and empty where
    unknown."""

    platform: str
    measured: float | None = None
    model: str | None = None
    predicted: float | None = None
    apart: float | None = None
    call: float | None = None
    operations: Mapping[int, float] = field(default_factory=dict)


def fused_seconds_of(db: Lookup, kernel: TensorGraph) -> list[FusedSeconds]:
    """Seconds of a kernel on every instance that measured fused kernels, where any are known."""
    if kernel.kind != "kernel":
        return []
    names = sorted(p.platform for p in db.store.partitions() if p.op == _FUSED)
    platforms = (db.store.platform(name) for name in names)
    seconds = [_on(db, platform, kernel) for platform in platforms if platform is not None]
    return [one for one in seconds if one.measured is not None or one.predicted is not None]


def _on(db: Lookup, platform: Platform, kernel: TensorGraph) -> FusedSeconds:
    runs = db.store.runs(platform.id, _FUSED, kernel.id)
    timed = summarise_runs(runs).get(Config({}))
    measured = timed.seconds if timed is not None and math.isfinite(timed.seconds) else None
    model, _ = db.graph_model(platform, _FUSED)
    if model is None:
        return FusedSeconds(platform.id, measured)
    try:
        predicted, parts = model.seconds(kernel), model.by_operation(kernel)
        apart = model.apart(kernel)
    except ModelError:
        predicted = math.nan
    if not math.isfinite(predicted):
        return FusedSeconds(platform.id, measured)
    if apart is not None and not math.isfinite(apart):
        apart = None
    call, operations = parts or (None, {})
    return FusedSeconds(platform.id, measured, model.version, predicted, apart, call, operations)
