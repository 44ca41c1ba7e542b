"""Nests counted on this machine before they are asked about."""

from __future__ import annotations

from collections.abc import Sequence

from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.records import PatternInfo
from embeddb.database import Database
from embeddb.nests.nest import Nest
from embeddb.platforms.of_subject import Content
from embeddb.platforms.platform import Platform
from embeddb.ui.cli.arguments import runner_here
from embeddb.ui.cli.output import Progress

__all__ = ["count_first"]


def count_first(
    db: Database,
    subjects: Sequence[Content | PatternInfo],
    platform: Platform,
    threads: int,
    progress: Progress,
) -> None:
    """Have counters of nests, by the source that the database's network learned from; those that
    were counted before stay.

    Raises: UsageError for what is no nest; NothingFound for one that is known by name only, and
    where nothing can count; RunnerUnavailable if the platform cannot be measured here.
    """
    from indexer.nests.counts import CountJob
    from indexer.runners.base import RunOptions

    nests = [_nest(db, subject) for subject in subjects]
    runner, here = runner_here(platform, threads)
    sources = [plug.source for plug in db.featurizers().counted(here.id)]
    options = RunOptions(repeats=3, max_repeats=9, threads=threads)
    CountJob(db, runner, here, options, (sources or ["auto"])[0]).run(nests, progress)


def _nest(db: Database, subject: Content | PatternInfo) -> Nest:
    if PatternInfo.of(subject).kind != "nest":
        raise UsageError("--count is for loop nests", hint="see docs/nests.md")
    nest = db.store.nest(subject.id) if isinstance(subject, PatternInfo) else subject
    if not isinstance(nest, Nest):
        raise NothingFound(f"{subject.name}: only known by name", hint="give the program")
    return nest
