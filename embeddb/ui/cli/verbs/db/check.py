"""`db check`: whether a database is damaged."""

from __future__ import annotations

import click

from embeddb.core.errors import StoreCorrupt
from embeddb.core.wording import plural
from embeddb.store.models.files import unregistered
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import emit, json_option, note, say

__all__ = ["check_verb"]


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
            found = opened.problems()
            notes = [*unregistered(opened.store), *opened.index.unfinished()]
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
