"""`campaign run|resume|work|status`: measure the tasks of a campaign here, or on nodes."""

from __future__ import annotations

import math
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.errors import InputError, RunnerUnavailable, UsageError
from embeddb.core.records import STATUSES
from embeddb.core.wording import duration, plural, share
from embeddb.platforms.platform import load_platform, parse_platform
from embeddb.ui.cli import option
from embeddb.ui.cli.arguments import command_again, open_database, runner_here, statuses
from embeddb.ui.cli.output import Progress, note, result, say, table

if TYPE_CHECKING:
    from indexer.campaign.agreement import Agreement
    from indexer.campaign.folder import Campaign, CampaignProgress
    from indexer.campaign.nodes.coordinator import NodesJob, NodesWords
    from indexer.campaign.nodes.submissions import Spread

AGREE_OPTION = option.decimal(
    "--agree",
    within=option.Number(-1, 1),
    default=0.9,
    help="Spearman correlation below which rounds disagree, near-ties ignored.",
)


@option.verb("status")
@click.argument("db")
@click.argument("folder", metavar="DIR")
@AGREE_OPTION
def status_verb(db: str, folder: str, agree: float, as_json: bool) -> None:
    """Show progress of the campaign in DIR, outcomes of its measurements, and the rank agreement of
    its rounds.

    \b
    Example:
      embeddb campaign status runs.db camp
    """
    from indexer.campaign.folder import Campaign

    campaign = Campaign(Path(folder))
    # `adopt` removes a new database in which nothing was stored.
    if db and not Path(db).exists() and not campaign.progress().statuses["ok"]:
        note(f"no database at {db} yet: nothing is stored")
        done = campaign.progress()
    else:
        with open_database(db, readonly=True) as opened:
            done = campaign.progress(opened.index)
    report(campaign, done, agree, as_json=as_json)


def report(campaign: Campaign, done: CampaignProgress, agree: float, *, as_json: bool) -> None:
    """Print the progress of a campaign; `campaign run` ends with it."""
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
        "failures": [
            {"status": status, "error": error, "points": count}
            for (status, error), count in done.reasons.most_common()
        ],
        "tasks": done.tasks,
        "tasks_done": done.tasks_done,
        "tasks_stored": done.tasks_stored,
        "nodes": spread_of(campaign),
        "settling_rounds": campaign.settling_rounds,
        "other_state": len(campaign.spoilt()),
        "agreement": campaign.agreement(agree),
        "strategy": None if spent is None else spent.document(),
    }
    result(document, _show_progress, as_json)


#: Reasons of failures that are shown.
_REASONS = 3
#: Matrices named in the text; `--json` has all.
_NAMED = 10


def _show_progress(document: dict[str, Any]) -> None:
    show_spending(document["strategy"])
    measured, points = document["measured"], document["points"]
    percent = 100 * measured // points if points else 100
    more = f", {document['under_way']:,} more in tasks under way" if document["under_way"] else ""
    say(f"{measured:,} of {plural(points, 'measurement')} ({percent} %){more}")
    each, left = document["seconds_per_sample"], points - measured
    if each is not None:
        rest = f"; {left:,} left, about {duration(each * left)} one at a time" if left else ""
        say(f"{duration(each)} a sample{rest}")
    if document["cost_note"]:
        say(f"note: {document['cost_note']}")
    stored = document["tasks_stored"]
    say(f"{stored:,} of {plural(document['tasks'], 'task')} stored in the database")
    _show_spread(document["nodes"])
    for status, count in sorted(document["statuses"].items(), key=lambda s: -s[1]):
        say(f"  {count:,} {status}")
    for failure in document["failures"][:_REASONS]:
        if failure["error"]:
            say(f"  {failure['points']:,} {failure['status']}: {failure['error']}")
    if document["other_state"]:
        say(f"{plural(document['other_state'], 'task')} measured in another state of the machine")
    show_agreement(document["agreement"])


def _show_spread(nodes: Spread) -> None:
    """Tasks by state and host, if nodes work on the campaign."""
    if not nodes.waiting and not any(one.host for one in nodes.hosts) and nodes.waiting is not None:
        return
    waiting = "an unknown number" if nodes.waiting is None else f"{nodes.waiting:,}"
    say(f"tasks: {nodes.done:,} done, {nodes.running:,} running, {waiting} waiting")
    if nodes.points_given_up:
        say(f"{plural(nodes.points_given_up, 'point')} given up: every attempt ended the process")
    rows = [
        (one.host, one.instance, one.done, one.running, one.stopped, one.given_up)
        for one in nodes.hosts
    ]
    if rows:
        table(("host", "instance", "done", "running", "stopped", "given up"), rows, indent="  ")


def show_spending(document: dict[str, Any] | None) -> None:
    if document is not None:
        say(
            f"{document['name']}: {document['measured']:,} of a budget of "
            f"{plural(document['budget'], 'sample')} spent, {document['planned']:,} planned, on "
            f"{plural(document['matrices'], 'matrix', 'matrices')} in "
            f"{plural(document['rounds'], 'round')}"
        )


def show_agreement(agreements: Sequence[Agreement]) -> None:
    """Agreement between rounds: medians, the 5th percentile in brackets, and outlier matrices."""
    compared = [a for a in agreements if a.matrices]
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
    for a in agreements:
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


#: Options of a verb whose work other processes or nodes may do.
executor_options = option.together(
    option.text("--executor", help="local, slurm or dask.  [default: this process measures]"),
    option.text("--address", help="Address of Dask's scheduler."),
    option.text("--script", help="An edited slurm.sh for the executor."),
    option.limit(
        "--chunks",
        most=1000,
        help="Most jobs of a submission, if the site limits job arrays.  [default: 1000]",
    ),
    option.flag("--no-wait", help="With an executor: submit and return."),
)

_platform_option = option.text("--platform", help="Its TOML file again, if a command measures it.")
_running = option.together(
    click.argument("db"),
    click.argument("folder", metavar="DIR"),
    _platform_option,
    option.number("--repeats", default=5, least=1, most=1000),
    option.limit("--threads", most=1024, help="0: all cores."),
    option.number(
        "--settle",
        default=1,
        least=0,
        most=100,
        help="Further rounds for matrices whose rounds disagree.",
    ),
    AGREE_OPTION,
    executor_options,
    option.flag("--mixed", help="With an executor: allow nodes of several kinds."),
    option.text("--again", metavar="STATUS,...", help="Repeat failures with these statuses."),
)
_FAILURES = tuple(status for status in STATUSES if status != "ok")


@option.verb("run")
@_running
def run_verb(**arguments: Any) -> None:
    """Measure the missing points of the campaign in DIR, into DB.

    Matrices whose rounds disagree are measured again. After Ctrl-C, or a machine failure (no space,
    a killed compiler), everything measured is kept and the same command continues.

    With --executor, other processes or nodes measure, and this one collects their results.

    \b
    Example:
      embeddb campaign run runs.db camp
      embeddb campaign run runs.db camp --executor slurm
    """
    _measured(**arguments)


@option.verb("resume")
@_running
def resume_verb(**arguments: Any) -> None:
    """Continue the campaign in DIR where it stopped; the same as `run`.

    \b
    Example:
      embeddb campaign resume runs.db camp
      embeddb campaign resume runs.db camp --again build,crash
    """
    _measured(**arguments)


def _measured(db: str, folder: str, as_json: bool, **options: Any) -> None:
    from indexer.campaign.folder import Campaign
    from indexer.campaign.nodes.coordinator import refuse_without_executor
    from indexer.campaign.run import CampaignJob, Settle, run_campaign
    from indexer.runners.base import RunOptions

    again = statuses("--again", options["again"], _FAILURES)
    campaign = Campaign(Path(folder))
    if options["executor"]:
        campaign, done = _on_nodes(db, campaign, options, again)
        report(campaign, done, options["agree"], as_json=as_json)
        return
    refuse_without_executor(options)
    repeats, threads = options["repeats"], options["threads"]
    run_options = RunOptions(repeats=repeats, max_repeats=max(25, repeats), threads=threads)
    with open_database(db) as opened, Progress() as progress:
        planned = parse_platform(campaign.plan.platform, where=folder)
        # A plan holds a platform's text; a command is only run out of a file that the user names.
        platform = load_platform(options["platform"]) if options["platform"] else planned
        runner, _ = runner_here(platform, threads)
        job = CampaignJob(
            campaign, opened.index, runner, run_options, progress=progress, again=again
        )
        try:
            campaign, done = run_campaign(job, Settle(options["settle"], options["agree"]))
        except (KeyboardInterrupt, RunnerUnavailable):
            note("")
            note(f"stopped; continue with: {command_again()}")
            raise
    report(campaign, done, options["agree"], as_json=as_json)


def _on_nodes(
    db: str, campaign: Campaign, options: dict[str, Any], again: frozenset[str]
) -> tuple[Campaign, Any]:
    from indexer.campaign.nodes.coordinator import named_on_nodes, nodes_job
    from indexer.campaign.run import Settle
    from indexer.executors.base import Effort

    named = named_on_nodes(options["platform"])
    effort = Effort(repeats=options["repeats"], threads=options["threads"], platform=named)
    words = nodes_words(options)
    with (
        open_database(db) as opened,
        Progress() as progress,
        nodes_job(
            campaign, opened.index, effort, words, again=again, progress=progress, note=note
        ) as job,
        note_interrupt(job),
    ):
        return job.run(Settle(options["settle"], options["agree"]))


def nodes_words(options: Mapping[str, Any]) -> NodesWords:
    """The executor options of a verb, as keyword arguments of `nodes_job`."""
    return {
        "executor": options["executor"],
        "address": options["address"],
        "script": options["script"],
        "chunks": options["chunks"],
        "mixed": options.get("mixed", False),
        "no_wait": options["no_wait"],
    }


@contextmanager
def note_interrupt(job: NodesJob) -> Iterator[None]:
    """Note after Ctrl-C that submitted tasks continue."""
    try:
        yield
    except KeyboardInterrupt:
        note("")
        if job.executor.detached:
            note("submitted tasks continue; the same command waits for them again")
        raise


@option.verb("work")
@click.argument("folder", metavar="DIR")
@option.several("--task", "tasks", metavar="ID", help="Name as in results/; repeatable.")
@option.limit("--submission", help="Its number in submit/.")
@click.option("--chunk", default=-1, type=click.IntRange(-1), help="Chunk of --submission, from 0.")
@_platform_option
@option.number("--repeats", default=5, least=1, most=1000)
@option.threads
def work_verb(folder: str, tasks: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Measure tasks of the campaign in DIR on this node, into DIR alone; no database is opened.

    Executors start it (`campaign run --executor`); by hand, name tasks. Finished tasks are skipped,
    and any number of nodes may work at the same time.

    \b
    Example:
      embeddb campaign work camp --task 0000-spmm_32-0
      embeddb campaign work camp --submission 1 --chunk 12
    """
    from indexer.campaign.nodes.worker import work_chunk, work_tasks
    from indexer.executors.base import Effort

    if bool(tasks) == bool(options["submission"]) or bool(tasks) != (options["chunk"] < 0):
        raise UsageError("name tasks by --task, or a --submission and a --chunk of it")
    # SIGTERM before a kill: the current point is then not blamed for the end of the job.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        effort = Effort(**{name: options[name] for name in ("platform", "repeats", "threads")})
        with Progress() as progress:
            if tasks:
                worked = work_tasks(Path(folder), tasks, effort, progress=progress)
            else:
                where = (options["submission"], options["chunk"])
                worked = work_chunk(Path(folder), *where, effort, progress)
    finally:
        signal.signal(signal.SIGTERM, before)
    document = {
        "host": socket.gethostname(),
        "done": worked.done,
        "there": worked.there,
        "failed": worked.failed,
    }
    done = f"{plural(len(worked.done), 'task')} done here"
    result(document, f"{done}, {len(worked.there)} were done already", as_json)
    if worked.failed:
        for name, reason in worked.failed.items():
            note(f"{name}: {reason}")
        first = next(iter(worked.failed.values()))  # a coordinator shows this line alone
        raise InputError(f"{plural(len(worked.failed), 'task')} failed: {first}", where=folder)
