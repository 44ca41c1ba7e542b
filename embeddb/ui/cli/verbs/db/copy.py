"""`db copy`: a whole database to another place."""

from __future__ import annotations

import click

from embeddb.core.wording import duration, plural
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import Progress, emit, json_option, say

__all__ = ["copy_verb"]


@click.command("copy")
@click.argument("source")
@click.argument("db")
@json_option
def copy_verb(source: str, db: str, as_json: bool) -> None:
    """Make DB a copy of SOURCE, everything in it: runs, structures, answers, models. Each is a
    folder or a database on a server. An interrupted copy is gone on with by the same command.

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
    again = ", gone on with" if report.continued else ""
    say(f"{report.database}: a copy of {report.source}{again}, {duration(report.seconds)}")
    counts = ", ".join(plural(n, table) for table, n in report.rows.items() if n)
    say(f"  {counts or 'nothing in it'}; {plural(report.models, 'model file')}")
    say(f"  {report.written:,} rows written, {report.removed:,} removed")
