"""The featurizer contract: from the structure of a matrix to a vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from embeddb.core.records import PatternInfo
from embeddb.nests.counters import CounterVector

#: From the ids of a nest and a platform instance to what was counted there; None: nothing was.
CountersOf = Callable[[str, str], CounterVector | None]

_COUNTED = "+counters@"


class Featurizer(Protocol):
    """Turns a pattern into a raw vector, float32[d]; the database standardises vectors itself.

    A featurizer file defines `PLUGIN`, a class with these members that is made without arguments
    (or by `FromWeights.for_database`). Requirements, checked by `embeddb.testing.featurizers`:

    - `embed` is finite for every legal pattern, the empty one included, and looks at the structure
      alone: not at the pattern's name or group.
    - `names` are `dim` distinct texts, one for each coordinate.
    - it embeds matrices, or subjects of the kinds that its `kinds` lists (`("nest",)`).
    - `version` changes whenever a number changes its meaning: vectors are stored under it.

    The protocols below are for featurizers that can do more; each is kept by having its member.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def dim(self) -> int: ...

    def embed(self, pattern: Any) -> NDArray[np.float32]:
        """float32[d] of the structure: of a `Pattern`, or whatever its `kinds` are.

        Raises: MissingDependency or ModelError where it cannot be computed on this machine.
        """

    def from_info(self, info: PatternInfo) -> NDArray[np.float32] | None:
        """float32[d] from what is known of a stub; None where that does not suffice."""


@runtime_checkable
class FromWeights(Protocol):
    """Learned: made from a file of weights."""

    @classmethod
    def for_database(cls, folder: Path | None) -> Featurizer | None:
        """With the weights of the database in that folder (None: a database in memory); None where
        there are none. Raises: ModelError for weights that cannot be read."""


@runtime_checkable
class FromRuns(Protocol):
    """Learned from measured runs."""

    @property
    def learned_from(self) -> frozenset[str]:
        """The groups whose runs those were; answers held out there say nothing of it."""


@runtime_checkable
class CrossFitted(FromRuns, Protocol):
    """Learned from measured runs once with all groups and once without each fold of them, so that
    held-out answers in a group are judged by vectors of a network that never saw it. Its vector is
    a function of that of its one part (`Joint`)."""

    @property
    def folds(self) -> Mapping[str, int]:
        """The fold of each group that it learned from."""

    def fold_vectors(self, raw: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32[f,p,d] by the network of each fold, from vectors float32[p,e] of the part."""


@runtime_checkable
class Occluding(Protocol):
    """Can say what a part of a tensor kernel adds."""

    def without(self, kernel: Any) -> Sequence[NDArray[np.float32]]:
        """The vector float32[d] of a `Computation` with each of its operations hidden, in their
        order. Raises: ModelError as `Featurizer.embed`."""


@runtime_checkable
class MayLack(Protocol):
    """Needs something to embed with that may be absent on this machine."""

    def missing(self) -> str:
        """What that is, one line; empty if nothing. Stored vectors can be read all the same."""


@runtime_checkable
class Joint(Protocol):
    """Only computes with the vectors of other featurizers, its `parts`."""

    @property
    def parts(self) -> Sequence[Featurizer]: ...

    def join(self, vectors: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """float32[d] from one vector of each part, in this order."""


@runtime_checkable
class Travelling(Featurizer, Protocol):
    """Its vectors travel in exports, as features of the pattern; `from_info` is the inverse."""

    def as_features(self, vector: NDArray[np.float32]) -> dict[str, float]:
        """float32[d] by name, keys `NAME.COORDINATE` with the featurizer's name."""


@runtime_checkable
class WithCounters(Featurizer, Protocol):
    """Embeds nests with what was counted of them on one platform instance, which its name ends
    with, so that vectors of two machines, or with counters and without, are never in one index."""

    @property
    def source(self) -> str:
        """Where the counters that it reads come from (`embeddb.nests.counters.SOURCES`)."""

    def counters(self, nest_id: str) -> CounterVector | None:
        """What it would read of a nest: None where nothing was counted, or by another source."""


@runtime_checkable
class Counting(Featurizer, Protocol):
    """Can be told of counters as well."""

    def with_counters(self, platform: str, counters_of: CountersOf) -> WithCounters | None:
        """The same with the counters of a platform instance; None if it does not read any."""


def counted_name(plain: str, platform: str) -> str:
    """The name of a featurizer with the counters of a platform instance."""
    return f"{plain}{_COUNTED}{platform}"


def counted_parts(name: str) -> tuple[str, str] | None:
    """The parts of a `counted_name`; None for any other name."""
    plain, mark, platform = name.partition(_COUNTED)
    return (plain, platform) if mark else None
