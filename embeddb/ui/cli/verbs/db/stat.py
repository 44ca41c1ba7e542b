"""`db stat`: what a database holds and what it can answer."""

from __future__ import annotations

from typing import Any

import click

from embeddb.core.wording import plural, size
from embeddb.store import SCHEMA
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.coverage_text import show_states
from embeddb.ui.cli.output import emit, json_option, note, say
from indexer.coverage import scope_states

__all__ = ["stat_verb"]


@click.command("stat")
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
