"""A nest under measurement: compiled here, and run in its worker process, `python -m
indexer.runners.nest_code.job`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from embeddb.core.errors import NestError
from embeddb.core.pattern import Pattern
from embeddb.kernels.forms import aligned
from embeddb.kernels.nests.generate import FLAGS, PRELUDE, c_function
from embeddb.nests.nest import Nest
from embeddb.nests.nest_text import nest_from_text, nest_text
from embeddb.nests.schedule import Schedule
from indexer.runners.harness import building
from indexer.runners.harness.building import Built
from indexer.runners.harness.measuring import Measured
from indexer.runners.harness.worker import Expected, Job, Libraries, serve_jobs
from indexer.runners.nest_code.fill import DTYPE_OF, contents, filled
from indexer.runners.nest_code.reference import (
    checked_nest,
    evaluate,
    may_jump,
    suits,
    tolerance_of,
)

#: Smallest positive numbers that are kept: smaller ones are 0 under -ffast-math.
_TINY = {"f32": 1e-37, "f64": 1e-300, "i32": 0.0, "i64": 0.0}


class NestJob(Job):
    """A nest in a worker; `arrays` are in the order of the nest. The expected values are computed
    by numpy, or by the compiled reference if one is named."""

    def __init__(self, nest: Nest, seed: int) -> None:
        self.nest = nest
        self.arrays = [aligned((a.elements,), DTYPE_OF[a.dtype]) for a in nest.arrays]
        for number, array in enumerate(self.arrays):
            array[:] = contents(nest, number, seed)
        self._before = {
            a: None if nest.arrays[a].fill == "zero" else self.arrays[a].copy()
            for a in nest.written
        }
        read = {a.array for s in nest.body for a in s.reads()}
        read |= {s.target.array for s in nest.body if s.reduction}
        self._read = nest.written & read
        self.numbers = [a for a in sorted(nest.written) if not nest.arrays[a].transient]
        self.may_jump = may_jump(nest)

    def computed(self, reference: str, libraries: Libraries) -> Iterator[Expected]:
        checked = checked_nest(self.nest)
        arrays = [filled(a, 0) for a in checked.nest.arrays[len(self.arrays) :]]
        declared = zip(checked.nest.arrays, self.arrays, strict=False)
        arrays = [*(a.astype(DTYPE_OF[to.dtype]) for to, a in declared), *arrays]
        if reference:
            libraries.call(reference, 0, arrays, 1)
            after: Any = arrays
        else:
            after = evaluate(checked.nest, dict(enumerate(arrays)))
        tolerance = tolerance_of(self.nest)
        for a in self.numbers:
            expected = np.asarray(after[a], np.float64)
            size = np.abs(expected)
            if a in checked.errors:
                size += after[checked.errors[a]]
            off = tolerance * size + _TINY[self.nest.arrays[a].dtype]
            finite = np.isfinite(expected) & np.isfinite(off)
            yield a, expected, np.where(finite, off, np.inf)

    def element(self, number: int, place: int) -> str:
        at = [int(x) for x in np.unravel_index(place, self.nest.arrays[number].shape)]
        return f"{self.nest.array_name(number)}{at}"

    def restore(self, *, all: bool) -> None:
        for a, before in self._before.items():
            if all or a in self._read:
                self.arrays[a][:] = 0 if before is None else before


_EXACT = ("-O2", "-ffp-contract=off")


def build_reference(nest: Nest, folder: Path) -> Path:
    """Compile the nest in the order of its text, without any reordering of sums.

    Raises: RunnerUnavailable, NestError if it does not compile.
    """
    schedule = Schedule(tuple(range(nest.depth)), (0,) * nest.depth)
    path = folder / "reference.so"
    function, exact = _function(nest, schedule, "v0"), building.command(*_EXACT, "-fopenmp")
    if problem := building.build_one(
        path, [function], prelude=PRELUDE, compiler=exact, openmp=True
    ):
        raise NestError(f"its reference does not compile: {problem}")
    return path


def _function(nest: Nest, schedule: Schedule, name: str) -> tuple[str, str]:
    """The function of a nest without names, which may be macros somewhere, and its arguments."""
    plain = replace(nest, loop_names=(), array_names=())
    arguments = ", ".join(f"a[{at}]" for at in range(len(nest.arrays)))
    return c_function(plain, schedule, name), arguments


class MeasuredNest(Measured[Schedule]):
    """A nest; a call is not repeated, since it may read its own results."""

    called = "nest"

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.parts = parts_of(nest)
        self.tolerance = tolerance_of(nest)
        self.restored_bytes = sum(nest.arrays[a].bytes for a in nest.written)

    def bytes_needed(self, *, check: bool) -> int:
        arrays, written = self.nest.arrays, self.nest.written
        needed = sum(array.bytes for array in arrays) + self.restored_bytes
        if check:  # in double precision, the expected values, and how far they may be off
            needed += 8 * sum(array.elements for array in arrays)
            needed += 16 * sum(arrays[a].elements for a in written)
        return needed

    def reference(self, folder: Path) -> str:
        """A compiled reference for nests that take numpy too long."""
        if suits(self.nest):
            return ""
        return str(build_reference(checked_nest(self.nest).nest, folder))

    def build(
        self, variants: Sequence[Schedule], folder: Path, more: Sequence[str] = ()
    ) -> dict[Schedule, Built]:
        """See `Measured.build`; `more` are additional flags of the compiler."""
        return building.build_all(
            variants,
            lambda schedule, name: _function(self.nest, schedule, name),
            folder,
            prelude=PRELUDE,
            compiler=building.command(*FLAGS, "-fopenmp", *more),
            openmp=True,
        )


def parts_of(nest: Nest) -> list[Any]:
    """Buffers of a nest: a line with the nest, one with rows, columns and entries of each matrix,
    then the row offsets and columns of each, int64 and int32."""
    sizes = json.dumps([[*matrix.shape, matrix.nnz] for matrix in nest.matrices]).encode()
    arrays = [part for matrix in nest.matrices for part in (matrix.indptr, matrix.indices)]
    return [nest_text(nest) + b"\n" + sizes + b"\n", *arrays]


def received(payload: bytes) -> Nest:
    """The nest of these buffers. Raises: NestError, MatrixError."""
    text, sizes, rest = payload.split(b"\n", 2)
    matrices, at = [], 0
    for rows, columns, entries in json.loads(sizes):
        ptr = np.frombuffer(rest, np.int64, rows + 1, at)
        idx = np.frombuffer(rest, np.int32, entries, at + ptr.nbytes)
        matrices.append(Pattern.from_csr((rows, columns), ptr, idx))
        at += ptr.nbytes + idx.nbytes
    return nest_from_text(text).with_matrices(matrices)


def main() -> None:
    """Serve until stdin ends."""
    serve_jobs(lambda payload, seed: NestJob(received(payload), seed))


if __name__ == "__main__":
    main()
