"""`Database.tune`: dispatch by the type of the request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from embeddb.core.arguments import require
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
    """Keyword arguments of `Database.tune`: `op` for a matrix, as "spmm:128"; `platform`, else
    `cpu`, `xla-cpu` or `tile-cpu`; `progress`; `note` for one-line remarks."""

    op: str | Op
    platform: str | Platform
    progress: Progress | None
    note: Callable[[str], None]


def tuned(
    db: Lookup, subject: Any, request: TuneRequest | TileTuneRequest | MatrixTuneRequest, how: How
) -> FusionTuned | TilesTuned | MatrixTuned:
    """Raises: as `Database.tune`."""
    kinds = TuneRequest | TileTuneRequest | MatrixTuneRequest
    require("options", request, kinds, "a MatrixTuneRequest, TuneRequest or TileTuneRequest")
    callbacks: dict[str, Any] = {"progress": how.get("progress"), "note": how["note"]}
    if isinstance(request, TuneRequest):
        (program,) = _tensors(db, subject, "program")
        return tune_fusion(db, program, _platform(db, how, "xla-cpu"), request, **callbacks)
    if isinstance(request, TileTuneRequest):
        kernels = _tensors(db, subject, "kernel", "program")
        return tune_tiles(db, kernels, _platform(db, how, "tile-cpu"), request, **callbacks)
    where = _platform(db, how, "cpu")
    op = Op.parse(str(how.get("op", "")))
    if not op.workload.sparse or op.name not in where.kernels:
        hint = "an operation of the platform on matrices, as spmm:128, fusion or tile"
        raise UsageError(f"{where.name} tunes no {op}", hint=hint)
    return tune_matrix(db, _matrix(db, subject), (op, where), request, **callbacks)


def _platform(db: Lookup, how: How, usual: str) -> Platform:
    platform = how.get("platform") or usual
    return platform if isinstance(platform, Platform) else db.platform(platform)


def _matrix(db: Lookup, subject: Any) -> Pattern:
    workload = resolve_workload(db, subject, kind="matrix")
    matrix = db.store.workload(workload.id) if isinstance(workload, WorkloadInfo) else workload
    if not isinstance(matrix, Pattern):
        raise NothingFound(f"{subject} is only known by name", hint="give its file")
    return matrix


def _tensors(db: Lookup, named: Any, *kinds: str) -> Sequence[TensorGraph]:
    """These tensors, or the one with that name or id, of the first of the kinds that has one."""
    if isinstance(named, TensorGraph):
        return [named]
    if not isinstance(named, str):
        return list(named)
    stored = {info.kind for info in db.store.find(named)}
    kind = next((kind for kind in kinds if kind in stored), kinds[0])
    workload = resolve_workload(db, named, kind=kind)
    tensor = db.store.tensor(workload.id) if isinstance(workload, WorkloadInfo) else workload
    if not isinstance(tensor, TensorGraph) or tensor.kind not in kinds:
        many = f"no {' or '.join(kinds)} is called {named}"
        raise NothingFound(many, hint="`embeddb kernel import` reads programs and kernels")
    return [tensor]
