"""A program of a database tuned on this machine, with its model where there is one."""

from __future__ import annotations

from collections.abc import Callable

from embeddb.core.config import Op
from embeddb.core.reports import Progress
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform, this_machine
from embeddb.tensors.computation import Computation
from tuners.fusion.job import FusionTuning
from tuners.fusion.outcome import FusionTuned
from tuners.fusion.request import TuneRequest

__all__ = ["tune_fusion"]


def tune_fusion(
    db: Lookup,
    program: Computation,
    platform: Platform,
    request: TuneRequest,
    *,
    progress: Progress | None = None,
    note: Callable[[str], None],
) -> FusionTuned:
    """`note` is told where there is no model, so that hardware alone is asked.

    Raises: as `FusionTuning.run`; RunnerUnavailable if the platform cannot be measured here.
    """
    runner, here = this_machine(platform, threads=1)
    model, reason = db.graph_model(here, Op("fused")) if request.model_s else (None, "")
    if model is None and request.model_s:
        why = (
            reason or "no model of fused kernels: `embeddb train kernels DB --task fused` makes one"
        )
        note(f"{why}; hardware alone")
    return FusionTuning(db, runner, here, request, model=model, progress=progress).run(program)
