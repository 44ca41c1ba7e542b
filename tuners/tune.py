"""What `Database.tune` does: who tunes follows from the request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from embeddb.core.config import Op
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import WorkloadInfo
from embeddb.core.reports import Progress
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform
from embeddb.tensors.tensor_graph import TensorGraph
from indexer.resolve import resolve_workload
from tuners.fusion_cuts import FusionTuned
from tuners.tune_fusion import TuneRequest, tune_fusion
from tuners.tune_matrix import MatrixTuned, MatrixTuneRequest, tune_matrix
from tuners.tune_tiles import TilesTuned, TileTuneRequest, tune_tiles


class How(TypedDict, total=False):
    """`op` of a matrix, as "spmm:128"; `platform` by name or whole, else `cpu`, `xla-cpu` or
    `tile-cpu`; `progress` is called with what is done, how much of it and of how much, `note` with
    what should be known."""

    op: str | Op
    platform: str | Platform
    progress: Progress | None
    note: Callable[[str], None]


def tuned(
    db: Lookup, subject: Any, request: TuneRequest | TileTuneRequest | MatrixTuneRequest, how: How
) -> FusionTuned | TilesTuned | MatrixTuned:
    """Raises: as `Database.tune`."""
    told: dict[str, Any] = {"progress": how.get("progress"), "note": how["note"]}
    if isinstance(request, TuneRequest):
        (program,) = _tensors(db, subject, "program")
        return tune_fusion(db, program, _platform(db, how, "xla-cpu"), request, **told)
    if isinstance(request, TileTuneRequest):
        kernels = _tensors(db, subject, "kernel", "program")
        return tune_tiles(db, kernels, _platform(db, how, "tile-cpu"), request, **told)
    where = _platform(db, how, "cpu")
    op = Op.parse(str(how.get("op", "")))
    if not op.workload.sparse or op.name not in where.kernels:
        hint = "an operation of the platform on matrices, as spmm:128, fusion or tile"
        raise UsageError(f"{where.name} tunes no {op}", hint=hint)
    return tune_matrix(db, _matrix(db, subject), (op, where), request, **told)


def _platform(db: Lookup, how: How, usual: str) -> Platform:
    named = how.get("platform") or usual
    return db.platform(named) if isinstance(named, str) else named


def _matrix(db: Lookup, subject: Any) -> Pattern:
    found = resolve_workload(db, subject, kind="matrix")
    made = db.store.workload(found.id) if isinstance(found, WorkloadInfo) else found
    if not isinstance(made, Pattern):
        raise NothingFound(f"{subject} is only known by name", hint="give its file")
    return made


def _tensors(db: Lookup, named: Any, *kinds: str) -> Sequence[TensorGraph]:
    """Those given, or the one of that name or id, of the first kind that has it."""
    if isinstance(named, TensorGraph):
        return [named]
    if not isinstance(named, str):
        return list(named)
    there = {info.kind for info in db.store.find(named)}
    found = resolve_workload(
        db, named, kind=next((kind for kind in kinds if kind in there), kinds[0])
    )
    one = db.store.tensor(found.id) if isinstance(found, WorkloadInfo) else found
    if not isinstance(one, TensorGraph) or one.kind not in kinds:
        many = f"no {' or '.join(kinds)} is called {named}"
        raise NothingFound(many, hint="`embeddb kernel import` reads programs and kernels")
    return [one]
