"""`campaign plan|run|status|resume`: many measurements, resumable after any stop."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.config import Config, Op
from embeddb.database import Database
from embeddb.platforms.platform import Platform, load_platform, parse_platform
from embeddb.ui.cli.arguments import open_database, runner_here
from embeddb.ui.cli.output import Progress, emit, json_option, note, plural, say, share, table
from embeddb.ui.cli.verbs.campaign.strategy import (
    Vectors,
    bought_document,
    buy_first,
    check_options,
    read_matrices,
    say_bought,
    with_strategy,
)

if TYPE_CHECKING:
    from indexer.campaign.agreement import Agreement
    from indexer.campaign.folder import Campaign
    from indexer.campaign.folder import Progress as Points
    from indexer.campaign.plan import Plan, PlanOptions

__all__ = ["campaign_verb"]

#: Matrices named in the text; `--json` has all.
_NAMED = 10


@click.group("campaign")
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


_SAMPLES = ("shared", "per-matrix")


@campaign_verb.command("plan")
@click.argument("db")
@click.argument("folder", metavar="DIR")
@click.option("--platform", required=True, help="A platform with a runner: cpu.")
@click.option("--op", "ops", multiple=True, required=True, help="As spmm:128; several allowed.")
@click.option("--matrices", required=True, help="Folder of matrix files.")
@click.option("--manifest", default="", help="CSV with columns name and family: the groups.")
@click.option(
    "--configs", default=60, show_default=True, type=click.IntRange(2, 100_000), help="Per matrix."
)
@click.option("--top", default=10, show_default=True, type=click.IntRange(0), help="Static top.")
@click.option("--sample", default="shared", show_default=True, type=click.Choice(_SAMPLES))
@click.option("--shared", default=0, type=click.IntRange(0), help="Of --sample per-matrix.")
@click.option("--grid", default=0, type=click.IntRange(0), help="Matrices that run everything.")
@click.option("--grid-op", default="", help="The op they run everything of.")
@click.option("--rounds", default=2, show_default=True, type=click.IntRange(1, 1000))
@click.option(
    "--repeat-share",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="Share of the configurations in rounds after the first.",
)
@click.option("--min-nnz", default=0, type=click.IntRange(0))
@click.option("--max-nnz", default=0, type=click.IntRange(0), help="0: no limit.")
@click.option("--max-work", default=0, type=click.IntRange(0), help="Largest nnz times width.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@with_strategy
@json_option
def plan_verb(db: str, folder: str, as_json: bool, **asked: Any) -> None:
    """Plan a campaign in DIR for DB: every matrix, op, configuration and round.

    Every matrix runs the default, the --top configurations that serve most matrices of DB, and a
    sample: one for all, or with --sample per-matrix one of its own beside --shared ones. Matrices
    of one family (or, without a manifest, of one name) are held out together when answers are
    judged. The same plan in the same folder is taken up again.

    With --strategy, matrices and configurations are bought round by round under a --budget of
    samples: `campaign run` measures a round and buys the next from its results, and so does this
    verb where another machine has measured.

    \b
    Example:
      embeddb campaign plan runs.db camp --platform cpu --op spmm:128 --matrices matrices/ \\
          --manifest matrices/MANIFEST.csv --configs 100 --sample per-matrix --max-nnz 2000000
      embeddb campaign plan runs.db few --platform spade --op spmm:32 --matrices matrices/ \\
          --strategy ea25 --budget 500
    """
    check_options(asked)
    with open_database(db, readonly=True) as opened, Progress() as progress:
        platform = opened.platform(asked["platform"])
        campaign, top = _campaign(opened, folder, platform, asked, progress)
    plan, done = campaign.plan, campaign.progress()
    document: dict[str, Any] = {
        "campaign": plan.id,
        "folder": folder,
        "platform": platform.id,
        **_planned(plan),
        "top": {op: len(configs) for op, configs in top.items()},
        "tasks": done.tasks,
        "points": done.points,
        "strategy": bought_document(campaign),
    }
    if as_json:
        emit(document)
    else:
        again = asked["platform"] if platform.command else ""
        _show_plan(document, _command("run", db, folder, again))


def _campaign(
    db: Database, folder: str, platform: Platform, asked: dict[str, Any], progress: Progress
) -> tuple[Campaign, dict[str, list[Config]]]:
    """The campaign in a folder, new or taken up, and the static top by op."""
    from indexer.campaign.folder import Campaign
    from indexer.campaign.plan import make_plan, static_top

    if asked["strategy"]:
        vectors = Vectors(db, folder, asked["strategy"])
        matrices = read_matrices(asked, progress, seen=vectors)
        return buy_first(folder, platform, matrices, vectors, asked), {}
    ops, options = [Op.parse(op) for op in asked["ops"]], _plan_options(asked)
    top = {str(op): static_top(db, platform, op, asked["top"]) for op in ops}
    matrices = read_matrices(asked, progress)
    plan = make_plan(platform, ops, matrices, options, top=top, told=progress)
    return Campaign.create(Path(folder), plan), top


def _planned(plan: Plan) -> dict[str, Any]:
    return {
        "ops": plan.ops,
        "matrices": len({matrix.path for matrix in plan.matrices}),
        "configs": {op: len(configs) for op, configs in plan.configs.items()},
        "grid": {"op": plan.grid_op, "matrices": [plan.matrices[at].name for at in plan.grid]},
        "left_out": [{"matrix": name, "op": op} for name, op in plan.left_out()],
        "rounds": plan.rounds,
    }


def _plan_options(asked: dict[str, Any]) -> PlanOptions:
    from indexer.campaign.plan import PlanOptions

    names = ("configs", "rounds", "repeat_share", "grid", "max_work", "seed")
    return PlanOptions(
        **{name: asked[name] for name in names},
        shared=asked["shared"] if asked["sample"] == "per-matrix" else asked["configs"],
        sampled=asked["sample"] == "per-matrix",
        grid_op=str(Op.parse(asked["grid_op"])) if asked["grid_op"] else "",
    )


def _show_plan(document: dict[str, Any], command: str) -> None:
    if document["strategy"]:
        say_bought(document["strategy"])
        say(f"run it: {command}")
        return
    what = ", ".join(
        f"{op} with {plural(count, 'configuration')}" for op, count in document["configs"].items()
    )
    say(
        f"{plural(document['points'], 'measurement')} planned: {what}, on "
        f"{plural(document['matrices'], 'matrix', 'matrices')}, in "
        f"{plural(document['rounds'], 'round')}"
    )
    if document["grid"]["op"]:
        grid = plural(len(document["grid"]["matrices"]), "matrix", "matrices")
        say(f"every configuration of {document['grid']['op']} on {grid}")
    if document["left_out"]:
        say(f"{plural(len(document['left_out']), 'pair')} of matrix and op left out by --max-work")
    say(f"run it: {command}")


_AGREE = click.option(
    "--agree",
    default=0.9,
    show_default=True,
    type=click.FloatRange(-1, 1),
    help="Spearman below which rounds disagree, near-ties apart.",
)
_RUNNING = (
    click.argument("db"),
    click.argument("folder", metavar="DIR"),
    click.option("--platform", default="", help="Its file again, where a command measures it."),
    click.option("--repeats", default=5, show_default=True, type=click.IntRange(1, 1000)),
    click.option("--threads", default=0, type=click.IntRange(0, 1024), help="0: all there are."),
    click.option(
        "--settle",
        default=1,
        show_default=True,
        type=click.IntRange(0, 100),
        help="Further rounds for matrices whose rounds disagree.",
    ),
    _AGREE,
    json_option,
)


def _running(command: Any) -> Any:
    for option in reversed(_RUNNING):
        command = option(command)
    return command


@campaign_verb.command("run")
@_running
def run_verb(db: str, folder: str, as_json: bool, **asked: Any) -> None:
    """Measure what is missing of the campaign in DIR, into DB.

    Matrices whose rounds disagree are measured again. Ctrl-C stops it with everything measured
    kept; the same command goes on.

    \b
    Example:
      embeddb campaign run runs.db camp
    """
    _run(db, folder, as_json, asked)


@campaign_verb.command("resume")
@_running
def resume_verb(db: str, folder: str, as_json: bool, **asked: Any) -> None:
    """Go on with the campaign in DIR where it stopped; the same as `run`.

    \b
    Example:
      embeddb campaign resume runs.db camp
    """
    _run(db, folder, as_json, asked)


def _run(db: str, folder: str, as_json: bool, asked: dict[str, Any]) -> None:
    from embeddb.matrix_files import read_pattern
    from indexer.campaign.budget.growing_plan import buy_more
    from indexer.campaign.folder import Campaign
    from indexer.campaign.run import CampaignJob, Settle
    from indexer.embed import embed
    from indexer.runners.base import RunOptions

    campaign = Campaign(Path(folder))
    repeats, threads = asked["repeats"], asked["threads"]
    options = RunOptions(repeats=repeats, max_repeats=max(25, repeats), threads=threads)
    with open_database(db) as opened, Progress() as progress:
        planned = parse_platform(campaign.plan.platform, where=folder)
        # A plan holds a platform's text; a command is only run out of a file that the user names.
        platform = load_platform(asked["platform"]) if asked["platform"] else planned
        runner, _ = runner_here(platform, threads)
        job = CampaignJob(
            campaign,
            opened,
            runner,
            options,
            read=lambda m: read_pattern(m.path, name=m.name, group=m.group),
            told=progress,
        )
        try:
            settle = Settle(asked["settle"], asked["agree"])
            done = job.run(settle)
            while (grown := buy_more(job.campaign)) is not None:
                job = replace(job, campaign=grown)
                done = job.run(settle)
            embed(opened, progress=progress)
        except KeyboardInterrupt:
            note("")
            note(f"stopped; go on with: {_command('resume', db, folder, asked['platform'])}")
            raise
    _report(job.campaign, done, asked["agree"], as_json)


@campaign_verb.command("status")
@click.argument("db")
@click.argument("folder", metavar="DIR")
@_AGREE
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
        done = campaign.progress(opened)
    _report(campaign, done, agree, as_json)


def _report(campaign: Campaign, done: Points, agree: float, as_json: bool) -> None:
    found = campaign.agreement(agree)
    document: dict[str, Any] = {
        "campaign": campaign.id,
        "folder": str(campaign.folder),
        "points": done.points,
        "measured": done.measured,
        "statuses": dict(done.statuses),
        "tasks": done.tasks,
        "tasks_done": done.tasks_done,
        "tasks_stored": done.tasks_stored,
        "settling_rounds": campaign.settling_rounds,
        "other_state": len(campaign.spoilt()),
        "agreement": found,
        "strategy": bought_document(campaign),
    }
    if as_json:
        emit(document)
        return
    say_bought(document["strategy"])
    percent = 100 * done.measured // done.points if done.points else 100
    say(f"{done.measured:,} of {plural(done.points, 'measurement')} ({percent} %)")
    say(f"{done.tasks_stored:,} of {plural(done.tasks, 'task')} stored in the database")
    for status, count in sorted(document["statuses"].items(), key=lambda s: -s[1]):
        say(f"  {count:,} {status}")
    if document["other_state"]:
        say(f"{plural(document['other_state'], 'task')} measured in another state of the machine")
    _show_agreement(found)


def _show_agreement(found: list[Agreement]) -> None:
    """Medians with the 5th percentile in brackets, and the matrices to look at."""
    compared = [a for a in found if a.matrices]
    if compared:
        rows = [
            (
                *(a.op, a.matrices, _figures(a.spearman, a.spearman_p5)),
                *(_figures(a.kendall, a.kendall_p5), f"{100 * a.difference:.1f} %"),
                *(share(a.near_ties / a.pairs), len(a.settled), len(a.disagreeing)),
            )
            for a in compared
        ]
        say("rounds compared (median over matrices, 5th percentile in brackets)")
        head = ("op", "matrices", "Spearman", "Kendall", "difference", "near-ties", "settled")
        table((*head, "disagree"), rows, indent="  ")
    for a in found:
        if a.disagreeing:
            names = ", ".join(a.disagreeing[:_NAMED])
            more = f" and {len(a.disagreeing) - _NAMED} more" if a.disagreeing[_NAMED:] else ""
            say(f"  {a.op}: the rounds disagree on {names}{more}")
        if a.too_few:
            say(
                f"  {a.op}: rounds not compared on {plural(a.too_few, 'matrix', 'matrices')}: "
                "fewer than 10 configurations were ok in two of them"
            )


def _figures(middle: float, low: float) -> str:
    return f"{middle:.3f} ({low:.3f})" if math.isfinite(middle) else ""


def _command(verb: str, db: str, folder: str, platform: str) -> str:
    option = ["--platform", platform] if platform else []
    return shlex.join(["embeddb", "campaign", verb, db, folder, *option])
