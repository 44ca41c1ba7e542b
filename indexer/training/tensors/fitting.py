"""Training of the kernels' network: rank loss or squared error of log seconds, Adam, early stopping
on the held-out part. Examples are drawn evenly from each model family ("Imbalances"), so that a
family with many kernels does not count for more.

Source: "A Learned Performance Model for Tensor Processing Units", Sections 3.3, 4 and Appendix B.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embeddb.core.reports import Progress
from indexer.training.folder import folder_of
from indexer.training.tensors.evaluation import figures_of, loss_on, predictions_of
from indexer.training.tensors.network import Batch, TrainedNetwork, collate
from indexer.training.tensors.samples import KernelSample, content_of
from indexer.training.tensors.settings import KernelTraining
from indexer.training.trainer import Fitted, Job, fit, run_name


class Drawn(NamedTuple):
    """Index of a kernel, and indices int64[t] of some of its tiles."""

    place: int
    tiles: NDArray[np.int64]


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
        yield [Drawn(at, _some(len(samples[at].seconds), tiles, rng)) for at in places]


def _endless(of: Sequence[int], rng: np.random.Generator) -> Iterator[int]:
    while True:
        yield from rng.permutation(np.asarray(of)).tolist()


def _some(count: int, most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return rng.permutation(count)[:most]


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
        settings=replace(how.settings, run=_named([*train, *valid], how)),
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
        size = {"kernels": how.kernels, "tiles": how.tiles, "steps": steps}
        for drawn in drawn_batches(train, **size, rng=rng):
            yield _batch(network, train, drawn)

    def loss(batch: tuple[Batch, Tensor, Tensor]) -> Tensor:
        inputs, logs, owner = batch
        return how.recipe.loss(network(inputs), logs, owner)

    def validate() -> dict[str, float]:
        scores = predictions_of(network, valid)
        figures = {"loss": loss_on(network, valid, scores, how.recipe.loss)}
        figures |= figures_of(network.spec.task, valid, scores, least_s=0.0)
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
    settings = {name: getattr(how, name) for name in ("kernels", "tiles", "by")}
    spec = {name: value for name, value in how.recipe.spec.card.items() if name != "encoding"}
    return run_name(
        content_of(samples), {**settings, "preset": {**how.recipe.settings_card, "spec": spec}}
    )
