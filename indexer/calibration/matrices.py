"""The matrices that a machine may be calibrated on: a user's own, or generated ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from embeddb.core.errors import MatrixError
from embeddb.core.pattern import Pattern
from embeddb.matrix_files import matrix_files, matrix_names, read_pattern
from indexer.generated import SIZES, generated

__all__ = ["Candidates"]

#: A file holds more entries than may be measured if it is larger than so many bytes for each.
_BYTES_AN_ENTRY = 40.0


class Candidates:
    """Matrices of a folder in a fixed shuffled order, or generated ones without a folder, up to
    `most` non-zeros. `problems` has a line for each file that cannot be used, `too_large` counts
    those beyond the limit. The smallest generated ones are never too large.

    Raises: MatrixError if it is no folder.
    """

    def __init__(self, folder: Path | None, most: int) -> None:
        self.problems: list[str] = []
        self.too_large = 0
        self._most = most
        self._source: Iterable[Pattern]
        if folder is None:
            self._source = generated(most=max(most, *sorted(SIZES.values())[:1]))
        else:
            files = matrix_files(folder, note=self.problems.append)
            self._names = matrix_names(files, folder)
            order = np.random.default_rng(0).permutation(len(files))
            self._source = self._small_enough(self._read([files[at] for at in order]))

    def __iter__(self) -> Iterator[Pattern]:
        return iter(self._source)

    def _read(self, files: Iterable[Path]) -> Iterator[Pattern]:
        for path in files:
            try:
                if path.stat().st_size > _BYTES_AN_ENTRY * self._most:
                    self.too_large += 1
                    continue
                pattern = read_pattern(path, name=self._names[path])
            except (MatrixError, OSError) as e:
                self.problems.append(f"left out: {e}")
                continue
            if pattern.nnz:
                yield pattern
            else:
                self.problems.append(f"left out: {path}: no entries")

    def _small_enough(self, source: Iterable[Pattern]) -> Iterator[Pattern]:
        for pattern in source:
            if pattern.nnz <= self._most:
                yield pattern
            else:
                self.too_large += 1
