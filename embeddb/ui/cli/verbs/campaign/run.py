"""`campaign run|resume`: what is missing of a campaign, measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.errors import RunnerUnavailable, UsageError
from embeddb.core.records import STATUSES
from embeddb.platforms.platform import load_platform, parse_platform
from embeddb.ui.cli.arguments import open_database, runner_here
from embeddb.ui.cli.campaign_text import command_line
from embeddb.ui.cli.output import Progress, json_option, note
from embeddb.ui.cli.verbs.campaign.status import AGREE_OPTION, report

if TYPE_CHECKING:
    from indexer.campaign.folder import Campaign
    from indexer.campaign.nodes.coordinator import NodesJob, NodesWords

__all__ = ["EXECUTOR_OPTIONS", "nodes_words", "noting_the_end", "resume_verb", "run_verb"]

#: Of a verb that other processes or nodes may work for.
EXECUTOR_OPTIONS = (
    click.option(
        "--executor", default="", help="Who measures: local, slurm, dask; else this process does."
    ),
    click.option("--address", default="", help="Of the executor: Dask's scheduler."),
    click.option("--script", default="", help="Of the executor: a slurm.sh that you have edited."),
    click.option(
        "--chunks",
        default=0,
        type=click.IntRange(0, 1000),
        help="Most jobs of one submission, where the site limits job arrays.  [default: 1000]",
    ),
    click.option("--no-wait", is_flag=True, help="With an executor: submit and return."),
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
    AGREE_OPTION,
    *EXECUTOR_OPTIONS,
    click.option(
        "--mixed", is_flag=True, help="With an executor: nodes of several kinds may work."
    ),
    click.option("--again", default="", metavar="STATUS,...", help="Repeat what failed like that."),
    json_option,
)


def _running(command: Any) -> Any:
    for option in reversed(_RUNNING):
        command = option(command)
    return command


@click.command("run")
@_running
def run_verb(db: str, folder: str, as_json: bool, **asked: Any) -> None:
    """Measure what is missing of the campaign in DIR, into DB.

    Matrices whose rounds disagree are measured again. Ctrl-C stops it with everything measured
    kept, and so does a machine that fails (no space, a killed compiler); the same command goes on.

    With --executor other processes or nodes measure what is missing, and this one collects it.

    \b
    Example:
      embeddb campaign run runs.db camp
      embeddb campaign run runs.db camp --executor slurm
    """
    _run(db, folder, as_json, asked)


@click.command("resume")
@_running
def resume_verb(db: str, folder: str, as_json: bool, **asked: Any) -> None:
    """Go on with the campaign in DIR where it stopped; the same as `run`.

    \b
    Example:
      embeddb campaign resume runs.db camp
      embeddb campaign resume runs.db camp --again build,crash
    """
    _run(db, folder, as_json, asked)


def _run(db: str, folder: str, as_json: bool, asked: dict[str, Any]) -> None:
    from indexer.campaign.folder import Campaign
    from indexer.campaign.nodes.coordinator import refuse_without_executor
    from indexer.campaign.run import CampaignJob, Settle, run_campaign
    from indexer.runners.base import RunOptions

    again = _failures(asked["again"])
    campaign = Campaign(Path(folder))
    if asked["executor"]:
        campaign, done = _on_nodes(db, campaign, asked)
        report(campaign, done, asked["agree"], as_json=as_json)
        return
    refuse_without_executor(asked)
    repeats, threads = asked["repeats"], asked["threads"]
    options = RunOptions(repeats=repeats, max_repeats=max(25, repeats), threads=threads)
    with open_database(db) as opened, Progress() as progress:
        planned = parse_platform(campaign.plan.platform, where=folder)
        # A plan holds a platform's text; a command is only run out of a file that the user names.
        platform = load_platform(asked["platform"]) if asked["platform"] else planned
        runner, _ = runner_here(platform, threads)
        job = CampaignJob(campaign, opened.index, runner, options, told=progress, again=again)
        try:
            campaign, done = run_campaign(job, Settle(asked["settle"], asked["agree"]))
        except (KeyboardInterrupt, RunnerUnavailable):
            note("")
            note(f"stopped; go on with: {command_line('resume', db, folder, asked['platform'])}")
            raise
    report(campaign, done, asked["agree"], as_json=as_json)


def _on_nodes(db: str, campaign: Campaign, asked: dict[str, Any]) -> tuple[Campaign, Any]:
    """The campaign run by an executor, and how far it is."""
    from indexer.campaign.nodes.coordinator import named_on_nodes, nodes_job
    from indexer.campaign.run import Settle
    from indexer.executors.base import Effort

    named = named_on_nodes(asked["platform"])
    effort = Effort(repeats=asked["repeats"], threads=asked["threads"], platform=named)
    words, again = nodes_words(asked), _failures(asked["again"])
    with (
        open_database(db) as opened,
        Progress() as progress,
        nodes_job(
            campaign, opened.index, effort, words, again=again, told=progress, note=note
        ) as job,
        noting_the_end(job),
    ):
        return job.run(Settle(asked["settle"], asked["agree"]))


def nodes_words(asked: Mapping[str, Any]) -> NodesWords:
    """The executor options of a verb, as keyword arguments of `nodes_job`."""
    return {
        "executor": asked["executor"],
        "address": asked["address"],
        "script": asked["script"],
        "chunks": asked["chunks"],
        "mixed": asked.get("mixed", False),
        "no_wait": asked["no_wait"],
    }


@contextmanager
def noting_the_end(job: NodesJob) -> Iterator[None]:
    """What is said after Ctrl-C of what was submitted."""
    try:
        yield
    except KeyboardInterrupt:
        note("")
        if job.executor.detached:
            note("what was submitted goes on; the same command waits for it again")
        raise


def _failures(text: str) -> frozenset[str]:
    """Raises: UsageError for a word that is no status of a failure."""
    named = frozenset(word.strip() for word in text.split(",") if word.strip())
    failures = [status for status in STATUSES if status != "ok"]
    if unknown := sorted(named.difference(failures)):
        raise UsageError(
            f"--again: {unknown[0]!r} is no failure", hint=f"one or more of {', '.join(failures)}"
        )
    return named
