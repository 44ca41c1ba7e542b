"""Boosted trees of operations, of which only the sums are measured: learned by LightGBM, asked as
`embeddb.cost_model.operation_trees`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.cost_model.operation_trees import OperationTrees
from embeddb.tensors.encoding.operation_rows import USUAL, operations_version
from indexer.training.cost_model.trees import require, weights
from indexer.training.tensors.grown_trees import evenly
from indexer.training.tensors.samples import KernelSample

__all__ = ["summed_card", "summed_said", "summed_trees", "summed_weights"]

_TREES = 800
#: Operations in a leaf; a share of all where there are few.
_LEAF, _LEAF_SHARE = 20, 100
#: Of log seconds: what is missed by more counts by its size, no longer by its square. Processes
#: that time the same kernel differ by less.
_FAR = 0.4
_SETTINGS = MappingProxyType(
    {
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
)

Floats = NDArray[np.float64]


def summed_weights(train: Sequence[KernelSample], seed: int = 0) -> dict[str, NDArray[Any]]:
    """Tensors of trees on `operation_rows`; families count the same.

    Raises: MissingDependency without LightGBM.
    """
    require()
    lightgbm = import_module("lightgbm")
    rows = np.concatenate([sample.operations for sample in train])
    settings: dict[str, Any] = {
        **_SETTINGS,
        "seed": seed,
        "min_data_in_leaf": max(1, min(_LEAF, len(rows) // _LEAF_SHARE)),
        "objective": _objective(train),
    }
    usual = rows[:, USUAL].astype(np.float64)
    level = _level(train)
    data = lightgbm.Dataset(rows, init_score=usual + level, params=settings)
    found = weights(lightgbm.train(settings, data, _TREES))
    # Where all guesses are off by more than `_FAR`, no split would be better than none: the level
    # comes first, as a tree of one leaf.
    first = {"splits": 0, "value": level}
    return {
        name: np.insert(array, 0, first[name]) if name in first else array
        for name, array in found.items()
    }


def _level(train: Sequence[KernelSample]) -> float:
    """By how much log seconds are above the guesses, at the median."""
    guessed = [np.log(np.exp(sample.operations[:, USUAL]).sum()) for sample in train]
    return float(np.median([s.logs.min() - g for s, g in zip(train, guessed, strict=True)]))


def _objective(train: Sequence[KernelSample]) -> Callable[[Floats, Any], tuple[Floats, Floats]]:
    """Gradient and curvature, by operation, of Huber's loss of the logarithm of each kernel's sum.

    With shares p of the sum, the Gauss-Newton matrix of a kernel is pp', and the diagonal one of p
    is above it: a step never goes further than all operations of a kernel moved together.
    """
    counts = [len(sample.operations) for sample in train]
    first, kernel = np.cumsum([0, *counts[:-1]]), np.repeat(np.arange(len(train)), counts)
    wanted = np.array([sample.logs.min() for sample in train])
    weight = evenly([sample.group for sample in train])

    def told(said: Floats, _: Any) -> tuple[Floats, Floats]:
        seconds = np.exp(said)
        total = np.add.reduceat(seconds, first)
        share = seconds / total[kernel] * weight[kernel]
        missed = np.clip(np.log(total) - wanted, -_FAR, _FAR)
        return share * missed[kernel], share

    return told


def summed_said(trees: OperationTrees, samples: Sequence[KernelSample]) -> list[Floats]:
    """float64[1] what trees say of each, log seconds."""
    first = np.cumsum([0, *(len(sample.operations) for sample in samples[:-1])])
    parts = trees.parts(np.concatenate([sample.operations for sample in samples]))
    return list(np.log(np.add.reduceat(parts, first))[:, None])


def summed_card() -> dict[str, Any]:
    """What of a card tells of trees of operations."""
    settings: Mapping[str, Any] = {"predictor": "trees", "trees": _TREES, "far": _FAR, **_SETTINGS}
    return {
        "kernel": OperationTrees.task,
        "network": {"task": OperationTrees.task, "operations": operations_version()},
        "settings": dict(settings),
    }


def summed_trees(train: Sequence[KernelSample], seed: int = 0) -> OperationTrees:
    """Trees of these kernels, ready to be asked.

    Raises: MissingDependency without LightGBM.
    """
    return OperationTrees(summed_card(), summed_weights(train, seed))
