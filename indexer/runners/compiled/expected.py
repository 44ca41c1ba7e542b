"""What results must be, and how far off they may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Expected", "first_missed"]

#: Values compared together: they stay in the cache.
_CHUNK = 1 << 15
#: Share of elements that may differ where rounding can turn a decision.
_TURNED = 1e-4


class Expected:
    """By number of a result, values and how far off each may be, float64[2, elements], kept in
    `folder`, where the next process finds them if this one ends."""

    def __init__(self, folder: Path, numbers: list[int]) -> None:
        self._paths = {n: folder / f"expected-{n}.npy" for n in numbers}
        self._told: dict[int, tuple[Any, ...]] = {}

    @property
    def there(self) -> bool:
        return all(path.exists() for path in self._paths.values())

    def keep(self, number: int, values: NDArray[Any], off: NDArray[Any]) -> None:
        np.save(self._paths[number], np.stack([values, off]))

    def of(self, number: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """float64[elements] each."""
        if number not in self._told:
            self._told[number] = tuple(np.load(self._paths[number], mmap_mode="r"))
        expected, off = self._told[number]
        return expected, off


def first_missed(
    found: NDArray[Any],
    expected: NDArray[np.float64],
    off: NDArray[np.float64],
    *,
    may_jump: bool = False,
) -> tuple[int, float] | None:
    """The place of the first value that is off by more than it may be, and by how much. With
    `may_jump` a few are let pass. All are flat."""
    bad = 0
    for low in range(0, expected.size, _CHUNK):
        part = slice(low, low + _CHUNK)
        error = np.abs(found[part].astype(np.float64) - expected[part])
        missed = ~(error <= off[part]) & (off[part] < np.inf)
        bad += int(np.count_nonzero(missed))
        if bad and not (may_jump and bad <= max(1, _TURNED * expected.size)):
            at = int(missed.argmax())
            return low + at, float(error[at])
    return None
