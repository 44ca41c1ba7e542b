"""`db ...`: figures, models, damage, size and schema of a database."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from embeddb.core.errors import StoreCorrupt
from embeddb.core.wording import plural, share, size, when
from embeddb.store import SCHEMA
from embeddb.store.model_files import model_states, register_files, unregistered
from embeddb.store.models import ModelFacts, facts_of
from embeddb.store.run_tables import unchecked_runs
from embeddb.ui.cli import option
from embeddb.ui.cli.arguments import open_database, refuse_readonly
from embeddb.ui.cli.output import Progress, emit, note, result, say, table, warn
from embeddb.ui.cli.verbs.db_exchange import (
    copy_verb,
    export_verb,
    import_verb,
    push_verb,
    sources_verb,
    withdraw_verb,
)
from indexer.coverage import scope_states


@option.verb("stat")
@click.argument("db")
def stat_verb(db: str, as_json: bool) -> None:
    """Show the contents of DB and the scopes it can answer.

    \b
    Example:
      embeddb db stat starter
    """
    with open_database(db) as opened:  # what it prepares is kept
        opened.store.refuse_damage()
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
    warn(problems, len(problems))


def show_states(states: list[dict[str, Any]]) -> None:
    """Table of `indexer.coverage.scope_states`; column "held out": share of the optimum in
    leave-one-group-out cross-validation."""
    if not states:
        say("nothing can be answered yet: there are no runs; `embeddb index DB LOG --platform P`")
        say("reads some, `embeddb measure DB MATRIX --platform cpu --op spmv` makes some")
        return
    head = ("op", "platform", "patterns", "groups", "configs", "runs", "features")
    rows = []
    for s in states:
        quality = (share(s.get("of_optimum_held_out")), share(s.get("static_best_held_out")))
        rows.append(
            (
                *(s["op"], s["platform"], s["patterns"], s["groups"], s.get("configs")),
                *(s["runs"], s["featurizer"], *quality, "simulated" if s["simulated"] else ""),
            )
        )
    table((*head, "held out", "static best", "note"), rows)
    say("held out: share of the best measured configuration reached without the pattern's own")
    say(
        "group, geometric mean, as in `embeddb eval`; static best: by the best on average of what "
        "ran there"
    )
    if any(len(s["instances"]) > 1 for s in states):
        say("of several machines: of their averaged gains; `embeddb eval` judges each machine")
    places: dict[str, list[str]] = {}
    for s in states:
        for line in [*_model_lines(s["cost_model"]), *s["missing"]]:
            places.setdefault(line, []).append(f"{s['op']} on {s['platform']}")
    for line, (first, *others) in places.items():
        beside = f" and {plural(len(others), 'other')}" if others else ""
        say(f"  {first}{beside}: {line}")


def _model_lines(model: dict[str, Any] | None) -> list[str]:
    if model is None:
        return []
    named = f"cost model {model['version']}"
    if "mape" in model:
        return [f"{named} predicts seconds: MAPE {model['mape']:.1f} % in cross-validation"]
    shares = [f"{method} {share(v)}" for method, v in model["of_optimum_held_out"].items()]
    figures = ", ".join(shares) or "never evaluated, so it does not rank"
    reads = model.get("featurizer", "operations")
    return [f"{named} on {reads}, held out: {figures}"]


@option.verb("models")
@click.argument("db")
def models_verb(db: str, as_json: bool) -> None:
    """List the models of DB, replaced ones too: training data, cross-validated share of the optimum
    at the first answer, and whether each is in use.

    \b
    Example:
      embeddb db models starter
      embeddb db models runs.db --json
    """
    with open_database(db, readonly=True) as opened:
        opened.store.refuse_damage()
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
        head = ("version", "state", "registered", "trained on", "held out at 1")
        table(head, [_model_row(facts, state) for facts, state in models])
    else:
        hint = "" if notes else "; `embeddb train costmodel` trains one"
        say(f"{db}: no model is registered{hint}")
    for line in notes:
        note(line)


def _model_row(facts: ModelFacts, state: str) -> tuple[str, ...]:
    """Version, state, day, training data, and held-out shares by op in the order of training."""
    day, data = when(facts.registered)[:10], facts.training_summary
    places = {op: at for at, op in enumerate(facts.ops)}
    ops = sorted(facts.held_out, key=lambda op: places.get(op, len(places)))
    held_out = [
        f"{op}: " + ", ".join(f"{name} {share(at_1)}" for name, at_1 in facts.held_out[op].items())
        for op in ops
    ]
    by = f"; {facts.predictor}" if facts.predictor else ""
    return facts.version, state, day, data + by, "; ".join(held_out)


@option.verb("check")
@click.argument("db")
def check_verb(db: str, as_json: bool) -> int:
    """Read everything in DB and list what is damaged; ends with code 1 if something is.

    \b
    Example:
      embeddb db check runs.db
    """
    try:
        with open_database(db, readonly=True) as opened:
            opened.store.refuse_damage()  # reading damaged pages could end the process
            problems = opened.problems()
            notes = [*unregistered(opened.store), *opened.index.unfinished()]
            notes += unchecked_runs(opened.store.engine)
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


@option.verb("rebuild")
@click.argument("db")
def rebuild_verb(db: str, as_json: bool) -> None:
    """Rebuild everything derived (vectors, indexes) from the runs and patterns of DB, and register
    its model files.

    \b
    Example:
      embeddb db rebuild runs.db
    """
    from indexer.embed import embed

    with open_database(db) as opened, Progress() as progress:
        refuse_readonly(opened)
        report = embed(opened.index, again=True, progress=progress)
        report.problems += register_files(opened.store)
    if as_json:
        names = ("vectors", "partitions", "problems")
        emit({"database": db, **{name: getattr(report, name) for name in names}})
        return
    table(("featurizer", "vectors"), report.vectors.items())
    say(plural(len(report.partitions), "index", "indexes") + " rebuilt")
    warn(report.problems, len(report.problems))


@option.verb("compact")
@click.argument("db")
def compact_verb(db: str, as_json: bool) -> None:
    """Rewrite the data file of DB without free space.

    \b
    Example:
      embeddb db compact runs.db
    """
    with open_database(db) as opened:
        before = opened.store.size_bytes()
        opened.store.compact()
        after = opened.store.size_bytes()
    document = {"database": db, "bytes_before": before, "bytes": after}
    result(document, f"{db}: {size(before)} before, {size(after)} now", as_json)


@click.group(
    "db",
    commands=[
        *(models_verb, stat_verb, check_verb, rebuild_verb, export_verb, import_verb),
        *(copy_verb, push_verb, sources_verb, withdraw_verb, compact_verb),
    ],
)
def db_verb() -> None:
    """Look after a database: stat, models, check, rebuild, export, import, copy,
    push, sources, withdraw, compact.

    \b
    Example:
      embeddb db stat runs.db
      embeddb db models runs.db
      embeddb db export runs.db runs.jsonl.gz
    """
