"""Kernels and partitions of a program timed by requests to a worker."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    from indexer.runners.harness.session import Session

#: Runs of all kernels in a row, of which the median counts.
CHAINS = 5


@dataclass(frozen=True, slots=True)
class PartitionTimes:
    """One partition: the sum of its kernels' seconds, what was measured for it now, by kernel, and
    the processor's seconds of runs of all kernels in a row, where they were asked for."""

    measurement: Measurement
    fresh: tuple[tuple[TensorGraph, Measurement], ...] = ()
    chain_s: tuple[float, ...] = ()


@dataclass
class ProgramTimes:
    """Partitions of one program. Kernels that were timed are not timed again: `known` are seconds
    by their ids, infinite for what failed; what is timed is added. `fresh` are those that were
    timed for the last partition, also where that was interrupted."""

    program: TensorGraph
    session: Session
    options: RunOptions
    known: dict[str, float] = field(default_factory=dict)
    fresh: list[tuple[TensorGraph, Measurement]] = field(default_factory=list)
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

    def _time(self, partition: Partition, kernels: Sequence[TensorGraph]) -> Measurement | None:
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

    def _blamed(self, kernels: Sequence[TensorGraph], problem: Measurement) -> Measurement:
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

    def _told(self, kernel: TensorGraph, found: Measurement) -> None:
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


#: To compile; large kernels take a second.
COMPILE_S = 120.0
#: Bytes of arrays of kernels that take turns.
_TOGETHER = 1 << 30


def failed(status: str, error: str) -> Measurement:
    return Measurement(status, error=" ".join(error.split()), when=time.time())


def effort(asked: RunOptions) -> dict[str, float]:
    return {name: getattr(asked, name) for name in ("repeats", "max_repeats", "min_time_s")}


def together(kernels: Iterable[TensorGraph], most: int = 1 << 30) -> Iterator[list[TensorGraph]]:
    """Each once, as many at a time as have room, `most` of them."""
    held: list[TensorGraph] = []
    room = _TOGETHER
    for kernel in {kernel.id: kernel for kernel in kernels}.values():
        need = bytes_of(kernel)
        if held and (need > room or len(held) == most):
            yield held
            held, room = [], _TOGETHER
        held.append(kernel)
        room -= need
    if held:
        yield held


def parameters_of(made: TensorGraph) -> list[tuple[str, list[int]]]:
    shapes = [made.operations[at].shape for at in made.parameters]
    return [(shape.dtype, list(shape.dims)) for shape in shapes]


def bytes_of(made: TensorGraph) -> int:
    """Of what is given in and out, and, of a program, of all between."""
    if made.kind == "program":
        return sum(shape.bytes for op in made.operations for shape in op.results)
    return sum(made.operations[at].shape.bytes for at in (*made.parameters, *made.outputs))


def chain_request(partition: Partition, times: int, keep: Sequence[str]) -> dict[str, Any]:
    """The request that runs the kernels: which values each takes and gives, by their places in the
    program, and after which of them a value is needed no more. Of those to `keep`, what they take
    waits for them to be timed."""
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
        "keep": list(keep),
    }


#: Relative to the largest value of a result, of reals of four bytes (`executable.disagreement`).
TOLERANCE = 2e-3
#: A neighbour on the host slows kernels down for a tenth of a second or for two: rounds in which
#: kernels take turns, and how far apart they begin at least.
ROUNDS, APART_S = 6, 0.1


class KernelTimes:
    """Times kernels, each called in several rounds: `times_s` are the least of each, and the least
    of these is what a kernel takes ("A Learned Performance Model for Tensor Processing Units",
    Section 4: the minimum of three runs)."""

    def __init__(self, session: Session, options: RunOptions) -> None:
        self._session, self._options = session, options

    def in_turns(
        self, kernels: Sequence[TensorGraph], *, check: bool
    ) -> list[tuple[TensorGraph, Measurement]]:
        """Each with what came out of it; where the worker dies of one, each is tried alone.

        Whatever goes wrong is a status. Raises: RunnerUnavailable.
        """
        found = {kernel.id: self.ready(kernel, check=check) for kernel in kernels}
        ready = {name: one for name, one in found.items() if one.ok}
        told, lost = self.timed(ready) if ready else ({}, None)
        if lost is None:
            found |= told
        elif len(kernels) == 1:
            found[kernels[0].id] = lost
        else:
            return [self.in_turns([kernel], check=check)[0] for kernel in kernels]
        return [(kernel, found[kernel.id]) for kernel in kernels]

    def timed(
        self, ready: Mapping[str, Measurement]
    ) -> tuple[dict[str, Measurement], Measurement | None]:
        """What `ready` gave of some kernels, by their ids, with times; or nothing, and what is
        wrong with all of them: the worker died. Raises: RunnerUnavailable."""
        asked = self._options
        message = {"do": "rounds", "ids": list(ready), "rounds": ROUNDS, "apart_s": APART_S}
        limit = COMPILE_S + ROUNDS * asked.timeout_s * len(ready)
        reply = self._session.request({**message, **effort(asked)}, timeout_s=limit)
        if reply["status"] != "ok":
            status = "crash" if reply["status"] == "missing" else reply["status"]
            return {}, failed(status, reply.get("error", "the worker was lost"))
        found = {}
        for name, (wall, cpu) in reply["times"].items():
            told = {"times_s": tuple(wall), "cpu_sum_s": tuple(cpu), "when": time.time()}
            found[name] = msgspec.structs.replace(ready[name], **told)
        return found, None

    def ready(self, kernel: TensorGraph, *, called: bool = True, check: bool) -> Measurement:
        """Compiled and, unless that is all, called: without times, if it is ok.

        Raises: RunnerUnavailable.
        """
        asked = self._options
        if (need := bytes_of(kernel)) > asked.max_bytes:
            return failed("oom", f"the arrays need {need:,} bytes of {asked.max_bytes:,}")
        try:
            text = hlo_text(kernel)
        except TensorError as error:
            return failed("build", error.reason)
        message = {
            "do": "kernel",
            "id": kernel.id,
            "parameters": parameters_of(kernel),
            "seed": asked.seed,
            "called": called,
            "check": check,
        }
        limit = COMPILE_S + asked.timeout_s
        reply = self._session.request(message, [text.encode()], timeout_s=limit)
        if reply["status"] != "ok":
            return failed(reply["status"], reply.get("error", ""))
        return Measurement(
            compile_s=reply["compile_s"], tolerance=TOLERANCE if check else None, when=time.time()
        )


_LIMIT_S = 300.0
#: The instruction that one of the optimised module was made of: the printer calls them o0, o1, ...
_MADE_OF = re.compile(r'op_name="(?:[^"]*/)?o(\d+)(?:\.[a-z]+)?"')
_BODY = re.compile(r"^(ENTRY )?%?([\w.-]+) ")
_CALLED = re.compile(r"fusion\(.*calls=%?([\w.-]+)")


def compiler_cut(program: TensorGraph, session: Session) -> Cut:
    """Raises: TensorError for a program that XLA does not compile; RunnerUnavailable."""
    text = hlo_text(program)
    reply = session.request({"do": "optimised"}, [text.encode()], timeout_s=_LIMIT_S)
    if reply["status"] != "ok":
        raise TensorError(f"XLA does not compile the program: {reply['error']}")
    return cut_of(program, reply["text"])


def cut_of(program: TensorGraph, optimised: str) -> Cut:
    """By the text of the optimised module, in which each instruction names the one that it was made
    of. What lies in several fusions, since XLA computes it in each, goes with the first of them;
    what none of them names, for it was simplified away, with its first operand, else its user.
    """
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
    """Places of our operations by fusion, and, one by one, those of the entry that are in none."""
    bodies: dict[str, list[str]] = {}
    entry, inside = "", ""
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith((" ", "HloModule")):
            found = _BODY.match(line)
            if found is None:
                continue
            inside = found[2]
            entry = inside if found[1] else entry
            bodies[inside] = []
        elif inside:
            bodies[inside].append(line)
    fusions: list[list[int]] = []
    for line in bodies.get(entry, ()):
        called = _CALLED.search(line)
        lines = bodies.get(called[1], []) if called else [line]
        found_here = [int(number) for one in lines for number in _MADE_OF.findall(one)]
        if found_here:
            fusions.append(found_here)
    return fusions
