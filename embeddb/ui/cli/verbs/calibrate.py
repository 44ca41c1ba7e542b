"""`calibrate`: a few minutes of benchmarks that correct answers for this machine."""

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
from embeddb.ui.cli.verbs.campaign_run import EXECUTOR_OPTIONS, nodes_words, note_interrupt

if TYPE_CHECKING:
    from embeddb.database import Database
    from embeddb.platforms.platform import Platform
    from indexer.calibrate import CalibrationRequest
    from indexer.calibration.report import CalibrationReport, OpReport

#: Unusable files shown; `--json` has all.
_NAMED = 5


def _of_executors(command: Any) -> Any:
    for option in reversed(EXECUTOR_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.argument("db")
@click.option("--platform", default="cpu", show_default=True, help="A platform with a runner.")
@click.option(
    "--op", "ops", multiple=True, help="Such as spmm:32; repeatable.  [default: all ops in DB]"
)
@click.option(
    "--minutes",
    default=5.0,
    show_default=True,
    type=Number(0, 24 * 60, min_open=True),
    help="Time budget, report included.",
)
@click.option("--matrices", default="", help="Folder of matrix files.  [default: generated ones]")
@threads_option
@_of_executors
@click.option(
    "--campaign", default="", metavar="DIR", help="With an executor: a folder shared by the nodes."
)
@json_option
def calibrate_verb(db: str, as_json: bool, **options: Any) -> None:
    """Measure for some minutes how this machine differs from others, to correct answers for it.

    Runs the default, the configurations on which machines differ most, and the top-ranked ones, on
    your matrices or on generated ones, and stores them in DB; this improves answers for all
    matrices. It stops when the time is up; another call continues, also after Ctrl-C.

    With --executor, nodes measure and are calibrated: a campaign in DIR that is estimated to take
    all of them together that many minutes.

    \b
    Example:
      embeddb calibrate starter --op spmm:32 --op spmv --minutes 2
      embeddb calibrate runs.db --op spmm:128 --matrices my_matrices/
      embeddb calibrate runs.db --op spmm:128 --executor slurm --campaign camp
    """
    from indexer.calibrate import Calibration, CalibrationRequest, measured_ops
    from indexer.campaign.nodes.coordinator import refuse_without_executor

    refuse_without_executor(options)
    if bool(options["executor"]) != bool(options["campaign"]):
        raise UsageError(
            "--executor and --campaign go together", hint="name a folder shared by the nodes"
        )

    with open_database(db) as opened, Progress() as progress:
        platform = opened.platform(options["platform"])
        ops = tuple(dict.fromkeys(Op.parse(op) for op in options["ops"])) or measured_ops(
            opened.index, platform
        )
        wish = CalibrationRequest(ops, 60.0 * options["minutes"], options["threads"])
        folder = Path(options["matrices"]) if options["matrices"] else None
        if options["executor"]:
            report = _on_nodes(opened, platform, wish, folder, options, progress)
        else:
            runner, _ = runner_here(platform, options["threads"])
            report = Calibration(opened.index, runner, wish, told=progress).run(folder)
    if as_json:
        emit(report.document())
    elif not report.platform:
        say(f"submitted; this collects and reports: {_again(db, platform.name, options)}")
    else:
        _show(report)
        if not report.complete:
            say(f"to continue: {_again(db, platform.name, options)}")
        if not report.indexed:
            say(f"when there is time: {shlex.join(['embeddb', 'embed', db])}")


def _on_nodes(
    db: Database,
    platform: Platform,
    wish: CalibrationRequest,
    folder: Path | None,
    options: dict[str, Any],
    progress: Progress,
) -> CalibrationReport:
    """The report of a calibration on nodes; with --no-wait, as far as they have measured."""
    from indexer.calibration.on_nodes import NodesCalibration, calibrated
    from indexer.campaign.nodes.coordinator import named_on_nodes, nodes_job
    from indexer.executors.base import Effort

    wanted = NodesCalibration(db.index, platform, wish, Path(options["campaign"]), told=progress)
    campaign = wanted.planned(folder)
    effort = Effort(threads=wish.threads, platform=named_on_nodes(options["platform"]))
    words = nodes_words(options)
    with (
        nodes_job(campaign, db.index, effort, words, told=progress, note=note) as job,
        note_interrupt(job),
    ):
        return calibrated(wanted, job)


def _again(db: str, platform: str, options: dict[str, Any]) -> str:
    words = ["embeddb", "calibrate", db, "--platform", platform]
    words += [word for op in options["ops"] for word in ("--op", op)]
    for name in ("matrices", "executor", "campaign"):
        words += [f"--{name}", options[name]] if options[name] else []
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
        note(f"{left} skipped: too large for the time budget")
    say()
    head = ("op", "matrices", "now", "runs", "noise", "differs", "shift", "before", "after")
    table(head, [_row(op) for op in report.ops])
    say()
    _legend(report)
    if report.complete:
        say("nothing is left to measure here")


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
    """Print the meaning of columns that have values."""
    say("matrices: measured on this machine; now: of these, in this call")
    say("noise: half the range of repeated runs, as a share of their median (median)")
    if any(op.differs is not None for op in report.ops):
        say("differs: matrices on which the top-ranked configuration by other machines is slower")
        say("         than the best measured here by more than four times the noise")
    if any(op.shift is not None for op in report.ops):
        say("shift: mean difference of gains over the default from other machines'")
    say("before, after: share of the best measured here that the top-ranked configuration reaches,")
    say("         without and with this machine's runs, cross-validated by group")
    for op in report.ops:
        for config, factor in op.moved[:1]:
            say(f"{op.op}: {Config(config)} has {factor:.2f} times its gain on other machines")
