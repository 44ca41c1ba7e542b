"""`measure`: run configurations of a few matrices on this machine and store the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError, NothingFound
from embeddb.core.records import WorkloadInfo
from embeddb.core.wording import duration, factor, plural
from embeddb.ui.cli.arguments import (
    open_database,
    program_options,
    resolve_workloads,
    runner_here,
    threads_option,
)
from embeddb.ui.cli.output import Progress, emit, json_option, note, say, table

if TYPE_CHECKING:
    from embeddb.core.workload import Workload
    from embeddb.database import Database

#: Rows of the printed table; `--json` has all.
_SHOWN = 10


@click.command()
@click.argument("db")
@click.argument("matrices", nargs=-1, required=True, metavar="MATRIX...")
@click.option("--platform", required=True, help="A platform with a runner: cpu, cuda.")
@click.option("--op", required=True, help="KERNEL:WIDTH, as spmm:128.")
@click.option("--configs", default=10, show_default=True, type=click.IntRange(1, 100_000))
@click.option(
    "--config",
    "configurations",
    multiple=True,
    metavar="A=1,B=2",
    help="Run this one instead of a sample; repeatable.",
)
@click.option("--repeats", default=5, show_default=True, type=click.IntRange(1, 1000))
@click.option("--baselines", is_flag=True, help="Time scipy, torch, numba, MKL and taco too.")
@threads_option
@program_options()
@click.option("--seed", default=0, show_default=True, help="Seed of the sample and the order.")
@json_option
def measure_verb(db: str, matrices: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Run the default and other configurations of each MATRIX on this machine, into DB.

    MATRIX is a file, or the name or id of a pattern whose structure DB has; with --op nest it is a
    program (.c, .sdfg, .json) whose nests are all measured. Without --config, --configs random
    configurations run. Results before Ctrl-C are kept. Reasons of failures are shown once each;
    ends with code 1 if nothing ran.

    \b
    Example:
      embeddb measure runs.db A.mtx B.npz --platform cpu --op spmm:128 --configs 40
      embeddb measure runs.db A.mtx --platform cpu --op spmm:128 --config "order=ijk,format=csr,..."
      embeddb measure runs.db gemm.c --platform nest-cpu --op nest -D N=512 --configs 40
    """
    from indexer.measure import Machine, MeasureRequest, has_baselines, measure_sample
    from indexer.runners.base import RunOptions

    repeats = options["repeats"]
    request = MeasureRequest(
        op=Op.parse(options["op"]),
        given=options["configurations"],
        configs=options["configs"],
        seed=options["seed"],
        baselines=options["baselines"],
    )
    threads = options["threads"]
    run_options = RunOptions(repeats=repeats, max_repeats=max(25, repeats), threads=threads)
    documents = []
    with open_database(db) as opened, Progress() as progress:
        runner, here = runner_here(opened.platform(options["platform"]), threads)
        machine = Machine(opened.index, runner, here, run_options)
        for text in matrices:
            for subject in resolve_workloads(
                opened, text, request.op, options["defines"], options["index_matrix"]
            ):
                whole = _whole(opened, subject)
                documents.append(measure_sample(machine, request, whole, progress).document())
            if request.baselines and not has_baselines(machine):
                note(f"no baselines: {here.name} has none")
    if as_json:
        emit(documents)
    else:
        for document in documents:
            _show(document, drawn=not options["configurations"])
    _refuse_if_nothing_ran(documents)


def _refuse_if_nothing_ran(documents: Sequence[dict[str, Any]]) -> None:
    """Raises: InputError if every configuration of every matrix failed."""
    failures = [failure for document in documents for failure in document["failures"]]
    count = sum(failure["configs"] for failure in failures)
    if failures and count == sum(len(document["configs"]) for document in documents):
        raise InputError(
            f"nothing ran: {plural(count, 'configuration')} failed",
            where=documents[0]["platform"],
        )


def _whole(db: Database, subject: Workload | WorkloadInfo) -> Workload:
    workload = db.store.workload(subject.id) if isinstance(subject, WorkloadInfo) else subject
    if workload is None:
        raise NothingFound(
            f"{subject.name}: its structure is not in the database, which measuring needs",
            hint="give the file",
        )
    return workload


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
    say(f"{plural(len(configs), 'configuration')} measured and stored{more}")
    for failure in document["failures"][:_SHOWN]:
        say(
            f"  {failure['configs']:,} {failure['status']}: {failure['error'] or 'no reason given'}"
        )
    if drawn and ran:
        say("random sample: `embeddb query ... --measure` runs top-ranked configurations instead")
    say()
