"""Boosted trees of operations, trained by LightGBM on measured sums only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.reports import Progress
from embeddb.tensors.encoding.operation_rows import USUAL
from indexer.training.cost_model.trees import require, weights
from indexer.training.tensors.grown_trees import evenly
from indexer.training.tensors.operations.residuals import FAR, level
from indexer.training.tensors.samples import KernelSample

TREE_COUNT = 800
#: Operations in a leaf; a share of all where there are few.
_LEAF, _LEAF_SHARE = 20, 100
SETTINGS: Mapping[str, Any] = MappingProxyType(
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


def tree_weights(
    train: Sequence[KernelSample], seed: int = 0, *, progress: Progress = lambda *_: None
) -> dict[str, NDArray[Any]]:
    """Tensors of trees on `operation_rows`; families have the same weight.

    Raises: MissingDependency without LightGBM.
    """
    require()
    lightgbm = import_module("lightgbm")
    rows = np.concatenate([sample.operations for sample in train])
    settings: dict[str, Any] = {
        **SETTINGS,
        "seed": seed,
        "min_data_in_leaf": max(1, min(_LEAF, len(rows) // _LEAF_SHARE)),
        "objective": _objective(train),
    }
    usual = rows[:, USUAL].astype(np.float64)
    above = level(train)
    data = lightgbm.Dataset(rows, init_score=usual + above, params=settings)

    def grown(env: Any) -> None:
        progress("grow trees", env.iteration + 1, TREE_COUNT)

    tensors = weights(lightgbm.train(settings, data, TREE_COUNT, callbacks=[grown]))
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
