"""Kernels and partitions timed by requests to a worker."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from embeddb.core.errors import TensorError
from embeddb.core.records import Measurement
from embeddb.tensors.computation import Computation
from embeddb.tensors.partition import Partition
from indexer.frontends.hlo.printer import hlo_text
from indexer.runners.base import RunOptions

if TYPE_CHECKING:
    from indexer.runners.cpu_kernels.session import Session

__all__ = ["APART_S", "ROUNDS", "KernelTimes", "PartitionTimes", "ProgramTimes"]

#: Relative to the largest value of a result, of reals of four bytes (`executable.disagreement`).
TOLERANCE = 2e-3
#: To compile; large kernels take a second.
_COMPILE_S = 120.0
#: Calls that do not count, and those of the check.
_OTHER_CALLS = 4
#: A neighbour on the host slows kernels down for a tenth of a second or for two: rounds in which
#: kernels take turns, and how far apart they begin at least.
ROUNDS, APART_S = 6, 0.1
#: Bytes of arrays of kernels that take turns.
_TOGETHER = 1 << 30
#: Runs of all kernels in a row, of which the median counts.
CHAINS = 5


class KernelTimes:
    """Times kernels, each called in several rounds: `times_s` are the least of each, and the least
    of these is what a kernel takes ("A Learned Performance Model for Tensor Processing Units",
    Section 4: the minimum of three runs)."""

    def __init__(self, session: Session, options: RunOptions) -> None:
        self._session, self._options = session, options

    def measure(self, kernel: Computation, *, check: bool) -> Measurement:
        """Whatever goes wrong is a status. Raises: RunnerUnavailable."""
        found = self.ready(kernel, check=check)
        if not found.ok:
            return found
        told, problem = self.timed({kernel.id: found})
        return problem or told[kernel.id]

    def timed(
        self, ready: Mapping[str, Measurement]
    ) -> tuple[dict[str, Measurement], Measurement | None]:
        """What `ready` gave of some kernels, by their ids, with times; or nothing, and what is
        wrong with all of them: the worker died. Raises: RunnerUnavailable."""
        asked = self._options
        message = {"do": "rounds", "ids": list(ready), "rounds": ROUNDS, "apart_s": APART_S}
        limit = _COMPILE_S + ROUNDS * asked.timeout_s * len(ready)
        reply = self._session.request({**message, **_effort(asked)}, timeout_s=limit)
        if reply["status"] != "ok":
            status = "crash" if reply["status"] == "missing" else reply["status"]
            return {}, _failed(status, reply.get("error", "the worker was lost"))
        found = {}
        for name, (wall, cpu) in reply["times"].items():
            told = {"times_s": tuple(wall), "cpu_sum_s": tuple(cpu), "when": time.time()}
            found[name] = msgspec.structs.replace(ready[name], **told)
        return found, None

    def ready(self, kernel: Computation, *, called: bool = True, check: bool) -> Measurement:
        """Compiled and, unless that is all, called: without times, if it is ok.

        Raises: RunnerUnavailable.
        """
        asked = self._options
        if (need := _bytes(kernel)) > asked.max_bytes:
            return _failed("oom", f"the arrays need {need:,} bytes of {asked.max_bytes:,}")
        try:
            text = hlo_text(kernel)
        except TensorError as error:
            return _failed("build", error.reason)
        message = {
            "do": "kernel",
            "id": kernel.id,
            "parameters": _parameters(kernel),
            "seed": asked.seed,
            "called": called,
            "check": check,
        }
        limit = _COMPILE_S + asked.timeout_s
        reply = self._session.request(message, [text.encode()], timeout_s=limit)
        if reply["status"] != "ok":
            return _failed(reply["status"], reply.get("error", ""))
        return Measurement(
            compile_s=reply["compile_s"], tolerance=TOLERANCE if check else None, when=time.time()
        )


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
        fresh = self.fresh = []
        if problem := self._ready():
            return PartitionTimes(problem)
        for placed in partition.kernels:
            if not math.isfinite(self.known.get(placed.kernel.id, 0.0)):
                return PartitionTimes(_failed("build", f"{placed.kernel.name} has failed before"))
        for some in _together(p.kernel for p in partition.kernels if p.kernel.id not in self.known):
            if problem := self._time(some):
                return PartitionTimes(problem, tuple(fresh))
        chain: tuple[float, ...] = ()
        if self.options.check or chained:
            reply = self._chain(partition, CHAINS if chained else 0)
            if reply["status"] != "ok":
                wrong = _failed(reply["status"], reply.get("error", "").rstrip())
                for kernel, _ in fresh:  # any of them may be the one
                    del self.known[kernel.id]
                return PartitionTimes(wrong, tuple((kernel, wrong) for kernel, _ in fresh))
            chain = tuple(reply["times_s"])
        total = sum(self.known[placed.kernel.id] for placed in partition.kernels)
        context: dict[str, float | str] = {"kernels": float(len(partition.kernels))}
        told = Measurement(
            times_s=(total,),
            tolerance=TOLERANCE if self.options.check else None,
            when=time.time(),
            context=context,
        )
        return PartitionTimes(told, tuple(fresh), chain)

    def whole(self) -> Measurement:
        """The program as it stands, which XLA fuses as it likes. Raises: RunnerUnavailable."""
        if problem := self._ready():
            return problem
        reply = self._request({"do": "whole", **_effort(self.options)})
        if reply["status"] != "ok":
            return _failed(reply["status"], reply["error"])
        return Measurement(
            times_s=tuple(reply["times_s"]), cpu_sum_s=tuple(reply["cpu_s"]), when=time.time()
        )

    def _time(self, kernels: Sequence[Computation]) -> Measurement | None:
        """Into `fresh`, until one fails: then why."""
        times = KernelTimes(self.session, self.options)
        ready: dict[str, Measurement] = {}
        problem = None
        for kernel in kernels:
            found = times.ready(kernel, check=False)
            if not found.ok:
                problem = _failed(found.status, f"{kernel.name}: {found.error}"[:400])
                self._told(kernel, found)
                break
            ready[kernel.id] = found
        if ready:
            # Where the worker died, they are tried again in the next partition.
            told, lost = times.timed(ready)
            problem = problem or lost
            for kernel in kernels:
                if kernel.id in told:
                    self._told(kernel, told[kernel.id])
        return problem

    def _told(self, kernel: Computation, found: Measurement) -> None:
        self.fresh.append((kernel, found))
        self.known[kernel.id] = found.least

    def _ready(self) -> Measurement | None:
        """Why the program cannot be run; None once the worker has it."""
        if self._refused:
            return _failed("build", self._refused)
        if self._generation == self.session.ensure():
            return None
        if (need := _bytes(self.program)) > self.options.max_bytes:
            return _failed("oom", f"the arrays need {need:,} bytes of {self.options.max_bytes:,}")
        try:
            text = hlo_text(self.program)
        except TensorError as error:
            self._refused = error.reason
            return _failed("build", error.reason)
        parameters = _parameters(self.program)
        message = {"do": "load", "parameters": parameters, "seed": self.options.seed}
        reply = self._request(message, text)
        if reply["status"] != "ok":
            if reply["status"] == "build":
                self._refused = reply["error"]
            return _failed(reply["status"], reply["error"])
        self._generation = self.session.generation
        return None

    def _chain(self, partition: Partition, times: int) -> dict[str, Any]:
        """The worker's reply; kernels that it has not compiled are compiled first."""
        message = _chain(partition, times)
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
        limit = _COMPILE_S + self.options.timeout_s
        return self.session.request(message, [text.encode()] if text else [], timeout_s=limit)


def _failed(status: str, error: str) -> Measurement:
    return Measurement(status, error=" ".join(error.split()), when=time.time())


def _effort(asked: RunOptions) -> dict[str, float]:
    return {name: getattr(asked, name) for name in ("repeats", "max_repeats", "min_time_s")}


def _together(kernels: Iterable[Computation]) -> Iterator[list[Computation]]:
    """Each once, as many at a time as have room."""
    held: list[Computation] = []
    room = _TOGETHER
    for kernel in {kernel.id: kernel for kernel in kernels}.values():
        need = _bytes(kernel)
        if held and need > room:
            yield held
            held, room = [], _TOGETHER
        held.append(kernel)
        room -= need
    if held:
        yield held


def _parameters(made: Computation) -> list[tuple[str, list[int]]]:
    shapes = [made.operations[at].shape for at in made.parameters]
    return [(shape.dtype, list(shape.dims)) for shape in shapes]


def _bytes(made: Computation) -> int:
    """Of what is given in and out, and, of a program, of all between."""
    if made.kind == "program":
        return sum(shape.bytes for op in made.operations for shape in op.results)
    return sum(made.operations[at].shape.bytes for at in (*made.parameters, *made.outputs))


def _chain(partition: Partition, times: int) -> dict[str, Any]:
    """The request that runs the kernels: which values each takes and gives, by their places in the
    program, and after which of them a value is needed no more."""
    program = partition.program
    last = {place: at for at, p in enumerate(partition.kernels) for place in (*p.takes, *p.gives)}
    kept = {*program.outputs, *program.parameters}
    kernels = [
        {
            "id": placed.kernel.id,
            "takes": placed.takes,
            "gives": placed.gives,
            "last": [
                place
                for place in dict.fromkeys((*placed.takes, *placed.gives))
                if last[place] == at and place not in kept
            ],
        }
        for at, placed in enumerate(partition.kernels)
    ]
    made = {place for placed in partition.kernels for place in placed.gives}
    outputs = [(n, place) for n, place in enumerate(program.outputs) if place in made]
    return {
        "do": "chain",
        "given": program.parameters,
        "kernels": kernels,
        "outputs": outputs,
        "times": times,
    }
