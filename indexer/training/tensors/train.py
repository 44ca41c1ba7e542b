"""The learned performance model of kernels from measured ones: rank loss or squared error of log
seconds, Adam, families drawn evenly, early stopping on programs or families that are held out.

Source: "A Learned Performance Model for Tensor Processing Units", Sections 3.3, 4 and Appendix B.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embeddb.core import __version__
from embeddb.core.errors import UsageError
from embeddb.core.files import model_file
from indexer.training.tensors.calibration import calibration
from indexer.training.tensors.draws import Drawn, drawn_batches
from indexer.training.tensors.judging import figures_of, loss_on, said_of
from indexer.training.tensors.losses import loss_of
from indexer.training.tensors.network import Batch, TrainedNetwork, collate
from indexer.training.tensors.presets import Preset, preset
from indexer.training.tensors.samples import KernelSample, content_of, split
from indexer.training.trainer import (
    Fitted,
    Job,
    Progress,
    Settings,
    curve_of,
    fit,
    folder_of,
    forget,
)

__all__ = ["KernelTraining", "train_kernels"]


#: From a card, the weights by name and the families of which nothing was learned: what joins the
#: card.
Judge = Callable[[dict[str, Any], dict[str, NDArray[Any]], Sequence[str]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class KernelTraining:
    """How a network of kernels is trained. A batch has `tiles` tiles of each of `kernels` kernels;
    an epoch has `steps` batches (0: as many as show each kernel once); `by` is what is held out for
    early stopping, one of `SPLITS`."""

    preset: Preset = field(default_factory=lambda: preset("tile"))
    epochs: int = 60
    patience: int = 10
    kernels: int = 8
    tiles: int = 16
    steps: int = 0
    by: str = "family"
    seed: int = 0

    @property
    def settings(self) -> Settings:
        own = self.preset
        return Settings(
            self.epochs, own.lr, self.patience, seed=self.seed, decay=own.decay, clip=own.clip
        )


def train_kernels(
    samples: Sequence[KernelSample],
    how: KernelTraining,
    out: Path,
    *,
    tests: Sequence[KernelSample] = (),
    about: dict[str, Any] | None = None,
    judge: Judge | None = None,
    progress: Progress,
) -> dict[str, Any]:
    """Train on `samples` but for what is held out, write the network to `out`; returns its card
    with `version` and `curve`. `tests` are kernels of which nothing is learned, for the card's
    figures; `about` joins the card, and so does what `judge` says of a model of tiles. Goes on with
    an unfinished training of `out`.

    Raises: InputError for too few programs or families; UsageError for a loss that does not fit the
    task; ModelError as `fit` and `save` do.
    """
    if how.preset.spec.task == "fused" and how.preset.loss != "squared":
        raise UsageError("seconds of fused kernels are learned by `squared` errors alone")
    train, valid = split(samples, how.by, how.seed)
    network = _network(how, train)
    fitted = fit(
        network,
        _job(network, train, valid, how),
        settings=replace(how.settings, run=_named(samples, how)),
        folder=folder_of(out),
        progress=progress,
    )
    network.adopt_unseen([sample.graph for sample in train])
    sets = {"valid": valid} | ({"tests": list(tests)} if tests else {})
    said = {name: said_of(network, part) for name, part in sets.items()}
    card = {
        **_card(how, fitted),
        **(about or {}),
        "data": content_of(samples),
        "samples": sum(len(sample.seconds) for sample in samples),
        "patterns": len(samples),
        "groups": len({sample.group for sample in samples}),
        "parts": {
            name: {"kernels": len(part), "families": sorted({s.group for s in part})}
            for name, part in {"train": train, **sets}.items()
        },
        "parameters": sum(p.numel() for p in network.parameters()),
        "figures": {name: figures_of(network, part, said[name]) for name, part in sets.items()},
        "calibration": calibration(valid, said["valid"]),
    }
    if how.preset.spec.task == "tile" and judge is not None:
        weights = {name: array.numpy() for name, array in network.state_dict().items()}
        unseen = {sample.group for sample in valid} - {sample.group for sample in train}
        card |= judge(card, weights, sorted(unseen))
    version = model_file.save(out, network.state_dict(), card)
    forget(folder_of(out))
    return {**card, "version": version, "curve": str(curve_of(folder_of(out)))}


def _network(how: KernelTraining, train: Sequence[KernelSample]) -> TrainedNetwork:
    """The first weights follow from the seed, and the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(how.seed)
        network = TrainedNetwork(how.preset.spec, how.preset.dropout)
    logs = np.concatenate([sample.logs for sample in train])
    absolute = how.preset.loss == "squared"
    graphs, tiles = [s.graph for s in train], [s.tiles for s in train]
    network.standardise(graphs, tiles, logs if absolute else None)
    return network


def _job(
    network: TrainedNetwork,
    train: Sequence[KernelSample],
    valid: Sequence[KernelSample],
    how: KernelTraining,
) -> Job:
    steps = how.steps or -(-len(train) // how.kernels)

    def batches(epoch: int) -> Iterator[tuple[Batch, Tensor, Tensor]]:
        rng = np.random.default_rng([how.seed, epoch])
        size = {"kernels": how.kernels, "tiles": how.tiles, "steps": steps}
        for drawn in drawn_batches(train, **size, rng=rng):
            yield _batch(network, train, drawn)

    def loss(batch: tuple[Batch, Tensor, Tensor]) -> Tensor:
        asked, logs, owner = batch
        return loss_of(how.preset.loss, network(asked), logs, owner)

    def validate() -> dict[str, float]:
        said = said_of(network, valid)
        figures = {"loss": loss_on(network, valid, said, how.preset.loss)}
        figures |= figures_of(network, valid, said, least_s=0.0)
        return {f"valid_{name}": value for name, value in figures.items()}

    return Job(steps=steps, batches=batches, loss=loss, validate=validate)


def _batch(
    network: TrainedNetwork, samples: Sequence[KernelSample], drawn: Sequence[Drawn]
) -> tuple[Batch, Tensor, Tensor]:
    """The batch, standardised logs float32[b], and the kernel of each int64[b]."""
    parts = [(samples[place], tiles) for place, tiles in drawn]
    mean, deviation = network.scale.target.tolist()
    logs = np.concatenate([sample.logs[tiles] for sample, tiles in parts])
    owner = np.repeat([place for place, _ in drawn], [len(tiles) for _, tiles in drawn])
    return (
        collate([sample.graph for sample, _ in parts], [s.tiles[tiles] for s, tiles in parts]),
        torch.from_numpy(((logs - mean) / deviation).astype(np.float32)),
        torch.from_numpy(owner),
    )


def _named(samples: Sequence[KernelSample], how: KernelTraining) -> str:
    """Hash of all that a checkpoint depends on beside `lr` and `seed`."""
    told = asdict(how)
    del told["epochs"], told["patience"], told["seed"]
    parts = [content_of(samples), told]
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=8).hexdigest()


def _card(how: KernelTraining, fitted: Fitted) -> dict[str, Any]:
    own = asdict(how.preset)
    del own["spec"]
    return {
        "kind": "kernels",
        "kernel": how.preset.spec.task,
        "ops": [how.preset.spec.task],
        "network": how.preset.spec.card,
        "metrics": {name: round(value, 6) for name, value in fitted.figures.items()},
        "epochs": fitted.epochs,
        "best_epoch": fitted.best_epoch,
        "stopped_early": fitted.stopped_early,
        "settings": {
            **own,
            **{name: getattr(how, name) for name in ("kernels", "tiles", "steps", "by")},
            "predictor": f"{how.preset.spec.gnn}-{how.preset.spec.reduction}",
        },
        "seed": how.seed,
        "code": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
