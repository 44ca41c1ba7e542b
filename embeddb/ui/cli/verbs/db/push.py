"""`db push`: one's own runs into the database of a team."""

from __future__ import annotations

import click

from embeddb.core.wording import duration, plural
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import Progress, emit, json_option, note, say

__all__ = ["push_verb"]


@click.command("push")
@click.argument("source")
@click.argument("db")
@click.option("--platform", default="", help="Only this platform (a bare name: all instances).")
@click.option("--as", "name", default="", metavar="NAME", help="Who pushes; else user@host.")
@json_option
def push_verb(source: str, db: str, platform: str, name: str, as_json: bool) -> None:
    """Add the runs of SOURCE that were made or read there to the team's database DB.

    What is known in DB stays; runs that are there already are counted. `embeddb db sources DB`
    tells who pushed what, and `embeddb db withdraw DB --source NAME` takes a source back.

    \b
    Example:
      embeddb db push runs.db postgresql://db.example.org/team --platform cpu
    """
    from indexer.embed import embed
    from indexer.exchange.push import push

    with (
        open_database(source, readonly=True) as own,
        open_database(db) as team,
        Progress() as progress,
    ):
        report = push(own.index, team.index, platform=platform, source=name, progress=progress)
        if report.added:
            embed(team.index, build=False, progress=progress)
    if as_json:
        emit(report.document())
        return
    say(
        f"{report.source} to {report.database}: {plural(report.runs, 'run')} of "
        f"{plural(report.patterns, 'pattern')} in {duration(report.seconds)}: {report.added:,} "
        f"added, {report.duplicates:,} known already, {report.rejected:,} rejected"
    )
    if report.kept:
        say(f"  {report.kept:,} said something else than is known there, which stays")
    for line in report.reasons:
        note(f"  {line}")
