"""The sparse network of a cost model that is trained as a whole: its inputs and its weights.

COGNATE (Section 3.1): the input featurizer reads the pattern's coordinates and learns from run
times together with mapper and predictor. Not in the papers, and therefore ours: the cells if a
pattern has too many coordinates (`embeddb.featurizers.network.reduction`), their features unless
they are binary, and one scale: the outputs of the first weights are centred and scaled to a root
mean square of 1 before they enter the rest of the model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from embeddb.core.errors import InputError, ModelError
from embeddb.core.files import model_file
from embeddb.core.pattern import Pattern
from embeddb.core.reports import Progress, ignore_progress
from embeddb.featurizers.network.networks import build, collate, complete
from embeddb.featurizers.network.reduction import (
    CHANNELS,
    Input,
    Reduction,
    reduce,
)
from embeddb.featurizers.scnn import groups_of
from indexer.library import Library

if TYPE_CHECKING:
    from embeddb.index.lookup import Lookup
    from embeddb.learning.samples import Samples
    from indexer.training.cost_model.settings import CostSettings

Floats = NDArray[np.float32]

#: Numbers of an embedding (COGNATE, Table 6).
_DIM = 128
#: Sites whose kernel maps are cached over the epochs, about 400 bytes each: making them takes as
#: long as the forward pass.
_KEPT_SITES = 8_000_000
#: Least scale, as a share of the mean.
_LEAST_SPREAD = 0.1


@dataclass(frozen=True, eq=False)
class Encoder:
    """A sparse network: its `spec` (`embeddb.featurizers.network.networks`), the reduction of its
    inputs, its weights by name, and its name and version once it is a featurizer. `learned_from`
    are the groups whose run times it learned (None: an earlier file does not name them)."""

    spec: Mapping[str, Any]
    reduction: Reduction
    weights: Mapping[str, Tensor]
    name: str = ""
    version: str = ""
    learned_from: frozenset[str] | None = frozenset()

    @classmethod
    def drawn(cls, settings: CostSettings) -> Encoder:
        """An encoder with initial weights by the settings' seed."""
        channels = 1 if settings.binary else CHANNELS
        spec = complete({"name": settings.encoder, "in_channels": channels, "dim": _DIM})
        weights = build(spec, seed=settings.seed).state_dict()
        return cls(spec, Reduction("sites", settings.sites), weights)

    @classmethod
    def load(cls, path: Path) -> Encoder:
        """The encoder in a featurizer's file, of the file's name: of an autoencoder, or trained on
        run times.

        Raises: ModelError if there is none.
        """
        file = model_file.read(path, kind="featurizer")
        try:
            spec = complete(file.card["network"])
            reduction = Reduction.from_json(file.card["reduction"])
        except (InputError, KeyError, TypeError) as e:
            raise ModelError(f"no encoder: {e}", where=str(path)) from None
        if spec["dim"] != _DIM:
            raise ModelError(f"it gives {spec['dim']} numbers, not {_DIM}", where=str(path))
        weights = {name: torch.from_numpy(array) for name, array in file.tensors.items()}
        learned_from = groups_of(file.card)
        encoder = cls(spec, reduction, weights, path.stem, file.version, learned_from)
        encoder.network()
        return encoder

    def network(self) -> nn.Module:
        """The network with its weights. Raises: ModelError for weights that do not fit."""
        net = build(self.spec)
        model_file.fill(net, dict(self.weights))
        return net

    def vectors(self, structures: Structures, ids: Sequence[str]) -> Floats:
        """float32[r,d] of patterns that are among the structures."""
        net = self.network().eval()
        # Not in inference mode: its kernel maps could not be used in training.
        with torch.no_grad():
            vectors = [net(*structures.tensors(i))[0].numpy() for i in ids]
        return np.array(vectors, dtype=np.float32).reshape(len(ids), _DIM)

    def vectors_of(self, structures: Structures, samples: Samples) -> dict[str, Floats]:
        """float32[d] of the samples' matrices, by id."""
        ids = list(dict.fromkeys(row.pattern_id for row in samples.rows))
        return dict(zip(ids, self.vectors(structures, ids), strict=True))

    def save(self, path: Path, about: Mapping[str, Any]) -> str:
        """Write a featurizer's file with `about` in its card; returns its version.

        Raises: ModelError if it cannot be written.
        """
        card = {
            "kind": "featurizer",
            "network": dict(self.spec),
            "reduction": self.reduction.to_json(),
            **about,
        }
        if self.learned_from:
            card["learned_from"] = sorted(self.learned_from)
        return model_file.save(path, dict(self.weights), card)


class Structures:
    """Inputs of one encoder by pattern id; kernel maps are cached over the epochs."""

    def __init__(self) -> None:
        self._inputs: dict[str, Input] = {}
        self._cached: dict[str, tuple[Any, Tensor]] = {}
        self._room = _KEPT_SITES

    def add(self, pattern_id: str, pattern: Input) -> None:
        """Add a pattern."""
        self._inputs[pattern_id] = pattern

    def __contains__(self, pattern_id: str) -> bool:
        return pattern_id in self._inputs

    def tensors(self, pattern_id: str) -> tuple[Any, Tensor]:
        """One pattern as a batch: sites and shape float32[1,3]."""
        if pattern_id in self._cached:
            return self._cached[pattern_id]
        pattern = self._inputs[pattern_id]
        batch = collate([pattern])
        if len(pattern.coords) <= self._room:
            self._room -= len(pattern.coords)
            self._cached[pattern_id] = batch
        return batch


@dataclass(frozen=True, eq=False)
class StructureReader:
    """Reads patterns for one encoder into `structures`, from the database, else from the folder
    `matrices` by name."""

    db: Lookup
    encoder: Encoder
    matrices: Path | None = None
    progress: Progress = ignore_progress
    structures: Structures = field(default_factory=Structures)

    def __call__(self, ids: Collection[str]) -> dict[str, Floats]:
        """Vectors float32[0] of the patterns with a structure, for `samples_of`: the encoder has no
        vectors before the training."""
        library = Library(self.matrices)
        channels = int(self.encoder.spec["in_channels"])
        missing = sorted(i for i in ids if i not in self.structures)
        for at, pattern_id in enumerate(missing):
            self.progress("read matrices", at, len(missing))
            pattern = _structure(self.db, pattern_id, library)
            if pattern is not None:
                self.structures.add(pattern_id, reduce(pattern, self.encoder.reduction, channels))
        return {i: np.zeros(0, dtype=np.float32) for i in ids if i in self.structures}


def _structure(db: Lookup, pattern_id: str, library: Library) -> Pattern | None:
    stored = db.store.workload(pattern_id)
    if isinstance(stored, Pattern):
        return stored
    info = db.store.pattern(pattern_id)
    if info is None or not info.name or not len(library):
        return None
    pattern = library.find(info.name, m=info.m, n=info.n, nnz=info.nnz)
    return pattern if pattern is not None and pattern.id == pattern_id else None


def one_scale(vectors: Floats) -> dict[str, Floats]:
    """Centre float32[d] and one scale for all d numbers, as float32[d]: separate scales would
    amplify numbers that hardly vary with the initial weights."""
    center = vectors.mean(axis=0)
    rms = float(np.sqrt(np.mean((vectors - center) ** 2)))
    scale = max(rms, _LEAST_SPREAD * float(np.sqrt(np.mean(center**2))), 1e-6)
    return {
        "center": center.astype(np.float32),
        "scale": np.full(len(center), scale, dtype=np.float32),
    }


@dataclass(frozen=True, eq=False)
class Reading:
    """Inputs of a network in training: the numbers of an encoder, centred and scaled by `scale`
    (`one_scale`)."""

    encoder: Encoder
    structures: Structures
    scale: Mapping[str, Floats]

    def seen(self, network: nn.Module, ids: Sequence[str]) -> Tensor:
        """float32[b,d], differentiable; `network` is the encoder with its current weights."""
        raw = torch.cat([network(*self.structures.tensors(i)) for i in ids])
        # Copied: arrays of a file are read-only, which torch refuses.
        center, scale = (torch.from_numpy(self.scale[k].copy()) for k in ("center", "scale"))
        seen: Tensor = (raw - center) / scale
        return seen


class WholeNetwork(nn.Module):
    """COGNATE or WACO in one piece: `encoder`, and the rest of the cost model as `head`."""

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, x: Tensor, nest: Tensor, latent: Tensor, index: Tensor) -> Tensor:
        """`CostNetwork.forward` for `Reading.seen` and the op's width."""
        score: Tensor = self.head(x, nest, latent, index)
        return score
