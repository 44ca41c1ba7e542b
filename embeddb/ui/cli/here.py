"""What a question needs of this machine: the platform as it is here, and counters of nests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from embeddb.core.errors import NothingFound, RunnerUnavailable, UsageError
from embeddb.core.kinds import kind_of
from embeddb.core.records import PatternInfo
from embeddb.core.subject import Subject
from embeddb.database import Database
from embeddb.nests.nest import Nest
from embeddb.platforms.platform import Platform, runner_for
from embeddb.ui.cli.arguments import runner_here
from embeddb.ui.cli.output import Progress

__all__ = ["count_first", "platform_asked"]


def platform_asked(db: Database, text: str, threads: int, *, must_run: bool) -> Platform:
    """The platform asked about; as this machine is, if it is to be measured or with `threads`.

    Raises: RunnerUnavailable if it must run here and cannot.
    """
    platform = db.platform(text)
    if must_run:
        return runner_here(platform, threads)[1]
    if threads and platform.runner and not platform.instance:
        with suppress(RunnerUnavailable):
            found: Platform = runner_for(platform).platform(threads=threads)
            return found
    return platform


def count_first(
    db: Database,
    subjects: Sequence[Subject | PatternInfo],
    platform: Platform,
    threads: int,
    progress: Progress,
) -> None:
    """Have counters of nests, by the source that the database's network learned from; those that
    were counted before stay.

    Raises: UsageError for what is no nest; NothingFound for one that is known by name only, and
    where nothing can count; RunnerUnavailable if the platform cannot be measured here.
    """
    from indexer.nest_runs import CountJob
    from indexer.runners.base import RunOptions

    nests = [_nest(db, subject) for subject in subjects]
    runner, here = runner_here(platform, threads)
    sources = [plug.source for plug in db.index.featurizers().counted(here.id)]
    options = RunOptions(repeats=3, max_repeats=9, threads=threads)
    CountJob(db.index, runner, here, options, (sources or ["auto"])[0]).run(nests, progress)


def _nest(db: Database, subject: Subject | PatternInfo) -> Nest:
    if not kind_of(subject.kind).counted:
        raise UsageError("--count is for loop nests", hint="see docs/nests.md")
    nest = db.store.nest(subject.id) if isinstance(subject, PatternInfo) else subject
    if not isinstance(nest, Nest):
        raise NothingFound(f"{subject.name}: only known by name", hint="give the program")
    return nest
