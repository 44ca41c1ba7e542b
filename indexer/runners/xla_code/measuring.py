"""Partitions of a program timed by requests to a worker."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from embeddb.core.errors import TensorError
from embeddb.core.records import ARRAYS, OF_PROGRAM, Measurement, in_context
from embeddb.tensors.computation import Computation
from embeddb.tensors.partition import Partition
from indexer.frontends.hlo.printer import hlo_text
from indexer.runners.base import RunOptions
from indexer.runners.xla_code.kernel_times import TOLERANCE, KernelTimes
from indexer.runners.xla_code.requests import (
    COMPILE_S,
    bytes_of,
    chain_request,
    effort,
    failed,
    parameters_of,
    together,
)

if TYPE_CHECKING:
    from indexer.runners.harness.session import Session

__all__ = ["PartitionTimes", "ProgramTimes"]

#: Runs of all kernels in a row, of which the median counts.
CHAINS = 5


@dataclass(frozen=True, slots=True)
class PartitionTimes:
    """One partition: the sum of its kernels' seconds, what was measured for it now, by kernel, and
    the processor's seconds of runs of all kernels in a row, where they were asked for."""

    measurement: Measurement
    fresh: tuple[tuple[Computation, Measurement], ...] = ()
    chain_s: tuple[float, ...] = ()


@dataclass
class ProgramTimes:
    """Partitions of one program. Kernels that were timed are not timed again: `known` are seconds
    by their ids, infinite for what failed; what is timed is added. `fresh` are those that were
    timed for the last partition, also where that was interrupted."""

    program: Computation
    session: Session
    options: RunOptions
    known: dict[str, float] = field(default_factory=dict)
    fresh: list[tuple[Computation, Measurement]] = field(default_factory=list)
    _generation: int = -1
    _refused: str = ""

    def measure(self, partition: Partition, *, chained: bool = False) -> PartitionTimes:
        """With `chained` the kernels are also run in a row, as the program would.

        Whatever goes wrong is a status. Raises: RunnerUnavailable.
        """
        self.fresh = []
        if problem := self._ready():
            return PartitionTimes(problem)
        for placed in partition.kernels:
            if not math.isfinite(self.known.get(placed.kernel.id, 0.0)):
                return PartitionTimes(failed("build", f"{placed.kernel.name} has failed before"))
        fresh = {p.kernel.id: p.kernel for p in partition.kernels if p.kernel.id not in self.known}
        if fresh and (problem := self._time(partition, list(fresh.values()))):
            return PartitionTimes(problem, tuple(self.fresh))
        chain: tuple[float, ...] = ()
        if chained or (self.options.check and not fresh):
            reply = self._chain(partition, CHAINS if chained else 0)
            if reply["status"] != "ok":
                return PartitionTimes(_problem(reply), tuple(self.fresh))
            chain = tuple(reply["times_s"])
        total = sum(self.known[placed.kernel.id] for placed in partition.kernels)
        context: dict[str, float | str] = {"kernels": float(len(partition.kernels))}
        told = Measurement(
            times_s=(total,),
            tolerance=TOLERANCE if self.options.check else None,
            when=time.time(),
            context=context,
        )
        return PartitionTimes(told, tuple(self.fresh), chain)

    def whole(self) -> Measurement:
        """The program as it stands, which XLA fuses as it likes. Raises: RunnerUnavailable."""
        if problem := self._ready():
            return problem
        reply = self._request({"do": "whole", **effort(self.options)})
        if reply["status"] != "ok":
            return failed(reply["status"], reply["error"])
        return Measurement(
            times_s=tuple(reply["times_s"]), cpu_sum_s=tuple(reply["cpu_s"]), when=time.time()
        )

    def _time(self, partition: Partition, kernels: Sequence[Computation]) -> Measurement | None:
        """Into `fresh`, until one fails: then why. They are timed with what the program hands them
        when its kernels are run in a row, for what some take depends on it."""
        times = KernelTimes(self.session, self.options)
        ready = {}
        for kernel in kernels:
            ready[kernel.id] = found = times.ready(kernel, called=False, check=False)
            if not found.ok:
                self._told(kernel, found)
                return failed(found.status, f"{kernel.name}: {found.error}"[:400])
        for some in together(kernels):
            reply = self._chain(partition, 0, [kernel.id for kernel in some])
            if reply["status"] != "ok":
                return self._blamed(kernels, _problem(reply))
            # Where the worker died, they are tried again in the next partition.
            told, lost = times.timed({kernel.id: ready[kernel.id] for kernel in some})
            if lost is not None:
                return lost
            for kernel in some:
                self._told(kernel, in_context(told[kernel.id], {ARRAYS: OF_PROGRAM}))
        return None

    def _blamed(self, kernels: Sequence[Computation], problem: Measurement) -> Measurement:
        """What is wrong with a partition, and into `fresh` with which of its kernels: of wrong
        results any may be the reason, so that none is known by it; a crash is that of those which
        crash alone."""
        if problem.status == "wrong":
            for kernel, _ in self.fresh:
                del self.known[kernel.id]
            self.fresh = [(kernel, problem) for kernel in kernels]
            return problem
        times = KernelTimes(self.session, self.options)
        for kernel in kernels:
            found = times.ready(kernel, check=False)
            if not found.ok:
                self._told(kernel, found)
        return problem

    def _told(self, kernel: Computation, found: Measurement) -> None:
        self.fresh.append((kernel, found))
        self.known[kernel.id] = found.least

    def _ready(self) -> Measurement | None:
        """Why the program cannot be run; None once the worker has it."""
        if self._refused:
            return failed("build", self._refused)
        if self._generation == self.session.ensure():
            return None
        if (need := bytes_of(self.program)) > self.options.max_bytes:
            return failed("oom", f"the arrays need {need:,} bytes of {self.options.max_bytes:,}")
        try:
            text = hlo_text(self.program)
        except TensorError as error:
            self._refused = error.reason
            return failed("build", error.reason)
        parameters = parameters_of(self.program)
        message = {"do": "load", "parameters": parameters, "seed": self.options.seed}
        reply = self._request(message, text)
        if reply["status"] != "ok":
            if reply["status"] == "build":
                self._refused = reply["error"]
            return failed(reply["status"], reply["error"])
        self._generation = self.session.generation
        return None

    def _chain(self, partition: Partition, times: int, keep: Sequence[str] = ()) -> dict[str, Any]:
        """The worker's reply; kernels that it has not compiled are compiled first."""
        message = chain_request(partition, times, keep)
        for _ in range(2):
            if self._ready() is not None:
                return {"status": "crash", "error": "the program could not be loaded again"}
            reply = self._request(message)
            if reply["status"] != "missing":
                return reply
            wanted = set(reply["ids"])
            kernels = KernelTimes(self.session, self.options)
            for placed in partition.kernels:
                if placed.kernel.id in wanted:
                    kernels.ready(placed.kernel, called=False, check=False)
        return {"status": "crash", "error": "kernels were lost before they were run in a row"}

    def _request(self, message: Mapping[str, Any], text: str = "") -> dict[str, Any]:
        limit = COMPILE_S + self.options.timeout_s
        return self.session.request(message, [text.encode()] if text else [], timeout_s=limit)


def _problem(reply: Mapping[str, Any]) -> Measurement:
    return failed(reply["status"], reply.get("error", "").rstrip())
