"""`db upgrade`: the schema of a database."""

from __future__ import annotations

import click

from embeddb.store import SCHEMA
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import emit, json_option, say

__all__ = ["upgrade_verb"]


@click.command("upgrade")
@click.argument("db")
@json_option
def upgrade_verb(db: str, as_json: bool) -> None:
    """Bring DB to the schema this program writes; says so if it is there already.

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
