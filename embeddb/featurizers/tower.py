"""The matrix tower: a small network that maps the 48 statistics of a matrix to r numbers, trained
on run times together with a network of configurations (`embeddb train towers`). The inner product
of both vectors ranks configurations (`embeddb.cost_model.towers`). As a featurizer the statistics
and these numbers together find neighbours: they are better than either alone
(docs/results/featurizers.md).

The weights are a model file of the database. It holds one network trained on all groups and one
for each fold of groups, trained without that fold. Held-out answers in a group are judged by the
vectors of the network that never saw it. numpy is all it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import ModelError
from embeddb.core.files.model_file import ModelFile, read
from embeddb.core.files.safe_read import refusing
from embeddb.core.nn_numpy import below, check_weights, dense, relu
from embeddb.core.pattern import Pattern
from embeddb.core.records import WorkloadInfo
from embeddb.featurizers.base import FromWeights, adopt
from embeddb.featurizers.stats import Stats

#: Where a database keeps the weights, below its folder.
OWN = Path("models", "towers.safetensors")
#: Standardised statistics beyond this count as this: an unusual matrix is not extrapolated.
CLIP = 4.0
#: Layers of both towers.
LAYERS = ("first", "second", "third")
_AGAIN = "train it again with `embeddb train towers`"

Floats = NDArray[np.float32]
Tensors = Mapping[str, NDArray[Any]]


class MatrixTower:
    """One network from the statistics of matrices to vectors."""

    def __init__(self, tensors: Tensors, *, hidden: int, width: int) -> None:
        """Raises: ModelError unless `tensors` are those of a network of this size."""
        d = Stats.dim
        sizes = {"first": (hidden, d), "second": (hidden, hidden), "third": (width, hidden)}
        shapes: dict[str, tuple[int, ...]] = {"center": (d,), "scale": (d,)}
        for layer, (out, into) in sizes.items():
            shapes |= {f"{layer}.weight": (out, into), f"{layer}.bias": (out,)}
        check_weights(tensors, shapes)
        self._tensors = tensors

    @property
    def usual(self) -> tuple[Floats, Floats]:
        """Mean and standard deviation float32[48] of the statistics in training."""
        return self._tensors["center"], self._tensors["scale"]

    def vectors(self, stats: Floats) -> Floats:
        """float32[p,r] of raw statistics float32[p,48]."""
        x = standardised(stats, *self.usual)
        for layer in LAYERS[:-1]:
            x = relu(dense(x, self._tensors, layer))
        return dense(x, self._tensors, LAYERS[-1])


def standardised(stats: Floats, center: NDArray[Any], scale: NDArray[Any]) -> Floats:
    """float32[p,48] as both training and inference read statistics float32[p,48]."""
    z = (np.asarray(stats, dtype=np.float64) - center) / scale
    out: Floats = np.clip(z, -CLIP, CLIP).astype(np.float32)
    return out


class Tower:
    """Vector float32[48+r] of a matrix: its statistics, then the r numbers of the tower that was
    trained on all groups.

    `folds` maps each group that it learned from to the fold whose network did not;
    `fold_vectors` are by these networks.
    """

    name = "tower"

    def __init__(self, weights: Path) -> None:
        """Raises: ModelError for weights that cannot be used."""
        self.weights = weights
        self._stats = Stats()
        self.parts = (self._stats,)
        with refusing(ModelError, where=str(weights), hint=_AGAIN):
            file = read(weights, kind="towers")
            if file.card["featurizer"] != {"name": "stats", "version": self._stats.version}:
                raise ModelError("it was trained on statistics of another version")
            self._towers, self.folds = _networks(file)
        self.version = f"{self._stats.version}+{file.version}"
        learned = tuple(f"{file.version[:8]}.{at}" for at in range(int(file.card["width"])))
        self.names = (*self._stats.names, *learned)
        self.dim = len(self.names)

    @classmethod
    def for_database(cls, folder: Path | None) -> Tower | None:
        """With the database's own weights; None without any. Raises: ModelError if they cannot be
        used."""
        return cls(folder / OWN) if folder is not None and (folder / OWN).is_file() else None

    @property
    def learned_from(self) -> frozenset[str]:
        """The groups whose runs it was trained on."""
        return frozenset(self.folds)

    @property
    def usual(self) -> tuple[Floats, Floats]:
        """Mean and standard deviation float32[48] of the statistics of the training matrices."""
        return self._towers[0].usual

    def embed(self, pattern: Pattern) -> Floats:
        """float32[48+r] of the structure."""
        return self.join([self._stats.embed(pattern)])

    def from_info(self, info: WorkloadInfo) -> Floats | None:
        """float32[48+r] from the statistics that travelled with a stub; None without them."""
        stats = self._stats.from_info(info)
        return None if stats is None else self.join([stats])

    def join(self, vectors: Sequence[Floats]) -> Floats:
        """float32[48+r] from the matrix's statistics float32[48], the only one of `vectors`."""
        stats = np.asarray(vectors[0], dtype=np.float32)[None]
        out: Floats = _beside(stats, self._towers[0])[0]
        return out

    def fold_vectors(self, stats: Floats) -> Floats:
        """float32[f,p,48+r] of raw statistics float32[p,48], by the network of each fold."""
        return np.array([_beside(stats, tower) for tower in self._towers[1:]])


def _beside(stats: Floats, tower: MatrixTower) -> Floats:
    """float32[p,48+r]: statistics float32[p,48], then their vectors by a tower."""
    return np.hstack([stats, tower.vectors(stats)]).astype(np.float32)


def learned_part(vector: Floats) -> Floats:
    """The r numbers of the tower in the featurizer's vector float32[48+r]."""
    return vector[Stats.dim :]


PLUGIN: type[FromWeights] = Tower


def install(weights: Path, folder: Path) -> str:
    """Copy weights to where the database in `folder` keeps its own; returns their version. Raises:
    ModelError if they cannot be used."""
    version = Tower(weights).version.rpartition("+")[2]
    adopt(weights, folder, OWN, version=version)
    return version


def _networks(file: ModelFile) -> tuple[list[MatrixTower], dict[str, int]]:
    """The network of all groups and those of the folds, and the fold of each group."""
    card = file.card
    hidden, width, folds = card["hidden"], card["width"], card["folds"]
    if any(type(n) is not int or not 1 <= n <= 4096 for n in (hidden, width)):
        raise ModelError("its card does not say how wide the network is")
    towers = [
        MatrixTower(below(file.tensors, f"matrix.{at}."), hidden=hidden, width=width)
        for at in range(1 + len(folds))
    ]
    return towers, {str(group): at for at, fold in enumerate(folds) for group in fold}
