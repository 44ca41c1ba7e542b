"""`db ...`: figures, models, damage, size and schema of a database."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from embeddb.core.errors import StoreCorrupt
from embeddb.core.wording import plural, share, size
from embeddb.database import Database
from embeddb.store import SCHEMA
from embeddb.store.model_files import model_states, register_files, unregistered
from embeddb.store.models import ModelFacts, facts_of
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.coverage_text import show_states
from embeddb.ui.cli.output import Progress, emit, json_option, note, say, table
from embeddb.ui.cli.verbs.db_exchange import (
    copy_verb,
    export_verb,
    import_verb,
    push_verb,
    sources_verb,
    withdraw_verb,
)
from indexer.coverage import scope_states


@click.command("stat")
@click.argument("db")
@json_option
def stat_verb(db: str, as_json: bool) -> None:
    """Show the contents of DB and the scopes it can answer.

    \b
    Example:
      embeddb db stat starter
    """
    with open_database(db, readonly=True) as opened:
        document: dict[str, Any] = {
            "database": opened.store.place,
            "schema": SCHEMA,
            "generation": opened.store.generation,
            "bytes": opened.store.size_bytes(),
            "counts": opened.store.counts(),
            "withdrawn": opened.store.withdrawn.count(),
            "platforms": opened.store.platforms(),
            "answers": scope_states(opened.index),
        }
        problems = opened.index.platform_problems()
    if as_json:
        emit(document)
        return
    say(f"{document['database']}: {size(document['bytes'])}, schema {SCHEMA}")
    say(", ".join(plural(n, what) for what, n in document["counts"].items()))
    if document["withdrawn"]:
        say(f"{plural(document['withdrawn'], 'withdrawn run')} beside these")
    say()
    show_states(document["answers"])
    for line in problems:
        note(f"warning: {line}")


@click.command("models")
@click.argument("db")
@json_option
def models_verb(db: str, as_json: bool) -> None:
    """List the models of DB, replaced ones too: training data, cross-validated share of the optimum
    at the first answer, and whether each is in use.

    \b
    Example:
      embeddb db models starter
      embeddb db models runs.db --json
    """
    with open_database(db, readonly=True) as opened:
        entries = opened.store.models.entries()
        states = model_states(opened.store, entries)
        notes = unregistered(opened.store)
    entries = sorted(entries, key=lambda e: (states[e.version] != "in use", e.file, -e.used))
    models = [(facts_of(entry), states[entry.version]) for entry in entries]
    if as_json:
        documents = [{**msgspec.to_builtins(facts), "state": state} for facts, state in models]
        emit({"database": db, "models": documents, "notes": notes})
        return
    if models:
        _show(models)
    else:
        hint = "" if notes else "; `embeddb train costmodel` trains one"
        say(f"{db}: no model is registered{hint}")
    for line in notes:
        note(line)


def _show(models: list[tuple[ModelFacts, str]]) -> None:
    head = ("version", "state", "registered", "trained on", "held out at 1")
    rows = [
        (f.version, state, _day(f.registered), _training_data(f), _held_out(f))
        for f, state in models
    ]
    table(head, rows)


def _training_data(facts: ModelFacts) -> str:
    return (
        f"{facts.training_summary}; {facts.predictor}"
        if facts.predictor
        else facts.training_summary
    )


def _held_out(facts: ModelFacts) -> str:
    """Held-out share by op, in the order of training."""
    places = {op: at for at, op in enumerate(facts.ops)}
    ops = sorted(facts.held_out, key=lambda op: places.get(op, len(places)))
    return "; ".join(f"{op}: {_shares(facts.held_out[op])}" for op in ops)


def _shares(by_method: Mapping[str, float]) -> str:
    return ", ".join(f"{method} {share(at_1)}" for method, at_1 in by_method.items())


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


@click.command("check")
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
            problems = opened.problems()
            notes = [*unregistered(opened.store), *opened.index.unfinished()]
    except StoreCorrupt as e:
        problems, notes = [str(e)], []
    if as_json:
        emit({"database": db, "damaged": bool(problems), "problems": problems, "notes": notes})
    else:
        for line in problems:
            say(line)
        for line in notes:
            note(line)
        say(f"{db}: {plural(len(problems), 'problem') if problems else 'no problems'}")
    return 1 if problems else 0


@click.command("rebuild")
@click.argument("db")
@json_option
def rebuild_verb(db: str, as_json: bool) -> None:
    """Rebuild everything derived (vectors, indexes) from the runs and patterns of DB, and register
    its model files.

    \b
    Example:
      embeddb db rebuild runs.db
    """
    from indexer.embed import embed

    with open_database(db) as opened, Progress() as progress:
        report = embed(opened.index, again=True, progress=progress)
        report.problems += register_files(opened.store)
    if as_json:
        body = {"partitions": report.partitions, "problems": report.problems}
        emit({"database": db, "vectors": report.vectors, **body})
        return
    table(("featurizer", "vectors"), report.vectors.items())
    say(plural(len(report.partitions), "index", "indexes") + " rebuilt")
    for line in report.problems:
        note(f"warning: {line}")


@click.command("upgrade")
@click.argument("db")
@json_option
def upgrade_verb(db: str, as_json: bool) -> None:
    """Upgrade DB to the schema this program writes.

    \b
    Example:
      embeddb db upgrade runs.db
    """
    with open_database(db) as opened:
        document = {"database": opened.store.place, "schema": SCHEMA, "upgraded": False}
    if as_json:
        emit(document)
    else:
        say(f"{db}: schema {SCHEMA} is current, nothing to do")


@click.command("compact")
@click.argument("db")
@json_option
def compact_verb(db: str, as_json: bool) -> None:
    """Rewrite the data file of DB without free space.

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


@click.group(
    "db",
    commands=[
        *(models_verb, stat_verb, check_verb, rebuild_verb, export_verb, import_verb),
        *(copy_verb, push_verb, sources_verb, withdraw_verb, upgrade_verb, compact_verb),
    ],
)
def db_verb() -> None:
    """Look after a database: stat, models, check, rebuild, export, import, copy,
    push, sources, withdraw, upgrade, compact.

    \b
    Example:
      embeddb db stat runs.db
      embeddb db models runs.db
      embeddb db export runs.db runs.jsonl.gz
    """
