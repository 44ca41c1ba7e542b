"""`calibrate`: a few minutes of runs that make answers right on this machine."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.core.wording import duration, plural, share
from embeddb.ui.cli.arguments import Number, open_database, runner_here, threads_option
from embeddb.ui.cli.output import Progress, emit, json_option, note, say, table
from embeddb.ui.cli.verbs.campaign_run import EXECUTOR_OPTIONS, nodes_words, noting_the_end

if TYPE_CHECKING:
    from embeddb.database import Database
    from embeddb.platforms.platform import Platform
    from indexer.calibrate import CalibrationRequest
    from indexer.calibration.report import CalibrationReport, OpReport

#: Files named that cannot be used; `--json` has all.
_NAMED = 5


def _of_executors(command: Any) -> Any:
    for option in reversed(EXECUTOR_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.argument("db")
@click.option("--platform", default="cpu", show_default=True, help="A platform with a runner.")
@click.option("--op", "ops", multiple=True, help="As spmm:32; several allowed. Else all of DB.")
@click.option(
    "--minutes",
    default=5.0,
    show_default=True,
    type=Number(0, 24 * 60, min_open=True),
    help="Time to take, report included.",
)
@click.option("--matrices", default="", help="Folder of your matrix files, else generated ones.")
@threads_option
@_of_executors
@click.option(
    "--campaign", default="", metavar="DIR", help="With an executor: a folder that nodes see."
)
@json_option
def calibrate_verb(db: str, as_json: bool, **asked: Any) -> None:
    """Measure on this machine, for some minutes, what tells most of how it differs from others.

    Runs the default, configurations that machines differ in, and the first answers, on your
    matrices or on generated ones, into DB. Answers for all matrices get better by it. It stops when
    the time is up; another call goes on where this one stopped, and so it does after Ctrl-C.

    With --executor nodes measure, and they are what is calibrated: a campaign in DIR, which is
    guessed to take all of them together so many minutes.

    \b
    Example:
      embeddb calibrate starter --op spmm:32 --op spmv --minutes 2
      embeddb calibrate runs.db --op spmm:128 --matrices my_matrices/
      embeddb calibrate runs.db --op spmm:128 --executor slurm --campaign camp
    """
    from indexer.calibrate import Calibration, CalibrationRequest, measured_ops
    from indexer.campaign.nodes.coordinator import refuse_without_executor

    refuse_without_executor(asked)
    if bool(asked["executor"]) != bool(asked["campaign"]):
        raise UsageError(
            "--executor and --campaign go together", hint="name a folder that nodes see"
        )

    with open_database(db) as opened, Progress() as progress:
        platform = opened.platform(asked["platform"])
        ops = tuple(dict.fromkeys(Op.parse(op) for op in asked["ops"])) or measured_ops(
            opened.index, platform
        )
        wish = CalibrationRequest(ops, 60.0 * asked["minutes"], asked["threads"])
        folder = Path(asked["matrices"]) if asked["matrices"] else None
        if asked["executor"]:
            report = _on_nodes(opened, platform, wish, folder, asked, progress)
        else:
            runner, _ = runner_here(platform, asked["threads"])
            report = Calibration(opened.index, runner, wish, told=progress).run(folder)
    if as_json:
        emit(report.document())
    elif not report.platform:
        say(f"submitted; this collects and reports: {_again(db, platform.name, asked)}")
    else:
        _show(report)
        if not report.complete:
            say(f"the same again goes on from here: {_again(db, platform.name, asked)}")
        if not report.indexed:
            say(f"when there is time: {shlex.join(['embeddb', 'embed', db])}")


def _on_nodes(
    db: Database,
    platform: Platform,
    wish: CalibrationRequest,
    folder: Path | None,
    asked: dict[str, Any],
    progress: Progress,
) -> CalibrationReport:
    """What nodes found, or with --no-wait have found so far."""
    from indexer.calibration.on_nodes import NodesCalibration, calibrated
    from indexer.campaign.nodes.coordinator import named_on_nodes, nodes_job
    from indexer.executors.base import Effort

    wanted = NodesCalibration(db.index, platform, wish, Path(asked["campaign"]), told=progress)
    campaign = wanted.planned(folder)
    effort = Effort(threads=wish.threads, platform=named_on_nodes(asked["platform"]))
    words = nodes_words(asked)
    with (
        nodes_job(campaign, db.index, effort, words, told=progress, note=note) as job,
        noting_the_end(job),
    ):
        return calibrated(wanted, job)


def _again(db: str, platform: str, asked: dict[str, Any]) -> str:
    words = ["embeddb", "calibrate", db, "--platform", platform]
    words += [word for op in asked["ops"] for word in ("--op", op)]
    for name in ("matrices", "executor", "campaign"):
        words += [f"--{name}", asked[name]] if asked[name] else []
    return shlex.join(words)


def _show(report: CalibrationReport) -> None:
    runs = sum(op.runs for op in report.ops)
    failures = sum(op.failures for op in report.ops)
    failed = f", {failures:,} of which failed" if failures else ""
    say(
        f"{report.platform}: {plural(runs, 'run')}{failed}, in {duration(report.seconds)} of "
        f"{duration(report.asked_s)}"
    )
    for line in report.problems[:_NAMED]:
        note(f"warning: {line}")
    if len(report.problems) > _NAMED:
        note(f"warning: and {len(report.problems) - _NAMED} more like these")
    if report.too_large:
        left = plural(report.too_large, "matrix", "matrices")
        note(f"{left} left out: too large for the time given")
    say()
    head = ("op", "matrices", "now", "runs", "noise", "differs", "shift", "before", "after")
    table(head, [_row(op) for op in report.ops])
    say()
    _legend(report)
    if report.complete:
        say("everything was measured that there is to measure here")


def _row(op: OpReport) -> tuple[object, ...]:
    return (
        op.op,
        op.measured,
        op.matrices,
        op.runs,
        _percent(op.noise),
        share(op.differs),
        _percent(None if op.shift is None else op.shift - 1.0),
        _three(op.before),
        _three(op.after),
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _three(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _legend(report: CalibrationReport) -> None:
    """What the columns mean, where they say something."""
    say("matrices: measured on this machine, of them now: in this call")
    say("noise: half the range of repeated runs of the same, as a share of their median (median)")
    if any(op.differs is not None for op in report.ops):
        say("differs: matrices on which the first answer of other machines' runs is slower than")
        say("         the best measured here by more than four times the noise")
    if any(op.shift is not None for op in report.ops):
        say("shift: by how much gains over the default differ from other machines' (mean)")
    say("before, after: first answers' share of the best measured here, without and with this")
    say("         machine's runs; each matrix is asked with its whole group left out")
    for op in report.ops:
        for config, factor in op.moved[:1]:
            say(f"{op.op}: {factor:.2f} times the gain of elsewhere has {Config(config)}")
