"""The nests' network in torch and torch-geometric, and its training on measured nests ("Performance
Embeddings", Section 3.3): mean absolute error of standardised targets, Adam, early stopping on
held-out groups. Names and shapes of the weights are those of `embeddb.nests.encoding.forward`.

Each epoch hides the counters of a share of the samples, so that one network embeds nests with
counters and without. Figures are reported for both.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from embeddb.core.reports import Progress
from embeddb.nests.encoding.features import FEATURES
from embeddb.nests.encoding.forward import DIM, INPUTS, encoding_version, shapes_of
from embeddb.nests.encoding.graph import NestGraph
from indexer.training.folder import folder_of, origin_card
from indexer.training.nests.samples import (
    COUNTED,
    TARGETS,
    NestSample,
    content_of,
    held_out,
    targets_there,
)
from indexer.training.trainer import Fitted, Job, Settings, fit, fitted_card, run_name, saved

with warnings.catch_warnings():
    # Its import compiles a class in a way that torch no longer recommends.
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.nn import AttentionalAggregation, TransformerConv


class Batch(NamedTuple):
    """b nests: `features` float32[n,f] and `edges` int64[2,e] of all their nodes, `owner` int64[n]
    which nest a node is of, `counters` float32[b,2c]."""

    features: Tensor
    edges: Tensor
    owner: Tensor
    counters: Tensor


class TrainedNetwork(nn.Module):
    """The network that a card's `network` describes. `counter_mean` and the like are no parameters:
    they are set once, from the training set, with `standardise`."""

    feature_scale: Tensor
    counter_mean: Tensor
    counter_scale: Tensor
    target_mean: Tensor
    target_scale: Tensor

    def __init__(self, spec: Mapping[str, Any]) -> None:
        """Raises: ModelError as `shapes_of`."""
        super().__init__()
        shapes_of(spec)
        self.inputs = str(spec["inputs"])
        layers, heads, counters = (int(spec[key]) for key in ("layers", "heads", "counters"))
        targets = len(spec["targets"])
        self.first = nn.Linear(len(FEATURES), DIM)
        self.layers = nn.ModuleList(
            TransformerConv(DIM, DIM // heads, heads=heads) for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(layers))
        self.pool = AttentionalAggregation(nn.Linear(DIM, 1), nn.Linear(DIM, DIM))
        self.dynamic = nn.Linear(2 * counters, DIM)
        self.join = nn.Sequential(nn.Linear(2 * DIM, 2 * DIM), nn.ReLU(), nn.Linear(2 * DIM, DIM))
        self.head = nn.Linear(DIM, targets)
        self.register_buffer("feature_scale", torch.ones(len(FEATURES)))
        for name, count in (("counter", counters), ("target", targets)):
            self.register_buffer(f"{name}_mean", torch.zeros(count))
            self.register_buffer(f"{name}_scale", torch.ones(count))

    def standardise(
        self,
        graphs: Sequence[NestGraph],
        counters: NDArray[np.float32],
        targets: NDArray[np.float32],
    ) -> None:
        """Scales of graphs, of counters float32[s,c] and targets float32[s,t] (nan: absent)."""
        most = np.max([np.abs(graph.features).max(axis=0) for graph in graphs], axis=0)
        self.feature_scale = torch.from_numpy(np.where(most > 0, most, 1).astype(np.float32))
        self.counter_mean, self.counter_scale = _scales(np.log2(1 + counters))
        self.target_mean, self.target_scale = _scales(targets)

    def node_embeddings(self, features: Tensor, edges: Tensor) -> Tensor:
        """float32[n,128]"""
        x: Tensor = self.first(features / self.feature_scale)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(x + layer(x, edges).relu())
        return x

    def embedding(self, batch: Batch) -> Tensor:
        """float32[b,128]"""
        count = len(batch.counters)
        static = batch.features.new_zeros(count, DIM)
        dynamic = static
        if self.inputs != "dynamic":
            nodes = self.node_embeddings(batch.features, batch.edges)
            static = self.pool(nodes, batch.owner, dim_size=count)
        if self.inputs != "static":
            dynamic = self.dynamic(batch.counters)
        out: Tensor = self.join(torch.cat([static, dynamic], 1))
        return out

    def forward(self, batch: Batch) -> Tensor:
        """float32[b,t], targets standardised by `target_mean` and `target_scale`."""
        out: Tensor = self.head(self.embedding(batch))
        return out


def collate(graphs: Sequence[NestGraph], counters: NDArray[np.float32]) -> Batch:
    """A batch of graphs, with `counter_inputs` float32[b,2c]."""
    sizes = [len(graph.nodes) for graph in graphs]
    offsets = np.cumsum([0, *sizes[:-1]])
    edges = [graph.edges + offset for graph, offset in zip(graphs, offsets, strict=True)]
    return Batch(
        torch.from_numpy(np.concatenate([graph.features for graph in graphs])),
        torch.from_numpy(np.concatenate(edges, axis=1)),
        torch.from_numpy(np.repeat(np.arange(len(graphs)), sizes)),
        torch.from_numpy(counters),
    )


def counter_inputs(network: TrainedNetwork, counters: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32[s,2c] of counters float32[s,c], nan where absent: standardised logarithms, then
    which of them are there."""
    there = ~np.isnan(counters)
    logs = np.log2(1 + np.where(there, counters, 0))
    plain = (logs - network.counter_mean.numpy()) / network.counter_scale.numpy()
    return np.concatenate([np.where(there, plain, 0), there], axis=1).astype(np.float32)


def _scales(values: NDArray[np.float32]) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each column without nan; 0 and 1 for a column without variation."""
    there = ~np.isnan(values)
    count = np.maximum(there.sum(axis=0), 1)
    mean = np.where(there, values, 0).sum(axis=0, dtype=np.float64) / count
    off = np.where(there, values - mean, 0)
    deviation = np.sqrt(np.square(off).sum(axis=0) / count)
    scale = np.where(deviation > 1e-6, deviation, 1)
    return torch.from_numpy(mean.astype(np.float32)), torch.from_numpy(scale.astype(np.float32))


#: Samples per batch outside of training.
_AT_ONCE = 256

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class NestTraining:
    """Settings of a nests' network. `inputs` is one of `INPUTS`; `hidden` is the share of the
    samples whose counters are hidden from it; `source` is that of the counters (`SOURCES`), the
    only one that the network accepts."""

    settings: Settings = field(default_factory=lambda: Settings(epochs=20, patience=5))
    layers: int = 6
    heads: int = 4
    inputs: str = INPUTS[0]
    hidden: float = 0.5
    batch: int = 32
    source: str = "model"


def train_nests(
    samples: Sequence[NestSample],
    how: NestTraining,
    out: Path,
    *,
    progress: Progress,
) -> dict[str, Any]:
    """Train on `samples` except for the held-out groups, write the network to `out`; returns its
    card with `version` and `curve`.

    Resumes an unfinished training of `out`. The card's `pearson` is by set (`valid`), then
    `counters` or `static`, then target: the correlation of predicted and measured transformed
    targets (Figure 4); null where undefined.

    Raises: InputError for too few groups or no targets; ModelError as `fit` and `save` do.
    """
    out_of = held_out(samples, how.settings.seed)
    train = [s for s in samples if s.group not in out_of]
    valid = [s for s in samples if s.group in out_of]
    chosen = targets_there(train)
    names = [TARGETS[at] for at in chosen]
    spec = {
        "layers": how.layers,
        "heads": how.heads,
        "counters": COUNTED,
        "targets": names,
        "inputs": how.inputs,
        "encoding": encoding_version(),
    }
    network = _network(spec, train, chosen, how.settings.seed)
    content, named = content_of(samples), asdict(how)
    del named["settings"]
    judged = _Set(valid, network, chosen)
    fitted = fit(
        network,
        _job(network, _Set(train, network, chosen), judged, how),
        settings=replace(how.settings, run=run_name(content, sorted(out_of), named)),
        folder=folder_of(out),
        progress=progress,
    )
    card = {
        **_card(spec, how, fitted),
        "data": content,
        "samples": {"train": len(train), "valid": len(valid)},
        "groups": {"train": len({s.group for s in train}), "valid": len(out_of)},
        "parameters": sum(p.numel() for p in network.parameters()),
        "pearson": {"valid": _correlations(judged, names)},
    }
    return saved(out, network.state_dict(), card)


def pearson(predicted: Floats, measured: Floats) -> float | None:
    """Correlation of float32[s] with float32[s], over entries present in both; None if one of them
    does not vary or fewer than three are present."""
    there = ~np.isnan(measured)
    one, two = predicted[there].astype(np.float64), measured[there].astype(np.float64)
    if len(one) < 3 or np.ptp(one) == 0 or np.ptp(two) == 0:
        return None
    return float(np.corrcoef(one, two)[0, 1])


class _Set:
    """Inputs and targets of samples. `counted` float32[s,2c]; `wanted` float32[s,t], targets
    standardised, nan where absent."""

    def __init__(
        self, samples: Sequence[NestSample], network: TrainedNetwork, chosen: NDArray[np.int64]
    ) -> None:
        self.samples, self.network = samples, network
        self.counted = counter_inputs(network, np.stack([sample.counters for sample in samples]))
        targets = np.stack([sample.targets[chosen] for sample in samples])
        self.wanted = (targets - network.target_mean.numpy()) / network.target_scale.numpy()

    def batch(self, at: NDArray[np.int64], hidden: NDArray[np.bool_]) -> tuple[Batch, Tensor]:
        """The samples at these indices and their targets; counters of `hidden` are 0."""
        counted = np.where(hidden[:, None], 0, self.counted[at]).astype(np.float32)
        graphs = [self.samples[place].graph for place in at.tolist()]
        return collate(graphs, counted), torch.from_numpy(self.wanted[at])

    def predicted(self, *, counters: bool) -> Floats:
        """float32[s,t], standardised."""
        predictions = []
        for start in range(0, len(self.samples), _AT_ONCE):
            at = np.arange(start, min(start + _AT_ONCE, len(self.samples)))
            batch, _ = self.batch(at, np.full(len(at), not counters))
            predictions.append(self.network(batch).numpy())
        return np.concatenate(predictions)

    def error(self, *, counters: bool) -> float:
        """Mean absolute error of the targets that are there."""
        return float(np.nanmean(np.abs(self.predicted(counters=counters) - self.wanted)))


def _network(
    spec: Mapping[str, Any],
    train: Sequence[NestSample],
    chosen: NDArray[np.int64],
    seed: int,
) -> TrainedNetwork:
    """The network with initial weights from the seed; the global random state is unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = TrainedNetwork(spec)
    targets = np.stack([sample.targets[chosen] for sample in train])
    counters = np.stack([sample.counters for sample in train])
    network.standardise([sample.graph for sample in train], counters, targets)
    return network


def _job(network: TrainedNetwork, train: _Set, valid: _Set, how: NestTraining) -> Job:
    count = len(train.samples)
    steps = -(-count // how.batch)

    def batches(epoch: int) -> Iterator[tuple[Batch, Tensor]]:
        rng = np.random.default_rng([how.settings.seed, epoch])
        order, hidden = rng.permutation(count), rng.random(count) < how.hidden
        for start in range(0, count, how.batch):
            at = order[start : start + how.batch]
            yield train.batch(at, hidden[at])

    def loss(batch: tuple[Batch, Tensor]) -> Tensor:
        inputs, wanted = batch
        there = ~wanted.isnan()
        off: Tensor = (network(inputs) - wanted.nan_to_num()).abs() * there
        return off.sum() / there.sum().clamp(min=1)

    def validate() -> dict[str, float]:
        errors = {
            "valid_counters": valid.error(counters=True),
            "valid_static": valid.error(counters=False),
        }
        return {"valid_loss": sum(errors.values()) / 2, **errors}

    return Job(steps=steps, batches=batches, loss=loss, validate=validate)


def _correlations(part: _Set, targets: Sequence[str]) -> dict[str, dict[str, float | None]]:
    correlations = {}
    with torch.no_grad():
        for name, counters in (("counters", True), ("static", False)):
            columns = zip(part.predicted(counters=counters).T, part.wanted.T, strict=True)
            each = [pearson(predicted, measured) for predicted, measured in columns]
            rounded = (None if r is None else round(r, 4) for r in each)
            correlations[name] = dict(zip(targets, rounded, strict=True))
    return correlations


def _card(spec: Mapping[str, Any], how: NestTraining, fitted: Fitted) -> dict[str, Any]:
    settings = how.settings
    return {
        "kind": "nests",
        "network": dict(spec),
        "source": how.source,
        **fitted_card(fitted),
        "settings": {
            "hidden": how.hidden,
            "batch": how.batch,
            "lr": settings.lr,
            "epochs": settings.epochs,
            "patience": settings.patience,
        },
        **origin_card(settings.seed),
    }
