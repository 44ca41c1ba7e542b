"""`campaign collect`: what nodes have measured, into a database."""

from __future__ import annotations

from pathlib import Path

import click

from embeddb.core.wording import plural
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import Progress, emit, json_option, say

__all__ = ["collect_verb"]


@click.command("collect")
@click.argument("db")
@click.argument("folder", metavar="DIR")
@json_option
def collect_verb(db: str, folder: str, as_json: bool) -> None:
    """Read what nodes have measured of the campaign in DIR into DB, each task once.

    Nothing is measured, and nodes may go on working. `campaign run --executor` does the same on
    its way.

    \b
    Example:
      embeddb campaign collect runs.db camp
    """
    from indexer.campaign.folder import Campaign
    from indexer.campaign.nodes.coordinator import collect
    from indexer.embed import embed

    campaign = Campaign(Path(folder))
    with open_database(db) as opened, Progress() as progress:
        found = collect(campaign, opened.index, told=progress)
        if found.tasks:
            embed(opened.index, progress=progress)
        done = campaign.progress(opened.index)
    document = {
        "campaign": campaign.id,
        "folder": folder,
        "collected": found.tasks,
        "runs": found.runs,
        "tasks": done.tasks,
        "tasks_done": done.tasks_done,
        "tasks_stored": done.tasks_stored,
    }
    if as_json:
        emit(document)
        return
    say(f"{plural(found.tasks, 'task')} read in, {plural(found.runs, 'run')} added")
    say(f"{done.tasks_stored:,} of {plural(done.tasks, 'task')} stored in the database")
