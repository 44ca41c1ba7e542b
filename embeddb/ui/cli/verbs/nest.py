"""`nest import|show|measure|count`: loop nests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from itertools import count, islice, zip_longest
from pathlib import Path
from typing import Any

import click

from embeddb.core.config import Config, Op
from embeddb.core.errors import NestError, NothingFound, UsageError
from embeddb.core.server_url import is_server_url
from embeddb.core.wording import plural
from embeddb.nests.check import canonical_schedule
from embeddb.nests.counters import SOURCES
from embeddb.nests.nest import Nest, iterations
from embeddb.nests.nest_text import nest_text
from embeddb.nests.schedule import Schedule
from embeddb.platforms.platform import load_platform, space_of
from embeddb.ui.cli import option
from embeddb.ui.cli.arguments import (
    database_to_fill,
    defined,
    extracted,
    machine_here,
    open_database,
    read_matrices,
)
from embeddb.ui.cli.output import Progress, emit, note, say, table
from embeddb.ui.cli.workload_text import (
    added_document,
    array_rows,
    dependence_lines,
    lines_words,
    listing,
    loop_words,
)
from indexer.starter import STARTER


@option.verb("import")
@click.argument("db")
@click.argument("files", nargs=-1)
@option.several("--dace", "dace", metavar="PROGRAM.py", help="Run it and read its DaCe graphs.")
@option.programs(several=True)
def import_verb(db: str, files: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Import the loop nests of FILES into DB (created if missing).

    A file is C with #pragma scop (.c), a graph of DaCe (.sdfg) or nests written by embeddb (.json).
    With --matrix there is one nest for each matrix, which fills its index arrays. Runs that DB has
    under the name only are assigned to the imported nests. A program named by --dace is run by the
    interpreter in EMBEDDB_DACE_PYTHON, so name only programs that you trust.

    \b
    Example:
      embeddb nest import nests.db gemm.c stencil.sdfg
      embeddb nest import nests.db gemm.c -D N=512 -D M=64
      embeddb nest import nests.db spmm.c -D K=512 --matrix A.mtx
    """
    from indexer.add import add_coded

    nests, notes, lines = _read(files, options)
    with database_to_fill(db) as opened, Progress() as progress:
        done = add_coded(opened.index, nests, progress=progress)
    for line in notes:
        note(line)
    if as_json:
        document = partial(_import_document, lines=lines)
        emit({**added_document(db, done, document), "notes": notes})
        return
    states = [(nest, "added") for nest in done.added] + [(nest, "known") for nest in done.stored]
    rows = []
    for nest, word in states:
        where = "{}-{}".format(*lines[nest.id]) if nest.id in lines else "-"
        rows.append((nest.name, where, str(nest.sizes), len(nest.body), nest.id, word))
    table(("nest", "lines", "sizes", "statements", "id", ""), rows)
    say(f"{db}: {plural(len(done.added), 'nest')} added, {len(done.stored):,} already stored")
    if done.adopted_runs:
        say(f"{plural(done.adopted_runs, 'run')} of stubs moved to their nest")


def _read(
    files: tuple[str, ...], options: Mapping[str, Any]
) -> tuple[list[Nest], list[str], dict[str, tuple[int, int]]]:
    """The nests of all files; notes on skipped parts, by file; first and last line in a source
    text, by nest id.

    Raises: UsageError without a file; NestError for one that cannot be read or has no nest.
    """
    dace: tuple[str, ...] = options["dace"]
    if not files and not dace:
        raise UsageError("which program?", hint="name files, or a Python program with --dace")
    constants, matrices = defined(options["defines"]), read_matrices(options["index_matrix"])
    nests: list[Nest] = []
    notes: list[str] = []
    lines: dict[str, tuple[int, int]] = {}
    for file in (*files, *dace):
        if not Path(file).is_file():
            raise NestError("no such file", where=file)
        if file not in dace and file.endswith(".py"):
            raise NestError(
                "a Python program must be run to be read", where=file, hint=f"--dace {file}"
            )
        for matrix in matrices:
            alone = len(files) + len(dace) == 1
            program = extracted(file, constants, matrix, alone=alone)
            if not program.nests:
                raise NestError("has no loop nest", where=file, hint="; ".join(program.notes))
            nests += program.nests
            lines |= {n.id: at for n, at in zip(program.nests, program.lines, strict=False)}
            notes += [f"{file}: {line}" for line in program.notes]
    return nests, notes, lines


def _import_document(nest: Nest, lines: Mapping[str, tuple[int, int]]) -> dict[str, object]:
    source = {"lines": list(lines[nest.id])} if nest.id in lines else {}
    sizes = dict(nest.sizes.named)
    return {"id": nest.id, "name": nest.name, "group": nest.group, "sizes": sizes, **source}


@option.verb("show")
@click.argument("place", metavar="DB|FILE")
@click.argument("name", default="")
@click.option(
    "--as", "form", default="text", type=click.Choice(["text", "json", "c"]), help="Output format."
)
@option.text("--config", "configuration", metavar="A=1,B=2", help="Apply this schedule.")
@option.programs()
def show_verb(place: str, name: str, form: str, as_json: bool, **options: Any) -> None:
    """Show loops, statements, arrays and dependences of a nest: NAME (or id) in DB, or in a program
    FILE, where a single nest needs no name.

    --as json is a file that embeddb reads, --as c a C program that runs the nest; --config applies
    a configuration of nest-cpu.

    \b
    Example:
      embeddb nest show nests.db gemm
      embeddb nest show gemm.c -D N=64 --as json
      embeddb nest show nests.db gemm --as c --config 'tile_2=32,parallel=outer,schedule=static'
    """
    nest = _nest(place, name, options["defines"], options["index_matrix"])
    schedule = _schedule(nest, options["configuration"])
    if as_json:
        fields = ("name", "type", "shape", "fill", "used")
        turns = enumerate(zip(nest.trips, loop_words(nest), strict=True))
        emit(
            {
                "id": nest.id,
                "name": nest.name,
                "group": nest.group,
                "sizes": dict(nest.sizes.named),
                "loops": [
                    {"name": nest.loop_name(at), "trip": trip, "turns": word}
                    for at, (trip, word) in turns
                ],
                "arrays": [dict(zip(fields, row, strict=True)) for row in array_rows(nest)],
                "dependences": dependence_lines(nest),
                "listing": listing(nest, schedule).splitlines(),
                "schedule": None if schedule is None else dict(schedule.config),
                "nest": json.loads(nest_text(nest)),
            }
        )
    elif form == "json":
        say(nest_text(nest).decode())
    elif form == "c":
        from indexer.runners.nest_code.in_place import c_program

        click.echo(c_program(nest, schedule or canonical_schedule(nest)))
    else:
        _show(nest, schedule)


#: Suffixes of programs, which no database has.
_PROGRAMS = (".c", ".json", ".py", ".sdfg")


def _nest(place: str, name: str, defines: tuple[str, ...], index_matrix: str) -> Nest:
    """Raises: NestError for a file that cannot be read; NothingFound for a nest that is not stored,
    or by name only; UsageError for a missing or superfluous name."""
    missing = not (place == STARTER or is_server_url(place) or Path(place).exists())
    if missing and (not name or Path(place).suffix.lower() in _PROGRAMS):
        raise NestError("no such file", where=place)
    if not Path(place).is_file():
        if defines or index_matrix or not name:
            why = f"which nest of {place}?" if not name else "-D and --matrix are for a program"
            raise UsageError(why, hint="embeddb nest show DB NAME, or FILE -D N=64")
        with open_database(place, readonly=True) as opened:
            info = opened.find(name, kind="nest")
            nest = opened.store.nest(info.id)
        if nest is None:
            what = "stored by name only" if info.kind == "nest" else "a matrix"
            raise NothingFound(f"{name} is {what}", hint="`embeddb nest import` adds nests")
        return nest
    if place.endswith(".py"):
        hint = f"embeddb nest import DB --dace {place}"
        raise NestError("a Python program must be run to be read", where=place, hint=hint)
    (matrix,) = read_matrices([index_matrix] if index_matrix else [])
    program = extracted(place, defined(defines), matrix, alone=True)
    for line in program.notes:
        note(f"{place}: {line}")
    fits = [nest for nest in program.nests if name in ("", nest.name, nest.id)]
    if len(fits) == 1:
        return fits[0]
    lines = zip_longest(program.nests, program.lines[: len(program.nests)])
    names = ", ".join(
        f"{nest.name} ({lines_words(at)})" if at else nest.name for nest, at in islice(lines, 20)
    )
    if not fits:
        raise NothingFound(f"{place}: no nest {name!r}", hint=f"there are: {names or 'none'}")
    raise UsageError(f"{place} has {len(fits)} nests", hint=f"name one: {names}")


def _schedule(nest: Nest, text: str) -> Schedule | None:
    """The schedule of a configuration; unset parameters are those of the canonical schedule.
    Raises: UsageError for a configuration that is none of nest-cpu, or not legal for the nest."""
    if not text:
        return None
    config = Config.parse(text)
    space = space_of(load_platform("nest-cpu"), Op("nest"), nest)
    try:
        schedule = Schedule.of(config, nest.depth)
        whole = space.canonical(Config({**schedule.config, **config}))
        reason = space.reason(whole)
    except (TypeError, ValueError):
        raise UsageError(f"{config} is no schedule of {nest.depth} loops") from None
    if reason is not None:
        raise UsageError(f"{config} is not legal: {reason}")
    return Schedule.of(whole, nest.depth)


def _show(nest: Nest, schedule: Schedule | None) -> None:
    turns, all_turns = _turns(nest)
    say(
        f"{nest.name or 'a nest'} ({nest.id}): {' x '.join(turns)} turns; "
        f"{all_turns} iterations of the body"
    )
    say()
    for line in listing(nest, schedule).splitlines():
        say(f"  {line}")
    say()
    loops = zip(turns, loop_words(nest), strict=True)
    rows = [(nest.loop_name(at), trip, word) for at, (trip, word) in enumerate(loops)]
    table(("loop", "iterations", "order"), rows)
    say()
    table(("array", "type", "shape", "initial", "used"), array_rows(nest))
    lines = dependence_lines(nest)
    if lines:
        say()
        say("dependences between iterations:")
        for line in lines:
            say(f"  {line}")


def _turns(nest: Nest) -> tuple[list[str], str]:
    """Iterations of each loop for fixed outer ones, on average, and of the body."""
    totals = iterations(nest.loops)
    if totals is None:
        varying = [bool(loop.lower.loops | loop.upper.loops) for loop in nest.loops]
        about = ["about " * varies + str(n) for varies, n in zip(varying, nest.trips, strict=True)]
        return about, f"about {nest.points:,}"
    means = (n / outer for n, outer in zip(totals, (1, *totals), strict=False))
    return [f"{mean:.12g}" if mean == int(mean) else f"{mean:.4g}" for mean in means], (
        f"{totals[-1]:,}"
    )


# -- measurements ----------------------------------------------------------------------------------


_size_option = option.several(
    "--size", "sizes", metavar="medium", help="Size of the shipped programs."
)


@option.verb("measure")
@click.argument("db")
@click.argument("programs", nargs=-1, metavar="[PROGRAM...]")
@_size_option
@option.programs(several=True)
@option.text("--platform", default="nest-cpu")
@option.number("--designed", default=36, least=1, most=100_000)
@option.number("--searched", default=60, least=0, most=100_000)
@option.number("--repeats", default=3, least=1, most=1000)
@option.threads
@click.option("--seed", default=0, show_default=True, help="Seed of the designs and the search.")
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
    from indexer.measure import MeasureJob
    from indexer.nest_runs import NestDesign

    nests = requested_nests(programs, options["sizes"], options["defines"], options["index_matrix"])
    design = NestDesign(**{name: options[name] for name in ("designed", "searched", "seed")})
    effort = {name: options[name] for name in ("repeats", "threads")}
    with database_to_fill(db) as opened, Progress() as progress:
        machine = machine_here(opened, opened.platform(options["platform"]), **effort)
        tally = MeasureJob(machine, design).run(nests, progress)
        embed(opened.index, progress=progress)
    if as_json:
        counts = {"known": tally.earlier, "measured": tally.measured, "runs": tally.runs}
        emit({"nests": len(nests), **counts})
        return
    earlier = f", {plural(tally.earlier, 'nest')} measured before" if tally.earlier else ""
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
                n
                for one in patterns
                for n in extracted(program, constants, one, alone=len(programs) == 1).nests
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


#: Options of `count` that are about programs.
_REQUESTS = ("sizes", "defines", "index_matrix")


@option.verb("count")
@click.argument("db")
@click.argument("programs", nargs=-1, metavar="[PROGRAM...]")
@_size_option
@option.programs(several=True)
@option.limit("--synthetic", most=1_000_000, help="Count this many random nests.")
@option.text("--platform", default="nest-cpu")
@option.choice("--source", among=["auto", *SOURCES])
@option.threads
def count_verb(db: str, programs: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Count hardware events of the loop nests of PROGRAMs in canonical schedule, into DB.

    PROGRAMs are as in `nest measure`; without any, the nests in DB are counted, so that they can be
    neighbours by their counters, or with --size the shipped programs. --synthetic N counts N random
    nests instead, the training data of `train nests`. If the processor has no counters (--source
    perf), the nest is built with a model of the caches in place of its accesses (--source model);
    the source is stored. After Ctrl-C the same command continues.

    \b
    Example:
      embeddb nest count nests.db
      embeddb nest count nests.db --size medium
      embeddb nest count training.db --synthetic 8500
    """
    from indexer.nest_runs import CountJob
    from indexer.training.nests.synthetic import synthetic

    requested = [programs, *(options[name] for name in _REQUESTS)]
    nests: list[Nest] = []
    if options["synthetic"]:
        nests = list(islice(map(synthetic, count()), options["synthetic"]))
    elif any(requested):
        nests = requested_nests(programs, *(options[name] for name in _REQUESTS))
    # For training nests, three quarters of the time would go to the check against numpy.
    check = not options["synthetic"]
    effort = {"repeats": 3, "most": 9, "threads": options["threads"], "check": check}
    opening = database_to_fill if nests else open_database
    with opening(db) as opened, Progress() as progress:
        machine = machine_here(opened, opened.platform(options["platform"]), **effort)
        if not nests:
            infos = (info for info in opened.store.patterns() if info.kind == "nest")
            nests = [nest for info in infos if (nest := opened.store.nest(info.id)) is not None]
        if not nests:
            raise NothingFound(f"{db} has no nest", hint="name programs, or `embeddb nest import`")
        done = CountJob(machine, options["source"]).run(nests, progress)
    if as_json:
        emit({"nests": len(nests), "counted": done, "platform": machine.here.id})
        return
    if options["source"] == "model":
        note("counters of modelled caches, not of this processor")
    before = "; the others were counted before" if done < len(nests) else ""
    say(f"{plural(done, 'nest')} counted of {len(nests):,}{before}")


@click.group("nest", commands=[import_verb, show_verb, measure_verb, count_verb])
def nest_verb() -> None:
    """Loop nests of programs: import, show, measure, count.

    \b
    Example:
      embeddb nest import nests.db gemm.c -D N=512
      embeddb nest show nests.db gemm
      embeddb nest measure nests.db
      embeddb nest count training.db --synthetic 8500
    """
