"""A tensor kernel under measurement: compiled here, and run in its worker process, `python -m
indexer.runners.tile_code.job`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import TensorError
from embeddb.kernels.accuracy import LARGE, kernel_error, may_jump, needs_positive, takes_large
from embeddb.kernels.forms import aligned
from embeddb.kernels.tiles.generate import FLAGS, PRELUDE, arguments, c_function
from embeddb.tensors.tensor_graph import Shape, TensorGraph
from embeddb.tensors.tensor_text import tensor_from_text, tensor_text
from embeddb.tensors.tiles import Tile
from embeddb.tensors.tiling.plan import plan_of
from indexer.runners.harness import building
from indexer.runners.harness.building import Built
from indexer.runners.harness.measuring import Measured
from indexer.runners.harness.worker import Expected, Job, Libraries, serve_jobs
from indexer.runners.tile_code.reference import DTYPE_OF, Bounded, error_of, evaluate, physical

#: Beyond these, f32 overflows or is rounded to nothing.
_LARGEST, _TINY = {"f32": 1e38, "f64": 1e300}, {"f32": 1e-35, "f64": 1e-290}
_BELOW = 8
#: Arrays of the reference that live at the same time, with their errors, in double precision.
_LIVE, _WIDE = 4, 24


def _shapes(kernel: TensorGraph) -> list[Shape]:
    """Shapes of parameters, then of outputs."""
    return [kernel.operations[at].shape for at in (*kernel.parameters, *kernel.outputs)]


class KernelJob(Job):
    """A kernel in a worker; `arrays` are flat in memory order: parameters, outputs, scratch memory
    of so many bytes. The expected values are computed by numpy."""

    def __init__(self, kernel: TensorGraph, scratch: int, seed: int) -> None:
        self.kernel = kernel
        self._shapes = shapes = _shapes(kernel)
        self.arrays = [aligned((shape.elements,), DTYPE_OF[shape.dtype]) for shape in shapes]
        self.arrays.append(aligned((max(scratch, 1),), np.uint8))
        self._inputs = len(kernel.parameters)
        positive = needs_positive(kernel)
        for number in range(self._inputs):
            self.arrays[number][:] = _filled(shapes[number], number, seed, positive=positive)
            if takes_large(kernel, shapes[number]):
                self.arrays[number][[0, -1]] = -LARGE, LARGE
        self.numbers = list(range(self._inputs, len(shapes)))
        self.may_jump = may_jump(kernel)

    def computed(self, reference: str, libraries: Libraries) -> Iterator[Expected]:
        """See `Job.computed`. Raises: TensorError for a kernel whose shapes are inconsistent."""
        try:
            values_of = evaluate(self.kernel, self.arrays[: self._inputs])
            for number, result in zip(self.numbers, values_of, strict=True):
                yield number, *self._bounded(result, self._shapes[number])
        except (ValueError, IndexError) as error:
            raise TensorError(f"its shapes do not fit each other: {error}") from error

    def _bounded(self, result: Bounded, shape: Shape) -> tuple[NDArray[Any], NDArray[Any]]:
        """A result and how far it may be off, in memory order."""
        values = physical(result.value, shape).astype(np.float64)
        error = physical(np.broadcast_to(error_of(*result), shape.dims), shape)
        if shape.dtype not in _LARGEST:
            return values, np.zeros(values.shape)
        off = kernel_error(self.kernel) * (np.abs(values) + error) + _TINY[shape.dtype]
        finite = np.isfinite(off) & (np.abs(values) < _LARGEST[shape.dtype])
        return np.where(finite, values, 0), np.where(finite, off, np.inf)

    def element(self, number: int, place: int) -> str:
        names, output = self.kernel.names, number - self._inputs
        name = names[self.kernel.outputs[output]] if names else f"output {output}"
        return f"{name}{_index(place, self._shapes[number])}"

    def restore(self, *, all: bool) -> None:
        """With `all` overwrite the results; a run reads none of them."""
        if all:
            for array in self.arrays[self._inputs :]:
                array[:] = 113


def _index(place: int, shape: Shape) -> list[int]:
    """Index of the element at a place in memory."""
    order = tuple(reversed(shape.layout))
    at = np.unravel_index(place, [shape.dims[d] for d in order])
    index = dict(zip(order, map(int, at), strict=True))
    return [index[d] for d in range(shape.rank)]


def _filled(shape: Shape, number: int, seed: int, *, positive: bool) -> NDArray[Any]:
    """Reals in (-1, 1), or in (0.25, 1.25); integers from 0 to 7."""
    rng = np.random.default_rng([seed, number])
    if shape.dtype == "pred":
        return rng.integers(0, 2, shape.elements).astype(np.bool_)
    if not shape.dtype.startswith("f"):
        return rng.integers(0, _BELOW, shape.elements).astype(DTYPE_OF[shape.dtype])
    values = rng.random(shape.elements, dtype=np.float32)
    return values + np.float32(0.25) if positive else values * 2 - 1


class MeasuredKernel(Measured[Tile]):
    """A kernel. Short calls are repeated in a row: each timing spans at least `least_s` seconds."""

    called = "kernel"
    least_s = 1e-4

    def __init__(self, kernel: TensorGraph) -> None:
        self.kernel = kernel
        self.tolerance = kernel_error(kernel)
        self.scratch = plan_of(kernel).scratch
        self.parts = (b"%d\n" % self.scratch, tensor_text(kernel))

    def bytes_needed(self, *, check: bool) -> int:
        needed = self.scratch + sum(shape.bytes for shape in _shapes(self.kernel))
        if check:
            largest = sorted((op.shape.elements for op in self.kernel.operations), reverse=True)
            needed += _WIDE * sum(largest[:_LIVE])
        return needed

    def build(self, variants: Sequence[Tile], folder: Path) -> dict[Tile, Built]:
        def source(tile: Tile, name: str) -> tuple[str, str]:
            return c_function(self.kernel, tile, name), arguments(self.kernel, tile)

        return building.build_all(
            variants, source, folder, prelude=PRELUDE, compiler=building.command(*FLAGS)
        )


def _job(payload: bytes, seed: int) -> KernelJob:
    """The job of the bytes of scratch memory, followed by the kernel's text."""
    scratch, _, text = payload.partition(b"\n")
    return KernelJob(tensor_from_text(text), int(scratch), seed)


def main() -> None:
    """Serve until stdin ends."""
    serve_jobs(_job)


if __name__ == "__main__":
    main()
