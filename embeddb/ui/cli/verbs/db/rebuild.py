"""`db rebuild`: everything derived, made anew."""

from __future__ import annotations

import click

from embeddb.core.wording import plural
from embeddb.store.models.files import register_files
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import Progress, emit, json_option, note, say, table

__all__ = ["rebuild_verb"]


@click.command("rebuild")
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
