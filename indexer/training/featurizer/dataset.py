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
from embeddb.core.thumbnail import density
from embeddb.featurizers.network.reduction import Input, Reduction, reduce
from embeddb.matrix_files import matrix_files, matrix_names, plain_name, read_pattern
from indexer.training.featurizer.augment import augment

#: With fewer, one group more or less in the validation decides what is learned.
FEWEST_GROUPS = 8
#: Share of the groups that is held out for early stopping and for the figures in the card.
_VALID_SHARE = 0.2
#: Bytes all samples may need together.
_MOST_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is made of each pattern: the reduction, and how many copies are drawn with which seed.

    The seed also splits the groups. `transposed` allows copies to be transposes.
    """

    reduction: Reduction
    copies: int = 4
    seed: int = 0
    transposed: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One pattern as training needs it; `source` is the id of the pattern it is or was made of.

    Shapes: `density` float32[32,32], the share of each equal area that is nonzero.
    """

    source: str
    group: str
    input: Input
    density: NDArray[np.float32]

    @property
    def nbytes(self) -> int:
        return self.input.coords.nbytes + self.input.features.nbytes + self.density.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """`train` and `valid` share no group; `problems` has a line for each file left out.

    `hash` is of the sorted ids of the patterns read: 16 hex digits, whatever the files are called.
    """

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

    `groups` gives the group by the matrix's name; a matrix that is not in it is one of its own.
    The same structure in two files counts once, with the first file's group. Copies depend on the
    seed and the pattern alone, so a file more does not change those of the others.

    Raises: InputError if there are too few groups, or more samples than memory is meant for.
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
        hash=_hash(list(reading.ids)),
        problems=tuple(reading.problems),
    )


@dataclass(slots=True)
class _Reading:
    """What has been read so far."""

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
        made = {pattern.id: pattern}
        for copy in range(self.recipe.copies):
            rng = np.random.default_rng([self.recipe.seed, copy, int(pattern.id, 16)])
            found = augment(pattern, rng=rng, transposed=self.recipe.transposed)
            made.setdefault(found.id, found)
        for found in made.values():
            self._keep(_sample(found, pattern, self.recipe.reduction))

    def _keep(self, sample: Sample) -> None:
        self.samples.append(sample)
        self.bytes += sample.nbytes
        if self.bytes > _MOST_BYTES:
            raise InputError(
                f"{len(self.samples)} samples need more than {_MOST_BYTES >> 30} GiB",
                hint="fewer --copies or a smaller --size",
            )


def _sample(pattern: Pattern, source: Pattern, reduction: Reduction) -> Sample:
    cells = density(pattern).astype(np.float32)
    return Sample(source.id, source.group, reduce(pattern, reduction), cells)


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


def _hash(ids: list[str]) -> str:
    return hashlib.blake2b("\n".join(sorted(ids)).encode(), digest_size=8).hexdigest()
