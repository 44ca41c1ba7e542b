"""`db compact`: the data file of a database without free space."""

from __future__ import annotations

import click

from embeddb.core.wording import size
from embeddb.database import Database
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import emit, json_option, say

__all__ = ["compact_verb"]


@click.command("compact")
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
