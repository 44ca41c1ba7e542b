"""What a fused kernel takes: measured, and as a learned model says, by operation where it can."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from embeddb.core.config import Config, Op
from embeddb.core.errors import ModelError
from embeddb.core.timing import summarise_runs
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform
from embeddb.tensors.tensor_graph import TensorGraph

_FUSED = Op("fused")


@dataclass(frozen=True, slots=True)
class FusedSeconds:
    """On one instance of a platform: what was `measured`, what the `model` of this version says
    (`predicted`), by which factor its trees and network differ (`apart`), and of the seconds the
    `call` and, by place, the `operations`; None and empty where nobody knows."""

    platform: str
    measured: float | None = None
    model: str | None = None
    predicted: float | None = None
    apart: float | None = None
    call: float | None = None
    operations: Mapping[int, float] = field(default_factory=dict)


def fused_seconds_of(db: Lookup, kernel: TensorGraph) -> list[FusedSeconds]:
    """On every instance on which kernels ran by themselves, where anything is known of this one."""
    if kernel.kind != "kernel":
        return []
    names = sorted(p.platform for p in db.store.partitions() if p.op == _FUSED)
    known = (db.store.platform(name) for name in names)
    found = [_on(db, platform, kernel) for platform in known if platform is not None]
    return [one for one in found if one.measured is not None or one.predicted is not None]


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
        return FusedSeconds(platform.id, measured)
    if not math.isfinite(predicted):
        return FusedSeconds(platform.id, measured)
    call, operations = (None, {}) if parts is None else parts
    known = apart if apart is not None and math.isfinite(apart) else None
    told = (model.version, predicted, known, call, operations)
    return FusedSeconds(platform.id, measured, *told)
