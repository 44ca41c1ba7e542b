"""`db export|import|copy|push|sources|withdraw`: transfer of rows out of and into a database."""

from __future__ import annotations

import io
import shlex
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.config import Op
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.wording import duration, plural, when
from embeddb.store.withdrawn import RunSelection
from embeddb.ui.cli import option
from embeddb.ui.cli.arguments import database_to_fill, open_database, statuses
from embeddb.ui.cli.output import Progress, emit, note, result, say, table

if TYPE_CHECKING:
    from indexer.exchange.exchange import PushReport
    from indexer.exchange.importer import ImportReport


@option.verb("export")
@click.argument("db")
@click.argument("file")
@option.text("--format", help="jsonl, csv, t4 or c-header.  [default: by FILE's extension]")
@option.only_platform
@option.only_op
@option.flag("--brief", help="JSONL: five quantiles instead of every repeat.")
def export_verb(db: str, file: str, as_json: bool, **options: Any) -> None:
    """Write DB to FILE; `-` is stdout. JSONL has every run, but no structures and no answers. Runs
    that were measured again, and so replaced, are left out; `db stat` counts them. CSV and T4 name
    loop nests; their code is written beside FILE, for `index --matrices FOLDER`.

    The extension of FILE selects the format: .jsonl, .csv, .json (T4) or .h; .gz compresses it.

    \b
    Example:
      embeddb db export runs.db runs.jsonl.gz
      embeddb db export runs.db best.h --platform cpu --op spmm:128
    """
    from indexer.exchange.exchange import export, export_file

    if file == "-" and as_json:
        raise UsageError("--json does not go with FILE `-`: both would write to stdout")
    op = Op.parse(options["op"]) if options["op"] else None
    only: dict[str, Any] = {"platform": options["platform"], "op": op, "brief": options["brief"]}
    with open_database(db, readonly=True) as opened:
        if file == "-":
            out = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="\n")
            try:
                report = export(opened.index, out, format=options["format"] or "jsonl", **only)
            finally:
                out.flush()
                out.detach()  # else stdout is closed with it
        else:
            report = export_file(opened.index, Path(file), format=options["format"], **only)
    if report.nests_without_code:
        many = plural(report.nests_without_code, "nest")
        note(
            f"{many} exported by name only: `embeddb nest show {db} NAME --as json` writes the code"
        )
    line = f"{plural(report.runs, 'run')} of {plural(report.patterns, 'pattern')} written to {file}"
    if file == "-":
        note(line)
    elif as_json:
        emit(report.document())
    else:
        say(line)
        for beside in report.nest_files:
            say(f"the code of its nests written to {beside}")


@option.verb("import")
@click.argument("db")
@click.argument("file")
def import_verb(db: str, file: str, as_json: bool) -> None:
    """Read an export FILE (JSONL, perhaps .gz) into DB (created if missing), and embed it.

    \b
    Example:
      embeddb db import other.db runs.jsonl.gz
    """
    from indexer.embed import embed
    from indexer.exchange.exchange import import_file

    if not Path(file).is_file():
        raise click.BadParameter(f"{file}: no such file", param_hint="FILE")
    with database_to_fill(db) as opened, Progress() as progress:
        report = import_file(opened.index, Path(file), progress=lambda n: progress("read", n))
        embed(opened.index, progress=progress)
    if as_json:
        emit(report.document())
        return
    _show_moved(file, report, "here", db)
    if report.rejects_file:
        say(f"  rejected records with reasons: {report.rejects_file}")


@option.verb("copy")
@click.argument("source")
@click.argument("db")
def copy_verb(source: str, db: str, as_json: bool) -> None:
    """Make DB a full copy of SOURCE: runs, structures, answers, models. Each is a folder or a
    database on a server. The same command continues an interrupted copy.

    \b
    Example:
      embeddb db copy runs.db postgresql://db.example.org/team
      embeddb db copy postgresql://db.example.org/team mine.db
    """
    from embeddb.store.copy import copy_database

    with open_database(source, readonly=True) as opened, Progress() as progress:
        report = copy_database(opened.store, db, progress=progress)
    if as_json:
        emit(report.document())
        return
    again = ", continued" if report.continued else ""
    say(f"{report.database}: a copy of {report.source}{again}, {duration(report.seconds)}")
    counts = ", ".join(plural(n, table) for table, n in report.rows.items() if n)
    say(f"  {counts or 'nothing in it'}; {plural(report.models, 'model file')}")
    say(f"  {report.written:,} rows written, {report.removed:,} removed")


@option.verb("push")
@click.argument("source")
@click.argument("db")
@option.only_platform
@option.text("--as", "name", metavar="NAME", help="Name of the source.  [default: user@host]")
def push_verb(source: str, db: str, platform: str, name: str, as_json: bool) -> None:
    """Add the runs that were measured or indexed in SOURCE to the team's database DB.

    Rows in DB are kept; duplicates are counted. `embeddb db sources DB` lists the sources, and
    `embeddb db withdraw DB --source NAME` withdraws the runs of one.

    \b
    Example:
      embeddb db push runs.db postgresql://db.example.org/team --platform cpu
    """
    from indexer.embed import embed
    from indexer.exchange.exchange import push

    with (
        open_database(source, readonly=True) as own,
        open_database(db) as team,
        Progress() as progress,
    ):
        report = push(own.index, team.index, platform=platform, source=name, progress=progress)
        if report.added:
            embed(team.index, build=False, progress=progress)
    if as_json:
        emit(report.document())
        return
    _show_moved(f"{report.source} to {report.database}", report, "there", db)
    for line in report.reasons:
        note(f"  {line}")


def _show_moved(what: str, report: ImportReport | PushReport, place: str, db: str) -> None:
    say(
        f"{what}: {plural(report.runs, 'run')} of {plural(report.patterns, 'pattern')} in "
        f"{duration(report.seconds)}: {report.added:,} added, {report.duplicates:,} already "
        f"stored, {report.rejected:,} rejected"
    )
    if report.withdrawn:
        say(
            f"  {report.withdrawn:,} of those already stored are withdrawn: `embeddb db withdraw "
            f"{shlex.quote(db)} --undo` lists them, with --yes it brings them back"
        )
    if report.contradicting:
        say(f"  {report.contradicting:,}  conflict with rows stored {place}, which are kept")


@option.verb("sources")
@click.argument("db")
def sources_verb(db: str, as_json: bool) -> None:
    """List the sources that pushed runs into DB: machines, times, counts, and withdrawn runs.

    \b
    Example:
      embeddb db sources postgresql://db.example.org/team
    """
    with open_database(db, readonly=True) as opened:
        opened.store.refuse_damage()
        entries = opened.store.sources.entries()
        withdrawn = opened.store.sources.withdrawn() if entries else {}
        place = opened.store.place
    documents: list[dict[str, Any]] = []
    for source in entries:
        pushes = sorted(source.pushes, key=lambda push: push.when)
        documents.append(
            {
                "source": source.name,
                "runs": sum(push.added for push in pushes),
                "withdrawn": withdrawn.get(source.number, 0),
                "duplicates": sum(push.duplicates for push in pushes),
                "against": sum(push.against for push in pushes),
                "platforms": sorted({name for push in pushes for name in push.platforms}),
                "pushes": [
                    {"when": p.when, "user": p.user, "host": p.host, "added": p.added}
                    for p in pushes
                ],
            }
        )
    if as_json:
        emit({"database": place, "sources": documents})
        return
    if not documents:
        say(f"{db}: no source pushed runs; `embeddb db push` does")
        return
    rows = []
    for one in documents:
        sent = one["pushes"]
        last = when(sent[-1]["when"] if sent else 0.0)
        places = ", ".join(sorted({f"{push['user']}@{push['host']}" for push in sent}))
        counts = (one["runs"], one["withdrawn"], one["duplicates"], len(sent))
        rows.append((one["source"], *counts, last, places))
    table(("source", "runs", "withdrawn", "duplicates", "pushes", "last", "from"), rows)


_WHICH = "name --platform, --op, --status, --campaign, --since, --source"


@option.verb("withdraw")
@click.argument("db")
@option.only_platform
@option.text("--op", help="Only this operation.")
@option.text("--status", metavar="STATUS,...", help="Only runs with this status.")
@option.text("--campaign", help="Only runs stored by it: an id, measure, calibrate or query.")
@option.text("--since", metavar="TIME", help="Only runs since then: 2026-05-01T14:00.")
@option.text("--source", metavar="NAME", help="Only runs that this source pushed.")
@option.flag("--undo", help="Restore withdrawn runs.")
@option.flag("--yes", help="Do it; otherwise only list the selected runs.")
def withdraw_verb(db: str, as_json: bool, undo: bool, yes: bool, **options: str) -> None:
    """Withdraw runs of DB: from answers, evidence, figures and exports.

    Nothing is erased; --undo restores all, or the selected ones. Without --yes it only lists the
    selected runs.

    \b
    Example:
      embeddb db withdraw runs.db --status build,crash --since 2026-05-01
      embeddb db withdraw runs.db --status build,crash --since 2026-05-01 --yes
      embeddb db withdraw team.db --source ann@cluster7 --yes
      embeddb db withdraw runs.db --undo --yes
    """
    selection = RunSelection(
        platform=options["platform"],
        statuses=statuses("--status", options["status"]),
        campaign=options["campaign"],
        since=_moment(options["since"]),
        source=options["source"],
    )
    if selection.all and not (undo or options["op"]):
        raise UsageError("no runs are selected", hint=_WHICH)
    with open_database(db, readonly=not yes) as opened:
        opened.store.refuse_damage()
        withdrawn = opened.store.withdrawn
        selection = replace(selection, op=withdrawn.named_op(options["op"]))
        if not yes:
            chosen = withdrawn.chosen(selection, back=undo)
        else:
            chosen = withdrawn.restore(selection) if undo else withdrawn.withdraw(selection)
        left = withdrawn.count()
    if not chosen:
        raise NothingFound("no withdrawn run matches" if undo else "no run matches")
    document: dict[str, Any] = {
        "database": db,
        "undo": undo,
        "changed": yes,
        "runs": sum(kind.runs for kind in chosen),
        "selected": [kind._asdict() for kind in chosen],
        "withdrawn": left,
    }
    result(document, _show, as_json)


def _show(document: dict[str, Any]) -> None:
    rows = [(k["platform"], k["op"], k["status"], k["runs"]) for k in document["selected"]]
    table(("platform", "op", "status", "runs"), rows)
    runs, undo = plural(document["runs"], "run"), document["undo"]
    if document["changed"]:
        say(
            f"{runs} {'restored' if undo else 'withdrawn'}; "
            f"{document['withdrawn']:,} withdrawn in all"
        )
    else:
        say(f"{runs} would be {'restored' if undo else 'withdrawn'}")
        note("nothing changed: add --yes to do it")


def _moment(text: str) -> float:
    """Seconds since 1970 of a date or time, local unless it names a zone; 0 for an empty text."""
    try:
        return max(datetime.fromisoformat(text).timestamp(), 1e-9) if text else 0.0
    except (ValueError, OverflowError, OSError):
        hint = "write it as 2026-05-01 or 2026-05-01T14:00"
        raise UsageError(f"--since: {text!r} is not a time", hint=hint) from None
