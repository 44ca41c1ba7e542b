"""Kernels and partitions of a program timed by requests to a worker."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from embeddb.core.errors import TensorError
from embeddb.core.records import ARRAYS, OF_PROGRAM, Measurement, in_context
from embeddb.tensors.edges import Cut, edges_of
from embeddb.tensors.partition import Partition
from embeddb.tensors.tensor_graph import TensorGraph
from indexer.frontends.hlo.printer import hlo_text
from indexer.runners.base import RunOptions

if TYPE_CHECKING:
    from indexer.runners.harness.worker_process import WorkerProcess

#: To compile; large kernels take a second.
COMPILE_S = 120.0
#: Bytes of arrays of kernels that take turns.
_TOGETHER = 1 << 30


def failed(status: str, error: str) -> Measurement:
    return Measurement(status, error=" ".join(error.split()), when=time.time())


def failed_as(reply: Mapping[str, Any]) -> Measurement:
    return failed(reply["status"], reply.get("error", ""))


def together(kernels: Iterable[TensorGraph], most: int = 1 << 30) -> Iterator[list[TensorGraph]]:
    """Batches of distinct kernels whose arrays fit into memory, at most `most` per batch."""
    batch: list[TensorGraph] = []
    room = _TOGETHER
    for kernel in {kernel.id: kernel for kernel in kernels}.values():
        need = bytes_of(kernel)
        if batch and (need > room or len(batch) == most):
            yield batch
            batch, room = [], _TOGETHER
        batch.append(kernel)
        room -= need
    if batch:
        yield batch


def bytes_of(graph: TensorGraph) -> int:
    """Bytes of inputs and outputs, and of a program also of all intermediate values."""
    if graph.kind == "program":
        return sum(shape.bytes for op in graph.operations for shape in op.results)
    return sum(graph.operations[at].shape.bytes for at in (*graph.parameters, *graph.outputs))


def chain_request(partition: Partition, times: int, keep: Sequence[str]) -> dict[str, Any]:
    """The request that runs the kernels in sequence: places in the program that each reads and
    writes, and after which kernel a value is freed. The inputs of those to `keep` wait to be timed.
    """
    program = partition.program
    last = {place: at for at, p in enumerate(partition.kernels) for place in (*p.takes, *p.gives)}
    permanent = {*program.outputs, *program.parameters}
    kernels = [
        {
            "id": placed.kernel.id,
            "takes": placed.takes,
            "gives": placed.gives,
            "last": [
                place
                for place in dict.fromkeys((*placed.takes, *placed.gives))
                if last[place] == at and place not in permanent
            ],
        }
        for at, placed in enumerate(partition.kernels)
    ]
    computed = {place for placed in partition.kernels for place in placed.gives}
    outputs = [(n, place) for n, place in enumerate(program.outputs) if place in computed]
    return {
        "do": "chain",
        "given": program.parameters,
        "kernels": kernels,
        "outputs": outputs,
        "times": times,
        "keep": list(keep),
    }


#: Relative to the largest value of a result, of reals of four bytes (`executable.disagreement`).
TOLERANCE = 2e-3
#: A neighbour on the host slows kernels down for a tenth of a second or for two: rounds in which
#: kernels take turns, and how far apart they begin at least.
ROUNDS, APART_S = 6, 0.1


class KernelTimes:
    """Time kernels in several rounds: `times_s` holds the fastest call of each round, whose minimum
    is the kernel's time ("A Learned Performance Model for Tensor Processing Units", Section 4: the
    minimum of three runs)."""

    def __init__(self, session: WorkerProcess, options: RunOptions) -> None:
        self.session, self.options = session, options

    def in_turns(self, kernels: Sequence[TensorGraph]) -> list[tuple[TensorGraph, Measurement]]:
        """Each kernel with its measurement; if the worker dies, each is tried alone.

        Every failure is a status. Raises: RunnerUnavailable.
        """
        check = self.options.check
        outcomes = {kernel.id: self.ready(kernel, check=check) for kernel in kernels}
        ready = {name: one for name, one in outcomes.items() if one.ok}
        timed, lost = self.timed(ready) if ready else ({}, None)
        if lost is None:
            outcomes |= timed
        elif len(kernels) == 1:
            outcomes[kernels[0].id] = lost
        else:
            return [self.in_turns([kernel])[0] for kernel in kernels]
        return [(kernel, outcomes[kernel.id]) for kernel in kernels]

    def timed(
        self, ready: Mapping[str, Measurement]
    ) -> tuple[dict[str, Measurement], Measurement | None]:
        """Measurements by kernel id of compiled kernels (`ready`), or nothing and one failure for
        all of them: the worker died. Raises: RunnerUnavailable."""
        options = self.options
        message = {"do": "rounds", "ids": list(ready), "rounds": ROUNDS, "apart_s": APART_S}
        limit = COMPILE_S + ROUNDS * options.timeout_s * len(ready)
        reply = self.session.request({**message, **options.effort}, timeout_s=limit)
        if reply["status"] != "ok":
            status = "crash" if reply["status"] == "missing" else reply["status"]
            return {}, failed(status, reply.get("error", "the worker was lost"))
        measurements = {}
        for name, (wall, cpu) in reply["times"].items():
            times = {"times_s": tuple(wall), "cpu_sum_s": tuple(cpu), "when": time.time()}
            measurements[name] = msgspec.structs.replace(ready[name], **times)
        return measurements, None

    def ready(self, kernel: TensorGraph, *, called: bool = True, check: bool) -> Measurement:
        """Compile and, with `called`, call a kernel; an ok measurement has no times yet.

        Raises: RunnerUnavailable.
        """
        message = {"do": "kernel", "id": kernel.id, "called": called, "check": check}
        reply = self.sent(kernel, message)
        if reply["status"] != "ok":
            return failed_as(reply)
        return Measurement(
            compile_s=reply["compile_s"], tolerance=TOLERANCE if check else None, when=time.time()
        )

    def sent(self, graph: TensorGraph, message: Mapping[str, Any]) -> dict[str, Any]:
        """The worker's reply to a graph; a refusal if it is too large or has no text.

        Raises: RunnerUnavailable.
        """
        options = self.options
        if (need := bytes_of(graph)) > options.limit_bytes:
            error = f"the arrays need {need:,} bytes of {options.limit_bytes:,}"
            return {"status": "oom", "error": error}
        try:
            # Arguments and results are in the graph's order.
            text = hlo_text(replace(graph, signature=None))
        except TensorError as error:
            return {"status": "build", "error": error.reason}
        shapes = [graph.operations[at].shape for at in graph.parameters]
        parameters = [(shape.dtype, list(shape.dims)) for shape in shapes]
        whole = {**message, "parameters": parameters, "seed": options.seed}
        return self.session.request(whole, [text.encode()], timeout_s=self.limit_s)

    @property
    def limit_s(self) -> float:
        """Time limit of a request in which one module is compiled and run."""
        return COMPILE_S + self.options.timeout_s


#: Runs of all kernels in a row, of which the median counts.
CHAINS = 5


@dataclass(frozen=True, slots=True)
class PartitionTimes:
    """Measurement of one partition: the sum of its kernels' seconds; `fresh` the kernels timed for
    it now; `chain_s` the CPU seconds of runs of all kernels in sequence, if requested."""

    measurement: Measurement
    fresh: tuple[tuple[TensorGraph, Measurement], ...] = ()
    chain_s: tuple[float, ...] = ()


class ProgramTimes(KernelTimes):
    """Time partitions of one program, each kernel once: `seconds` by kernel id, infinite for failed
    ones; `fresh` the kernels timed for the last partition, also where that was interrupted."""

    def __init__(self, program: TensorGraph, session: WorkerProcess, options: RunOptions) -> None:
        super().__init__(session, options)
        self.program = program
        self.seconds: dict[str, float] = {}
        self.fresh: list[tuple[TensorGraph, Measurement]] = []
        self._generation = -1
        self._refused: dict[str, Any] | None = None

    def measure(self, partition: Partition, *, chained: bool = False) -> PartitionTimes:
        """Time a partition. With `chained` the kernels are also run in sequence, as the program
        would.

        Every failure is a status. Raises: RunnerUnavailable.
        """
        self.fresh = []
        if problem := self._loaded():
            return PartitionTimes(problem)
        for placed in partition.kernels:
            if not math.isfinite(self.seconds.get(placed.kernel.id, 0.0)):
                return PartitionTimes(failed("build", f"{placed.kernel.name} has failed before"))
        fresh = {
            p.kernel.id: p.kernel for p in partition.kernels if p.kernel.id not in self.seconds
        }
        if fresh and (problem := self._time(partition, list(fresh.values()))):
            return PartitionTimes(problem, tuple(self.fresh))
        chain: tuple[float, ...] = ()
        if chained or (self.options.check and not fresh):
            reply = self._chain(partition, CHAINS if chained else 0)
            if reply["status"] != "ok":
                return PartitionTimes(failed_as(reply), tuple(self.fresh))
            chain = tuple(reply["times_s"])
        total = sum(self.seconds[placed.kernel.id] for placed in partition.kernels)
        context: dict[str, float | str] = {"kernels": float(len(partition.kernels))}
        measurement = Measurement(
            times_s=(total,),
            tolerance=TOLERANCE if self.options.check else None,
            when=time.time(),
            context=context,
        )
        return PartitionTimes(measurement, tuple(self.fresh), chain)

    def _time(self, partition: Partition, kernels: Sequence[TensorGraph]) -> Measurement | None:
        """Time the kernels into `fresh`; returns the first failure. Their inputs are those of a run
        of the whole chain, since the time of some kernels depends on the values."""
        ready = {}
        for kernel in kernels:
            ready[kernel.id] = outcome = self.ready(kernel, called=False, check=False)
            if not outcome.ok:
                self._record(kernel, outcome)
                return failed(outcome.status, f"{kernel.name}: {outcome.error}"[:400])
        for some in together(kernels):
            reply = self._chain(partition, 0, [kernel.id for kernel in some])
            if reply["status"] != "ok":
                return self._blamed(kernels, failed_as(reply))
            # Where the worker died, they are tried again in the next partition.
            timed, lost = self.timed({kernel.id: ready[kernel.id] for kernel in some})
            if lost is not None:
                return lost
            for kernel in some:
                self._record(kernel, in_context(timed[kernel.id], {ARRAYS: OF_PROGRAM}))
        return None

    def _blamed(self, kernels: Sequence[TensorGraph], problem: Measurement) -> Measurement:
        """Reason of a partition's failure; `fresh` receives the kernels to blame. Of wrong results
        any kernel may be the cause, so the times of all are dropped; of a crash, those that crash
        alone."""
        if problem.status == "wrong":
            for kernel, _ in self.fresh:
                del self.seconds[kernel.id]
            self.fresh = [(kernel, problem) for kernel in kernels]
            return problem
        for kernel in kernels:
            outcome = self.ready(kernel, check=False)
            if not outcome.ok:
                self._record(kernel, outcome)
        return problem

    def _record(self, kernel: TensorGraph, outcome: Measurement) -> None:
        self.fresh.append((kernel, outcome))
        self.seconds[kernel.id] = outcome.least

    def _loaded(self) -> Measurement | None:
        """Reason why the program cannot be run; None once the worker has loaded it."""
        if self._refused is not None:
            return failed_as(self._refused)
        if self._generation == self.session.ensure():
            return None
        reply = self.sent(self.program, {"do": "load"})
        if reply["status"] != "ok":
            self._refused = reply if reply["status"] == "build" else None
            return failed_as(reply)
        self._generation = self.session.generation
        return None

    def _chain(self, partition: Partition, times: int, keep: Sequence[str] = ()) -> dict[str, Any]:
        """The worker's reply; kernels that it has not compiled are compiled first."""
        message = chain_request(partition, times, keep)
        for _ in range(2):
            if self._loaded() is not None:
                return {"status": "crash", "error": "the program could not be loaded again"}
            reply = self.session.request(message, timeout_s=self.limit_s)
            if reply["status"] != "missing":
                return reply
            wanted = set(reply["ids"])
            for placed in partition.kernels:
                if placed.kernel.id in wanted:
                    self.ready(placed.kernel, called=False, check=False)
        return {"status": "crash", "error": "kernels were lost before they were run in a row"}


#: The operation that an instruction of the optimised module stems from, by its printed name o0, o1.
_STEMS_FROM = re.compile(r'op_name="(?:[^"]*/)?o(\d+)(?:\.[a-z]+)?"')
_BODY = re.compile(r"^(ENTRY )?%?([\w.-]+) ")
_CALLED = re.compile(r"fusion\(.*calls=%?([\w.-]+)")


def cut_of(program: TensorGraph, optimised: str) -> Cut:
    """The fusion plan in the text of an optimised module, in which each instruction names the
    operation it stems from. An operation in several fusions goes with the first of them; one that
    no instruction names (it was simplified away) with its first operand, else with its user."""
    edges = edges_of(program)
    group: dict[int, int] = {}
    for number, places in enumerate(_fusions(optimised)):
        for place in places:
            if place < len(program.operations):
                group.setdefault(place, number)
    labels = [group.get(place, -1) for place in range(len(program.operations))]
    for maker, user in edges.pairs:
        if labels[user] < 0:
            labels[user] = labels[maker]
    for maker, user in reversed(edges.pairs):
        if labels[maker] < 0:
            labels[maker] = labels[user]
    # Of what is left, each by itself.
    apart = [label if label >= 0 else -2 - place for place, label in enumerate(labels)]
    return edges.mended(edges.between(apart))


def _fusions(text: str) -> list[list[int]]:
    """Places of operations by fusion; those of the entry outside of any fusion one by one."""
    bodies: dict[str, list[str]] = {}
    entry, inside = "", ""
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith((" ", "HloModule")):
            opening = _BODY.match(line)
            if opening is None:
                continue
            inside = opening[2]
            entry = inside if opening[1] else entry
            bodies[inside] = []
        elif inside:
            bodies[inside].append(line)
    fusions: list[list[int]] = []
    for line in bodies.get(entry, ()):
        fusion = _CALLED.search(line)
        lines = bodies.get(fusion[1], []) if fusion else [line]
        places = [int(number) for one in lines for number in _STEMS_FROM.findall(one)]
        if places:
            fusions.append(places)
    return fusions
