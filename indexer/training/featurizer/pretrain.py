"""A featurizer from a folder of matrices: dataset, autoencoder, training, model file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from embeddb.core.errors import UsageError
from embeddb.core.reports import Progress
from embeddb.core.thumbnail import SIDE
from embeddb.featurizers.network.networks import build, collate, complete
from embeddb.featurizers.network.reduction import CHANNELS
from indexer.training.featurizer.dataset import Dataset, Recipe, Sample
from indexer.training.folder import checkpoint_of, folder_of, origin_card
from indexer.training.trainer import Fitted, Job, Settings, fit, fitted_card, run_name, saved

_HIDDEN = 64
#: Sites whose kernel maps are kept over the epochs, about 400 bytes each. Building them took half
#: of an epoch of `waco` and a tenth of one of `cognate`.
_KEPT_SITES = 8_000_000


class Autoencoder(nn.Module):
    """`encoder(tensor, shapes)` -> float32[b,dim], and two decoders of it, to float32[b,3] and
    float32[b,32,32].

    `shapes` float32[s,3] and `pictures` float32[s,32,32] of the training samples: the decoders
    start at their means.
    """

    def __init__(self, encoder: nn.Module, dim: int, *, shapes: Tensor, pictures: Tensor) -> None:
        super().__init__()
        self.encoder = encoder
        shape_out = nn.Linear(_HIDDEN, 3)
        picture_out = nn.ConvTranspose2d(16, 1, kernel_size=4, stride=2, padding=1, bias=True)
        self.shape_decoder = nn.Sequential(nn.Linear(dim, _HIDDEN), nn.ReLU(), shape_out)
        # [b,dim] -> [b,16,16,16] over 4x4 and 8x8.
        self.density_decoder = nn.Sequential(
            nn.Linear(dim, _HIDDEN * 16),
            nn.ReLU(),
            nn.Unflatten(1, (_HIDDEN, SIDE // 8, SIDE // 8)),
            nn.ConvTranspose2d(_HIDDEN, 32, kernel_size=4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 16, kernel_size=4, stride=2, padding=1),
            nn.ReLU(),
            picture_out,
        )
        with torch.no_grad():
            shape_out.bias.copy_(shapes.mean(dim=0))
            nn.init.constant_(cast("Tensor", picture_out.bias), float(pictures.mean()))

    def forward(self, tensor: Any, shapes: Tensor) -> tuple[Tensor, Tensor]:
        embedding = self.encoder(tensor, shapes)
        return self.shape_decoder(embedding), self.density_decoder(embedding)[:, 0]


@dataclass(slots=True, eq=False)
class Batch:
    """Samples that are read together, with their kernel maps once these are cached."""

    samples: Sequence[Sample]
    keep: bool = False
    cached: tuple[Any, Tensor, Tensor] | None = None

    def tensors(self, device: torch.device) -> tuple[Any, Tensor, Tensor]:
        """Sites, shapes float32[b,3] and pictures float32[b,32,32]."""
        if self.cached is not None:
            return self.cached
        pictures = torch.from_numpy(_targets(self.samples)[1]).to(device)
        tensors = (*collate([s.input for s in self.samples], device=device), pictures)
        if self.keep:
            self.cached = tensors
        return tensors


def batches_of(samples: Sequence[Sample], size: int, *, room: int) -> list[Batch]:
    """The samples in order, `size` to a batch; the maps of the first `room` sites are cached."""
    batches = []
    for start in range(0, len(samples), size):
        part = samples[start : start + size]
        room -= sum(len(s.input.coords) for s in part)
        batches.append(Batch(part, keep=room >= 0))
    return batches


def mean_errors(train: Sequence[Sample], valid: Sequence[Sample]) -> dict[str, float]:
    """Figures of a network that always predicts the means of `train`."""
    shape, density = (
        float(((b - a.mean(axis=0)) ** 2).mean())
        for a, b in zip(_targets(train), _targets(valid), strict=True)
    )
    return _figures(shape, density)


def _targets(samples: Sequence[Sample]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Shapes float32[b,3] and pictures float32[b,32,32] to decode."""
    return np.stack([s.input.shape for s in samples]), np.stack([s.density for s in samples])


def _figures(shape: float, density: float) -> dict[str, float]:
    return {"valid_loss": shape + density, "valid_shape": shape, "valid_density": density}


def job_of(
    model: Autoencoder,
    samples: tuple[Sequence[Sample], Sequence[Sample]],
    *,
    size: int,
    seed: int,
) -> Job:
    """Training on samples[0] in batches of `size`, validation on samples[1].

    The seed fixes which samples make a batch, so that kernel maps are built once; batches come in
    another order each epoch. The figures are `valid_shape` and `valid_density`, the mean squared
    errors over all numbers of all samples, and `valid_loss`, their sum.
    """
    train, valid = samples
    device = next(model.parameters()).device
    order = np.random.default_rng(seed).permutation(len(train))
    train_batches = batches_of([train[at] for at in order], size, room=_KEPT_SITES)
    valid_batches = batches_of(valid, size, room=_KEPT_SITES // 4)

    def errors(batch: Batch) -> tuple[Tensor, Tensor]:
        tensor, shapes, wanted = batch.tensors(device)
        shape, density = model(tensor, shapes)
        mse = nn.functional.mse_loss
        return mse(shape, shapes), mse(density, wanted)

    def batches(epoch: int) -> Iterator[Batch]:
        for at in np.random.default_rng([seed, epoch]).permutation(len(train_batches)):
            yield train_batches[at]

    def validate() -> dict[str, float]:
        sums = np.zeros(2)
        for batch in valid_batches:
            sums += len(batch.samples) * np.array([error.item() for error in errors(batch)])
        shape, density = (sums / max(len(valid), 1)).tolist()
        return _figures(shape, density)

    def loss(batch: Batch) -> Tensor:
        shape, density = errors(batch)
        return shape + density

    return Job(len(train_batches), batches, loss, validate)


_DIM = 128


@dataclass(frozen=True, slots=True)
class Pretraining:
    """Settings of a featurizer's training: the network's name, the recipe of the data, its
    length."""

    network: str
    recipe: Recipe
    settings: Settings
    batch: int = 32


def check_free(out: Path) -> None:
    """Raises: UsageError if a training of `out` is unfinished: hours would be lost."""
    folder = folder_of(out)
    if checkpoint_of(folder).exists():
        raise UsageError(
            f"{folder}: a training is unfinished there",
            hint="add --resume to continue it, or remove that folder to start again",
        )


def pretrain(data: Dataset, how: Pretraining, out: Path, *, progress: Progress) -> dict[str, Any]:
    """Train on `data`, write the encoder to `out`; returns its card with `version` and `curve`.
    Resumes an unfinished training of `out`. Raises: ModelError for an unknown network, and as `fit`
    and `save` do."""
    spec = complete({"name": how.network, "dim": _DIM, "in_channels": CHANNELS})
    model = _model(spec, data.train, how)
    job = job_of(model, (data.train, data.valid), size=how.batch, seed=how.recipe.seed)
    held_out = sorted({sample.group for sample in data.valid})
    named = run_name(data.hash, held_out, spec, asdict(how.recipe), how.batch)
    settings = replace(how.settings, run=named)
    fitted = fit(model, job, settings=settings, folder=folder_of(out), progress=progress)
    plain = mean_errors(data.train, data.valid)
    card = {
        **_card(data, how, spec, fitted),
        "mean_metrics": {n: round(value, 6) for n, value in plain.items()},
    }
    return saved(out, model.encoder.state_dict(), card)


def _model(spec: Mapping[str, Any], train: tuple[Sample, ...], how: Pretraining) -> Autoencoder:
    """The network with initial weights from the seed; the global random state is unchanged."""
    shapes = torch.from_numpy(np.stack([s.input.shape for s in train]))
    pictures: Tensor = torch.stack([torch.from_numpy(s.density) for s in train])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(how.settings.seed)
        encoder = build(spec, seed=how.settings.seed)
        return Autoencoder(encoder, _DIM, shapes=shapes, pictures=pictures)


def _card(
    data: Dataset, how: Pretraining, spec: Mapping[str, Any], fitted: Fitted
) -> dict[str, Any]:
    recipe, settings = how.recipe, how.settings
    return {
        "kind": "featurizer",
        "network": dict(spec),
        "reduction": recipe.reduction.to_json(),
        "data": data.hash,
        "patterns": data.patterns,
        "groups": data.groups,
        "samples": {"train": len(data.train), "valid": len(data.valid)},
        **fitted_card(fitted),
        "settings": {
            "method": "autoencoder",
            "copies": recipe.copies,
            "batch": how.batch,
            "lr": settings.lr,
            "epochs": settings.epochs,
            "patience": settings.patience,
        },
        **origin_card(settings.seed),
    }
