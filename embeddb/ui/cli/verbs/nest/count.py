"""`nest count`: counters of loop nests, from this machine's processor or modelled caches."""

from __future__ import annotations

from itertools import count, islice
from typing import Any

import click

from embeddb.core.errors import UsageError
from embeddb.core.wording import plural
from embeddb.database import Database
from embeddb.nests.counters import SOURCES
from embeddb.nests.nest import Nest
from embeddb.ui.cli.arguments import (
    database_to_fill,
    open_database,
    program_options,
    runner_here,
    threads_option,
)
from embeddb.ui.cli.output import Progress, emit, json_option, note, say
from embeddb.ui.cli.verbs.nest.measure import programs_asked

__all__ = ["count_verb"]


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
        job = CountJob(opened.index, runner, here, options, asked["source"])
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
