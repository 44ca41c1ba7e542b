"""Patterns of a folder, reduced once and kept in memory, split by group."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import InputError, MatrixError
from embeddb.core.pattern import Pattern
from embeddb.core.reports import Progress
from embeddb.core.sizes import MAX_DIM
from embeddb.core.thumbnail import density
from embeddb.featurizers.network.reduction import Input, Reduction, reduce
from embeddb.matrix_files import matrix_files, matrix_names, plain_name, read_pattern

Ints = NDArray[np.int64]

#: Smallest side of a window and of a shrunk pattern, as a share of the whole.
_LEAST_SHARE = 0.25
#: Largest side of an enlarged pattern; entries grow by the square of it.
_MOST_SHARE = 2.0
#: Patterns with more entries are not enlarged.
_MOST_ENLARGED = 1_000_000
#: Windows tried until one holds an entry.
_TRIES = 8
_MOST_BLOCKS = 16
#: Wider patterns are not transposed: eight bytes are kept per row.
_MOST_ROWS = 1 << 24


def augment(pattern: Pattern, *, rng: np.random.Generator) -> Pattern:
    """One crop, resize or block permutation; every second one is transposed.

    The same generator state gives the same pattern. A pattern without entries is returned as it is.
    """
    if not pattern.nnz:
        return pattern
    transformed = (_random_crop, _random_resize, _random_order)[rng.integers(3)](pattern, rng)
    turned = bool(rng.integers(2)) and transformed.shape[1] <= _MOST_ROWS
    return transpose(transformed) if turned else transformed


def crop(pattern: Pattern, rows: tuple[int, int], cols: tuple[int, int]) -> Pattern:
    """The window rows[0] <= r < rows[1], cols[0] <= c < cols[1], renumbered from 0. Raises:
    ValueError if a side of the window does not lie within the pattern."""
    (top, bottom), (left, right), (m, n) = rows, cols, pattern.shape
    if not (0 <= top <= bottom <= m and 0 <= left <= right <= n):
        raise ValueError(f"window {rows} x {cols} is not within {m} x {n}")
    indptr = pattern.indptr[top : bottom + 1]
    indices = pattern.indices[indptr[0] : indptr[-1]]
    inside = (indices >= left) & (indices < right)
    before = np.concatenate([[0], np.cumsum(inside)])
    return Pattern.from_csr(
        (bottom - top, right - left),
        before[indptr - indptr[0]],
        indices[inside] - left,
        **_labels(pattern, "crop"),
    )


def resize(pattern: Pattern, shape: tuple[int, int]) -> Pattern:
    """The pattern on another scale: entries merge where it shrinks, repeat where it grows.

    An entry covers the lines that its unit interval maps to, at least one. Time and memory are
    proportional to the larger number of entries, before or after.
    """
    m, n = pattern.shape
    rows, cols = _coordinates(pattern)
    first_row, tall = _stretched(rows, m, shape[0])
    first_col, wide = _stretched(cols, n, shape[1])
    each = tall * wide
    at = np.arange(int(each.sum())) - np.repeat(np.cumsum(each) - each, each)
    wide = np.repeat(wide, each)
    new_rows = np.repeat(first_row, each) + at // wide
    new_cols = np.repeat(first_col, each) + at % wide
    return _from_coordinates(pattern, shape, new_rows, new_cols, "resize")


def permute_blocks(pattern: Pattern, row_order: Ints, col_order: Ints) -> Pattern:
    """Permute nearly equal blocks of rows and columns: block `order[i]` becomes block i, unchanged
    inside. Raises: ValueError if an order is no permutation."""
    m, n = pattern.shape
    rows, cols = _coordinates(pattern)
    rows, cols = _moved(rows, m, row_order), _moved(cols, n, col_order)
    return _from_coordinates(pattern, (m, n), rows, cols, "blocks")


def transpose(pattern: Pattern) -> Pattern:
    m, n = pattern.shape
    labels = _labels(pattern, "transpose")
    return Pattern.from_csc((n, m), pattern.indptr, pattern.indices, **labels)


def _random_crop(pattern: Pattern, rng: np.random.Generator) -> Pattern:
    """A window with an entry, else the pattern itself."""
    m, n = pattern.shape
    for _ in range(_TRIES):
        window = crop(pattern, _window(m, rng), _window(n, rng))
        if window.nnz:
            return window
    return pattern


def _window(size: int, rng: np.random.Generator) -> tuple[int, int]:
    length = max(1, round(size * rng.uniform(_LEAST_SHARE, 1.0)))
    start = int(rng.integers(size - length + 1))
    return start, start + length


def _random_resize(pattern: Pattern, rng: np.random.Generator) -> Pattern:
    """Both sides by one factor and each by up to a half more: kernels meet skewed matrices too."""
    most = _MOST_SHARE if pattern.nnz <= _MOST_ENLARGED else 1.0
    both = rng.uniform(np.log(_LEAST_SHARE), np.log(most))
    factors = np.exp(np.minimum(both + rng.uniform(-0.4, 0.4, size=2), np.log(most)))
    m, n = (
        min(max(round(size * factor), 1), MAX_DIM)
        for size, factor in zip(pattern.shape, factors.tolist(), strict=True)
    )
    return resize(pattern, (m, n))


def _random_order(pattern: Pattern, rng: np.random.Generator) -> Pattern:
    """Permute random blocks, symmetrically in square patterns, like unknowns of a matrix."""
    m, n = pattern.shape
    count = int(rng.integers(2, _MOST_BLOCKS + 1))
    row_order = rng.permutation(min(count, m))
    col_order = row_order if m == n else rng.permutation(min(count, n))
    return permute_blocks(pattern, row_order, col_order)


def _coordinates(pattern: Pattern) -> tuple[Ints, Ints]:
    rows = np.repeat(np.arange(pattern.shape[0], dtype=np.int64), np.diff(pattern.indptr))
    return rows, pattern.indices.astype(np.int64)


def _from_coordinates(
    source: Pattern, shape: tuple[int, int], rows: Ints, cols: Ints, how: str
) -> Pattern:
    return Pattern.from_coo(shape, rows, cols, **_labels(source, how))


def _stretched(lines: Ints, size: int, new_size: int) -> tuple[Ints, Ints]:
    """First new line and number of new lines of each line; int64 holds 2^31 * 2^31."""
    first = lines * new_size // size
    last = (lines + 1) * new_size // size
    return first, np.maximum(last - first, 1)


def _moved(lines: Ints, size: int, order: Ints) -> Ints:
    """New position of each line when the blocks are put in order."""
    if not np.array_equal(np.sort(order), np.arange(order.size)):
        raise ValueError("an order of blocks is not a permutation")
    edges = np.arange(order.size + 1, dtype=np.int64) * size // max(order.size, 1)
    lengths = np.diff(edges)[order]
    starts = np.empty(order.size, dtype=np.int64)
    starts[order] = np.cumsum(lengths) - lengths
    block = np.searchsorted(edges, lines, side="right") - 1
    moved: Ints = lines - edges[block] + starts[block] if order.size else lines
    return moved


def _labels(source: Pattern, how: str) -> dict[str, str]:
    """Name and group of a transformed pattern."""
    name = f"{source.name}+{how}" if source.name else how
    return {"name": name, "group": source.group or source.name}


#: With fewer, a single group in the validation part decides the result.
FEWEST_GROUPS = 8
#: Share of the groups that is held out for early stopping and for the figures in the card.
_VALID_SHARE = 0.2
#: Bytes all samples may need together.
_MOST_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Recipe:
    """Preprocessing of each pattern: the reduction, and the number and seed of the random copies.
    The seed also splits the groups."""

    reduction: Reduction
    copies: int = 4
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One training sample; `source` is the id of the pattern or of the one it was copied from.

    Shapes: `density` float32[32,32], the share of each equal area that is nonzero.
    """

    source: str
    group: str
    input: Input
    density: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """`train` and `valid` share no group; `problems` has a line for each file left out. `hash` is
    of the sorted ids of the patterns read: 16 hex digits, independent of file names."""

    train: tuple[Sample, ...]
    valid: tuple[Sample, ...]
    patterns: int
    groups: int
    hash: str
    problems: tuple[str, ...]


def read_dataset(
    folder: Path, recipe: Recipe, *, groups: Mapping[str, str], progress: Progress
) -> Dataset:
    """All patterns below `folder`, each with its copies.

    `groups` gives the group by the matrix's name; a matrix that is not in it is a group of its own.
    The same structure in two files counts once, with the first file's group. Copies depend on the
    seed and the pattern alone, so adding a file does not change those of the others.

    Raises: InputError for too few groups, or samples above the memory limit.
    """
    reading = _Reading(recipe)
    files = matrix_files(folder, note=reading.problems.append)
    names = matrix_names(files, Path(folder))
    for at, file in enumerate(files):
        progress("read matrices", at, len(files))
        name = names[file]
        try:
            group = groups.get(name) or groups.get(plain_name(name), name)
            pattern = read_pattern(file, name=name, group=group)
        except MatrixError as e:
            reading.problems.append(str(e))
            continue
        reading.add(pattern, str(file))
    held_out = _held_out({sample.group for sample in reading.samples}, recipe.seed, folder)
    return Dataset(
        train=tuple(s for s in reading.samples if s.group not in held_out),
        valid=tuple(s for s in reading.samples if s.group in held_out),
        patterns=len(reading.ids),
        groups=len({sample.group for sample in reading.samples}),
        hash=hashlib.blake2b("\n".join(sorted(reading.ids)).encode(), digest_size=8).hexdigest(),
        problems=tuple(reading.problems),
    )


@dataclass(slots=True)
class _Reading:
    """The samples and problems read so far."""

    recipe: Recipe
    samples: list[Sample] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    bytes: int = 0

    def add(self, pattern: Pattern, where: str) -> None:
        if pattern.id in self.ids:
            self.problems.append(f"{where}: the same structure as {self.ids[pattern.id]}")
            return
        self.ids[pattern.id] = pattern.name
        variants = {pattern.id: pattern}
        for copy in range(self.recipe.copies):
            rng = np.random.default_rng([self.recipe.seed, copy, int(pattern.id, 16)])
            variant = augment(pattern, rng=rng)
            variants.setdefault(variant.id, variant)
        for variant in variants.values():
            cells = density(variant).astype(np.float32)
            reduced = reduce(variant, self.recipe.reduction)
            self.samples.append(Sample(pattern.id, pattern.group, reduced, cells))
            self.bytes += reduced.coords.nbytes + reduced.features.nbytes + cells.nbytes
            if self.bytes > _MOST_BYTES:
                raise InputError(
                    f"{len(self.samples)} samples need more than {_MOST_BYTES >> 30} GiB",
                    hint="fewer --copies or a smaller --size",
                )


def _held_out(groups: set[str], seed: int, folder: Path) -> set[str]:
    if len(groups) < FEWEST_GROUPS:
        raise InputError(
            f"{len(groups)} groups of matrices are too few to learn from, "
            f"at least {FEWEST_GROUPS} are needed",
            where=str(folder),
            hint="add matrices of other families",
        )
    count = max(round(len(groups) * _VALID_SHARE), 2)
    order = np.random.default_rng(seed).permutation(sorted(groups))
    return set(order[:count].tolist())
