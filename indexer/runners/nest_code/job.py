"""A nest under measurement: what is built of it here, and what its worker process holds,
`python -m indexer.runners.nest_code.job`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import NestError
from embeddb.core.pattern import Pattern
from embeddb.kernels.forms import aligned
from embeddb.kernels.nests.generate import FLAGS, PRELUDE, c_function
from embeddb.nests.nest import Nest
from embeddb.nests.nest_text import nest_from_text, nest_text
from embeddb.nests.schedule import Schedule
from indexer.runners.harness import building
from indexer.runners.harness.building import Built
from indexer.runners.harness.worker import Expected, Libraries, first_missed, serve_jobs
from indexer.runners.nest_code.fill import DTYPE_OF, contents, filled
from indexer.runners.nest_code.reference import evaluate, suits
from indexer.runners.nest_code.rounding import checked_nest, may_jump, tolerance_of

#: Smallest positive numbers that are kept: smaller ones are 0 under -ffast-math.
_TINY = {"f32": 1e-37, "f64": 1e-300, "i32": 0.0, "i64": 0.0}


def bytes_needed(nest: Nest, *, check: bool) -> int:
    """Bytes that a job takes at most, before any is allocated."""
    size = {a: nest.arrays[a].elements for a in range(len(nest.arrays))}
    held = sum(array.bytes for array in nest.arrays)
    held += sum(nest.arrays[a].bytes for a in nest.written)
    if check:  # in double precision, the expected values, and how far they may be off
        held += 8 * sum(size.values()) + 16 * sum(size[a] for a in nest.written)
    return held


class NestJob:
    """`arrays` are flat, in the order of the nest. The expected values are computed once and kept
    in `folder`, where the next process finds them if this one ends: by numpy, or by the compiled
    `reference` if one is named."""

    def __init__(self, nest: Nest, seed: int) -> None:
        self.nest = nest
        self.arrays = [aligned((a.elements,), DTYPE_OF[a.dtype]) for a in nest.arrays]
        for number, held in enumerate(self.arrays):
            held[:] = contents(nest, number, seed)
        self._before = {
            a: None if nest.arrays[a].fill == "zero" else self.arrays[a].copy()
            for a in nest.written
        }
        read = {a.array for s in nest.body for a in s.reads()}
        read |= {s.target.array for s in nest.body if s.reduction}
        self._read = nest.written & read
        self._checked = [a for a in sorted(nest.written) if not nest.arrays[a].transient]
        self._expected: Expected | None = None

    def expect(self, folder: Path, reference: str, libraries: Libraries) -> None:
        """Compute what is right, unless it lies in the folder."""
        expected = Expected(folder, self._checked)
        if not expected.there:
            for a, (values, off) in self._computed(reference, libraries).items():
                expected.keep(a, values, off)
        self._expected = expected

    def _computed(
        self, reference: str, libraries: Libraries
    ) -> dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """By array, the expected values and how far off they may be: float64[elements] each."""
        checked = checked_nest(self.nest)
        arrays = [filled(a, 0) for a in checked.nest.arrays[len(self.arrays) :]]
        given = zip(checked.nest.arrays, self.arrays, strict=False)
        arrays = [*(a.astype(DTYPE_OF[to.dtype]) for to, a in given), *arrays]
        if reference:
            libraries.call(reference, 0, arrays, 1)
            after: Any = arrays
        else:
            after = evaluate(checked.nest, dict(enumerate(arrays)))
        tolerance = tolerance_of(self.nest)
        found = {}
        for a in self._checked:
            expected = np.asarray(after[a], np.float64)
            size = np.abs(expected)
            if a in checked.errors:
                size += after[checked.errors[a]]
            off = tolerance * size + _TINY[self.nest.arrays[a].dtype]
            known = np.isfinite(expected) & np.isfinite(off)
            found[a] = expected, np.where(known, off, np.inf)
        return found

    def restore(self, *, all: bool) -> None:
        """What the arrays held before, as far as it matters to a run; with `all` whatever a run
        writes to, so that nothing of the last one is taken for the next one's."""
        for a, before in self._before.items():
            if all or a in self._read:
                self.arrays[a][:] = 0 if before is None else before

    def wrong(self) -> str:
        """Empty if all that the last run wrote is right."""
        assert self._expected is not None, "expect comes before wrong"
        for a in self._checked:
            told = self._expected.of(a)
            missed = first_missed(self.arrays[a], *told, may_jump=may_jump(self.nest))
            if missed is not None:
                at, error = missed
                place = [int(x) for x in np.unravel_index(at, self.nest.arrays[a].shape)]
                name = self.nest.array_name(a)
                return f"{name}{place} is off by {error:.3g}, more than rounding explains"
        return ""


_EXACT = ("-O2", "-ffp-contract=off")


def build_all(
    nest: Nest, schedules: Sequence[Schedule], folder: Path, *, more: Sequence[str] = ()
) -> dict[Schedule, Built]:
    """All of them, several a file, on all processors; the compiler is called with `more` beside
    its own flags.

    Raises: RunnerUnavailable if the machine could not compile.
    """
    plain, given = _plain(nest), _given(nest)
    return building.build_all(
        schedules,
        lambda schedule, name: (c_function(plain, schedule, name), given),
        folder,
        prelude=PRELUDE,
        compiler=building.command(*FLAGS, "-fopenmp", *more),
        openmp=True,
    )


def build_reference(nest: Nest, folder: Path) -> Path:
    """The nest in the order of its text, without any reordering of sums.

    Raises: RunnerUnavailable, NestError if it does not compile.
    """
    schedule = Schedule(tuple(range(nest.depth)), (0,) * nest.depth)
    path = folder / "reference.so"
    function = c_function(_plain(nest), schedule, "v0"), _given(nest)
    text = building.one_file(PRELUDE, [function], openmp=True)
    exact = building.command(*_EXACT, "-fopenmp")
    if problem := building.build_one(path, text, exact):
        raise NestError(f"its reference does not compile: {problem}")
    return path


def _plain(nest: Nest) -> Nest:
    """Without names: a stranger's may be macros somewhere."""
    return replace(nest, loop_names=(), array_names=())


def _given(nest: Nest) -> str:
    return ", ".join(f"a[{at}]" for at in range(len(nest.arrays)))


class MeasuredNest:
    """Keeps `indexer.runners.harness.measuring.Measured`; a call is made once, for what it writes
    may be what it reads."""

    called = "nest"
    least_s = 0.0

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.parts: Sequence[Any] = parts_of(nest)
        self.tolerance = tolerance_of(nest)

    def bytes_needed(self, *, check: bool) -> int:
        return bytes_needed(self.nest, check=check)

    def restored_bytes(self) -> int:
        return sum(self.nest.arrays[a].bytes for a in self.nest.written)

    def reference(self, folder: Path) -> str:
        """Compiled for nests that numpy would take too long for."""
        if suits(self.nest):
            return ""
        return str(build_reference(checked_nest(self.nest).nest, folder))

    def build(self, variants: Sequence[Schedule], folder: Path) -> dict[Schedule, Built]:
        return build_all(self.nest, variants, folder)


def parts_of(nest: Nest) -> list[Any]:
    """What is sent: a line with the nest, one with rows, columns and entries of each matrix, then
    the row offsets and columns of each, int64 and int32."""
    sizes = json.dumps([[*matrix.shape, matrix.nnz] for matrix in nest.matrices]).encode()
    arrays = [part for matrix in nest.matrices for part in (matrix.indptr, matrix.indices)]
    return [nest_text(nest) + b"\n" + sizes + b"\n", *arrays]


def received(payload: bytes) -> Nest:
    """The nest again.

    Raises: NestError, MatrixError.
    """
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
