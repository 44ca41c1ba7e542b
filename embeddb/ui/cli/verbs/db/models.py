"""`db models`: every model a database used, and what it was trained on."""

from __future__ import annotations

import time
from collections.abc import Mapping

import click
import msgspec

from embeddb.core.wording import share
from embeddb.store.model_files import model_states, unregistered
from embeddb.store.models import ModelFacts, facts_of
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import emit, json_option, note, say, table

__all__ = ["models_verb"]


@click.command("models")
@click.argument("db")
@json_option
def models_verb(db: str, as_json: bool) -> None:
    """The models of DB, those that were replaced too: what each learned from, how good its answers
    were with groups held out (share of the optimum at the first answer), and whether it is in use.

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
        told = [{**msgspec.to_builtins(facts), "state": state} for facts, state in models]
        emit({"database": db, "models": told, "notes": notes})
        return
    if models:
        _show(models)
    else:
        hint = "" if notes else "; `embeddb train costmodel` trains one"
        say(f"{db}: no model is registered{hint}")
    for line in notes:
        note(line)


def _show(models: list[tuple[ModelFacts, str]]) -> None:
    head = ("version", "state", "registered", "learned from", "held out at 1")
    rows = [(f.version, state, _day(f.registered), _lesson(f), _judged(f)) for f, state in models]
    table(head, rows)


def _lesson(facts: ModelFacts) -> str:
    return f"{facts.lesson}; {facts.predictor}" if facts.predictor else facts.lesson


def _judged(facts: ModelFacts) -> str:
    """By op, narrow before wide as it was trained on them."""
    places = {op: at for at, op in enumerate(facts.ops)}
    ops = sorted(facts.held_out, key=lambda op: places.get(op, len(places)))
    return "; ".join(f"{op}: {_shares(facts.held_out[op])}" for op in ops)


def _shares(by_method: Mapping[str, float]) -> str:
    return ", ".join(f"{method} {share(at_1)}" for method, at_1 in by_method.items())


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))
