"""`campaign status`: how far a campaign is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.campaign_text import show_progress
from embeddb.ui.cli.numbers import Number
from embeddb.ui.cli.output import emit, json_option

if TYPE_CHECKING:
    from indexer.campaign.folder import Campaign, Progress

__all__ = ["AGREE_OPTION", "report", "status_verb"]

AGREE_OPTION = click.option(
    "--agree",
    default=0.9,
    show_default=True,
    type=Number(-1, 1),
    help="Spearman below which rounds disagree, near-ties apart.",
)


@click.command("status")
@click.argument("db")
@click.argument("folder", metavar="DIR")
@AGREE_OPTION
@json_option
def status_verb(db: str, folder: str, agree: float, as_json: bool) -> None:
    """How far the campaign in DIR is, what became of its measurements, and whether its rounds
    tell the same order.

    \b
    Example:
      embeddb campaign status runs.db camp
    """
    from indexer.campaign.folder import Campaign

    campaign = Campaign(Path(folder))
    with open_database(db, readonly=True) as opened:
        done = campaign.progress(opened.index)
    report(campaign, done, agree, as_json=as_json)


def report(campaign: Campaign, done: Progress, agree: float, *, as_json: bool) -> None:
    """Print how far a campaign is; `campaign run` ends in the same."""
    from embeddb.platforms.platform import parse_platform
    from indexer.campaign.budget.growing_plan import bought
    from indexer.campaign.nodes.submissions import Attempts, spread_of
    from indexer.campaign.run import seconds_spent, surprising_cost

    spent, sample_s = bought(campaign), seconds_spent(campaign)
    document: dict[str, Any] = {
        "campaign": campaign.id,
        "folder": str(campaign.folder),
        "points": done.points,
        "measured": done.measured,
        "under_way": Attempts(campaign.folder).under_way(),
        "seconds_per_sample": sample_s,
        "cost_note": surprising_cost(parse_platform(campaign.plan.platform), sample_s),
        "statuses": dict(done.statuses),
        "tasks": done.tasks,
        "tasks_done": done.tasks_done,
        "tasks_stored": done.tasks_stored,
        "nodes": spread_of(campaign),
        "settling_rounds": campaign.settling_rounds,
        "other_state": len(campaign.spoilt()),
        "agreement": campaign.agreement(agree),
        "strategy": None if spent is None else spent.document(),
    }
    if as_json:
        emit(document)
    else:
        show_progress(document)
