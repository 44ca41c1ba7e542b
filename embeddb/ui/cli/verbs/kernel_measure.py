"""`kernel measure`: tiles and cuts of tensor kernels and programs, run on this machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

import click

from embeddb.core.config import Op
from embeddb.core.errors import NothingFound
from embeddb.core.records import WorkloadInfo
from embeddb.core.wording import plural
from embeddb.database import Database
from embeddb.tensors.tensor_graph import TensorGraph, is_probe
from embeddb.ui.cli.arguments import known_subjects, open_database, runner_here
from embeddb.ui.cli.kernel_text import refuse_if_nothing_ran
from embeddb.ui.cli.output import Progress, emit, json_option, note, say

_MOST_NOTES = 10


def measure_fusions(
    db: Database, subjects: Sequence[TensorGraph], asked: dict[str, Any], *, as_json: bool
) -> None:
    """Measure programs under many cuts, or kernels as they are, and say how it went.

    Raises: RunnerUnavailable without jax; TensorError where none of the programs can be measured.
    """
    from indexer.measure import Machine
    from indexer.runners.base import RunOptions
    from indexer.tensor_runs import FusionJob, FusionRequest

    repeats = asked["repeats"]
    request = FusionRequest(cuts=asked["cuts"], seed=asked["seed"])
    options = RunOptions(repeats=repeats, max_repeats=max(25, repeats), threads=1)
    with Progress() as progress:
        runner, here = runner_here(db.platform(asked["platform"]), 1)
        job = FusionJob(Machine(db.index, runner, here, options), request)
        tally = (job.programs if asked["op"] == "fusion" else job.kernels)(subjects, progress)
    ran = tally.known + tally.partitions + tally.kernels
    if as_json:
        emit(
            {
                "programs" if asked["op"] == "fusion" else "asked": len(subjects),
                "known": tally.known,
                "measured": tally.programs,
                "partitions": tally.partitions,
                "kernels": tally.kernels,
                "long": tally.long,
                "failed": tally.failed,
                "ratio": median(tally.ratios) if tally.ratios else None,
            }
        )
        refuse_if_nothing_ran(ran, tally.failed)
        return
    for name, reason in list(tally.failed.items())[:_MOST_NOTES]:
        note(f"{name}: {reason}")
    if len(tally.failed) > _MOST_NOTES:
        note(f"and {len(tally.failed) - _MOST_NOTES:,} more without a time: --json has them all")
    refuse_if_nothing_ran(ran, tally.failed)
    known = f", {tally.known:,} done before" if tally.known else ""
    partitions = f"{plural(tally.partitions, 'partition')}, " if tally.partitions else ""
    kernels = plural(tally.kernels, "kernel")
    say(f"{partitions}{kernels} measured, {tally.long:,} of 50 µs or more{known}")
    if tally.ratios:
        say(f"kernels in a row take {median(tally.ratios):.2f} times their sum (median)")


#: What is measured, and the platform that it is measured on.
_PLATFORMS = {"tile": "tile-cpu", "fused": "xla-cpu", "fusion": "xla-cpu"}


@click.command("measure")
@click.argument("db")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option("--op", "op", default="tile", show_default=True, type=click.Choice([*_PLATFORMS]))
@click.option("--platform", default="", help="tile-cpu, or xla-cpu for fused and fusion.")
@click.option("--tiles", default=80, show_default=True, type=click.IntRange(1, 100_000))
@click.option("--rounds", default=2, show_default=True, type=click.IntRange(1, 100))
@click.option("--cuts", default=60, show_default=True, type=click.IntRange(0, 100_000))
@click.option("--repeats", default=2, show_default=True, type=click.IntRange(1, 1000))
@click.option("--seed", default=0, show_default=True, help="Of the tiles and cuts.")
@json_option
def measure_verb(db: str, names: tuple[str, ...], as_json: bool, **asked: Any) -> None:
    """Measure the tensor kernels or programs in DB on this machine, on one thread.

    Of each kernel NAME, or of all in DB but probes, --tiles run, the untiled one among them, some
    of every size, in --rounds whose orders are compared: where Kendall's tau of the first two is
    below 0.8 a third follows. Tiles and cuts that ran before are left out, and kernels with nothing
    else left: after Ctrl-C the same command goes on. Those that have no tiles are named with the
    reason.

    With --op fused, kernels are compiled by XLA and timed; with --op fusion programs are, under
    --cuts drawn ones, each of which makes kernels that are timed too.

    \b
    Example:
      embeddb kernel measure tensors.db
      embeddb kernel measure tensors.db --op fusion --cuts 60
      embeddb kernel measure tensors.db mlp/3 mlp/4 --tiles 200 --rounds 3
    """
    asked["platform"] = asked["platform"] or _PLATFORMS[asked["op"]]
    op = Op(asked["op"])
    with open_database(db) as opened:
        opened.platform(asked["platform"]).kernel(op)
        subjects = _asked(opened, names, op)
        if op.name == "tile":
            _tiles(opened, subjects, asked, as_json=as_json)
        else:
            measure_fusions(opened, subjects, asked, as_json=as_json)


def _tiles(
    db: Database, kernels: Sequence[TensorGraph], asked: dict[str, Any], *, as_json: bool
) -> None:
    """Raises: RunnerUnavailable; TensorError where none of them has tiles."""
    from indexer.measure import Machine, MeasureJob
    from indexer.runners.base import RunOptions
    from indexer.tensor_runs import TILE_AGREEMENT, TileDesign

    repeats = asked["repeats"]
    options = RunOptions(repeats=repeats, max_repeats=max(5, repeats), min_time_s=0.002, threads=1)
    design = TileDesign(tiles=asked["tiles"], rounds=asked["rounds"], seed=asked["seed"])
    with Progress() as progress:
        runner, here = runner_here(db.platform(asked["platform"]), 1)
        machine = Machine(db.index, runner, here, options)
        job = MeasureJob(machine, design, design.rounds, TILE_AGREEMENT)
        tally = job.run(kernels, progress)
    taus = [tau for tau in tally.taus if not math.isnan(tau)]
    if as_json:
        emit(
            {
                "kernels": len(kernels),
                "known": tally.known,
                "measured": tally.measured,
                "tiles": tally.configs,
                "runs": tally.runs,
                "again": tally.again,
                "agreement": median(taus) if taus else None,
                "skipped": tally.skipped,
            }
        )
        refuse_if_nothing_ran(tally.known + tally.measured, tally.skipped)
        return
    for name, reason in list(tally.skipped.items())[:_MOST_NOTES]:
        note(f"{name} has no tiles: {reason}")
    if len(tally.skipped) > _MOST_NOTES:
        note(f"and {len(tally.skipped) - _MOST_NOTES:,} more without tiles: --json has them all")
    refuse_if_nothing_ran(tally.known + tally.measured, tally.skipped)
    known = f", {plural(tally.known, 'kernel')} done before" if tally.known else ""
    say(f"{plural(tally.measured, 'kernel')}, {plural(tally.configs, 'tile')} measured{known}")
    if taus:
        say(f"Kendall's tau of the rounds {median(taus):.2f} (median), {tally.again:,} run again")


def _asked(db: Database, names: Sequence[str], op: Op) -> list[TensorGraph]:
    """The kernels, or programs, of these names, or all.

    Raises: NothingFound where there is none.
    """
    if names:
        asked = [one for name in names for one in known_subjects(db, name, op)]
    else:
        there = (info for info in db.store.patterns() if info.kind == op.kind and not info.stub)
        asked = [one for one in there if op.name != "tile" or not is_probe(one.group)]
    found: dict[str, TensorGraph] = {}
    for one in asked:
        made = db.store.tensor(one.id) if isinstance(one, WorkloadInfo) else one
        if isinstance(made, TensorGraph):
            found[made.id] = made
    if not found:
        hint = "`embeddb kernel import DB FILE` adds those of HLO text"
        if op.kind == "kernel" and any(i.kind == "program" for i in db.store.patterns()):
            hint = "import programs with --cut for their kernels, or `embeddb tune` them"
        what = f"no tensor {op.kind} is known here by more than its name"
        raise NothingFound(what, hint=hint)
    return list(found.values())
