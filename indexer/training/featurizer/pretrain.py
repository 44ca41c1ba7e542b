"""A featurizer from a folder of matrices: dataset, autoencoder, training, model file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embeddb.core.errors import UsageError
from embeddb.core.reports import Progress
from embeddb.featurizers.network.networks import build, complete
from embeddb.featurizers.network.reduction import CHANNELS, seen_through
from indexer.training.featurizer.autoencoder import (
    Autoencoder,
    Target,
    job_of,
    mean_errors,
    picture,
    scales_of,
)
from indexer.training.featurizer.dataset import Dataset, Recipe, Sample
from indexer.training.trainer import (
    Fitted,
    Settings,
    checkpoint_of,
    fit,
    fitted_card,
    folder_of,
    origin_card,
    run_name,
    saved,
)

_DIM = 128


@dataclass(frozen=True, slots=True)
class Pretraining:
    """How a featurizer is trained: the network's name, what the data became, and how long.
    `binary`: a site's one feature is 1; `no_shape`: the size of the matrix, which the first decoder
    is asked for, does not enter the network's last layer."""

    network: str
    recipe: Recipe
    settings: Settings
    target: Target = "area"
    balanced: bool = False
    batch: int = 32
    binary: bool = False
    no_shape: bool = False

    @property
    def spec(self) -> dict[str, Any]:
        """Of the network. Raises: ModelError for an unknown one."""
        sizes = {"dim": _DIM, "in_channels": 1 if self.binary else CHANNELS}
        handed = {"shape": False} if self.no_shape else {}
        return complete({"name": self.network, **sizes, **handed})


def check_free(out: Path) -> None:
    """Raises: UsageError if a training for `out` is unfinished: hours would be lost."""
    folder = folder_of(out)
    if checkpoint_of(folder).exists():
        raise UsageError(
            f"{folder}: a training is unfinished there",
            hint="add --resume to go on with it, or remove that folder to begin anew",
        )


def pretrain(data: Dataset, how: Pretraining, out: Path, *, progress: Progress) -> dict[str, Any]:
    """Train on `data`, write the encoder to `out`; returns its card with `version` and `curve`.

    Goes on with an unfinished training of `out`. Raises: ModelError as `fit` and `save` do.
    """
    spec = how.spec
    if how.binary:
        data = replace(data, train=_binary(data.train), valid=_binary(data.valid))
    model = _model(spec, data.train, how)
    scales = scales_of(data.train, how.target) if how.balanced else (1.0, 1.0)
    job = job_of(
        model,
        (data.train, data.valid),
        target=how.target,
        size=how.batch,
        seed=how.recipe.seed,
        scales=scales,
    )
    named = _named(data, how, spec)
    settings = Settings(**{**asdict(how.settings), "run": named})
    fitted = fit(model, job, settings=settings, folder=folder_of(out), progress=progress)
    plain = mean_errors(data.train, data.valid, target=how.target, scales=scales)
    card = {
        **_card(data, how, spec, fitted),
        "mean_metrics": {n: round(value, 6) for n, value in plain.items()},
    }
    return saved(out, model.encoder.state_dict(), card)


def _binary(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    return tuple(replace(s, input=seen_through(s.input, 1)) for s in samples)


def _model(spec: Mapping[str, Any], train: tuple[Sample, ...], how: Pretraining) -> Autoencoder:
    """The first weights follow from the seed, and the global random state is left as it was."""
    shapes = torch.from_numpy(np.stack([s.input.shape for s in train]))
    pictures: Tensor = torch.stack(
        [torch.from_numpy(picture(s.density, how.target)) for s in train]
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(how.settings.seed)
        encoder = build(spec, seed=how.settings.seed)
        return Autoencoder(encoder, _DIM, shapes=shapes, pictures=pictures)


def _named(data: Dataset, how: Pretraining, spec: Mapping[str, Any]) -> str:
    held_out = sorted({sample.group for sample in data.valid})
    settings = (how.target, how.balanced, how.batch)
    return run_name(data.hash, held_out, dict(spec), asdict(how.recipe), *settings)


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
            "target": how.target,
            "balanced": how.balanced,
            "copies": recipe.copies,
            "transposed": recipe.transposed,
            "batch": how.batch,
            "lr": settings.lr,
            "epochs": settings.epochs,
            "patience": settings.patience,
        },
        **origin_card(settings.seed),
    }
