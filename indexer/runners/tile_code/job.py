"""A tensor kernel under measurement: what is built of it here, and what its worker process holds,
`python -m indexer.runners.tile_code.job`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import TensorError
from embeddb.kernels.accuracy import kernel_error, may_jump, needs_positive
from embeddb.kernels.forms import aligned
from embeddb.kernels.tiles.generate import FLAGS, PRELUDE, arguments, c_function
from embeddb.tensors.tensor_graph import Shape, TensorGraph
from embeddb.tensors.tensor_text import tensor_from_text, tensor_text
from embeddb.tensors.tiles import Tile
from embeddb.tensors.tiling.plan import plan_of
from indexer.runners.harness import building
from indexer.runners.harness.building import Built
from indexer.runners.harness.worker import Expected, Libraries, first_missed, serve_jobs
from indexer.runners.tile_code.reference import DTYPE_OF, error_of, evaluate, physical

#: Beyond these, f32 overflows or is rounded to nothing.
_LARGEST, _TINY = {"f32": 1e38, "f64": 1e300}, {"f32": 1e-35, "f64": 1e-290}
_BELOW = 8
#: Arrays of the reference that live at the same time, with their errors, in double precision.
_LIVE, _WIDE = 4, 24


def bytes_needed(kernel: TensorGraph, scratch: int, *, check: bool) -> int:
    """Bytes that a job takes at most, before any is allocated."""
    shapes = _shapes(kernel)
    held = scratch + sum(shape.bytes for shape in shapes)
    if check:
        largest = sorted((op.shape.elements for op in kernel.operations), reverse=True)
        held += _WIDE * sum(largest[:_LIVE])
    return held


def _shapes(kernel: TensorGraph) -> list[Shape]:
    """Of parameters, then of outputs."""
    return [kernel.operations[at].shape for at in (*kernel.parameters, *kernel.outputs)]


class KernelJob:
    """`arrays` are flat as they lie in memory: parameters, outputs, scratch memory of so many
    bytes. The expected values are computed once by numpy and kept in a folder."""

    def __init__(self, kernel: TensorGraph, scratch: int, seed: int) -> None:
        self.kernel = kernel
        shapes = _shapes(kernel)
        self.arrays = [aligned((shape.elements,), DTYPE_OF[shape.dtype]) for shape in shapes]
        self.arrays.append(aligned((max(scratch, 1),), np.uint8))
        self._given = len(kernel.parameters)
        positive = needs_positive(kernel)
        for number in range(self._given):
            self.arrays[number][:] = _filled(shapes[number], number, seed, positive=positive)
        self._shapes = shapes
        self._expected: Expected | None = None

    def expect(self, folder: Path, reference: str, libraries: Libraries) -> None:
        """Compute the expected values, unless they lie in the folder. Raises: TensorError for a
        kernel whose shapes do not fit each other."""
        expected = Expected(folder, list(range(len(self.kernel.outputs))))
        if not expected.there:
            try:
                self._keep(expected)
            except (ValueError, IndexError) as error:
                raise TensorError(f"its shapes do not fit each other: {error}") from error
        self._expected = expected

    def _keep(self, expected: Expected) -> None:
        tolerance = kernel_error(self.kernel)
        values_of = evaluate(self.kernel, self.arrays[: self._given])
        for output, told in enumerate(values_of):
            shape = self._shapes[self._given + output]
            values = physical(told.value, shape).astype(np.float64)
            error = physical(np.broadcast_to(error_of(*told), shape.dims), shape)
            off = np.zeros(values.shape)
            if shape.dtype in _LARGEST:
                off = tolerance * (np.abs(values) + error) + _TINY[shape.dtype]
                known = np.isfinite(off) & (np.abs(values) < _LARGEST[shape.dtype])
                off = np.where(known, off, np.inf)
            expected.keep(output, values, off)

    def restore(self, *, all: bool) -> None:
        """Nothing is read that a run writes; with `all` it is overwritten."""
        if all:
            for array in self.arrays[self._given :]:
                array[:] = 113

    def wrong(self) -> str:
        """Empty if all that the last run wrote is right."""
        assert self._expected is not None, "expect comes before wrong"
        jumps = may_jump(self.kernel)
        for output, at in enumerate(self.kernel.outputs):
            found = self.arrays[self._given + output]
            missed = first_missed(found, *self._expected.of(output), may_jump=jumps)
            if missed is not None:
                place, error = missed
                name = self.kernel.names[at] if self.kernel.names else f"output {output}"
                index = _index(place, self._shapes[self._given + output])
                return f"{name}{index} is off by {error:.3g}, more than rounding explains"
        return ""


def _index(place: int, shape: Shape) -> list[int]:
    """Of the element that lies there."""
    order = tuple(reversed(shape.layout))
    at = np.unravel_index(place, [shape.dims[d] for d in order]) if order else ()
    told = dict(zip(order, map(int, at), strict=True))
    return [told[d] for d in range(shape.rank)]


def _filled(shape: Shape, number: int, seed: int, *, positive: bool) -> NDArray[Any]:
    """Reals in (-1, 1), or in (0.25, 1.25); whole numbers from 0 to 7."""
    rng = np.random.default_rng([seed, number])
    if shape.dtype == "pred":
        return rng.integers(0, 2, shape.elements).astype(np.bool_)
    if not shape.dtype.startswith("f"):
        return rng.integers(0, _BELOW, shape.elements).astype(DTYPE_OF[shape.dtype])
    made = rng.random(shape.elements, dtype=np.float32)
    return made + np.float32(0.25) if positive else made * 2 - 1


class MeasuredKernel:
    """Keeps `indexer.runners.harness.measuring.Measured`. Short calls are made several times in a
    row: the clock is read around at least so many seconds."""

    called = "kernel"
    least_s = 1e-4

    def __init__(self, kernel: TensorGraph) -> None:
        self.kernel = kernel
        self.tolerance = kernel_error(kernel)
        self.scratch = plan_of(kernel).scratch
        self.parts: Sequence[Any] = (b"%d\n" % self.scratch, tensor_text(kernel))

    def bytes_needed(self, *, check: bool) -> int:
        return bytes_needed(self.kernel, self.scratch, check=check)

    def restored_bytes(self) -> int:
        return 0

    def reference(self, folder: Path) -> str:
        """Numpy's."""
        return ""

    def build(self, variants: Sequence[Tile], folder: Path) -> dict[Tile, Built]:
        def source(tile: Tile, name: str) -> tuple[str, str]:
            return c_function(self.kernel, tile, name), arguments(self.kernel, tile)

        return building.build_all(
            variants, source, folder, prelude=PRELUDE, compiler=building.command(*FLAGS)
        )


def _job(payload: bytes, seed: int) -> KernelJob:
    """Of the bytes of scratch memory, and the kernel's text behind them."""
    scratch, _, text = payload.partition(b"\n")
    return KernelJob(tensor_from_text(text), int(scratch), seed)


def main() -> None:
    """Serve until stdin ends."""
    serve_jobs(_job)


if __name__ == "__main__":
    main()
