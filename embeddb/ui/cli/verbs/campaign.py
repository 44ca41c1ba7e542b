"""`campaign plan|run|status|collect|work`: measurements of many matrices, planned and resumed."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.core.wording import duration, plural
from embeddb.platforms.platform import refuse_without_runner
from embeddb.ui.cli import option
from embeddb.ui.cli.arguments import database_to_fill, families, open_database
from embeddb.ui.cli.output import Progress, emit, note, result, say
from embeddb.ui.cli.verbs.campaign_run import (
    resume_verb,
    run_verb,
    show_spending,
    status_verb,
    work_verb,
)

if TYPE_CHECKING:
    from embeddb.core.pattern import Pattern
    from embeddb.database import Database
    from embeddb.platforms.platform import Platform
    from indexer.campaign.folder import Campaign
    from indexer.campaign.plan import Matrix

#: As in `indexer.campaign.budget`, which a help text must not import.
STRATEGIES = ("improvement", "ea10", "ea25", "mab25", "binned", "random", "spread", "kmeans")
_USUAL_STRATEGY, _USUAL_BUDGET = STRATEGIES[0], 500
#: Options of `campaign plan` that a strategy sets itself.
_DECIDED = ("configs", "top", "sample", "shared", "grid", "grid_op", "rounds", "repeat_share")


_SAMPLES = ("shared", "per-matrix")


@option.verb("plan")
@click.argument("db")
@click.argument("folder", metavar="DIR")
@option.runner
@option.several("--op", "ops", required=True, help="Such as spmm:128; repeatable.")
@click.option("--matrices", required=True, help="Folder of matrix files.")
@option.manifest
@option.number("--configs", default=60, least=2, most=100_000, help="Per matrix.")
@option.number("--top", default=10, least=0, help="Configurations of the static top-k.")
@option.choice("--sample", among=_SAMPLES)
@option.limit("--shared", help="Configurations shared by all matrices, with --sample per-matrix.")
@option.limit("--grid", help="Matrices that run every configuration.")
@option.text("--grid-op", help="Operation of --grid.")
@option.number("--rounds", least=1, most=1000, help="[default: 2; 1 on a simulated platform]")
@option.decimal(
    "--repeat-share",
    within=option.Number(0, 1, min_open=True),
    default=1.0,
    help="Share of the configurations in rounds after the first.",
)
@option.max_nnz
@option.limit("--max-work", help="Largest nnz times width.")
@option.number("--seed", default=0, least=0)
@option.text(
    "--strategy",
    help=f"Sampling strategy: {', '.join(STRATEGIES)}.  [default with --budget: {_USUAL_STRATEGY}]",
)
@option.number("--budget", least=1, help=f"Samples.  [default: {_USUAL_BUDGET}]")
def plan_verb(db: str, folder: str, as_json: bool, **options: Any) -> None:
    """Plan a campaign in DIR for DB (created if missing): every matrix, op, configuration, round.

    Every matrix runs the default, the static top-k of DB (--top), and a sample: one for all, or
    with --sample per-matrix its own beside --shared common ones. Matrices of one family (or,
    without a manifest, of one name) are held out together in cross-validation. The same plan in the
    same folder is resumed.

    With --budget, a strategy selects matrices and configurations round by round, so many samples
    in all: `campaign run` measures a round and selects the next from its results, and so does
    this verb if another machine has measured.

    \b
    Example:
      embeddb campaign plan runs.db camp --platform cpu --op spmm:128 --matrices matrices/ \\
          --manifest matrices/MANIFEST.csv --configs 100 --sample per-matrix --max-nnz 2000000
      embeddb campaign plan runs.db few --platform spade --op spmm:32 --matrices matrices/ \\
          --budget 500
    """
    from indexer.campaign.budget.growing_plan import bought, samples_to_buy
    from indexer.campaign.run import seconds_seen, surprising_cost

    _check_options(options)
    with database_to_fill(db, readonly=True) as opened, Progress() as progress:
        platform = opened.platform(options["platform"])
        refuse_without_runner(platform)  # the runner itself may be on another node
        campaign, top = _campaign(opened, Path(folder), platform, options, progress)
        sample_s = seconds_seen(opened.store, platform)
    plan, done, spent = campaign.plan, campaign.progress(), bought(campaign)
    samples = done.points
    if spent is not None:
        samples = min(spent.budget, samples_to_buy(campaign, spent.budget))
        if samples < spent.budget:
            note(f"warning: there are {samples:,} samples to buy, fewer than the budget")
    document: dict[str, Any] = {
        "campaign": plan.id,
        "folder": folder,
        "platform": platform.id,
        "ops": plan.ops,
        "matrices": len({matrix.path for matrix in plan.matrices}),
        "configs": {op: len(configs) for op, configs in plan.configs.items()},
        "grid": {"op": plan.grid_op, "matrices": [plan.matrices[at].name for at in plan.grid]},
        "left_out": [{"matrix": name, "op": op} for name, op in plan.left_out()],
        "rounds": plan.rounds,
        "top": {op: len(configs) for op, configs in top.items()},
        "tasks": done.tasks,
        "points": done.points,
        "seconds_per_sample": sample_s,
        "estimated_seconds": None if sample_s is None else sample_s * samples,
        "cost_note": surprising_cost(platform, sample_s),
        "strategy": None if spent is None else spent.document(),
    }
    file = ["--platform", options["platform"]] if platform.command else []
    command = shlex.join(["embeddb", "campaign", "run", db, folder, *file])
    result(document, partial(_show_plan, command=command), as_json)


def _show_plan(document: dict[str, Any], command: str) -> None:
    """The document of `campaign plan`, its estimated duration, and the command that runs it."""
    if document["strategy"]:
        show_spending(document["strategy"])
    else:
        configs = document["configs"].items()
        what = ", ".join(f"{op} with {plural(count, 'configuration')}" for op, count in configs)
        say(
            f"{plural(document['points'], 'measurement')} planned: {what}, on "
            f"{plural(document['matrices'], 'matrix', 'matrices')}, in "
            f"{plural(document['rounds'], 'round')}"
        )
        if document["grid"]["op"]:
            grid = plural(len(document["grid"]["matrices"]), "matrix", "matrices")
            say(f"every configuration of {document['grid']['op']} on {grid}")
        if left_out := document["left_out"]:
            say(f"{plural(len(left_out), 'pair')} of matrix and op left out by --max-work")
    if document["estimated_seconds"] is None:
        say("duration not known yet: `campaign status` estimates it after some samples")
    else:
        each, whole = document["seconds_per_sample"], document["estimated_seconds"]
        say(f"about {duration(whole)}, at {duration(each)} a sample so far, one at a time")
    if document["cost_note"]:
        say(f"note: {document['cost_note']}")
    say(f"run it: {command}")


def _check_options(options: dict[str, Any]) -> None:
    """Check combinations of options, and set the usual strategy of a budget; for a strategy,
    --max-work becomes a limit on the non-zeros.

    Raises: UsageError for a strategy with an option that it sets itself or with several ops.
    """
    if options["budget"] is not None:
        options["strategy"] = options["strategy"] or _USUAL_STRATEGY
    if not options["strategy"]:
        return
    source = click.get_current_context().get_parameter_source
    conflicting = [
        name for name in _DECIDED if source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    if conflicting:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in conflicting)
        raise UsageError(f"{names} and --strategy: the strategy decides that", hint="leave it out")
    if len(set(options["ops"])) != 1:
        raise UsageError(
            "a strategy samples one --op", hint="plan one campaign per op, each in its own folder"
        )
    if options["max_work"]:
        most = max(1, options["max_work"] // max(1, Op.parse(options["ops"][0]).width))
        options["max_nnz"] = min(options["max_nnz"] or most, most)


def _campaign(
    db: Database, folder: Path, platform: Platform, options: dict[str, Any], progress: Progress
) -> tuple[Campaign, dict[str, list[Config]]]:
    """The campaign in a folder, new or resumed, and the static top-k by op."""
    from indexer.campaign.budget import growing_plan as growing
    from indexer.campaign.plan import PlanOptions
    from indexer.campaign.run import plan_campaign

    ops, seed = [Op.parse(op) for op in options["ops"]], options["seed"]
    if strategy := options["strategy"]:
        wanted = not growing.is_campaign(folder)
        vectors = growing.PoolVectors(db.index, strategy, wanted=wanted, note=note)
        pool = _pool(options, progress, seen=vectors)
        own = {"strategy": strategy, "budget": options["budget"] or _USUAL_BUDGET, "seed": seed}
        wish = growing.BudgetRequest(platform=platform, op=ops[0], **own)
        return growing.planned(folder, wish, pool, lambda n: vectors.clusters(n, seed)), {}
    for op in ops:
        platform.space(op)  # fail on a missing op before all files are read
    names = ("configs", "rounds", "repeat_share", "grid", "max_work", "top", "seed")
    plan_options = PlanOptions(
        **{name: options[name] for name in names},
        shared=options["shared"] if options["sample"] == "per-matrix" else options["configs"],
        sampled=options["sample"] == "per-matrix",
        grid_op=str(Op.parse(options["grid_op"])) if options["grid_op"] else "",
    )
    pool = _pool(options, progress)
    return plan_campaign(db.index, folder, platform, ops, pool, plan_options, progress=progress)


def _pool(
    options: dict[str, Any], progress: Progress, seen: Callable[[Pattern], None] | None = None
) -> list[Matrix]:
    from indexer.campaign.run import planned_matrices

    groups = families(options["manifest"])
    pool = planned_matrices(
        options["matrices"],
        groups=groups,
        max_nnz=options["max_nnz"],
        seen=seen,
        progress=progress,
        note=note,
    )
    if groups and (alone := [one.name for one in pool if one.name not in groups]):
        note(
            f"{options['manifest']}: {len(alone)} of {len(pool)} matrices have no family there "
            f"({alone[0]} first): each is a family of its own"
        )
    return pool


@option.verb("collect")
@click.argument("db")
@click.argument("folder", metavar="DIR")
def collect_verb(db: str, folder: str, as_json: bool) -> None:
    """Read the results of nodes for the campaign in DIR into DB, each task once.

    Nothing is measured, and nodes may continue working. `campaign run --executor` does the same on
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
        collected = collect(campaign, opened.index, progress=progress)
        if collected.tasks:
            embed(opened.index, progress=progress)
        done = campaign.progress(opened.index)
    document = {
        "campaign": campaign.id,
        "folder": folder,
        "collected": collected.tasks,
        "runs": collected.runs,
        "tasks": done.tasks,
        "tasks_done": done.tasks_done,
        "tasks_stored": done.tasks_stored,
    }
    if as_json:
        emit(document)
        return
    say(f"{plural(collected.tasks, 'task')} read, {plural(collected.runs, 'run')} added")
    say(f"{done.tasks_stored:,} of {plural(done.tasks, 'task')} stored in the database")


@click.group(
    "campaign", commands=[plan_verb, run_verb, resume_verb, work_verb, collect_verb, status_verb]
)
def campaign_verb() -> None:
    """Measure many matrices and configurations in shuffled rounds, resumable.

    A campaign is a folder DIR: plan it, run it, stop it at any time, run it again.

    \b
    Example:
      embeddb campaign plan runs.db camp --platform cpu --op spmm:32 --op spmm:128 \\
          --matrices matrices/ --configs 60 --rounds 2
      embeddb campaign run runs.db camp
      embeddb campaign status runs.db camp
    """
