"""`nest show`: one loop nest, for people and for programs."""

from __future__ import annotations

import json
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import click

from embeddb.core.config import Config, Op
from embeddb.core.errors import NestError, NothingFound, UsageError
from embeddb.nests.check import canonical_schedule
from embeddb.nests.nest import Nest
from embeddb.nests.nest_text import nest_text
from embeddb.nests.schedule import Schedule
from embeddb.platforms.of_subject import space_of
from embeddb.platforms.platform import load_platform
from embeddb.ui.cli.arguments import (
    defined,
    matrices_held,
    open_database,
    program_options,
)
from embeddb.ui.cli.nest_text import lines_words
from embeddb.ui.cli.output import emit, json_option, say, table
from embeddb.ui.listing import array_rows, dependence_lines, listing, loop_words

__all__ = ["show_verb"]


@click.command("show")
@click.argument("place", metavar="DB|FILE")
@click.argument("name", default="")
@click.option(
    "--as", "form", default="text", type=click.Choice(["text", "json", "c"]), help="How to show it."
)
@click.option("--config", "given", default="", metavar="A=1,B=2", help="As this schedule makes it.")
@program_options()
@json_option
def show_verb(
    place: str, name: str, form: str, given: str, defines: tuple[str, ...], held: str, as_json: bool
) -> None:
    """Loops, statements, arrays and dependences of a nest: the one called NAME (or of that id) in
    DB, or in a program FILE, where a single nest needs no name.

    --as json is the nest as a file that embeddb reads, --as c a C program that runs it; with
    --config, as that configuration of nest-cpu makes it.

    \b
    Example:
      embeddb nest show nests.db gemm
      embeddb nest show gemm.c -D N=64 --as json
      embeddb nest show nests.db gemm --as c --config 'tile_2=32,parallel=outer,schedule=static'
    """
    nest = _nest(place, name, defines, held)
    schedule = _schedule(nest, given)
    if as_json:
        emit(_document(nest, schedule))
    elif form == "json":
        say(nest_text(nest).decode())
    elif form == "c":
        from indexer.runners.nest_code.program import c_program

        click.echo(c_program(nest, schedule or canonical_schedule(nest)))
    else:
        _show(nest, schedule)


def _nest(place: str, name: str, defines: tuple[str, ...], held: str) -> Nest:
    """Raises: NestError for a file that cannot be read; NothingFound for a nest that is not there,
    or whose code is not; UsageError where a name is lacking or superfluous."""
    if Path(place).is_file():
        return _of_file(place, name, defines, held)
    if defines or held or not name:
        why = f"which nest of {place}?" if not name else "-D and --matrix are for a program"
        raise UsageError(why, hint="embeddb nest show DB NAME, or FILE -D N=64")
    with open_database(place, readonly=True) as opened:
        found = opened.find(name, kind="nest")
        nest = opened.store.nest(found.id)
    if nest is None:
        what = "known by its name only" if found.kind == "nest" else "a matrix"
        raise NothingFound(f"{name} is {what}", hint="`embeddb nest import` adds nests")
    return nest


def _of_file(place: str, name: str, defines: tuple[str, ...], held: str) -> Nest:
    from indexer.frontends import extract

    if place.endswith(".py"):
        hint = f"embeddb nest import DB --dace {place}"
        raise NestError("is not read without being run", where=place, hint=hint)
    (matrix,) = matrices_held([held] if held else [])
    found = extract(place, defines=defined(defines), matrix=matrix)
    fits = [nest for nest in found.nests if name in ("", nest.name, nest.id)]
    if len(fits) == 1:
        return fits[0]
    lines = zip_longest(found.nests, found.lines[: len(found.nests)])
    names = ", ".join(
        f"{nest.name} ({lines_words(at)})" if at else nest.name for nest, at in islice(lines, 20)
    )
    if not fits:
        raise NothingFound(f"{place}: no nest {name!r}", hint=f"there are: {names or 'none'}")
    raise UsageError(f"{place} has {len(fits)} nests", hint=f"name one: {names}")


def _schedule(nest: Nest, given: str) -> Schedule | None:
    """What is not given is as in the nest as it stands. Raises: UsageError for a configuration
    that is none of nest-cpu, or not legal for the nest."""
    if not given:
        return None
    config = Config.parse(given)
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


def _document(nest: Nest, schedule: Schedule | None) -> dict[str, Any]:
    fields = ("name", "type", "shape", "fill", "used")
    return {
        "id": nest.id,
        "name": nest.name,
        "group": nest.group,
        "sizes": dict(nest.sizes.named),
        "loops": [
            {"name": nest.loop_name(at), "trip": trip, "turns": word}
            for at, (trip, word) in enumerate(zip(nest.trips, loop_words(nest), strict=True))
        ],
        "arrays": [dict(zip(fields, row, strict=True)) for row in array_rows(nest)],
        "dependences": dependence_lines(nest),
        "listing": listing(nest, schedule).splitlines(),
        "schedule": None if schedule is None else dict(schedule.config),
        "nest": json.loads(nest_text(nest)),
    }


def _show(nest: Nest, schedule: Schedule | None) -> None:
    say(f"{nest.name or 'a nest'} ({nest.id}): {nest.sizes}; the body runs {nest.points:,} times")
    say()
    for line in listing(nest, schedule).splitlines():
        say(f"  {line}")
    say()
    loops = zip(nest.trips, loop_words(nest), strict=True)
    rows = [(nest.loop_name(at), trip, word) for at, (trip, word) in enumerate(loops)]
    table(("loop", "turns", "to each other"), rows)
    say()
    table(("array", "type", "shape", "holds", "used"), array_rows(nest))
    found = dependence_lines(nest)
    if found:
        say()
        say("dependences between turns:")
        for line in found:
            say(f"  {line}")
