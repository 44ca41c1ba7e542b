"""What a worker is asked about kernels and partitions, and what stands for a reply that is none."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from embeddb.core.records import Measurement
from embeddb.tensors.computation import Computation
from embeddb.tensors.partition import Partition
from indexer.runners.base import RunOptions

__all__ = [
    "COMPILE_S",
    "bytes_of",
    "chain_request",
    "effort",
    "failed",
    "parameters_of",
    "together",
]

#: To compile; large kernels take a second.
COMPILE_S = 120.0
#: Bytes of arrays of kernels that take turns.
_TOGETHER = 1 << 30


def failed(status: str, error: str) -> Measurement:
    return Measurement(status, error=" ".join(error.split()), when=time.time())


def effort(asked: RunOptions) -> dict[str, float]:
    return {name: getattr(asked, name) for name in ("repeats", "max_repeats", "min_time_s")}


def together(kernels: Iterable[Computation], most: int = 1 << 30) -> Iterator[list[Computation]]:
    """Each once, as many at a time as have room, `most` of them."""
    held: list[Computation] = []
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


def parameters_of(made: Computation) -> list[tuple[str, list[int]]]:
    shapes = [made.operations[at].shape for at in made.parameters]
    return [(shape.dtype, list(shape.dims)) for shape in shapes]


def bytes_of(made: Computation) -> int:
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
