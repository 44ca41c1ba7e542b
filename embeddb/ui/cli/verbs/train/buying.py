"""What `train costmodel --strategy` measures before it trains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.config import Op
from embeddb.core.errors import UsageError
from embeddb.core.wording import plural
from embeddb.ui.cli.arguments import families, open_database, runner_here
from embeddb.ui.cli.output import Progress, note

if TYPE_CHECKING:
    from embeddb.cost_model.model import CostModel
    from embeddb.database import Database
    from embeddb.platforms.platform import Platform
    from indexer.campaign.folder import Campaign
    from indexer.training.cost_model.settings import CostSettings
    from indexer.training.cost_model.whole import Whole

__all__ = ["buy", "buying_options", "check_buying"]

_USUAL_BUDGET = 500
#: The strategies are those of `campaign plan`.
_OPTIONS = (
    click.option("--strategy", default="", help="Buy runs first: ea10, ea25, mab25, random, ..."),
    click.option("--budget", type=click.IntRange(1), help=f"Runs; {_USUAL_BUDGET} usually."),
    click.option("--manifest", default="", help="CSV with columns name and family: the groups."),
)


def buying_options(command: Any) -> Any:
    """Adds --strategy and what goes with it."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def check_buying(ops: tuple[str, ...], asked: dict[str, Any]) -> None:
    """Raises: UsageError for options that do not go together."""
    if not asked["strategy"]:
        for name in ("budget", "manifest"):
            if asked[name]:
                raise UsageError(f"--{name} is of a --strategy", hint="add --strategy ea25")
        return
    if len(set(ops)) != 1:
        raise UsageError("a strategy buys samples of one --op", hint="train a model for each")
    if not asked["matrices"]:
        raise UsageError("a strategy chooses among matrix files", hint="add --matrices DIR")
    for name in ("samples", "encoder"):
        if asked[name]:
            raise UsageError(f"--{name} and --strategy do not go together", hint="leave one out")


def buy(
    db: str,
    where: tuple[str, str, Path],
    asked: dict[str, Any],
    learner: tuple[CostSettings, CostModel | Whole | None],
    progress: Progress,
) -> None:
    """Measure what the strategy buys of an op on a platform, in a folder, where it goes on after a
    stop. `learner` is what the model in training is made of and starts from.

    Raises: as `planned` and `run_campaign`; RunnerUnavailable where nothing can measure here.
    """
    from indexer.campaign.budget.growing_plan import bought
    from indexer.campaign.run import CampaignJob, run_campaign
    from indexer.runners.base import RunOptions

    with open_database(db) as opened:
        platform = opened.platform(where[0])
        runner, _ = runner_here(platform, 0)
        campaign = _planned(opened, platform, where, asked, learner, progress)
        job = CampaignJob(campaign, opened, runner, RunOptions(), told=progress)
        campaign, _ = run_campaign(job)
    spent = bought(campaign)
    assert spent is not None
    matrices, rounds = plural(spent.matrices, "matrix", "matrices"), plural(spent.rounds, "round")
    note(f"{where[2]}: {spent.measured} runs bought by {spent.strategy} of {matrices} in {rounds}")


def _planned(
    db: Database,
    platform: Platform,
    where: tuple[str, str, Path],
    asked: dict[str, Any],
    learner: tuple[CostSettings, CostModel | Whole | None],
    progress: Progress,
) -> Campaign:
    from indexer.campaign.budget.growing_plan import BudgetRequest, is_campaign, planned
    from indexer.campaign.budget.pool_vectors import PoolVectors
    from indexer.campaign.budget.teaching import lessons, put_start
    from indexer.campaign.planning import planned_matrices

    settings, start = learner
    wish = BudgetRequest(
        platform=platform,
        op=Op.parse(where[1]),
        strategy=asked["strategy"],
        budget=asked["budget"] or _USUAL_BUDGET,
        seed=asked["seed"],
        teaching=lessons(settings, start, asked["featurizer"]),
    )
    vectors = PoolVectors(db, asked["strategy"], wanted=not is_campaign(where[2]), note=note)
    groups = families(asked["manifest"])
    pool = planned_matrices(
        asked["matrices"], groups=groups, seen=vectors, told=progress, note=note
    )
    found = planned(where[2], wish, pool, lambda count: vectors.clusters(count, asked["seed"]))
    put_start(where[2], start)
    return found
