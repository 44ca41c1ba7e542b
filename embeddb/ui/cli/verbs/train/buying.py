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
    from tuners.evaluation.choose_predictor import TrainingRequest

__all__ = ["buy", "buying_options", "check_buying", "in_rounds"]

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


def in_rounds(
    request: TrainingRequest, start: CostModel | None
) -> tuple[CostSettings, CostModel | None]:
    """What learns as it is bought: the network that is asked for; trees cannot."""
    network = "mlp" if request.predictor in ("auto", "trees") else request.predictor
    return request.settings(network), start


def buy(
    db: str,
    where: tuple[str, str, str],
    asked: dict[str, Any],
    learner: tuple[CostSettings, CostModel | Whole | None],
    progress: Progress,
) -> None:
    """Measure what the strategy buys, in a folder, where it goes on after a stop. `where` are
    platform, op and -o as they were given; `learner` is what the model in training is made of and
    starts from.

    Raises: as `planned` and `run_campaign`; RunnerUnavailable where nothing can measure here.
    """
    from indexer.campaign.budget.growing_plan import bought
    from indexer.campaign.run import CampaignJob, run_campaign
    from indexer.runners.base import RunOptions
    from indexer.training.cost_model.model_place import own_file

    with open_database(db) as opened:
        platform = opened.platform(where[0])
        runner, _ = runner_here(platform, 0)
        op = Op.parse(where[1])
        file = own_file(opened.store, "costmodel", platform, op, where[2])
        folder = file.with_name(f"{file.stem}.buying")
        campaign = _planned(opened, (platform, op, folder), asked, learner, progress)
        job = CampaignJob(campaign, opened.index, runner, RunOptions(), told=progress)
        campaign, _ = run_campaign(job)
    spent = bought(campaign)
    assert spent is not None
    matrices, rounds = plural(spent.matrices, "matrix", "matrices"), plural(spent.rounds, "round")
    note(f"{folder}: {spent.measured} runs bought by {spent.strategy} of {matrices} in {rounds}")


def _planned(
    db: Database,
    where: tuple[Platform, Op, Path],
    asked: dict[str, Any],
    learner: tuple[CostSettings, CostModel | Whole | None],
    progress: Progress,
) -> Campaign:
    from indexer.campaign.budget.growing_plan import (
        BudgetRequest,
        PoolVectors,
        is_campaign,
        planned,
    )
    from indexer.campaign.budget.teaching import lessons, put_start
    from indexer.campaign.run import planned_matrices

    (settings, start), (platform, op, folder) = learner, where
    wish = BudgetRequest(
        platform=platform,
        op=op,
        strategy=asked["strategy"],
        budget=asked["budget"] or _USUAL_BUDGET,
        seed=asked["seed"],
        teaching=lessons(settings, start, asked["featurizer"]),
    )
    vectors = PoolVectors(db.index, asked["strategy"], wanted=not is_campaign(folder), note=note)
    groups = families(asked["manifest"])
    pool = planned_matrices(
        asked["matrices"], groups=groups, seen=vectors, told=progress, note=note
    )
    found = planned(folder, wish, pool, lambda count: vectors.clusters(count, asked["seed"]))
    put_start(folder, start)
    return found
