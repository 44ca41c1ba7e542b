"""Options of a run log, and the platform file proposed for one that has none."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.core import plugins
from embeddb.core.config import Op
from embeddb.core.errors import MatrixError, PlatformError, ReaderError, UsageError
from embeddb.core.kinds import operation_of
from embeddb.core.wording import clean, duration, plural
from embeddb.ui.cli import option
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import note, say
from indexer.resolve import is_file

if TYPE_CHECKING:
    from embeddb.platforms.platform import Platform
    from indexer.ingest import IngestReport
    from indexer.readers.base.proposal import Proposal
    from indexer.readers.base.row import ReadOptions

#: Names of missing matrices shown.
_MOST_NAMES = 20
#: Characters of the columns that are not used.
_MOST_LISTED = 1000
#: Reasons for rejected rows shown, the most frequent first.
_MOST_REASONS = 8
#: Options for reading a run log; `read_options` takes most of them.
reading_options = option.together(
    option.text("--platform", help="Name, name@instance or TOML file."),
    option.text("--format", "reader", help="Reader; recognised if left out."),
    option.text("--matrices", help="Folder of the matrices or nests the runs name."),
    option.text("--features", help="File of matrix features that goes with the runs."),
    option.text("--op", help="If the file lacks it: spmm:128, spmm with a width column."),
    option.text("--unit", help="Of times without one: s, ms, us, ns or cycles."),
    option.several("--map", "columns", metavar="ROLE=COLUMN", help="A role's column."),
    option.text("--matrix", help="Matrix name, if the file lacks it."),
    option.text("--instance", help="Device, if the file lacks it; `this`: the file's own command."),
    option.flag("--yes", "-y", help="Read columns as they are proposed."),
)


def read_options(options: dict[str, Any]) -> ReadOptions:
    """Raises: UsageError for a malformed operation or --map."""
    from indexer.readers.base.row import ReadOptions

    text = options["op"].strip().lower()
    bare = bool(text) and ":" not in text and operation_of(text)[0].wide
    columns = {}
    for pair in options["columns"]:
        role, sep, column = pair.partition("=")
        if not (sep and role and column):
            raise UsageError(f"--map {pair}: not ROLE=COLUMN", hint="--map time_ms=elapsed")
        columns[role] = column
    return ReadOptions(
        op=Op.parse(text) if text and not bare else None,
        op_name=text if bare else "",
        columns=columns,
        features=Path(options["features"]) if options["features"] else None,
        **{name: options[name] for name in ("unit", "matrix", "instance")},
    )


def show_file(report: IngestReport) -> None:
    """Summary of one log: rows read, added, duplicate, rejected."""
    new = f"{plural(report.added, 'run')} added"
    duplicates = f", {report.duplicates:,} already stored" if report.duplicates else ""
    say(
        f"{report.file}: {plural(report.rows, 'row')} read as {report.reader} in "
        f"{duration(report.seconds)}: {new}{duplicates}, {report.rejected:,} rejected"
    )
    if rivals := [name for name in report.also if not plugins.load("reader", name).generic]:
        say(f"  recognised as {', '.join(rivals)} too: --format NAME decides")
    if report.repeats:
        why = f" ({'; '.join(report.same_values)})" if report.same_values else ""
        say(f"  {plural(report.repeats, 'row')} equal to another one: kept as repeats{why}")
    campaign = shlex.quote(report.campaign)
    for log, copies in report.copies.items():
        say(
            f"  at least {plural(copies, 'row')} equal to runs of {log}, to nine digits: if it is "
            f"the same log, `embeddb db withdraw DB --campaign {campaign} --yes` withdraws this one"
        )
    if report.stale:
        say(
            f"  {plural(report.stale, 'run')} of an earlier reading of this log, not in it now: if "
            f"they are wrong, `embeddb db withdraw DB --campaign {campaign} --yes`, then index the "
            "log under another name"
        )
    _show_withdrawn(report)
    if report.resumed_at:
        say(f"  resumed at row {report.resumed_at:,}: earlier rows were read before")
    for name, rows in report.new_values.items():
        named = ", ".join(f"{value} ({plural(n, 'row')})" for value, n in rows.items())
        say(f"  new values of {name}, which the platform leaves open: {named}")
    if report.matrices and report.matrices_found + len(report.matrices_missing):
        names = report.matrices_found + len(report.matrices_missing)
        lost = f"; not found: {_few(report.matrices_missing)}" if report.matrices_missing else ""
        say(f"  {report.matrices_found} of {names} names found in {report.matrices}{lost}")
    frequent = sorted(report.reasons.items(), key=lambda item: -item[1])
    for reason, times in frequent[:_MOST_REASONS]:
        say(f"  {plural(times, 'row')} rejected: {reason}")
    if report.rejected:
        say(f"  the first one rejected, {report.first_reject}")
        more = len(frequent) - _MOST_REASONS
        others = f" ({more} more reasons)" if more > 0 else ""
        say(f"  rejected rows with their reasons{others}: {report.rejects_file}")
    cut = "its last line has no end: a number of it may be cut off, if the log was being written"
    for line in [*([cut] if report.open_end else []), *report.contradictions]:
        note(f"warning: {report.file}: {line}")
    for line in report.changes:
        note(f"warning: {line}, for the runs stored before too")


def _show_withdrawn(report: IngestReport) -> None:
    if report.withdrawn:
        say(
            f"  {plural(report.withdrawn, 'run')} of this log withdrawn: `embeddb db withdraw DB "
            f"--undo --campaign {shlex.quote(report.campaign)} --yes` restores"
        )
    if report.withdrawn_others:
        say(
            f"  {plural(report.withdrawn_others, 'run')} of other logs or campaigns withdrawn, "
            "perhaps these: `embeddb db withdraw DB --undo` lists them, with --yes it restores them"
        )


def refuse_empty(reports: Sequence[IngestReport]) -> None:
    """Raises: ReaderError if a log was read of which no row could be used."""
    for report in reports:
        if report.nothing_read:
            why = f"none of its {plural(report.rows, 'row')} could be used" if report.rows else ""
            first = f"the first: {report.first_reject}" if report.first_reject else ""
            others = f"`--format {report.also[0]}` reads it as such a log" if report.also else ""
            raise ReaderError(
                f"{why or 'it holds no rows'}, read as {report.reader}",
                where=report.file,
                hint="; ".join(filter(None, (first, others))),
            )


def refuse_foreign_folder(reports: Sequence[IngestReport]) -> None:
    """Raises: MatrixError if a folder of matrices has none of those that the runs name."""
    missing = list(dict.fromkeys(name for r in reports for name in r.matrices_missing))
    if not missing or any(report.matrices_found for report in reports):
        return
    raise MatrixError(
        f"none of the {len(missing)} matrices that the runs name is in this folder",
        where=reports[0].matrices,
        hint=f"the runs name {_few(missing)}; they are stored by name, and "
        "`embeddb index` with the folder of these files adds the structures",
    )


def _few(names: Sequence[str]) -> str:
    more = f", ... ({len(names)} in all)" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def platform_of_logs(db: str, text: str) -> Platform | None:
    """The platform of run logs, before a database is created for them; None if none is named.

    Raises: PlatformError if neither the registry nor the database has that name.
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
    """Reading options completed with the proposed roles of columns whose names do not say; the
    proposal is shown, and taken with `yes` or when the user at the terminal agrees.

    Raises: UsageError if nobody agrees, or if a role is missing; ReaderError for a file that no
    reader recognises.
    """
    from indexer.ingest import completed, reader_of
    from indexer.readers.base.proposal import propose

    if platform is None:
        return options
    options = replace(options, log=platform.log)
    for path in map(Path, files):
        proposal = propose(path, reader or reader_of(path), platform, completed(options, platform))
        if proposal is None:
            continue
        _show(path, proposal, platform, yes=yes)
        if proposal.lacking:
            raise UsageError(f"{clean(path)}: {proposal.lacking[0]}")
        if proposal.needed or (yes and proposal.guesses):
            ask = partial(click.confirm, "read it so?", default=True, err=True)
            if not (yes or (sys.stdin.isatty() and ask())):
                what = plural(len(proposal.guesses), "thing")
                raise UsageError(
                    f"{clean(path)}: {what} would be guessed",
                    hint="--yes reads it so; --map corrects a column",
                )
            options = replace(options, log=proposal.log)
    return options


def _show(path: Path, proposal: Proposal, platform: Platform, *, yes: bool) -> None:
    """Print a proposal on stderr: stdout is for data."""
    guesses = proposal.guesses if yes or proposal.needed else ()
    if guesses:
        note(f"{path} does not name everything as {platform.name} does; it may be read as")
        width = max(len(guess.what) for guess in guesses)
        role = max(len(guess.taken_for) for guess in guesses)
        for guess in guesses:
            note(f"  {guess.what.ljust(width)}  as {guess.taken_for.ljust(role)}  ({guess.why})")
    for guess in () if guesses else proposal.guesses:
        mapped = f"--map {guess.taken_for}={guess.what}"
        note(f"{path}: {guess.what} looks like `{guess.taken_for}`: {mapped}, or --yes")
    if proposal.unused:
        note(f"{path}: not used: {', '.join(proposal.unused)}"[:_MOST_LISTED])
    if proposal.varying:
        note(
            f"warning: {path}: runs that count as repeats have several values of "
            f"{_few(proposal.varying)}: --map instance={proposal.varying[0]} separates machines, "
            "dtype= value types, config.NAME= parameters"
        )
    for line in proposal.open:
        note(f"  open: {line}")
    if guesses:
        where = platform.file or f"the platform file of {platform.name}"
        note(f"add this to {where} to skip the question:")
        for line in proposal.log.toml.splitlines():
            note(f"    {line}" if line else "")
