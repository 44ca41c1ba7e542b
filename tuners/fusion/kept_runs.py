"""Cuts of one program tried by name: those that ran under it before are not run again."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator

from embeddb.core.config import Op
from embeddb.core.records import REMEASURED
from embeddb.core.timing import timings_of
from embeddb.tensors.edges import CUT, Cut, edges_of
from embeddb.tensors.partition import Partition
from indexer.runners.base import HARDWARE_S
from indexer.tensors.cut_runs import CutRuns, seconds_known
from tuners.fusion.outcome import Tried

__all__ = ["KeptRuns"]

_FUSED, _FUSION = Op("fused"), Op("fusion")


class KeptRuns:
    """`fresh` cuts and `kernels` were measured now; rounds of what ran do not count."""

    def __init__(self, runs: CutRuns) -> None:
        self._runs = runs
        self.fresh = self.kernels = 0

    def measure(self, cut: Cut, campaign: str) -> Tried:
        """Run and kept under this name. Raises: as `CutRuns.measure`."""
        run = self._runs.measure(cut, campaign)
        self.fresh += 1
        self.kernels += len(run.fresh)
        return Tried.of(cut, run.measurement)

    def again(self, cut: Cut, campaign: str) -> Tried:
        """Run with all kernels timed anew, and in a row. Raises: as `CutRuns.measure`."""
        return Tried.of(cut, self._runs.measure(cut, campaign, chained=True, anew=True).measurement)

    def kernels_of(self, cut: Cut) -> list[str]:
        """The ids of the kernels of a cut."""
        return [placed.kernel.id for placed in Partition.of(self._runs.program, cut).kernels]

    def timings(self, kernel: str, again: str) -> list[float]:
        """Seconds of a kernel that ran: what the search went by, and of each run under the name
        `again`; infinite for one that fails. What other runs of winners say does not count, so that
        the same tuning comes out again after them."""
        held = list(self._runs.db.store.runs(self._runs.here.id, _FUSED, kernel))
        before = timings_of(run for run in held if not run.campaign.endswith(REMEASURED))
        known = [timing.seconds for timing in before.values()]
        return [*known, *(run.seconds for run in held if run.campaign == again)] or [math.inf]

    def kernel_seconds(self, cut: Cut, but: Container[str]) -> dict[str, float]:
        """What the kernels of a cut that ran take, by id, those left out that `but` has; infinite
        for what fails."""
        db, here = self._runs.db, self._runs.here
        told = {at: seconds_known(db, here, at) for at in self.kernels_of(cut) if at not in but}
        return {at: seconds for at, seconds in told.items() if seconds is not None}

    def known(self, campaign: str) -> dict[Cut, Tried]:
        """What ran under this name."""
        return dict(self.told(campaign))

    def told(self, campaign: str) -> Iterator[tuple[Cut, Tried]]:
        """Every run under this name."""
        db, program = self._runs.db, self._runs.program
        if db.store.tensor(program.id) is None:
            return
        count = len(edges_of(program).pairs)
        for run in db.store.runs(self._runs.here.id, _FUSION, program.id):
            took = run.measurement.context.get(HARDWARE_S)
            if run.campaign == campaign and isinstance(took, float):
                cut = Cut.read(str(run.config[CUT]), count)
                yield cut, Tried.of(cut, run.measurement)
