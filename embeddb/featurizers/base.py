"""The featurizer contract: from the structure of a workload to a vector; and its check, by which a
fault of a plug-in is reported with its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import EmbeddbError, ModelError, PluginError
from embeddb.core.files.model_file import MAX_BYTES, digest
from embeddb.core.files.safe_read import read_bounded, refusing
from embeddb.core.files.safe_write import OwnFolder
from embeddb.core.plugins import FAULTS, raised, shipped, ships
from embeddb.core.records import WorkloadInfo
from embeddb.core.workload import Workload
from embeddb.nests.counters import CounterVector

#: Returns the counters for the ids of a nest and a platform instance, or None.
CountersOf = Callable[[str, str], CounterVector | None]

_COUNTED = "+counters@"

T = TypeVar("T")
#: A vector, or None.
V = TypeVar("V", NDArray[np.float32], NDArray[np.float32] | None)
_HINT = (
    "its contract is a test class, embeddb.testing.featurizers.FeaturizerContract: "
    "docs/howto/new-featurizer.md"
)


class Featurizer(Protocol):
    """Maps a workload to a raw vector, float32[d]; the database standardises vectors itself.

    A featurizer file defines `PLUGIN`, a class with these members that is instantiated without
    arguments (or by `FromWeights.for_database`). Requirements, checked by
    `embeddb.testing.featurizers`:

    - `embed` is finite for every legal pattern, the empty one included, and depends on structure
      alone: not on the pattern's name or group.
    - `names` are `dim` distinct strings, one for each coordinate.
    - it embeds matrices, or workloads of the kinds in `kinds` (`("nest",)`).
    - `version` changes whenever a coordinate changes its meaning: vectors are stored under it.

    The protocols below are optional capabilities; a featurizer has one by having its member.
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
        """float32[d] of the structure of a `Pattern`, or of a workload of its `kinds`. Raises:
        MissingDependency or ModelError where it cannot be computed on this machine."""

    def from_info(self, info: WorkloadInfo) -> NDArray[np.float32] | None:
        """float32[d] from the facts of a stub; None where they do not suffice."""


@runtime_checkable
class FromWeights(Protocol):
    """Learned: created from a file of weights."""

    @classmethod
    def for_database(cls, folder: Path | None) -> Featurizer | None:
        """Featurizer with the weights of the database in that folder (None: a database in memory);
        None where there are none. Raises: ModelError for weights that cannot be read."""


@runtime_checkable
class FromRuns(Protocol):
    """Trained on measured runs."""

    @property
    def learned_from(self) -> frozenset[str]:
        """Groups of those runs; holding them out does not give an unbiased evaluation."""


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
    """Can quantify the contribution of a part of a tensor kernel."""

    def without(self, kernel: Any) -> Sequence[NDArray[np.float32]]:
        """Vectors float32[d] of a `TensorGraph` with each of its operations hidden, in their order.
        Raises: ModelError as `Featurizer.embed`."""


@runtime_checkable
class MayLack(Protocol):
    """Needs a dependency that may be absent on this machine."""

    def missing(self) -> str:
        """The missing dependency, one line; empty if none. Stored vectors remain readable."""


@runtime_checkable
class Joint(Protocol):
    """Only computes with the vectors of other featurizers, its `parts`."""

    @property
    def parts(self) -> Sequence[Featurizer]: ...

    def join(self, vectors: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """float32[d] from one vector of each part, in this order."""


@runtime_checkable
class Explained(Joint, Protocol):
    """A learned function of the vector of its one part. Its own coordinates have no meaning, so
    answers are explained in those of the part, with `usual` mean and standard deviation float32[e]
    in training."""

    @property
    def usual(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]: ...


@runtime_checkable
class Travelling(Featurizer, Protocol):
    """Its vectors are exported as features of the workload; `from_info` is the inverse."""

    def as_features(self, vector: NDArray[np.float32]) -> dict[str, float]:
        """float32[d] by name, keys `NAME.COORDINATE` with the featurizer's name."""


class Exported:
    """`Travelling` for a vector with a coordinate for each of `names`. Names of learned coordinates
    begin with the version, so vectors of other weights are not read."""

    name: str
    names: tuple[str, ...]

    def as_features(self, vector: NDArray[np.float32]) -> dict[str, float]:
        """Return the coordinates of a vector float32[d], keys `NAME.COORDINATE`."""
        return {f"{self.name}.{n}": float(v) for n, v in zip(self.names, vector, strict=True)}

    def from_info(self, info: WorkloadInfo) -> NDArray[np.float32] | None:
        """The inverse of `as_features`; None if a name is missing."""
        values = [info.features.get(f"{self.name}.{n}") for n in self.names]
        return None if None in values else np.array(values, dtype=np.float32)


@runtime_checkable
class WithCounters(Featurizer, Protocol):
    """Embeds nests with their counters on one platform instance, the suffix of its name, so that
    vectors of two machines, or with and without counters, are never in one index."""

    @property
    def source(self) -> str:
        """Source of the counters that it reads (`embeddb.nests.counters.SOURCES`)."""

    def counters(self, nest_id: str) -> CounterVector | None:
        """Counters that it reads of a nest; None without any of its source."""


@runtime_checkable
class Counting(Featurizer, Protocol):
    """Can read counters too."""

    def with_counters(self, platform: str, counters_of: CountersOf) -> WithCounters | None:
        """The same featurizer with the counters of a platform instance; None if it reads none."""


def counted_name(plain: str, platform: str) -> str:
    """Name of a featurizer with the counters of a platform instance."""
    return f"{plain}{_COUNTED}{platform}"


def counted_parts(name: str) -> tuple[str, str] | None:
    """Parts of a `counted_name`; None for any other name."""
    plain, mark, platform = name.partition(_COUNTED)
    return (plain, platform) if mark else None


def finite(vector: NDArray[np.float32], weights: Path, *, hint: str = "") -> NDArray[np.float32]:
    """The vector of a network. Raises: ModelError if it is not finite."""
    if not np.isfinite(vector).all():
        raise ModelError("its output is not finite", where=str(weights), hint=hint)
    return vector


# -- Weights that belong to a database ------------------------------------------------------------


def own_weights(folder: Path | None, own: Path, shipped: Path) -> Path | None:
    """Weights at `own` below a database's folder, else those of the package; None without any."""
    places = [shipped] if folder is None else [folder / own, shipped]
    return next((path for path in places if path.is_file()), None)


def adopt(weights: Path, folder: Path, own: Path, *, version: str) -> None:
    """Copy weights of that version to `own`, below a database's folder; old ones are replaced
    whole. Raises: ModelError if they cannot be copied, or are no longer of that version."""
    with refusing(ModelError, where=str(weights)):
        data = read_bounded(weights, MAX_BYTES)
    if digest(data) != version:
        raise ModelError("it changed while it was copied", where=str(weights), hint="try again")
    with refusing(ModelError, where=str(folder / own)):
        OwnFolder(folder, own.parent.name).write(own.name, data)


# -- Check of the contract -------------------------------------------------------------------------


def created(name: str, make: Callable[[], Featurizer | None]) -> Featurizer | None:
    """The featurizer of that name, as `make` returns it; or None. Raises: as `make`; PluginError if
    it raises anything unexpected, or the featurizer lacks what every one has."""
    if shipped("featurizer", name):
        return make()
    plug = _unless_faulty(None, f"featurizer {name}", make)
    if plug is None:
        return None
    types: dict[str, Any] = {"name": str, "version": str, "names": Sequence, "dim": int}
    types |= {"embed": Callable, "from_info": Callable}
    wrong = [at for at, kind in types.items() if not isinstance(getattr(plug, at, None), kind)]
    if wrong:
        what = f"its `{wrong[0]}` is {getattr(plug, wrong[0], None)!r:.80}"
        raise PluginError(f"featurizer {name}: {what}", hint=_HINT)
    if plug.name != name:
        raise PluginError(f"featurizer {name}: its `name` is {plug.name!r:.80}", hint=_HINT)
    return plug


def checked(plug: Any, workload: Workload | WorkloadInfo, compute: Callable[[], V]) -> V:
    """The vector of a workload that `compute` has from a featurizer, a copy of that of a plug-in.

    Raises: as `compute`; PluginError if a plug-in raises anything unexpected, or the vector breaks
    the contract of featurizers.
    """
    what = f"featurizer {plug.name}, on {workload.name or workload.id}"
    vector = _unless_faulty(plug, what, compute)
    if vector is None:
        return vector
    if fault := _fault(plug, vector):
        raise PluginError(f"{what}: {fault}", hint=_HINT)
    return vector if ships(plug) else vector.copy()


def embedded(plug: Any, workload: Workload) -> NDArray[np.float32]:
    """The vector that `embed` returns. Raises: as `checked`."""
    vector: NDArray[np.float32] | None = checked(plug, workload, partial(plug.embed, workload))
    if vector is None:
        what = f"featurizer {plug.name}, on {workload.name or workload.id}"
        raise PluginError(f"{what}: embed returned None", hint=_HINT)
    return vector


def _unless_faulty(plug: Any, what: str, call: Callable[[], T]) -> T:
    """The result of a call of a plug-in. Raises: as the plug-in; PluginError for what is unexpected
    in one that does not ship."""
    try:
        return call()
    except (EmbeddbError, MemoryError):
        raise
    except FAULTS as e:
        if ships(plug):
            raise
        raise PluginError(f"{what}: it raised {raised(e)}", hint=_HINT) from e


def _fault(plug: Any, vector: NDArray[np.float32]) -> str:
    """The violation of the contract of featurizers by a vector; empty if there is none."""
    dtype, shape = getattr(vector, "dtype", type(vector).__name__), np.shape(vector)
    due = shape if plug.dim is None else (plug.dim,)
    if (dtype, shape) != (np.float32, due):
        size = ", ".join(map(str, shape))
        return f"its vector is {dtype}[{size}], not float32[{plug.dim}]"
    return "" if np.isfinite(vector).all() else "its vector is not finite"
