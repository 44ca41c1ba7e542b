"""`measure`: configurations of a few matrices, run here and written back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError, NothingFound
from embeddb.core.records import WorkloadInfo
from embeddb.core.wording import duration, factor, plural
from embeddb.ui.cli.arguments import (
    known_subjects,
    open_database,
    program_options,
    runner_here,
    threads_option,
)
from embeddb.ui.cli.output import Progress, emit, json_option, note, say, table

if TYPE_CHECKING:
    from embeddb.core.workload import Workload
    from embeddb.database import Database

#: Lines of the table for people; `--json` has all.
_SHOWN = 10


@click.command()
@click.argument("db")
@click.argument("matrices", nargs=-1, required=True, metavar="MATRIX...")
@click.option("--platform", required=True, help="A platform with a runner: cpu, cuda.")
@click.option("--op", required=True, help="KERNEL:WIDTH, as spmm:128.")
@click.option("--configs", default=10, show_default=True, type=click.IntRange(1, 100_000))
@click.option("--config", "given", multiple=True, metavar="A=1,B=2", help="Instead of a sample.")
@click.option("--repeats", default=5, show_default=True, type=click.IntRange(1, 1000))
@click.option("--baselines", is_flag=True, help="Time scipy, torch, numba, MKL and taco too.")
@threads_option
@program_options()
@click.option("--seed", default=0, show_default=True, help="Of the sample and the order.")
@json_option
def measure_verb(db: str, matrices: tuple[str, ...], as_json: bool, **asked: Any) -> None:
    """Run the default and other configurations of each MATRIX on this machine, into DB.

    MATRIX is a file, or name or id of a pattern whose structure DB has; with --op nest it is a
    program (.c, .sdfg, .json), each nest of which is measured. Without --config, --configs
    configurations drawn at random are run. What was measured before Ctrl-C is kept. Reasons of
    failures are shown once each; ends with code 1 if nothing ran.

    \b
    Example:
      embeddb measure runs.db A.mtx B.npz --platform cpu --op spmm:128 --configs 40
      embeddb measure runs.db A.mtx --platform cpu --op spmm:128 --config "order=ijk,format=csr,..."
      embeddb measure runs.db gemm.c --platform nest-cpu --op nest -D N=512 --configs 40
    """
    from indexer.measure import Machine, MeasureRequest, has_baselines, measure_sample
    from indexer.runners.base import RunOptions

    repeats = asked["repeats"]
    request = MeasureRequest(
        op=Op.parse(asked["op"]),
        given=asked["given"],
        configs=asked["configs"],
        seed=asked["seed"],
        baselines=asked["baselines"],
    )
    threads = asked["threads"]
    options = RunOptions(repeats=repeats, max_repeats=max(25, repeats), threads=threads)
    documents = []
    with open_database(db) as opened, Progress() as progress:
        runner, here = runner_here(opened.platform(asked["platform"]), threads)
        machine = Machine(opened.index, runner, here, options)
        for text in matrices:
            for subject in known_subjects(
                opened, text, request.op, asked["defines"], asked["held"]
            ):
                whole = _whole(opened, subject)
                documents.append(measure_sample(machine, request, whole, progress).document())
            if request.baselines and not has_baselines(machine):
                note(f"no baselines: {here.name} has none to compare with")
    if as_json:
        emit(documents)
    else:
        for document in documents:
            _show(document, drawn=not asked["given"])
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
    found = db.store.workload(subject.id) if isinstance(subject, WorkloadInfo) else subject
    if found is None:
        raise NothingFound(
            f"{subject.name}: its structure is not in the database, so it cannot be measured",
            hint="give the file",
        )
    return found


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
    more = f", {failed:,} of them failed" if failed else ""
    say(f"{plural(len(configs), 'configuration')} measured and stored{more}")
    for failure in document["failures"][:_SHOWN]:
        say(
            f"  {failure['configs']:,} {failure['status']}: {failure['error'] or 'no reason given'}"
        )
    if drawn and ran:
        say("drawn at random: `embeddb query ... --measure` runs those that promise most instead")
    say()
