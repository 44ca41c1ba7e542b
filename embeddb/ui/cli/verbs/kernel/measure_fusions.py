"""`kernel measure --op fused|fusion`: kernels and partitions of programs, compiled by XLA."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from embeddb.core.wording import plural
from embeddb.database import Database
from embeddb.tensors.computation import Computation
from embeddb.ui.cli.arguments import runner_here
from embeddb.ui.cli.kernel_text import refuse_if_nothing_ran
from embeddb.ui.cli.output import Progress, emit, note, say

__all__ = ["measure_fusions"]

_MOST_NOTES = 10


def measure_fusions(
    db: Database, subjects: Sequence[Computation], asked: dict[str, Any], *, as_json: bool
) -> None:
    """Measure programs under many cuts, or kernels as they are, and say how it went.

    Raises: RunnerUnavailable without jax; TensorError where none of the programs can be measured.
    """
    from indexer.runners.base import RunOptions
    from indexer.tensor_runs import FusionJob, FusionRequest

    repeats = asked["repeats"]
    request = FusionRequest(
        cuts=asked["cuts"],
        seed=asked["seed"],
        options=RunOptions(repeats=repeats, max_repeats=max(25, repeats), threads=1),
    )
    with Progress() as progress:
        runner, here = runner_here(db.platform(asked["platform"]), 1)
        job = FusionJob(db.index, runner, here, request)
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
