"""Training of `embeddb.cost_model.operation_sums`: seconds of fused kernels as sums over their
operations, by a network in torch and boosted trees of LightGBM, both trained on sums alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from embeddb.core.nn_numpy import NORM_EPSILON
from embeddb.core.reports import Progress
from embeddb.cost_model.operation_sums import CLIP, NETWORK, TREES, OperationSums
from embeddb.learning.boosting import lightgbm, weights
from embeddb.tensors.encoding.operation_rows import OPERATION, USUAL, operations_version
from indexer.training.tensors.grown_trees import evenly
from indexer.training.tensors.samples import KernelSample, content_of
from indexer.training.trainer import Job, Settings, fit, run_name

#: Threshold of Huber's loss in log seconds: larger residuals count linearly. Processes that time
#: the same kernel differ by less.
FAR = 0.4


def level(train: Sequence[KernelSample]) -> float:
    """Median of the log seconds minus the log sums of the guesses."""
    guessed = [np.log(np.exp(sample.operations[:, USUAL]).sum()) for sample in train]
    return float(np.median([s.logs.min() - g for s, g in zip(train, guessed, strict=True)]))


@dataclass(frozen=True, slots=True)
class NetworkTraining:
    """Settings of its training: all epochs, with a decaying rate and without early stopping, since
    the held-out error fluctuates by more than it falls in the second half."""

    hidden: int = 256
    layers: int = 2
    dropout: float = 0.1
    epochs: int = 24
    kernels: int = 256
    lr: float = 2e-3
    decay: float = 0.85
    clip: float = 1.0


class _Batch(NamedTuple):
    """b kernels of x rows: `rows` float32[x,f] standardised, `usual` float32[x], `owner` int64[x];
    `logs` and `weight` float32[b]."""

    rows: Tensor
    usual: Tensor
    owner: Tensor
    logs: Tensor
    weight: Tensor


class _Network(nn.Module):
    """Names and shapes of the weights are those of `operation_sums.shapes_of`."""

    scale: Tensor

    def __init__(self, how: NetworkTraining) -> None:
        super().__init__()
        widths = (len(OPERATION), *(how.hidden,) * how.layers)
        self.layers = nn.ModuleList(nn.Linear(width, how.hidden) for width in widths)
        self.norms = nn.ModuleList(nn.LayerNorm(how.hidden, eps=NORM_EPSILON) for _ in widths)
        self.head = nn.Linear(how.hidden, 1)
        self.dropout = nn.Dropout(how.dropout)
        nn.init.zeros_(self.head.weight)
        self.register_buffer("scale", torch.stack([torch.zeros(1), torch.ones(1)]))

    def forward(self, batch: _Batch) -> Tensor:
        """float32[b] log seconds."""
        x = self._layer(0, batch.rows)
        for at in range(1, len(self.layers)):
            x = x + self.dropout(self._layer(at, x))
        each = torch.exp(batch.usual + self.head(x)[:, 0])
        return torch.zeros_like(batch.logs).index_add(0, batch.owner, each).log()

    def _layer(self, at: int, x: Tensor) -> Tensor:
        out: Tensor = self.norms[at](self.layers[at](x)).relu()
        return out


class _Kernels:
    """The training set, standardised once."""

    def __init__(self, train: Sequence[KernelSample]) -> None:
        rows = np.concatenate([sample.operations for sample in train])
        mean, deviation = rows.mean(axis=0), rows.std(axis=0)
        self.constant = torch.from_numpy(deviation <= 1e-6)
        self.scale = np.stack([mean, np.where(deviation > 1e-6, deviation, 1)])
        self.usual = torch.from_numpy(rows[:, USUAL].copy())
        self.rows = torch.from_numpy(np.clip((rows - mean) / self.scale[1], -CLIP, CLIP))
        counts = np.array([len(sample.operations) for sample in train])
        self._ends = np.cumsum(counts)
        self._counts = counts
        self.logs = torch.tensor([sample.logs.min() for sample in train], dtype=torch.float32)
        self.weight = torch.from_numpy(evenly([s.group for s in train])).float()

    def batch(self, places: NDArray[np.int64], device: torch.device) -> _Batch:
        counts = self._counts[places]
        first = np.repeat(self._ends[places] - np.cumsum(counts), counts)
        at = torch.from_numpy(first + np.arange(counts.sum()))
        owner = torch.from_numpy(np.repeat(np.arange(len(places)), counts))
        own = torch.from_numpy(places)
        parts = (self.rows[at], self.usual[at], owner, self.logs[own], self.weight[own])
        return _Batch(*(part.to(device) for part in parts))


def network_weights(
    train: Sequence[KernelSample],
    seed: int = 0,
    *,
    how: NetworkTraining | None = None,
    folder: Path | None = None,
    progress: Progress = lambda *_: None,
) -> dict[str, NDArray[Any]]:
    """Tensors of `operation_sums.shapes_of`; families have the same weight. Resumes an unfinished
    training in `folder`. Raises: ModelError as `indexer.training.trainer.fit` does."""
    how = how or NetworkTraining()
    kernels = _Kernels(train)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _Network(how)
    network.scale = torch.from_numpy(kernels.scale.astype(np.float32))
    with torch.no_grad():
        network.head.bias.fill_(level(train))
        # Columns that are constant in training get zero weights instead of their random initial
        # ones, so that a new opcode adds nothing.
        network.get_parameter("layers.0.weight")[:, kernels.constant] = 0.0
    settings = Settings(
        *(how.epochs, how.lr),
        watch="",
        seed=seed,
        run=run_name(content_of(train), operations_version(), asdict(how)),
        decay=how.decay,
        clip=how.clip,
    )
    with TemporaryDirectory() as own:
        folder = folder or Path(own) / "network"
        job = _job(network, kernels, len(train), how, seed)
        fit(network, job, settings=settings, folder=folder, progress=progress)
    return {name: tensor.cpu().numpy() for name, tensor in network.state_dict().items()}


def _job(network: _Network, kernels: _Kernels, count: int, how: NetworkTraining, seed: int) -> Job:
    device = network.head.weight.device

    def batches(epoch: int) -> Iterator[_Batch]:
        order = np.random.default_rng([seed, epoch]).permutation(count)
        for start in range(0, count, how.kernels):
            yield kernels.batch(order[start : start + how.kernels], device)

    def loss(batch: _Batch) -> Tensor:
        missed = functional.huber_loss(network(batch), batch.logs, reduction="none", delta=FAR)
        return (missed * batch.weight).mean()

    return Job(-(-count // how.kernels), batches, loss, lambda: {})


TREE_COUNT = 800
#: Operations in a leaf; a share of all where there are few.
_LEAF, _LEAF_SHARE = 20, 100
SETTINGS: Mapping[str, Any] = {
    "learning_rate": 0.1,
    "num_leaves": 31,
    "feature_fraction": 0.6,
    "lambda_l2": 1.0,
    "min_sum_hessian_in_leaf": 1e-3,
    "use_missing": False,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}

Floats = NDArray[np.float64]


def tree_weights(
    train: Sequence[KernelSample], seed: int = 0, *, progress: Progress = lambda *_: None
) -> dict[str, NDArray[Any]]:
    """Tensors of trees on `operation_rows`; families have the same weight. Raises:
    MissingDependency without LightGBM."""
    library = lightgbm()
    rows = np.concatenate([sample.operations for sample in train])
    settings: dict[str, Any] = {
        **SETTINGS,
        "seed": seed,
        "min_data_in_leaf": max(1, min(_LEAF, len(rows) // _LEAF_SHARE)),
        "objective": _objective(train),
    }
    usual = rows[:, USUAL].astype(np.float64)
    above = level(train)
    data = library.Dataset(rows, init_score=usual + above, params=settings)

    def grown(env: Any) -> None:
        progress("grow trees", env.iteration + 1, TREE_COUNT)

    tensors = weights(library.train(settings, data, TREE_COUNT, callbacks=[grown]))
    # If all guesses are off by more than `FAR`, no split has a gain: the level is added as a first
    # tree of one leaf.
    first = {"splits": 0, "value": above}
    return {
        name: np.insert(array, 0, first[name]) if name in first else array
        for name, array in tensors.items()
    }


def _objective(train: Sequence[KernelSample]) -> Callable[[Floats, Any], tuple[Floats, Floats]]:
    """Gradient and curvature, by operation, of Huber's loss of the logarithm of each kernel's sum.

    With shares p of the sum, the Gauss-Newton matrix of a kernel is pp', and the diagonal one of p
    is above it: a step never goes further than all operations of a kernel moved together.
    """
    counts = [len(sample.operations) for sample in train]
    first, kernel = np.cumsum([0, *counts[:-1]]), np.repeat(np.arange(len(train)), counts)
    wanted = np.array([sample.logs.min() for sample in train])
    weight = evenly([sample.group for sample in train])

    def gradients(predicted: Floats, _: Any) -> tuple[Floats, Floats]:
        seconds = np.exp(predicted)
        total = np.add.reduceat(seconds, first)
        share = seconds / total[kernel] * weight[kernel]
        missed = np.clip(np.log(total) - wanted, -FAR, FAR)
        return share * missed[kernel], share

    return gradients


Tensors = dict[str, NDArray[Any]]
#: Members of the ensemble; the default has both.
MEMBERS = ("trees", "network")


def summed_weights(
    train: Sequence[KernelSample],
    seed: int = 0,
    members: Sequence[str] = MEMBERS,
    *,
    folder: Path | None = None,
    progress: Progress = lambda *_: None,
) -> Tensors:
    """Tensors of the members; families have the same weight. Resumes an unfinished training of the
    network in `folder`. Raises: MissingDependency for trees without LightGBM; ModelError as
    `network_weights`."""
    tensors: Tensors = {}
    if "network" in members:
        network = network_weights(train, seed, folder=folder, progress=progress)
        tensors |= {NETWORK + name: array for name, array in network.items()}
    if "trees" in members:
        trees = tree_weights(train, seed, progress=progress)
        tensors |= {TREES + name: array for name, array in trees.items()}
    return tensors


def summed_card(members: Sequence[str] = MEMBERS) -> dict[str, Any]:
    """A card's entries about such a model."""
    how = {"trees": {"trees": TREE_COUNT, **SETTINGS}, "network": asdict(NetworkTraining())}
    return {
        "kernel": OperationSums.task,
        "network": {"task": OperationSums.task, "operations": operations_version()},
        "settings": {
            "predictor": "trees" if tuple(members) == ("trees",) else "operations",
            "far": FAR,
            **{name: how[name] for name in members},
        },
    }


def summed_predictions(
    model: OperationSums, samples: Sequence[KernelSample]
) -> list[NDArray[np.float64]]:
    """float64[1] predicted log seconds of each sample."""
    first = np.cumsum([0, *(len(sample.operations) for sample in samples[:-1])])
    parts = model.parts(np.concatenate([sample.operations for sample in samples]))
    return list(np.log(np.add.reduceat(parts, first))[:, None])


def summed(train: Sequence[KernelSample]) -> OperationSums:
    """Model trained on these kernels. Raises: MissingDependency for trees without LightGBM."""
    return OperationSums(summed_card(), summed_weights(train))
