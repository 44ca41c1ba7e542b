"""What the network of kernels is compared with: methods that learn from the same runs and rank
tiles by float64[c], lower is faster, or tell the seconds of fused kernels.

Trees on flat features, nearest kernels by statistics, the tile that is best on average, no tile;
for seconds also what is usual.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.tensors.encoding.features import statistics
from indexer.training.tensors.grown_trees import boosted_by_family, grown, tree_predictions
from indexer.training.tensors.samples import KernelSample

Floats = NDArray[np.float64]
#: Scores float64[c] of a kernel's configurations.
Ranking = Callable[[KernelSample], Floats]
#: Seconds of a fused kernel.
Seconds = Callable[[KernelSample], float]
_NEAREST = 5


def trees(train: Sequence[KernelSample], seed: int = 0) -> Ranking:
    """Boosted trees on `flat_rows`, of log seconds less the kernel's mean; families count the same.

    Raises: MissingDependency without LightGBM.
    """
    own = grown(train, seed)
    return lambda sample: tree_predictions(own, sample, analysed=False)


def analytical(train: Sequence[KernelSample], seed: int = 0) -> Ranking:
    """What the analysis says, which learns from nothing."""
    return lambda sample: sample.analysed_logs


def nearest(train: Sequence[KernelSample], seed: int = 0) -> Ranking:
    """The mean log loss of a tile on the five nearest kernels, by standardised statistics, that ran
    it; what none of them ran is last."""
    near, lost = _neighbours(train), [_lost(sample) for sample in train]
    return lambda sample: _averaged(sample.configs, [lost[at] for at in near(sample)])


def _neighbours(train: Sequence[KernelSample]) -> Callable[[KernelSample], list[int]]:
    """From a kernel to the places of those nearest to it, by standardised statistics."""
    known = np.stack([statistics(sample.graph) for sample in train])
    mean, deviation = known.mean(axis=0), known.std(axis=0)
    scale = np.where(deviation > 1e-6, deviation, 1)
    places = (known - mean) / scale

    def near(sample: KernelSample) -> list[int]:
        away = np.square((statistics(sample.graph) - mean) / scale - places).sum(axis=1)
        return [int(at) for at in np.argsort(away, kind="stable")[:_NEAREST]]

    return near


def static_best(train: Sequence[KernelSample], seed: int = 0) -> Ranking:
    """The mean log loss of a tile over all kernels that ran it, families counting the same; of a
    tile that few ran, drawn towards what tiles lose on average."""
    by_family: dict[str, list[Mapping[Config, float]]] = {}
    for sample in train:
        by_family.setdefault(sample.group, []).append(_lost(sample))
    means = [_means(part) for part in by_family.values()]
    usual = float(np.mean([loss for part in means for loss in part.values()]))
    found = {
        config: (usual + sum(part.get(config, 0.0) for part in means))
        / (1 + sum(config in part for part in means))
        for config in {config for part in means for config in part}
    }
    return lambda sample: np.array([found.get(config, np.inf) for config in sample.configs])


def untiled(train: Sequence[KernelSample], seed: int = 0) -> Ranking:
    """The default before all others, which it does not tell apart."""
    return lambda sample: np.where(np.arange(len(sample.configs)) == sample.default, 0.0, 1.0)


BASELINES: Mapping[str, Callable[[Sequence[KernelSample], int], Ranking]] = MappingProxyType(
    {
        "analytical": analytical,
        "trees": trees,
        "nearest": nearest,
        "static best": static_best,
        "untiled": untiled,
    }
)


def usual_seconds(train: Sequence[KernelSample], seed: int = 0) -> Seconds:
    """The median of all."""
    usual = float(np.exp(np.median([sample.logs.min() for sample in train])))
    return lambda sample: usual


def nearest_seconds(train: Sequence[KernelSample], seed: int = 0) -> Seconds:
    """The geometric mean of the five nearest kernels, by standardised statistics."""
    near, logs = _neighbours(train), np.array([sample.logs.min() for sample in train])
    return lambda sample: float(np.exp(logs[near(sample)].mean()))


def tree_seconds(train: Sequence[KernelSample], seed: int = 0) -> Seconds:
    """Boosted trees on `statistics`, of log seconds; families count the same.

    Raises: MissingDependency without LightGBM.
    """
    rows = np.stack([statistics(sample.graph) for sample in train])
    wanted = np.array([sample.logs.min() for sample in train])
    own = boosted_by_family(rows, wanted, [sample.group for sample in train], seed)
    return lambda sample: float(np.exp(own.predict(statistics(sample.graph)[None])[0]))


SECONDS: Mapping[str, Callable[[Sequence[KernelSample], int], Seconds]] = MappingProxyType(
    {
        "constant": usual_seconds,
        "nearest": nearest_seconds,
        "trees": tree_seconds,
    }
)


def _lost(sample: KernelSample) -> dict[Config, float]:
    """Log of the time over the best one's."""
    losses = sample.logs - sample.logs.min()
    return dict(zip(sample.configs, losses.tolist(), strict=True))


def _means(parts: Sequence[Mapping[Config, float]]) -> dict[Config, float]:
    held: dict[Config, list[float]] = {}
    for part in parts:
        for config, loss in part.items():
            held.setdefault(config, []).append(loss)
    return {config: float(np.mean(losses)) for config, losses in held.items()}


def _averaged(configs: Sequence[Config], parts: Sequence[Mapping[Config, float]]) -> Floats:
    means = _means(parts)
    return np.array([means.get(config, np.inf) for config in configs])
