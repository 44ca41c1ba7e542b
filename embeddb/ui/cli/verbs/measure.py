"""`measure|adopt|calibrate`: runs of sparse kernels on this machine, stored in a database."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError, UsageError
from embeddb.core.kinds import operation_of
from embeddb.core.server_url import is_server_url
from embeddb.core.wording import duration, factor, plural, share
from embeddb.ui.cli import option
from embeddb.ui.cli.arguments import (
    command_again,
    database_to_fill,
    families,
    machine_here,
    open_database,
    refuse_readonly,
    resolve_workloads,
    runner_here,
    whole,
)
from embeddb.ui.cli.output import Progress, emit, figure, note, say, table, warn
from embeddb.ui.cli.verbs.campaign_run import executor_options, nodes_words, note_interrupt

if TYPE_CHECKING:
    from indexer.adopt import AdoptedOp
    from indexer.calibration.report import CalibrationReport

#: Rows of the printed table; `--json` has all.
_SHOWN = 10


@option.verb()
@click.argument("db")
@click.argument("matrices", nargs=-1, required=True, metavar="MATRIX...")
@option.runner
@option.op
@option.number("--configs", default=10, least=1, most=100_000)
@option.several(
    "--config",
    "configurations",
    metavar="A=1,B=2",
    help="Run this one instead of a sample; repeatable.",
)
@option.number("--repeats", default=5, least=1, most=1000)
@option.flag("--baselines", help="Time scipy, torch, numba, MKL and taco too.")
@option.threads
@option.programs()
@click.option("--seed", default=0, show_default=True, help="Seed of the sample and the order.")
def measure_verb(db: str, matrices: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Run the default and other configurations of each MATRIX on this machine, into DB (created if
    missing).

    MATRIX is a file, or the name or id of a pattern whose structure DB has; with --op nest it is a
    program (.c, .sdfg, .json) whose nests are all measured. Without --config, --configs random
    configurations run; on a simulated platform those that were not measured before. Results before
    Ctrl-C are kept. Reasons of failures are shown once each; ends with code 1 if nothing ran.

    \b
    Example:
      embeddb measure runs.db A.mtx B.npz --platform cpu --op spmm:128 --configs 40
      embeddb measure runs.db A.mtx --platform cpu --op spmm:128 --config "order=ijk,format=csr,..."
      embeddb measure runs.db gemm.c --platform nest-cpu --op nest -D N=512 --configs 40
    """
    from indexer.measure import MeasureRequest, has_baselines, measure_sample

    request = MeasureRequest(
        op=Op.parse(options["op"]),
        texts=options["configurations"],
        configs=options["configs"],
        seed=options["seed"],
        baselines=options["baselines"],
    )
    effort = {name: options[name] for name in ("repeats", "threads")}
    documents = []
    with database_to_fill(db) as opened, Progress() as progress:
        machine = machine_here(opened, opened.platform(options["platform"]), **effort)
        for text in matrices:
            for subject in resolve_workloads(
                opened, text, request.op, options["defines"], options["index_matrix"]
            ):
                workload: Any = whole(opened, subject, object)
                documents.append(measure_sample(machine, request, workload, progress).document())
            if request.baselines and not has_baselines(machine):
                note(f"no baselines: {machine.here.name} has none")
    if as_json:
        emit(documents)
    else:
        for document in documents:
            _show(document, drawn=not options["configurations"])
    failures = [failure for document in documents for failure in document["failures"]]
    count = sum(failure["configs"] for failure in failures)
    if failures and count == sum(len(document["configs"]) for document in documents):
        what = f"nothing ran: {plural(count, 'configuration')} failed"
        raise InputError(what, where=documents[0]["platform"])


def _show(document: dict[str, Any], *, drawn: bool) -> None:
    say(f"{document['name']}: {document['op']} on {document['platform']}")
    configs: Sequence[dict[str, Any]] = document["configs"]
    unit = document["time_unit"]
    ran = [c for c in configs if c["seconds"] is not None]
    rows = [
        (duration(c["seconds"], unit), factor(c["gain"]), str(Config(c["config"])))
        for c in ran[:_SHOWN]
    ]
    base = document["default"]["seconds"]
    if ran:
        rows.append((duration(base, unit), factor(1.0 if base else None), "the default"))
    for name, library in document["baselines"].items():
        gain = base / library["seconds"] if base and library["seconds"] else None
        took = duration(library["seconds"]) if library["seconds"] else library["status"]
        rows.append((took, factor(gain), name))
    if rows:
        table(("time", "gain", "configuration"), rows)
    failed = len(configs) - len(ran)
    more = f", {failed:,} failed" if failed else ""
    earlier = document["earlier"]
    fresh = plural(len(configs) - earlier, "configuration")
    if earlier:
        say(f"{earlier:,} of {len(configs):,} already measured (simulated), {fresh} now{more}")
    else:
        say(f"{fresh} measured and stored{more}")
    for failure in document["failures"][:_SHOWN]:
        say(
            f"  {failure['configs']:,} {failure['status']}: {failure['error'] or 'no reason given'}"
        )
    if drawn and ran:
        say("random sample: `embeddb query ... --measure` runs top-ranked configurations instead")
    say()


# -- adopt -----------------------------------------------------------------------------------------

#: Dense columns of an operation that is not named.
_WIDTH = 32


@option.verb("adopt")
@click.argument("db")
@click.option("--platform", required=True, help="A TOML file (or name) with a runner.")
@click.option("--matrices", required=True, help="Folder of matrix files.")
@option.several(
    "--op",
    "ops",
    help=f"Such as spmm:128; repeatable.  [default: every kernel, {_WIDTH} dense columns]",
)
@option.number("--samples", default=500, least=1, help="Of each operation.")
@option.manifest
@option.max_nnz
@option.number("--seed", default=0, least=0)
@option.text("--campaign", metavar="DIR", help="Folder of the measurements.  [default: DB.adopt]")
def adopt_verb(db: str, as_json: bool, **options: Any) -> None:
    """Measure a new platform, learn from it, and report what to expect of answers for it.

    Measures --samples of each operation through the platform's runner: five configurations on each
    of ten matrices, then the samples that raise the answers most. They are stored in DB (created if
    missing), and `embeddb query` ranks by the model that is learned from them. The figures are
    expected shares of the best of the configurations that ran and some others, for matrices whose
    group was held out.

    After Ctrl-C or a failure the same command continues; with more --samples it measures the
    difference.

    \b
    Example:
      embeddb adopt sim.db --platform examples/my_simulator.toml --matrices matrices/
      embeddb adopt sim.db --platform examples/my_simulator.toml --matrices matrices/ --samples 1000
    """
    from indexer.adopt import Adoption, AdoptRequest
    from indexer.campaign.run import planned_matrices

    if not options["campaign"] and is_server_url(db):
        raise UsageError("a database on a server needs a folder for measurements: --campaign DIR")
    with database_to_fill(db) as opened, Progress() as progress:
        platform = opened.platform(options["platform"])
        every = (Op(k, _WIDTH if operation_of(k)[0].wide else 1) for k in platform.kernels)
        ops = [Op.parse(op) for op in options["ops"]] or [op for op in every if op.workload.sparse]
        own = {name: options[name] for name in ("samples", "seed")}
        request = AdoptRequest(platform=platform, ops=tuple(dict.fromkeys(ops)), **own)
        runner, here = runner_here(platform, 0)
        planned = planned_matrices(
            options["matrices"],
            groups=families(options["manifest"]),
            max_nnz=options["max_nnz"],
            progress=progress,
            note=note,
        )
        pool = [matrix for matrix in planned if matrix.nnz]
        folder = Path(options["campaign"] or f"{db.rstrip('/')}.adopt")
        adopted = Adoption(
            opened.index, runner, request, pool, folder, progress=progress, note=note
        ).run()
    if as_json:
        ops_documents = [one.document() for one in adopted]
        emit({"platform": here.id, "campaign": str(folder), "ops": ops_documents})
        return
    say(f"{here.id}: measurements in {folder}")
    for one in adopted:
        _show_adopted(one, options["samples"])


def _show_adopted(adopted: AdoptedOp, requested: int) -> None:
    from indexer.adopt import FURTHER

    failed = adopted.statuses.total() - adopted.statuses["ok"]
    many = plural(adopted.statuses.total(), "sample")
    many += f", {failed:,} of which failed" if failed else ""
    say()
    say(
        f"{adopted.op}: {many}, on {plural(adopted.matrices, 'matrix', 'matrices')}"
        + (_learned_from(adopted) if adopted.curve else "")
    )
    if requested < adopted.statuses.total():
        say(f"--samples {requested} is less than were measured before: all of them count")
    if adopted.curve:
        _show_expected(adopted)
    if adopted.complete:
        say(
            f"all {adopted.statuses.total():,} points are measured: answers for these matrices are "
            "of their own runs; for others, add matrices"
        )
    elif adopted.curve:
        say(f"{FURTHER} more samples: {_further(adopted)}")


def _learned_from(adopted: AdoptedOp) -> str:
    measured, learned = adopted.statuses.total(), adopted.curve[-1].samples
    if learned > measured:
        return f"; learned from {learned:,}, with other runs in the database (`measure`, `query`)"
    if learned < measured:
        return f"; learned from {learned:,}, without matrices on which nothing can be compared"
    return ""


def _show_expected(adopted: AdoptedOp) -> None:
    from embeddb.learning.expected import error_in_replays

    among, space = adopted.configurations, adopted.space
    whole = "of a space too large to count"
    if space is not None:
        whole = f"of {space:,}" if among < space else "of the whole space"
    say(f"expected share of the best of {among:,} configurations {whole}, groups held out:")
    head = ("method", "of optimum@1", "spread over groups", "@5")
    names = ("of_optimum@1", "error@1", "of_optimum@5")
    rows = [(m, *(f"{f[name]:.3f}" for name in names)) for m, f in adopted.methods.items()]
    table(head, rows, indent="  ")
    samples, points = error_in_replays(adopted.curve[-1].samples)
    off = f"{points:.1f} points (RMS) off at {samples:,} samples"
    say(f"in replays of an H200, true shares were {off}")
    say(f"expected gain of the first choice over the default: {factor(adopted.gain)}")
    steps = ", ".join(f"{p.share:.3f} from {p.samples:,}" for p in adopted.curve)
    say(f"learning curve (at 1): {steps} samples")


def _further(adopted: AdoptedOp) -> str:
    """Describe what further samples may add."""
    if adopted.partial:
        return "not estimated: they may find faster configurations in the rest of the space"
    last = f"({adopted.difference:+.3f} +- {adopted.error:.3f})"
    if adopted.further is None:
        return (
            "no gain can be shown, the last doubling gave less than its spread over groups " + last
        )
    most = f"at most about +{adopted.further:.3f} at 1, if a doubling gives no more than the last"
    return f"{most} {last}"


# -- calibrate -------------------------------------------------------------------------------------

#: Unusable files shown; `--json` has all.
_NAMED = 5


@option.verb()
@click.argument("db")
@option.text("--platform", default="cpu", help="A platform with a runner.")
@option.several("--op", "ops", help="Such as spmm:32; repeatable.  [default: all ops in DB]")
@option.decimal(
    "--minutes",
    within=option.Number(0, 24 * 60, min_open=True),
    default=5.0,
    help="Time budget, report included.",
)
@option.text("--matrices", help="Folder of matrix files.  [default: generated ones]")
@option.threads
@executor_options
@option.text("--campaign", metavar="DIR", help="With an executor: a folder shared by the nodes.")
def calibrate_verb(db: str, as_json: bool, **options: Any) -> None:
    """Measure for some minutes how this machine differs from others, to correct answers for it.

    Runs the default, the configurations on which machines differ most, and the top-ranked ones, on
    your matrices or on generated ones, and stores them in DB; this improves answers for all
    matrices. At the end the cost models of every machine learn from these runs, for this machine
    alone. It stops when the time is up; another call continues, also after Ctrl-C.

    With --executor, nodes measure and are calibrated: a campaign in DIR that is estimated to take
    all of them together that many minutes.

    \b
    Example:
      embeddb calibrate starter --op spmm:32 --op spmv --minutes 2
      embeddb calibrate runs.db --op spmm:128 --matrices my_matrices/
      embeddb calibrate runs.db --op spmm:128 --executor slurm --campaign camp
    """
    from indexer.calibrate import Calibration, CalibrationRequest, measured_ops
    from indexer.calibration.on_nodes import NodesCalibration, calibrated
    from indexer.campaign.nodes.coordinator import (
        named_on_nodes,
        nodes_job,
        refuse_without_executor,
    )
    from indexer.executors.base import Effort

    refuse_without_executor(options)
    if bool(options["executor"]) != bool(options["campaign"]):
        raise UsageError(
            "--executor and --campaign go together", hint="name a folder shared by the nodes"
        )

    with open_database(db) as opened, Progress() as progress:
        refuse_readonly(opened)
        platform = opened.platform(options["platform"])
        ops = tuple(dict.fromkeys(Op.parse(op) for op in options["ops"])) or measured_ops(
            opened.index, platform
        )
        wish = CalibrationRequest(ops, 60.0 * options["minutes"], options["threads"])
        folder = Path(options["matrices"]) if options["matrices"] else None
        if options["executor"]:
            wanted = NodesCalibration(
                opened.index, platform, wish, Path(options["campaign"]), progress=progress
            )
            campaign, named = wanted.planned(folder), named_on_nodes(options["platform"])
            how = (Effort(threads=wish.threads, platform=named), nodes_words(options))
            # With --no-wait, the report is of what they have measured so far.
            with (
                nodes_job(campaign, opened.index, *how, progress=progress, note=note) as job,
                note_interrupt(job),
            ):
                report = calibrated(wanted, job)
        else:
            runner, _ = runner_here(platform, options["threads"])
            report = Calibration(opened.index, runner, wish, progress=progress).run(folder)
    again = command_again(without=["no_wait"])
    if as_json:
        emit(report.document())
    elif not report.platform:
        say(f"submitted; this collects and reports: {again}")
    else:
        _show_report(report)
        if not report.complete:
            say(f"to continue: {again}")
        if not report.indexed:
            say(f"when there is time: {shlex.join(['embeddb', 'embed', db])}")


def _show_report(report: CalibrationReport) -> None:
    runs = sum(op.runs for op in report.ops)
    failures = sum(op.failures for op in report.ops)
    failed = f", {failures:,} of which failed" if failures else ""
    say(
        f"{report.platform}: {plural(runs, 'run')}{failed}, in {duration(report.seconds)} of "
        f"{duration(report.requested_s)}"
    )
    warn(report.problems, _NAMED)
    if report.too_large:
        left = plural(report.too_large, "matrix", "matrices")
        note(f"{left} skipped: too large for the time budget")
    say()
    head = ("op", "matrices", "now", "runs", "noise", "differs", "shift", "before", "after")
    rows = []
    for op in report.ops:
        noise = None if op.noise is None else f"{100 * op.noise:.1f} %"
        shift = None if op.shift is None else f"{100 * (op.shift - 1.0):.1f} %"
        figures = (noise, share(op.differs), shift, figure(op.before), figure(op.after))
        rows.append((op.op, op.measured, op.matrices, op.runs, *figures))
    table(head, rows)
    if report.learned:
        say(f"learned from these runs: the cost model of {', '.join(report.learned)}")
    say()
    _legend(report)
    if report.complete:
        say("nothing is left to measure here")


def _legend(report: CalibrationReport) -> None:
    say("matrices: measured on this machine; now: of these, in this call")
    say("noise: error of the time of repeated runs, as a share of it (median)")
    if any(op.differs is not None for op in report.ops):
        say("differs: matrices on which the top-ranked configuration by other machines is slower")
        say("         than the best measured here by more than four times the noise")
    if any(op.shift is not None for op in report.ops):
        say("shift: mean difference of gains over the default from other machines'")
    say("before, after: share of the best measured here that the top-ranked configuration reaches,")
    say("         without and with this machine's runs, cross-validated by group")
    for op in report.ops:
        for config, moved_by in op.moved[:1]:
            say(f"{op.op}: {Config(config)} has {moved_by:.2f} times its gain on other machines")
