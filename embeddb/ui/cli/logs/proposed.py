"""Logs whose columns are not named as ours: what they are taken for is shown, and accepted."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from embeddb.core.errors import PlatformError, UsageError
from embeddb.core.wording import clean, plural
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import note
from indexer.resolve import is_file

if TYPE_CHECKING:
    from embeddb.platforms.platform import Platform
    from indexer.readers.base.proposal import Proposal
    from indexer.readers.base.row import ReadOptions

__all__ = ["accepted", "platform_asked"]


def platform_asked(db: str, text: str) -> Platform | None:
    """The platform that logs are of, before a database is made for them; None if none is named.

    Raises: PlatformError if there is none of that name, in the database neither.
    """
    from indexer.index_runs import platform_of_runs

    try:
        return platform_of_runs(None, text)
    except PlatformError:
        if text.endswith(".toml") or not is_file(db):
            raise
    with open_database(db, readonly=True) as opened:
        return platform_of_runs(opened.index, text)


def accepted(
    files: Sequence[str | Path],
    platform: Platform | None,
    options: ReadOptions,
    *,
    reader: str = "",
    yes: bool = False,
) -> ReadOptions:
    """The options with what the columns of logs are taken for, where their names do not say: shown,
    and taken with `yes`, or when whoever sits at the terminal agrees.

    Raises: UsageError if nobody does, or if something is lacking that nothing in the log tells;
    ReaderError for a file that no reader knows.
    """
    from indexer.ingest import completed, reader_of
    from indexer.readers.base.proposal import propose

    if platform is None:
        return options
    options = replace(options, log=platform.log)
    for path in map(Path, files):
        found = propose(path, reader or reader_of(path), platform, completed(options, platform))
        if found is None:
            continue
        _show(path, found, platform)
        if found.lacking:
            raise UsageError(f"{clean(path)}: {found.lacking[0]}")
        if found.guesses:
            _agree(path, found, yes=yes)
            options = replace(options, log=found.log)
    return options


def _show(path: Path, found: Proposal, platform: Platform) -> None:
    """On stderr: what is read so far are data of other commands."""
    if found.guesses:
        note(f"{path} does not name everything as {platform.name} does; it may be read as")
    width = max((len(guess.what) for guess in found.guesses), default=0)
    role = max((len(guess.taken_for) for guess in found.guesses), default=0)
    for guess in found.guesses:
        note(f"  {guess.what.ljust(width)}  as {guess.taken_for.ljust(role)}  ({guess.why})")
    if found.unused and found.guesses:
        note(f"  not used: {', '.join(found.unused)}")
    for line in found.open:
        note(f"  open: {line}")
    if found.guesses:
        where = platform.file or f"the platform file of {platform.name}"
        note(f"in {where} this keeps it, then nothing is asked:")
        for line in found.log.toml.splitlines():
            note(f"    {line}" if line else "")


def _agree(path: Path, found: Proposal, *, yes: bool) -> None:
    if yes or (sys.stdin.isatty() and click.confirm("read it so?", default=True, err=True)):
        return
    what = plural(len(found.guesses), "thing")
    raise UsageError(
        f"{clean(path)}: {what} would be guessed",
        hint="--yes reads it so; --map corrects a column",
    )
