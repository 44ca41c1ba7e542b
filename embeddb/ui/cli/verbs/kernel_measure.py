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
from embeddb.ui.cli.arguments import machine_here, number_option, open_database, resolve_workloads
from embeddb.ui.cli.output import Progress, emit, json_option, note_some, say
from embeddb.ui.cli.tune_text import MOST_NOTES, note_without_tiles
from embeddb.ui.cli.workload_text import refuse_if_nothing_ran


def measure_fusions(
    db: Database, subjects: Sequence[TensorGraph], options: dict[str, Any], *, as_json: bool
) -> None:
    """Measure programs under many fusion plans, or whole kernels, and print a summary.

    Raises: RunnerUnavailable without jax; TensorError if none of the programs can be measured.
    """
    from indexer.tensor_runs import FusionJob, FusionRequest

    request = FusionRequest(cuts=options["cuts"], seed=options["seed"])
    platform = db.platform(options["platform"])
    with Progress() as progress:
        job = FusionJob(machine_here(db, platform, repeats=options["repeats"], threads=1), request)
        tally = (job.programs if options["op"] == "fusion" else job.kernels)(subjects, progress)
    ran = tally.known + tally.partitions + tally.kernels
    if as_json:
        emit(
            {
                "programs" if options["op"] == "fusion" else "asked": len(subjects),
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
    failed = [f"{name}: {reason}" for name, reason in tally.failed.items()]
    note_some(failed, MOST_NOTES, "and {:,} more failed: --json has them all")
    refuse_if_nothing_ran(ran, tally.failed)
    earlier = f", {tally.known:,} measured before" if tally.known else ""
    partitions = f"{plural(tally.partitions, 'partition')}, " if tally.partitions else ""
    kernels = plural(tally.kernels, "kernel")
    say(f"{partitions}{kernels} measured, {tally.long:,} of 50 µs or more{earlier}")
    if tally.ratios:
        say(f"kernels in a row take {median(tally.ratios):.2f} times their sum (median)")


#: Platform by operation.
_PLATFORMS = {"tile": "tile-cpu", "fused": "xla-cpu", "fusion": "xla-cpu"}


@click.command("measure")
@click.argument("db")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option("--op", "op", default="tile", show_default=True, type=click.Choice([*_PLATFORMS]))
@click.option("--platform", default="", help="tile-cpu, or xla-cpu for fused and fusion.")
@number_option("--tiles", default=80, least=1, most=100_000)
@number_option("--rounds", default=2, least=1, most=100)
@number_option("--cuts", default=60, least=0, most=100_000)
@number_option("--repeats", default=2, least=1, most=1000)
@click.option("--seed", default=0, show_default=True, help="Seed of the sampled tiles and cuts.")
@json_option
def measure_verb(db: str, names: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Measure the tensor kernels or programs in DB on this machine, on one thread.

    For each kernel NAME, or for all in DB but probes, --tiles tiles of all sizes run, the untiled
    loop included, in --rounds rounds. If Kendall's tau of the first two is below 0.8, a third
    follows. Tiles and cuts measured before are skipped, so after Ctrl-C the same command continues.
    Kernels without tiles are listed with the reason.

    With --op fused, kernels are compiled by XLA and timed; with --op fusion programs are, under
    --cuts random fusion plans, and the kernels of each plan are timed too.

    \b
    Example:
      embeddb kernel measure tensors.db
      embeddb kernel measure tensors.db --op fusion --cuts 60
      embeddb kernel measure tensors.db mlp/3 mlp/4 --tiles 200 --rounds 3
    """
    options["platform"] = options["platform"] or _PLATFORMS[options["op"]]
    op = Op(options["op"])
    with open_database(db) as opened:
        opened.platform(options["platform"]).kernel(op)
        subjects = _requested(opened, names, op)
        if op.name == "tile":
            _tiles(opened, subjects, options, as_json=as_json)
        else:
            measure_fusions(opened, subjects, options, as_json=as_json)


def _tiles(
    db: Database, kernels: Sequence[TensorGraph], options: dict[str, Any], *, as_json: bool
) -> None:
    """Measure tiles of kernels. Raises: RunnerUnavailable; TensorError if none has tiles."""
    from indexer.measure import MeasureJob
    from indexer.tensor_runs import TILE_AGREEMENT, TileDesign

    design = TileDesign(**{name: options[name] for name in ("tiles", "rounds", "seed")})
    effort = {"repeats": options["repeats"], "most": 5, "min_time_s": 0.002, "threads": 1}
    with Progress() as progress:
        machine = machine_here(db, db.platform(options["platform"]), **effort)
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
    note_without_tiles(tally.skipped)
    refuse_if_nothing_ran(tally.known + tally.measured, tally.skipped)
    earlier = f", {plural(tally.known, 'kernel')} measured before" if tally.known else ""
    say(f"{plural(tally.measured, 'kernel')}, {plural(tally.configs, 'tile')} measured{earlier}")
    if taus:
        say(f"Kendall's tau of the rounds {median(taus):.2f} (median), {tally.again:,} run again")


def _requested(db: Database, names: Sequence[str], op: Op) -> list[TensorGraph]:
    """The kernels, or programs, with these names, or all.

    Raises: NothingFound if there are none.
    """
    if names:
        workloads = [one for name in names for one in resolve_workloads(db, name, op)]
    else:
        there = (info for info in db.store.patterns() if info.kind == op.kind and not info.stub)
        workloads = [one for one in there if op.name != "tile" or not is_probe(one.group)]
    by_id: dict[str, TensorGraph] = {}
    for one in workloads:
        computation = db.store.tensor(one.id) if isinstance(one, WorkloadInfo) else one
        if isinstance(computation, TensorGraph):
            by_id[computation.id] = computation
    if not by_id:
        hint = "`embeddb kernel import DB FILE` adds those of HLO text"
        if op.kind == "kernel" and any(i.kind == "program" for i in db.store.patterns()):
            hint = "import programs with --cut for their kernels, or `embeddb tune` them"
        what = f"no tensor {op.kind} is stored with its operations"
        raise NothingFound(what, hint=hint)
    return list(by_id.values())
