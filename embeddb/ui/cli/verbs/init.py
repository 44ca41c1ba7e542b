"""`init`: an empty database."""

from __future__ import annotations

import click

from embeddb.core.errors import UsageError
from embeddb.database import Database
from embeddb.ui.cli.output import emit, json_option, say
from indexer.starter import STARTER

__all__ = ["init_verb"]


@click.command()
@click.argument("db")
@json_option
def init_verb(db: str, as_json: bool) -> None:
    """Make an empty database DB: a folder, or tables on a server (`postgresql://host/name`).

    \b
    Example:
      embeddb init runs.db
    """
    if db == STARTER:
        raise UsageError(f"{STARTER!r} is the shipped database", hint=f"for a folder: ./{STARTER}")
    with Database.create(db) as made:
        document = {"database": made.store.place, "generation": made.store.generation}
    if as_json:
        emit(document)
    else:
        say(f"made {db}; fill it with `embeddb index {db} RUNS --platform P`")
