"""Training of the kernels' network, its settings and losses: rank loss or squared error of log
seconds, Adam, early stopping on the held-out part. Examples are drawn evenly from each model family
("Imbalances"), so that a family with many kernels does not count for more.

Source: "A Learned Performance Model for Tensor Processing Units", Sections 3.3, 4 and Appendix B.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from embeddb.core.reports import Progress
from embeddb.tensors.encoding.predictor import NetworkSpec
from indexer.training.folder import folder_of
from indexer.training.tensors.figures import Scores, figures_of
from indexer.training.tensors.network import Batch, TrainedNetwork, collate
from indexer.training.tensors.samples import KernelSample, content_of
from indexer.training.trainer import Fitted, Job, Settings, fit, run_name

#: Operations per batch outside of training.
_AT_ONCE = 16_384
#: Tiles of one kernel that a loss compares.
_COMPARED = 64

#: The scalar to be minimised, of predictions float32[b] (lower is faster), standardised log
#: seconds float32[b] and which kernel each is of, int64[b].
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def wrong_orders(each: Callable[[Tensor], Tensor]) -> Loss:
    """The rank loss of the paper's Eq. 1: `each` of y'_i - y'_j for each pair of tiles of one
    kernel where i is slower than j, divided by the number of such pairs (in Eq. 1 of all pairs of a
    batch, the same for one kernel without ties)."""

    def loss(scores: Tensor, logs: Tensor, owner: Tensor) -> Tensor:
        slower = (logs[:, None] > logs[None]) & (owner[:, None] == owner[None])
        apart = scores[:, None] - scores[None]
        return torch.where(slower, each(apart), 0).sum() / slower.sum().clamp(min=1)

    return loss


def _squared(predicted: Tensor, logs: Tensor, owner: Tensor) -> Tensor:
    """Squared error, for absolute seconds."""
    return (predicted - logs).square().mean()


_HINGE = wrong_orders(lambda apart: functional.relu(1 - apart))


@dataclass(frozen=True, slots=True)
class Recipe:
    """A network and its training: the loss and its name, the learning rate and its decay per epoch,
    the gradient clipping (0: none), and the constructor of the network from a spec and a
    dropout."""

    spec: NetworkSpec
    loss_name: str = "hinge"
    loss: Loss = _HINGE
    lr: float = 1e-3
    decay: float = 0.98
    clip: float = 1.0
    dropout: float = 0.1
    name: str = "default"
    network: Callable[[NetworkSpec, float], TrainedNetwork] = TrainedNetwork

    @property
    def settings_card(self) -> dict[str, object]:
        """Settings in the model's card."""
        names = ("name", "lr", "decay", "clip", "dropout")
        return {**{name: getattr(self, name) for name in names}, "loss": self.loss_name}


def recipe(task: str, hidden: int = 0, lr: float = 0.0) -> Recipe:
    """Default recipe, for two cores; 0 stands for the defaults of `hidden` and `lr`."""
    spec = NetworkSpec(task, hidden) if hidden else NetworkSpec(task)
    if task == "fused":
        return Recipe(spec, "squared", _squared, lr=lr or 1e-3)
    return Recipe(spec, lr=lr or 1e-3)


@dataclass(frozen=True, slots=True)
class KernelTraining:
    """Settings of a kernels' model.

    A batch has `tiles` tiles of each of `kernels` kernels; an epoch shows each kernel about once.
    `by`, one of `SPLITS`, is the unit held out for early stopping and for the choice of
    `predictor`: `auto` (the better one for the task), `network`, `trees` or `operations`.
    """

    recipe: Recipe = field(default_factory=lambda: recipe("tile"))
    epochs: int = 60
    patience: int = 10
    kernels: int = 8
    tiles: int = 16
    by: str = "family"
    seed: int = 0
    predictor: str = "network"

    @property
    def task(self) -> str:
        return self.recipe.spec.task


#: Index of a kernel, and indices int64[t] of some of its tiles.
Drawn = tuple[int, NDArray[np.int64]]


def drawn_batches(
    samples: Sequence[KernelSample],
    *,
    kernels: int,
    tiles: int,
    steps: int,
    rng: np.random.Generator,
) -> Iterator[list[Drawn]]:
    """`steps` batches of `kernels` kernels with at most `tiles` tiles each. Families alternate;
    kernels of one family come in a random order, reshuffled after each pass."""
    by_family: dict[str, list[int]] = {}
    for at, sample in enumerate(samples):
        by_family.setdefault(sample.group, []).append(at)
    families = [_endless(places, rng) for _, places in sorted(by_family.items())]
    turns = _endless(range(len(families)), rng)
    for _ in range(steps):
        places = [next(families[next(turns)]) for _ in range(kernels)]
        yield [(at, rng.permutation(len(samples[at].seconds))[:tiles]) for at in places]


def _endless(of: Sequence[int], rng: np.random.Generator) -> Iterator[int]:
    while True:
        yield from rng.permutation(np.asarray(of)).tolist()


def fitted_network(
    train: Sequence[KernelSample],
    valid: Sequence[KernelSample],
    how: KernelTraining,
    out: Path,
    *,
    progress: Progress,
) -> tuple[TrainedNetwork, Fitted]:
    """Train on one part with early stopping on the other; resumes an unfinished training of `out`.
    Raises: ModelError as `indexer.training.trainer.fit` does."""
    network = _network(how, train)
    fitted = fit(
        network,
        _job(network, train, valid, how),
        settings=Settings(
            epochs=how.epochs,
            lr=how.recipe.lr,
            patience=how.patience,
            seed=how.seed,
            run=_named([*train, *valid], how),
            decay=how.recipe.decay,
            clip=how.recipe.clip,
        ),
        folder=folder_of(out),
        progress=progress,
    )
    network.adopt_unseen([sample.graph for sample in train])
    return network, fitted


def _network(how: KernelTraining, train: Sequence[KernelSample]) -> TrainedNetwork:
    """The network with initial weights from the seed; the global random state is unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(how.seed)
        network: TrainedNetwork = how.recipe.network(how.recipe.spec, how.recipe.dropout)
    logs = np.concatenate([sample.logs for sample in train])
    absolute = how.recipe.loss_name == "squared"
    graphs, tiles = [s.graph for s in train], [s.tiles for s in train]
    network.standardise(graphs, tiles, logs if absolute else None)
    return network


def _job(
    network: TrainedNetwork,
    train: Sequence[KernelSample],
    valid: Sequence[KernelSample],
    how: KernelTraining,
) -> Job:
    steps = -(-len(train) // how.kernels)

    def batches(epoch: int) -> Iterator[tuple[Batch, Tensor, Tensor]]:
        rng = np.random.default_rng([how.seed, epoch])
        draws = drawn_batches(train, kernels=how.kernels, tiles=how.tiles, steps=steps, rng=rng)
        yield from (_batch(network, train, drawn) for drawn in draws)

    def loss(batch: tuple[Batch, Tensor, Tensor]) -> Tensor:
        inputs, logs, owner = batch
        return how.recipe.loss(network(inputs), logs, owner)

    def validate() -> dict[str, float]:
        scores = predictions_of(network, valid)
        figures = {"loss": _loss_on(network, valid, scores, how.recipe.loss)}
        figures |= figures_of(network.spec.task, valid, scores, least_s=0.0)
        return {f"valid_{name}": value for name, value in figures.items()}

    return Job(steps=steps, batches=batches, loss=loss, validate=validate)


def predictions_of(
    network: TrainedNetwork, samples: Sequence[KernelSample]
) -> list[NDArray[np.float64]]:
    """float64[c] of each sample, as by `KernelNetwork.scores`: lower is faster."""
    mean, deviation = network.scale.target.tolist()
    predictions = []
    network.eval()
    with torch.no_grad():
        for sample in samples:
            step = max(1, _AT_ONCE // len(sample.graph))
            starts = range(0, len(sample.tiles), step)
            parts = [network(collate([sample.graph], [sample.tiles[s : s + step]])) for s in starts]
            predictions.append(torch.cat(parts).double().numpy() * deviation + mean)
    return predictions


def _loss_on(
    network: TrainedNetwork,
    samples: Sequence[KernelSample],
    predictions: Scores,
    loss: Loss,
) -> float:
    """The training loss; every family has the same weight, and in it every kernel."""
    mean, deviation = network.scale.target.tolist()
    by_family: dict[str, list[float]] = {}
    for sample, own in zip(samples, predictions, strict=True):
        step = -(-len(own) // _COMPARED)
        one, real = (torch.from_numpy((v[::step] - mean) / deviation) for v in (own, sample.logs))
        missed = loss(one, real, torch.zeros(len(one)))
        by_family.setdefault(sample.group, []).append(float(missed))
    return float(np.mean([np.mean(each) for each in by_family.values()]))


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
    settings = {name: getattr(how, name) for name in ("kernels", "tiles", "by")}
    spec = {name: value for name, value in how.recipe.spec.card.items() if name != "encoding"}
    return run_name(
        content_of(samples), {**settings, "preset": {**how.recipe.settings_card, "spec": spec}}
    )
