"""The sparse network of a cost model that is trained whole: what it reads, and its own weights.

COGNATE (Section 3.1): the input featurizer reads the pattern's coordinates and learns from run
times together with mapper and predictor. Ours, because no paper says it: the cells where a pattern
has too many coordinates (`embeddb.featurizers.network.reduction`), their features unless they are
binary, and one scale: what the first weights give is centred and brought to a root mean square of
1 before it meets the rest of the model.
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
from embeddb.core.records import WorkloadInfo
from embeddb.core.reports import Progress
from embeddb.featurizers.network.networks import build, collate, complete
from embeddb.featurizers.network.reduction import (
    CHANNELS,
    Input,
    Reduction,
    reduce,
    seen_through,
)
from indexer.library import Library

if TYPE_CHECKING:
    from embeddb.index.lookup import Lookup
    from indexer.training.cost_model.settings import CostSettings

Floats = NDArray[np.float32]

#: Numbers of an embedding (COGNATE, Table 6).
_DIM = 128
#: Sites whose kernel maps are kept over the epochs, about 400 bytes each: making them takes as
#: long as the forward pass.
_KEPT_SITES = 8_000_000
#: A deviation smaller than this share of the mean is not blown up further.
_LEAST_SPREAD = 0.1


@dataclass(frozen=True, eq=False)
class Encoder:
    """A sparse network: its `spec` (`embeddb.featurizers.network.networks`), how patterns are
    reduced for it, its weights by name, and its name and version as a featurizer once it is one."""

    spec: Mapping[str, Any]
    reduction: Reduction
    weights: Mapping[str, Tensor]
    name: str = ""
    version: str = ""

    @classmethod
    def drawn(cls, settings: CostSettings) -> Encoder:
        """With first weights by the settings' seed."""
        channels = 1 if settings.binary else CHANNELS
        # None of the papers' tables hands the network the size of the matrix.
        spec = complete(
            {"name": settings.encoder, "in_channels": channels, "dim": _DIM, "shape": False}
        )
        weights = build(spec, seed=settings.seed).state_dict()
        return cls(spec, Reduction("sites", settings.sites), weights)

    @classmethod
    def load(cls, path: Path, *, name: str = "") -> Encoder:
        """From a featurizer's file: an autoencoder's encoder, or one trained on run times.

        Raises: ModelError if it is none.
        """
        tensors, card = model_file.load(path, kind="featurizer")
        try:
            spec = complete(card["network"])
            reduction = Reduction.from_json(card["reduction"])
        except (InputError, KeyError, TypeError) as e:
            raise ModelError(f"no encoder: {e}", where=str(path)) from None
        if spec["dim"] != _DIM:
            raise ModelError(f"it gives {spec['dim']} numbers, not {_DIM}", where=str(path))
        found = cls(spec, reduction, tensors, name, model_file.version_of(path) if name else "")
        found.network()
        return found

    def network(self) -> nn.Module:
        """Raises: ModelError for weights that do not fit."""
        net = build(self.spec)
        model_file.fill(net, dict(self.weights))
        return net

    def vectors(self, structures: Structures, ids: Sequence[str]) -> Floats:
        """float32[r,d] of patterns that are among the structures."""
        net = self.network().eval()
        # Not in inference mode: kernel maps made there could not be trained with.
        with torch.no_grad():
            found = [net(*structures.tensors(i))[0].numpy() for i in ids]
        return np.array(found, dtype=np.float32).reshape(len(ids), _DIM)

    def save(self, path: Path, about: Mapping[str, Any]) -> str:
        """A featurizer's file, with `about` in its card; returns its version.

        Raises: ModelError if it cannot be written.
        """
        card = {
            "kind": "featurizer",
            "network": dict(self.spec),
            "reduction": self.reduction.to_json(),
            **about,
        }
        return model_file.save(path, dict(self.weights), card)


class Structures:
    """Patterns as one encoder reads them, by id; kernel maps are kept over the epochs."""

    def __init__(self, inputs: Mapping[str, Input]) -> None:
        self._inputs = dict(inputs)
        self._kept: dict[str, tuple[Any, Tensor, Tensor]] = {}
        self._room = _KEPT_SITES

    def add(self, pattern_id: str, found: Input) -> None:
        """One pattern more."""
        self._inputs[pattern_id] = found

    def __contains__(self, pattern_id: str) -> bool:
        return pattern_id in self._inputs

    def tensors(self, pattern_id: str) -> tuple[Any, Tensor, Tensor]:
        """One pattern as a batch: sites, shape float32[1,3], owner int64[entries]."""
        if pattern_id in self._kept:
            return self._kept[pattern_id]
        found = self._inputs[pattern_id]
        made = collate([found])
        if len(found.coords) <= self._room:
            self._room -= len(found.coords)
            self._kept[pattern_id] = made
        return made


@dataclass(frozen=True, eq=False)
class StructureReader:
    """Reads patterns for one encoder into `structures`: those that the database keeps, or that the
    folder `matrices` has by name."""

    db: Lookup
    encoder: Encoder
    matrices: Path | None = None
    progress: Progress | None = None
    structures: Structures = field(default_factory=lambda: Structures({}))

    def __call__(self, ids: Collection[str]) -> dict[str, Floats]:
        """Vectors float32[0] of those whose structure is known, as `samples_of` wants them: they
        have none before the encoder has learned."""
        library = Library(self.matrices)
        channels = int(self.encoder.spec["in_channels"])
        missing = sorted(i for i in ids if i not in self.structures)
        for at, pattern_id in enumerate(missing):
            if self.progress is not None:
                self.progress("read matrices", at, len(missing))
            pattern = _structure(self.db, pattern_id, library)
            if pattern is not None:
                found = reduce(pattern, self.encoder.reduction)
                self.structures.add(pattern_id, seen_through(found, channels))
        return {i: np.zeros(0, dtype=np.float32) for i in ids if i in self.structures}


def _structure(db: Lookup, pattern_id: str, library: Library) -> Pattern | None:
    kept = db.store.workload(pattern_id)
    if isinstance(kept, Pattern):
        return kept
    info: WorkloadInfo | None = db.store.pattern(pattern_id)
    if info is None or not info.name or not len(library):
        return None
    found = library.find(info.name, m=info.m, n=info.n, nnz=info.nnz)
    return found if found is not None and found.id == pattern_id else None


def one_scale(vectors: Floats) -> dict[str, Floats]:
    """Centre float32[d] and one scale for all d numbers, as float32[d]: a scale for each would
    blow up what the first weights happen to leave nearly alike."""
    center = vectors.mean(axis=0)
    rms = float(np.sqrt(np.mean((vectors - center) ** 2)))
    scale = max(rms, _LEAST_SPREAD * float(np.sqrt(np.mean(center**2))), 1e-6)
    return {
        "center": center.astype(np.float32),
        "scale": np.full(len(center), scale, dtype=np.float32),
    }


@dataclass(frozen=True, eq=False)
class Reading:
    """How a network in training sees matrices: by an encoder, whose numbers are centred and scaled
    by `scale` (`one_scale`)."""

    encoder: Encoder
    structures: Structures
    scale: Mapping[str, Floats]

    def seen(self, network: nn.Module, ids: Sequence[str]) -> Tensor:
        """float32[b,d], differentiable; `network` is the encoder as it is by now."""
        raw = torch.cat([network(*self.structures.tensors(i)) for i in ids])
        # Copied: those of a file cannot be written to, which torch wants.
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
        """As `CostNetwork.forward`, of what `Reading.seen` gave and the op's width."""
        score: Tensor = self.head(x, nest, latent, index)
        return score
