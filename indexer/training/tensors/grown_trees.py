"""Boosted trees of kernels: learned by LightGBM, asked as `embeddb.cost_model.kernel_trees`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.cost_model.kernel_trees import KernelTrees
from embeddb.tensors.encoding.features import encoding_version
from embeddb.tensors.encoding.flat import flat_rows, statistics
from indexer.training.cost_model.trees import boosted, weights
from indexer.training.tensors.samples import KernelSample

__all__ = ["boosted_by_family", "grown", "tree_weights", "trees_card"]

_SETTINGS = MappingProxyType(
    {
        "objective": "regression",
        "learning_rate": 0.05,
        "num_leaves": 31,
        "min_data_in_leaf": 20,
        "use_missing": False,
        "num_threads": 1,
        "deterministic": True,
        "verbosity": -1,
    }
)


def boosted_by_family(
    table: NDArray[np.float32], wanted: NDArray[np.float64], families: Sequence[str], seed: int
) -> Any:
    """A LightGBM model of rows float32[x,f] and what is wanted of them float64[x]; families, of
    each row, count the same.

    Raises: MissingDependency without LightGBM.
    """
    counts = Counter(families)
    weight = np.array([1 / counts[family] for family in families])
    return boosted(table, wanted, {**_SETTINGS, "seed": seed}, weight / weight.mean())


def tree_weights(
    train: Sequence[KernelSample], task: str, seed: int = 0
) -> dict[str, NDArray[Any]]:
    """Tensors of trees on `statistics`, of log seconds (`fused`), or on `flat_rows`, of log seconds
    less the kernel's mean (`tile`).

    Raises: MissingDependency without LightGBM.
    """
    if task == "tile":
        table = np.concatenate([flat_rows(sample.graph, sample.tiles) for sample in train])
        wanted = np.concatenate([sample.logs - sample.logs.mean() for sample in train])
        families = [sample.group for sample in train for _ in sample.configs]
    else:
        table = np.stack([statistics(sample.graph) for sample in train])
        wanted = np.array([sample.logs.min() for sample in train])
        families = [sample.group for sample in train]
    return weights(boosted_by_family(table, wanted, families, seed))


def trees_card(task: str) -> dict[str, Any]:
    """What of a card tells of trees."""
    return {
        "network": {"task": task, "encoding": encoding_version()},
        "settings": {"predictor": "trees", **_SETTINGS},
    }


def grown(train: Sequence[KernelSample], task: str, seed: int = 0) -> KernelTrees:
    """Trees of these kernels, ready to be asked. Raises: MissingDependency without LightGBM."""
    return KernelTrees(trees_card(task), tree_weights(train, task, seed))
