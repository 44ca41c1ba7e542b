"""`db ...`: the database as a thing: figures, damage, export, import, size."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import click

from embeddb.core.config import Op
from embeddb.core.errors import StoreCorrupt, UsageError
from embeddb.database import Database
from embeddb.store import SCHEMA
from embeddb.store.model_files import register_files, unregistered
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import (
    Progress,
    duration,
    emit,
    json_option,
    note,
    plural,
    say,
    size,
    table,
)
from embeddb.ui.cli.verbs.db.models import models_verb
from indexer.coverage import scope_states, show_states

__all__ = ["db_verb"]


@click.group("db")
def db_verb() -> None:
    """Look after a database: stat, models, check, rebuild, export, import, upgrade, compact.

    \b
    Example:
      embeddb db stat runs.db
      embeddb db models runs.db
      embeddb db export runs.db runs.jsonl.gz
    """


db_verb.add_command(models_verb)


@db_verb.command("stat")
@click.argument("db")
@json_option
def stat_verb(db: str, as_json: bool) -> None:
    """What DB holds and what it can answer.

    \b
    Example:
      embeddb db stat starter
    """
    with open_database(db, readonly=True) as opened:
        document: dict[str, Any] = {
            "database": str(opened.store.path),
            "schema": SCHEMA,
            "generation": opened.store.generation,
            "bytes": opened.store.size_bytes(),
            "counts": opened.store.counts(),
            "platforms": opened.store.platforms(),
            "answers": scope_states(opened),
        }
    if as_json:
        emit(document)
        return
    say(f"{document['database']}: {size(document['bytes'])}, schema {SCHEMA}")
    say(", ".join(plural(n, what) for what, n in document["counts"].items()))
    say()
    show_states(document["answers"])


@db_verb.command("check")
@click.argument("db")
@json_option
def check_verb(db: str, as_json: bool) -> int:
    """Read everything in DB and list what is damaged; ends with code 1 if something is.

    \b
    Example:
      embeddb db check runs.db
    """
    try:
        with open_database(db, readonly=True) as opened:
            found, notes = opened.problems(), unregistered(opened.store)
    except StoreCorrupt as e:
        found, notes = [str(e)], []
    if as_json:
        emit({"database": db, "damaged": bool(found), "problems": found, "notes": notes})
    else:
        for line in found:
            say(line)
        for line in notes:
            note(line)
        say(f"{db}: {plural(len(found), 'problem') if found else 'no problems'}")
    return 1 if found else 0


@db_verb.command("rebuild")
@click.argument("db")
@json_option
def rebuild_verb(db: str, as_json: bool) -> None:
    """Make everything derived (vectors, indexes) anew from the runs and patterns of DB, and
    register its model files.

    \b
    Example:
      embeddb db rebuild runs.db
    """
    from indexer.embed import embed

    with open_database(db) as opened, Progress() as progress:
        report = embed(opened, again=True, progress=progress)
        report.problems += register_files(opened.store)
    if as_json:
        body = {"partitions": report.partitions, "problems": report.problems}
        emit({"database": db, "vectors": report.vectors, **body})
        return
    table(("featurizer", "vectors"), report.vectors.items())
    say(plural(len(report.partitions), "index", "indexes") + " rebuilt")
    for line in report.problems:
        note(f"warning: {line}")


@db_verb.command("export")
@click.argument("db")
@click.argument("file")
@click.option("--format", default="", help="jsonl, csv, t4 or c-header; else by FILE's ending.")
@click.option("--platform", default="", help="Only this platform (a bare name: all instances).")
@click.option("--op", default="", help="Only this operation.")
@click.option("--brief", is_flag=True, help="JSONL: five quantiles instead of every repeat.")
@json_option
def export_verb(db: str, file: str, as_json: bool, **asked: Any) -> None:
    """Write DB to FILE; `-` is stdout. JSONL loses no run; structures and answers stay behind.

    FILE ending in .jsonl, .csv, .json (T4) or .h tells the format; .gz packs it.

    \b
    Example:
      embeddb db export runs.db runs.jsonl.gz
      embeddb db export runs.db best.h --platform cpu --op spmm:128
    """
    from indexer.exchange.exchange import export, export_file

    if file == "-" and as_json:
        raise UsageError("stdout holds either the export or the document of --json")
    op = Op.parse(asked["op"]) if asked["op"] else None
    only: dict[str, Any] = {"platform": asked["platform"], "op": op, "brief": asked["brief"]}
    with open_database(db, readonly=True) as opened:
        if file == "-":
            out = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="\n")
            try:
                report = export(opened, out, format=asked["format"] or "jsonl", **only)
            finally:
                out.flush()
                out.detach()  # else stdout is closed with it
        else:
            report = export_file(opened, Path(file), format=asked["format"], **only)
    line = f"{plural(report.runs, 'run')} of {plural(report.patterns, 'pattern')} written to {file}"
    if file == "-":
        note(line)
    elif as_json:
        emit(report.document())
    else:
        say(line)


@db_verb.command("import")
@click.argument("db")
@click.argument("file")
@json_option
def import_verb(db: str, file: str, as_json: bool) -> None:
    """Read an export FILE (JSONL, perhaps .gz) into DB, made if there is none, and embed it.

    \b
    Example:
      embeddb db import other.db runs.jsonl.gz
    """
    from indexer.embed import embed
    from indexer.exchange.exchange import import_file

    if not Path(file).is_file():
        raise click.BadParameter(f"{file}: no such file", param_hint="FILE")
    with open_database(db, create=True) as opened, Progress() as progress:
        report = import_file(opened, Path(file), progress=lambda n: progress("read", n))
        embed(opened, progress=progress)
    if as_json:
        emit(report.document())
        return
    say(
        f"{file}: {plural(report.runs, 'run')} of {plural(report.patterns, 'pattern')} in "
        f"{duration(report.seconds)}: {report.added:,} added, {report.duplicates:,} known already, "
        f"{report.rejected:,} rejected"
    )
    if report.rejected:
        say(f"  rejected records with their reasons: {report.rejects_file}")


@db_verb.command("upgrade")
@click.argument("db")
@json_option
def upgrade_verb(db: str, as_json: bool) -> None:
    """Bring DB to the schema this program writes; says so if it is there already.

    \b
    Example:
      embeddb db upgrade runs.db
    """
    with open_database(db) as opened:
        document = {"database": str(opened.store.path), "schema": SCHEMA, "upgraded": False}
    if as_json:
        emit(document)
    else:
        say(f"{db}: schema {SCHEMA} is current, nothing to do")


@db_verb.command("compact")
@click.argument("db")
@json_option
def compact_verb(db: str, as_json: bool) -> None:
    """Rewrite the data file of DB without the space that is free in it.

    \b
    Example:
      embeddb db compact runs.db
    """
    with open_database(db) as opened:
        before, after = _compacted(opened)
    if as_json:
        emit({"database": db, "bytes_before": before, "bytes": after})
    else:
        say(f"{db}: {size(before)} before, {size(after)} now")


def _compacted(db: Database) -> tuple[int, int]:
    before = db.store.size_bytes()
    db.store.compact()
    return before, db.store.size_bytes()
