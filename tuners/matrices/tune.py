"""A matrix tuned on this machine for an operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from embeddb.core.config import Op
from embeddb.core.pattern import Pattern
from embeddb.core.reports import Progress
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform, this_machine
from tuners.hardware.outcome import Tuned
from tuners.matrices.job import MatrixTuneRequest, MatrixTuning
from tuners.matrices.ranking import Ranking

__all__ = ["MatrixTuned", "tune_matrix"]


@dataclass(frozen=True, slots=True)
class MatrixTuned:
    """What ran on the instance `platform`, and the ranking that it ran by; seconds are in a
    `time_unit` as answers are (`Recommendation.time_unit`)."""

    platform: str
    op: Op
    tuned: Tuned
    ranking: Ranking
    time_unit: str = "s"


def tune_matrix(
    db: Lookup,
    pattern: Pattern,
    where: tuple[Op, Platform],
    request: MatrixTuneRequest,
    *,
    progress: Progress | None = None,
    note: Callable[[str], None],
) -> MatrixTuned:
    """`note` is told where times are simulated.

    Raises: as `MatrixTuning.run`; RunnerUnavailable if the platform cannot be measured here.
    """
    op, platform = where
    runner, here = this_machine(platform)
    if here.simulated:
        note(f"{here.id} is simulated: no time is of real hardware")
    tuned, ranking = MatrixTuning(db, runner, here, request, progress).run(pattern, op)
    return MatrixTuned(here.id, op, tuned, ranking, here.time_unit)
