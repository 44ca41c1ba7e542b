"""What workers have delivered, read into a database: every finished task at most once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from embeddb.core.pattern import Pattern
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import parse_platform
from indexer.campaign.folder import Campaign
from indexer.campaign.plan import Matrix, Told, untold
from indexer.campaign.planned_matrix import from_file, planned_pattern

__all__ = ["Collected", "collect"]


@dataclass(frozen=True, slots=True)
class Collected:
    """How many tasks were read in, and the runs that this added."""

    tasks: int
    runs: int


def collect(
    campaign: Campaign,
    db: Lookup,
    *,
    read: Callable[[Matrix], Pattern] = from_file,
    told: Told = untold,
) -> Collected:
    """Store every task that is complete and not stored; nothing is measured, and the machine need
    not be the one that was.

    Raises: InputError if a file is none of the campaign's, or a matrix not the one planned.
    """
    ready = [
        task
        for task in campaign.tasks()
        if not campaign.missing(task) and not campaign.is_stored(db, task)
    ]
    # In the order of matrices, so that each file is read once.
    ready.sort(key=lambda task: task.matrix)
    planned = parse_platform(campaign.plan.platform)
    runs, held = 0, -1
    pattern: Pattern | None = None
    for number, task in enumerate(ready):
        told("collect tasks", number, len(ready))
        if pattern is None or held != task.matrix:
            pattern, held = planned_pattern(campaign.plan.matrices[task.matrix], read), task.matrix
        runs += campaign.store(db, task, pattern, planned)
    return Collected(len(ready), runs)
