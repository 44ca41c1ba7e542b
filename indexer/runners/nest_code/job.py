"""The nest a worker holds: its arrays, what they held before, and what they must hold after."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.nests.nest import Nest
from indexer.runners.cpu_kernels.forms import aligned
from indexer.runners.nest_code.fill import DTYPE_OF, contents, filled
from indexer.runners.nest_code.reference import evaluate
from indexer.runners.nest_code.rounding import checked_nest, may_jump, tolerance_of

__all__ = ["Libraries", "NestJob", "bytes_needed"]

#: Values compared together: they stay in the cache.
_CHUNK = 1 << 15
#: Share of elements that may differ where rounding can turn a decision.
_TURNED = 1e-4
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


class Libraries:
    """Shared objects that were loaded, by path."""

    def __init__(self) -> None:
        self._calls: dict[str, Any] = {}

    def call(self, path: str, which: int, arrays: list[NDArray[Any]], threads: int) -> float:
        """Seconds of one call of a function in it, with these arrays."""
        if path not in self._calls:
            function = ctypes.CDLL(path).embeddb_call
            function.restype = ctypes.c_double
            self._calls[path] = function
        pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        return float(self._calls[path](ctypes.c_int64(which), pointers, ctypes.c_int64(threads)))


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
        self._expected: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}

    def expect(self, folder: Path, reference: str, libraries: Libraries) -> None:
        """Compute what is right, unless it lies in the folder."""
        if not all(_path(folder, a).exists() for a in self._checked):
            for a, told in self._computed(reference, libraries).items():
                np.save(_path(folder, a), told)
        self._expected = {a: tuple(np.load(_path(folder, a), mmap_mode="r")) for a in self._checked}

    def _computed(self, reference: str, libraries: Libraries) -> dict[int, NDArray[np.float64]]:
        """By array, the expected values and how far off they may be: float64[2, elements]."""
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
            found[a] = np.stack([expected, np.where(known, off, np.inf)])
        return found

    def restore(self, *, all: bool) -> None:
        """What the arrays held before, as far as it matters to a run; with `all` whatever a run
        writes to, so that nothing of the last one is taken for the next one's."""
        for a, before in self._before.items():
            if all or a in self._read:
                self.arrays[a][:] = 0 if before is None else before

    def wrong(self) -> str:
        """Empty if all that the last run wrote is right."""
        for a, (expected, off) in self._expected.items():
            bad = 0
            for low in range(0, expected.size, _CHUNK):
                part = slice(low, low + _CHUNK)
                found = self.arrays[a][part].astype(np.float64)
                error = np.abs(found - expected[part])
                missed = ~(error <= off[part]) & (off[part] < np.inf)
                bad += int(np.count_nonzero(missed))
                if bad and not (may_jump(self.nest) and bad <= max(1, _TURNED * expected.size)):
                    at = int(missed.argmax())
                    place = [int(x) for x in np.unravel_index(low + at, self.nest.arrays[a].shape)]
                    name = self.nest.array_name(a)
                    return f"{name}{place} is off by {error[at]:.3g}, more than rounding explains"
        return ""


def _path(folder: Path, array: int) -> Path:
    return folder / f"expected-{array}.npy"
