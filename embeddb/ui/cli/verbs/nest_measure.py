"""`nest measure|count`: schedules of loop nests run on this machine, and their counters."""

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
    matrices_held,
    open_database,
    program_options,
    runner_here,
    threads_option,
)
from embeddb.ui.cli.output import Progress, emit, json_option, note, say


@click.command("measure")
@click.argument("db")
@click.argument("programs", nargs=-1, metavar="[PROGRAM...]")
@click.option("--size", "sizes", multiple=True, metavar="medium", help="Of our own programs.")
@program_options(several=True)
@click.option("--platform", default="nest-cpu", show_default=True)
@click.option("--designed", default=36, show_default=True, type=click.IntRange(1, 100_000))
@click.option("--searched", default=60, show_default=True, type=click.IntRange(0, 100_000))
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1, 1000))
@threads_option
@click.option("--seed", default=0, show_default=True, help="Of the designs and the search.")
@json_option
def measure_verb(db: str, programs: tuple[str, ...], as_json: bool, **asked: Any) -> None:
    """Measure the loop nests of PROGRAMs here, into DB, made if there is none.

    A PROGRAM is a file (.c, .sdfg, .json) or the name of one of the 70 programs that embeddb comes
    with; without any, all of these are measured (about half an hour at the medium size on two
    cores). Of each nest the same designed schedules run, then a search goes on from the nest as it
    stands. Nests that were done before are left out, so after Ctrl-C the same command goes on.

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

    nests = programs_asked(programs, asked["sizes"], asked["defines"], asked["held"])
    repeats = asked["repeats"]
    threads = asked["threads"]
    options = RunOptions(repeats=repeats, max_repeats=max(25, repeats), threads=threads)
    design = NestDesign(designed=asked["designed"], searched=asked["searched"], seed=asked["seed"])
    with database_to_fill(db) as opened, Progress() as progress:
        runner, here = runner_here(opened.platform(asked["platform"]), threads)
        tally = MeasureJob(Machine(opened.index, runner, here, options), design).run(
            nests, progress
        )
        embed(opened.index, progress=progress)
    if as_json:
        counts = {"known": tally.known, "measured": tally.measured, "runs": tally.runs}
        emit({"nests": len(nests), **counts})
        return
    known = f", {plural(tally.known, 'nest')} done before" if tally.known else ""
    say(f"{plural(tally.measured, 'nest')} measured in {plural(tally.runs, 'run')}{known}")


def programs_asked(
    programs: tuple[str, ...],
    sizes: tuple[str, ...],
    defines: tuple[str, ...],
    matrices: tuple[str, ...] = (),
) -> list[Nest]:
    """The nests of files and of our own programs, each once; with matrices, of each holding each.

    Raises: UsageError for a program or size nobody has; NestError and MatrixError for a file that
    cannot be read.
    """
    from indexer.frontends import read_nests
    from indexer.programs import SIZES, nests_of, program_names

    chosen = sizes or ("medium",)
    if unknown := [size for size in chosen if size not in SIZES]:
        raise UsageError(f"no size {unknown[0]!r}", hint=f"sizes: {', '.join(SIZES)}")
    if matrices and (sizes or not programs):
        raise UsageError(
            "the sizes are those of the matrix" if sizes else "which program holds the matrix?",
            hint="embeddb nest measure DB spmm --matrix A.mtx, perhaps with -D K=512",
        )
    found: dict[str, Nest] = {}
    held, given = matrices_held(matrices), defined(defines)
    for program in programs or tuple(program_names()):
        if Path(program).is_file():
            nests = [n for one in held for n in read_nests(program, defines=given, matrix=one)]
        elif matrices and program in program_names():
            nests = [n for one in held for n in nests_of(program, given, matrix=one)]
        elif program in program_names():
            nests = [nest for size in chosen for nest in nests_of(program, size)]
        else:
            raise UsageError(
                f"{program}: no file, and none of our programs",
                hint=f"programs: {', '.join(program_names())}",
            )
        found |= {nest.id: nest for nest in nests}
    return list(found.values())


@click.command("count")
@click.argument("db")
@click.argument("programs", nargs=-1, metavar="[PROGRAM...]")
@click.option("--size", "sizes", multiple=True, metavar="medium", help="Of our own programs.")
@program_options(several=True)
@click.option(
    "--synthetic", default=0, type=click.IntRange(0, 1_000_000), help="So many made by chance."
)
@click.option("--all", "everything", is_flag=True, help="Every nest that DB holds.")
@click.option("--platform", default="nest-cpu", show_default=True)
@click.option("--source", default="auto", show_default=True, type=click.Choice(["auto", *SOURCES]))
@threads_option
@json_option
def count_verb(db: str, programs: tuple[str, ...], as_json: bool, **asked: Any) -> None:
    """Count what the loop nests of PROGRAMs do under their canonical schedule, into DB.

    PROGRAMs are as in `nest measure`; --synthetic N counts N nests made by chance instead, which is
    what `train nests` learns from, and --all the nests of DB, so that they can be neighbours by
    their counters. Where the processor has no counters (--source perf), the nest is
    built with a model of the caches in place of its accesses (model); which of both is kept. After
    Ctrl-C the same command goes on.

    \b
    Example:
      embeddb nest count nests.db
      embeddb nest count nests.db --all
      embeddb nest count training.db --synthetic 8500
    """
    from indexer.measure import Machine
    from indexer.nest_runs import CountJob
    from indexer.runners.base import RunOptions

    everything = asked["everything"]
    if everything and (programs or asked["synthetic"]):
        raise UsageError("--all counts the nests of DB, and no others beside them")
    nests = [] if everything else _given(programs, asked)
    # Of nests that only teach, three quarters of the time would go to what numpy says of them.
    check = not asked["synthetic"]
    options = RunOptions(repeats=3, max_repeats=9, threads=asked["threads"], check=check)
    opening = open_database if everything else database_to_fill
    with opening(db) as opened, Progress() as progress:
        runner, here = runner_here(opened.platform(asked["platform"]), asked["threads"])
        nests = _known(opened) if everything else nests
        job = CountJob(Machine(opened.index, runner, here, options), asked["source"])
        done = job.run(nests, progress)
    if as_json:
        emit({"nests": len(nests), "counted": done, "platform": here.id})
        return
    if asked["source"] == "model":
        note("counters of modelled caches, not of this processor")
    say(f"{plural(done, 'nest')} counted of {len(nests):,}; the others were before")


def _given(programs: tuple[str, ...], asked: dict[str, Any]) -> list[Nest]:
    """Raises: as `programs_asked`."""
    from indexer.training.nests.synthetic import synthetic

    if asked["synthetic"]:
        return list(islice(map(synthetic, count()), asked["synthetic"]))
    return programs_asked(programs, asked["sizes"], asked["defines"], asked["held"])


def _known(db: Database) -> list[Nest]:
    """Every nest whose structure a database has."""
    infos = (info for info in db.store.patterns() if info.kind == "nest")
    return [nest for info in infos if (nest := db.store.nest(info.id)) is not None]
