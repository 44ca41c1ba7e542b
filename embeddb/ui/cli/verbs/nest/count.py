"""`nest count`: counters of loop nests, from this machine's processor or modelled caches."""

from __future__ import annotations

from itertools import count, islice
from typing import Any

import click

from embeddb.core.wording import plural
from embeddb.nests.counters import SOURCES
from embeddb.ui.cli.arguments import open_database, program_options, runner_here
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
@click.option("--platform", default="nest-cpu", show_default=True)
@click.option("--source", default="auto", show_default=True, type=click.Choice(["auto", *SOURCES]))
@click.option("--threads", default=0, type=click.IntRange(0, 1024), help="0: all there are.")
@json_option
def count_verb(db: str, programs: tuple[str, ...], as_json: bool, **asked: Any) -> None:
    """Count what the loop nests of PROGRAMs do under their canonical schedule, into DB.

    PROGRAMs are as in `nest measure`; --synthetic N counts N nests made by chance instead, which is
    what `train nests` learns from. Where the processor has no counters (--source perf), the nest is
    built with a model of the caches in place of its accesses (model); which of both is kept. After
    Ctrl-C the same command goes on.

    \b
    Example:
      embeddb nest count nests.db
      embeddb nest count training.db --synthetic 8500
    """
    from indexer.nests.counts import CountJob
    from indexer.runners.base import RunOptions
    from indexer.training.nests.synthetic import synthetic

    if asked["synthetic"]:
        nests = list(islice(map(synthetic, count()), asked["synthetic"]))
    else:
        nests = programs_asked(programs, asked["sizes"], asked["defines"], asked["held"])
    options = RunOptions(repeats=3, max_repeats=9, threads=asked["threads"])
    with open_database(db, create=True) as opened, Progress() as progress:
        runner, here = runner_here(opened.platform(asked["platform"]), asked["threads"])
        job = CountJob(opened, runner, here, options, asked["source"])
        done = job.run(nests, progress)
    if as_json:
        emit({"nests": len(nests), "counted": done, "platform": here.id})
        return
    if asked["source"] == "model":
        note("counters of modelled caches, not of this processor")
    say(f"{plural(done, 'nest')} counted of {len(nests):,}; the others were before")
