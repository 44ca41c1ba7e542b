"""`db import`: an export into a database."""

from __future__ import annotations

from pathlib import Path

import click

from embeddb.core.wording import duration, plural
from embeddb.ui.cli.arguments import database_to_fill
from embeddb.ui.cli.output import Progress, emit, json_option, say

__all__ = ["import_verb"]


@click.command("import")
@click.argument("db")
@click.argument("file")
@json_option
def import_verb(db: str, file: str, as_json: bool) -> None:
    """Read an export FILE (JSONL, perhaps .gz) into DB, made if there is none, and embed it.

    \b
    Example:
      embeddb db import other.db runs.jsonl.gz
    """
    from indexer.embed import embed
    from indexer.exchange.exchange import import_file

    if not Path(file).is_file():
        raise click.BadParameter(f"{file}: no such file", param_hint="FILE")
    with database_to_fill(db) as opened, Progress() as progress:
        report = import_file(opened.index, Path(file), progress=lambda n: progress("read", n))
        embed(opened.index, progress=progress)
    if as_json:
        emit(report.document())
        return
    say(
        f"{file}: {plural(report.runs, 'run')} of {plural(report.patterns, 'pattern')} in "
        f"{duration(report.seconds)}: {report.added:,} added, {report.duplicates:,} known already, "
        f"{report.rejected:,} rejected"
    )
    if report.kept:
        say(f"  {report.kept:,} said something else than is known here, which stays")
    if report.rejects_file:
        say(f"  these records with their reasons: {report.rejects_file}")
