"""`campaign plan|run|status|resume`: many measurements, resumable after any stop."""

from __future__ import annotations

import csv
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.cli.output import Progress, emit, json_option, note, plural, say
from embeddb.cli.places import open_database, runner_here
from embeddb.config import Op
from embeddb.errors import InputError, MatrixError
from embeddb.platform import parse_platform

if TYPE_CHECKING:
    from indexer.campaign import Campaign, Matrix
    from indexer.campaign import Progress as Points

__all__ = ["campaign_verb"]


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


@campaign_verb.command("plan")
@click.argument("db")
@click.argument("folder", metavar="DIR")
@click.option("--platform", required=True, help="A platform with a runner: cpu.")
@click.option("--op", "ops", multiple=True, required=True, help="As spmm:128; several allowed.")
@click.option("--matrices", required=True, help="Folder of matrix files.")
@click.option("--manifest", default="", help="CSV with columns name and family: the groups.")
@click.option("--configs", default=60, show_default=True, type=click.IntRange(2, 100_000))
@click.option("--rounds", default=2, show_default=True, type=click.IntRange(1, 1000))
@click.option("--min-nnz", default=0, type=click.IntRange(0))
@click.option("--max-nnz", default=0, type=click.IntRange(0), help="0: no limit.")
@click.option("--seed", default=0, show_default=True)
@json_option
def plan_verb(db: str, folder: str, as_json: bool, **asked: Any) -> None:
    """Plan a campaign in DIR for DB: every matrix, op, configuration and round.

    Matrices of one family (or, without a manifest, of one name) are held out together when
    answers are judged. The same plan in the same folder is taken up again.

    \b
    Example:
      embeddb campaign plan runs.db camp --platform cpu --op spmm:128 --matrices matrices/ \\
          --manifest matrices/MANIFEST.csv --max-nnz 2000000
    """
    from indexer.campaign import Campaign, make_plan

    with open_database(db, readonly=True) as opened:
        platform = opened.platform(asked["platform"])
    with Progress() as progress:
        matrices = _matrices(asked, progress)
    plan = make_plan(
        platform,
        [Op.parse(op) for op in asked["ops"]],
        matrices,
        configs=asked["configs"],
        rounds=asked["rounds"],
        seed=asked["seed"],
    )
    done = Campaign.create(Path(folder), plan).progress()
    document: dict[str, Any] = {
        "campaign": plan.id,
        "folder": folder,
        "platform": platform.id,
        "ops": plan.ops,
        "matrices": len(matrices),
        "configs": {op: len(configs) for op, configs in plan.configs.items()},
        "rounds": plan.rounds,
        "points": done.points,
    }
    if as_json:
        emit(document)
        return
    what = ", ".join(f"{op} with {n} configurations" for op, n in document["configs"].items())
    say(
        f"{plural(done.points, 'measurement')} planned: {what}, on "
        f"{plural(len(matrices), 'matrix', 'matrices')}, in {plural(plan.rounds, 'round')}"
    )
    say(f"run it: {_command('run', db, folder)}")


def _matrices(asked: dict[str, Any], progress: Progress) -> list[Matrix]:
    """The files within the limits; what cannot be read is said and left out."""
    from embeddb.matrixio import matrix_files, read_pattern
    from indexer.campaign import Matrix
    from indexer.library import matrix_name

    groups = _groups(asked["manifest"])
    low, high = asked["min_nnz"], asked["max_nnz"]
    files = matrix_files(asked["matrices"])
    found = []
    for at, path in enumerate(files):
        name = matrix_name(path)
        progress("read matrices", at, len(files))
        try:
            nnz = read_pattern(path).nnz
        except MatrixError as e:
            note(f"warning: left out: {e}")
            continue
        if nnz >= low and (not high or nnz <= high):
            found.append(Matrix(str(path.resolve()), name, groups.get(name, name)))
    return found


def _groups(manifest: str) -> dict[str, str]:
    """Family by matrix name. Raises: InputError if the file lacks a column."""
    if not manifest:
        return {}
    with Path(manifest).open(newline="", encoding="utf-8") as lines:
        rows = csv.DictReader(lines)
        if not {"name", "family"} <= set(rows.fieldnames or ()):
            raise InputError("no columns name and family", where=manifest)
        return {row["name"]: row["family"] for row in rows if row["name"] and row["family"]}


_RUNNING = (
    click.argument("db"),
    click.argument("folder", metavar="DIR"),
    click.option("--repeats", default=5, show_default=True, type=click.IntRange(1, 1000)),
    click.option("--threads", default=0, type=click.IntRange(0, 1024), help="0: all there are."),
    json_option,
)


def _running(command: Any) -> Any:
    for option in reversed(_RUNNING):
        command = option(command)
    return command


@campaign_verb.command("run")
@_running
def run_verb(db: str, folder: str, repeats: int, threads: int, as_json: bool) -> None:
    """Measure what is missing of the campaign in DIR, into DB.

    Ctrl-C stops it with everything measured kept; the same command goes on.

    \b
    Example:
      embeddb campaign run runs.db camp
    """
    _run(db, folder, repeats, threads, as_json)


@campaign_verb.command("resume")
@_running
def resume_verb(db: str, folder: str, repeats: int, threads: int, as_json: bool) -> None:
    """Go on with the campaign in DIR where it stopped; the same as `run`.

    \b
    Example:
      embeddb campaign resume runs.db camp
    """
    _run(db, folder, repeats, threads, as_json)


def _run(db: str, folder: str, repeats: int, threads: int, as_json: bool) -> None:
    from embeddb.matrixio import read_pattern
    from indexer.campaign import Campaign
    from indexer.embed import embed
    from indexer.runners.base import RunOptions

    campaign = Campaign(Path(folder))
    options = RunOptions(repeats=repeats, max_repeats=max(25, repeats), threads=threads)
    with open_database(db) as opened, Progress() as progress:
        runner, _ = runner_here(parse_platform(campaign.plan.platform, where=folder), threads)
        try:
            done = campaign.run(
                opened,
                runner,
                options=options,
                read=lambda m: read_pattern(m.path, name=m.name, group=m.group),
                progress=lambda p: progress("measure", p.measured, p.points),
            )
            embed(opened, progress=progress)
        except KeyboardInterrupt:
            note("")
            note(f"stopped; go on with: {_command('resume', db, folder)}")
            raise
    _report(campaign, done, as_json)


@campaign_verb.command("status")
@click.argument("db")
@click.argument("folder", metavar="DIR")
@json_option
def status_verb(db: str, folder: str, as_json: bool) -> None:
    """How far the campaign in DIR is, and what became of its measurements.

    \b
    Example:
      embeddb campaign status runs.db camp
    """
    from indexer.campaign import Campaign

    campaign = Campaign(Path(folder))
    with open_database(db, readonly=True) as opened:
        done = campaign.progress(opened)
    _report(campaign, done, as_json)


def _report(campaign: Campaign, done: Points, as_json: bool) -> None:
    document: dict[str, Any] = {
        "campaign": campaign.plan.id,
        "folder": str(campaign.folder),
        "points": done.points,
        "measured": done.measured,
        "statuses": done.statuses or {},
        "tasks": done.tasks,
        "tasks_done": done.tasks_done,
        "tasks_stored": done.tasks_stored,
    }
    if as_json:
        emit(document)
        return
    percent = 100 * done.measured // done.points if done.points else 100
    say(f"{done.measured:,} of {plural(done.points, 'measurement')} ({percent} %)")
    say(f"{done.tasks_stored:,} of {plural(done.tasks, 'task')} stored in the database")
    for status, count in sorted(document["statuses"].items(), key=lambda s: -s[1]):
        say(f"  {count:,} {status}")


def _command(verb: str, db: str, folder: str) -> str:
    return f"embeddb campaign {verb} {shlex.quote(db)} {shlex.quote(folder)}"
