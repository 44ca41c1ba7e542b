"""`nest measure|count`: measure schedules and hardware counters of loop nests on this machine."""

from __future__ import annotations

from itertools import count, islice
from pathlib import Path
from typing import Any

import click

from embeddb.core.errors import UsageError
from embeddb.core.wording import plural
from embeddb.database import Database
from embeddb.nests.counters import SOURCES
from embeddb.nests.nest import Nest
from embeddb.ui.cli.arguments import (
    database_to_fill,
    defined,
    open_database,
    program_options,
    read_matrices,
    runner_here,
    threads_option,
)
from embeddb.ui.cli.output import Progress, emit, json_option, note, say


@click.command("measure")
@click.argument("db")
@click.argument("programs", nargs=-1, metavar="[PROGRAM...]")
@click.option(
    "--size", "sizes", multiple=True, metavar="medium", help="Size of the shipped programs."
)
@program_options(several=True)
@click.option("--platform", default="nest-cpu", show_default=True)
@click.option("--designed", default=36, show_default=True, type=click.IntRange(1, 100_000))
@click.option("--searched", default=60, show_default=True, type=click.IntRange(0, 100_000))
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1, 1000))
@threads_option
@click.option("--seed", default=0, show_default=True, help="Seed of the designs and the search.")
@json_option
def measure_verb(db: str, programs: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Measure the loop nests of PROGRAMs on this machine, into DB (created if missing).

    A PROGRAM is a file (.c, .sdfg, .json) or one of the 70 programs that ship with embeddb; without
    any, all of these are measured (about half an hour at the medium size on two cores). For each
    nest the same designed schedules run, then a search from the original nest. Nests measured
    before are skipped, so after Ctrl-C the same command continues.

    \b
    Example:
      embeddb nest measure nests.db
      embeddb nest measure nests.db gemm softmax --size small --size large
      embeddb nest measure nests.db mine.c -D N=512 --searched 300
      embeddb nest measure nests.db spmm -D K=512 --matrix A.mtx --matrix B.mtx
    """
    from indexer.embed import embed
    from indexer.measure import Machine, MeasureJob
    from indexer.nest_runs import NestDesign
    from indexer.runners.base import RunOptions

    nests = requested_nests(programs, options["sizes"], options["defines"], options["index_matrix"])
    repeats = options["repeats"]
    threads = options["threads"]
    run_options = RunOptions(repeats=repeats, max_repeats=max(25, repeats), threads=threads)
    design = NestDesign(
        designed=options["designed"], searched=options["searched"], seed=options["seed"]
    )
    with database_to_fill(db) as opened, Progress() as progress:
        runner, here = runner_here(opened.platform(options["platform"]), threads)
        tally = MeasureJob(Machine(opened.index, runner, here, run_options), design).run(
            nests, progress
        )
        embed(opened.index, progress=progress)
    if as_json:
        counts = {"known": tally.known, "measured": tally.measured, "runs": tally.runs}
        emit({"nests": len(nests), **counts})
        return
    earlier = f", {plural(tally.known, 'nest')} measured before" if tally.known else ""
    say(f"{plural(tally.measured, 'nest')} measured in {plural(tally.runs, 'run')}{earlier}")


def requested_nests(
    programs: tuple[str, ...],
    sizes: tuple[str, ...],
    defines: tuple[str, ...],
    matrices: tuple[str, ...] = (),
) -> list[Nest]:
    """The distinct nests of files and shipped programs; with matrices, each nest with each matrix.

    Raises: UsageError for an unknown program or size; NestError and MatrixError for a file that
    cannot be read.
    """
    from indexer.frontends import read_nests
    from indexer.programs import SIZES, nests_of, program_names

    chosen = sizes or ("medium",)
    if unknown := [size for size in chosen if size not in SIZES]:
        raise UsageError(f"no size {unknown[0]!r}", hint=f"sizes: {', '.join(SIZES)}")
    if matrices and (sizes or not programs):
        raise UsageError(
            "--size does not go with --matrix" if sizes else "--matrix needs a program",
            hint="embeddb nest measure DB spmm --matrix A.mtx, perhaps with -D K=512",
        )
    by_id: dict[str, Nest] = {}
    patterns, constants = read_matrices(matrices), defined(defines)
    for program in programs or tuple(program_names()):
        if Path(program).is_file():
            nests = [
                n for one in patterns for n in read_nests(program, defines=constants, matrix=one)
            ]
        elif matrices and program in program_names():
            nests = [n for one in patterns for n in nests_of(program, constants, matrix=one)]
        elif program in program_names():
            nests = [nest for size in chosen for nest in nests_of(program, size)]
        else:
            raise UsageError(
                f"{program}: neither a file nor a shipped program",
                hint=f"programs: {', '.join(program_names())}",
            )
        by_id |= {nest.id: nest for nest in nests}
    return list(by_id.values())


@click.command("count")
@click.argument("db")
@click.argument("programs", nargs=-1, metavar="[PROGRAM...]")
@click.option(
    "--size", "sizes", multiple=True, metavar="medium", help="Size of the shipped programs."
)
@program_options(several=True)
@click.option(
    "--synthetic",
    default=0,
    type=click.IntRange(0, 1_000_000),
    help="Count this many random nests.",
)
@click.option("--all", "everything", is_flag=True, help="Every nest in DB.")
@click.option("--platform", default="nest-cpu", show_default=True)
@click.option("--source", default="auto", show_default=True, type=click.Choice(["auto", *SOURCES]))
@threads_option
@json_option
def count_verb(db: str, programs: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Count hardware events of the loop nests of PROGRAMs in canonical schedule, into DB.

    PROGRAMs are as in `nest measure`; --synthetic N counts N random nests instead, the training
    data of `train nests`, and --all the nests in DB, so that they can be neighbours by their
    counters. If the processor has no counters (--source perf), the nest is built with a model of
    the caches in place of its accesses (--source model); the source is stored. After Ctrl-C the
    same command continues.

    \b
    Example:
      embeddb nest count nests.db
      embeddb nest count nests.db --all
      embeddb nest count training.db --synthetic 8500
    """
    from indexer.measure import Machine
    from indexer.nest_runs import CountJob
    from indexer.runners.base import RunOptions

    everything = options["everything"]
    if everything and (programs or options["synthetic"]):
        raise UsageError("--all counts the nests in DB and takes no other nests")
    nests = [] if everything else _nests_to_count(programs, options)
    # For training nests, three quarters of the time would go to the check against numpy.
    check = not options["synthetic"]
    run_options = RunOptions(repeats=3, max_repeats=9, threads=options["threads"], check=check)
    opening = open_database if everything else database_to_fill
    with opening(db) as opened, Progress() as progress:
        runner, here = runner_here(opened.platform(options["platform"]), options["threads"])
        nests = _stored_nests(opened) if everything else nests
        job = CountJob(Machine(opened.index, runner, here, run_options), options["source"])
        done = job.run(nests, progress)
    if as_json:
        emit({"nests": len(nests), "counted": done, "platform": here.id})
        return
    if options["source"] == "model":
        note("counters of modelled caches, not of this processor")
    say(f"{plural(done, 'nest')} counted of {len(nests):,}; the others were counted before")


def _nests_to_count(programs: tuple[str, ...], options: dict[str, Any]) -> list[Nest]:
    """Synthetic nests or those of programs. Raises: as `requested_nests`."""
    from indexer.training.nests.synthetic import synthetic

    if options["synthetic"]:
        return list(islice(map(synthetic, count()), options["synthetic"]))
    return requested_nests(programs, options["sizes"], options["defines"], options["index_matrix"])


def _stored_nests(db: Database) -> list[Nest]:
    """Nests in a database that have their code."""
    infos = (info for info in db.store.patterns() if info.kind == "nest")
    return [nest for info in infos if (nest := db.store.nest(info.id)) is not None]
