"""Kernels, or those that a program is cut into, tuned on this machine by whom the request names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from embeddb.core.config import Op
from embeddb.core.errors import UsageError
from embeddb.core.reports import Progress
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform, this_machine
from embeddb.tensors.computation import Computation
from embeddb.tensors.roofline.analysis import ANALYSED
from indexer.programs.tensors.cutting import pieces_of
from tuners.hardware.outcome import Tuned
from tuners.tiles.job import TileTuneRequest, TileTuning

__all__ = ["TilesTuned", "tune_tiles"]


@dataclass(frozen=True, slots=True)
class TilesTuned:
    """The kernels, each once, `times` by id as they are in the program; `skipped` is by name why
    others have no tiles, `platform` the instance that they ran on."""

    platform: str
    kernels: Sequence[Tuned]
    times: Mapping[str, int]
    skipped: Mapping[str, str]


def tune_tiles(
    db: Lookup,
    subjects: Sequence[Computation],
    platform: Platform,
    request: TileTuneRequest,
    *,
    progress: Progress | None = None,
    note: Callable[[str], None],
) -> TilesTuned:
    """`note` is told where a model was to choose and there is none, so that neighbours do.

    Raises: UsageError for the analytical model of code that it does not know; as `TileTuning.run`;
    RunnerUnavailable if the platform cannot be measured here.
    """
    times: dict[str, int] = {}
    kernels: dict[str, Computation] = {}
    for subject in subjects:
        whole = subject.kind == "program"
        for kernel in [piece.kernel for piece in pieces_of(subject)] if whole else [subject]:
            kernels.setdefault(kernel.id, kernel)
            times[kernel.id] = times.get(kernel.id, 0) + 1
    if request.by == "analytical" and platform.name != ANALYSED:
        raise UsageError(
            f"the analytical model knows no {platform.name}", hint="choose who else ranks"
        )
    runner, here = this_machine(platform, threads=1)
    model, reason = None, ""
    if request.by in ("", "model"):
        model, reason = db.graph_model(here, Op("tile"))
        others = "neighbours choose"
        if not request.by and here.name == ANALYSED:
            others = "the analytical model chooses"
        elif not reason:
            reason = "no model of tile kernels: `embeddb train kernels` makes one"
        if model is None and reason:
            note(f"{reason}; {others}")
    job = TileTuning(db, runner, here, request, model, progress)
    tuned, skipped = job.run(list(kernels.values()))
    return TilesTuned(here.id, tuned, times, skipped)
