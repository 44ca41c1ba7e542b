"""Boosted trees of tiles: trained by LightGBM, evaluated by `embeddb.cost_model.graph_model`; and
the calibration of their scores as log gains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.cost_model.graph_model import KernelTrees, table_of
from embeddb.learning.boosting import boosted, weights
from embeddb.tensors.encoding.features import TILE, encoding_version
from embeddb.tensors.roofline.analysis import ANALYSIS_VERSION, Analysis
from indexer.training.tensors.samples import KernelSample

_TREES = 400
_SETTINGS: Mapping[str, Any] = {
    "objective": "regression",
    "learning_rate": 0.05,
    "num_leaves": 31,
    "min_data_in_leaf": 20,
    "use_missing": False,
    "num_threads": 1,
    "deterministic": True,
    "verbosity": -1,
}


def evenly(families: Sequence[str]) -> NDArray[np.float64]:
    """float64[x] weight of each row, the same in total for all families; 1 on average."""
    counts = Counter(families)
    share = len(families) / len(counts)
    return np.array([share / counts[family] for family in families], dtype=np.float64)


def boosted_by_family(
    table: NDArray[np.float32], wanted: NDArray[np.float64], families: Sequence[str], seed: int
) -> Any:
    """A LightGBM model of rows float32[x,f] and targets float64[x]; all families, given per row,
    have the same weight. Raises: MissingDependency without LightGBM."""
    return boosted(
        table, wanted, {**_SETTINGS, "num_iterations": _TREES, "seed": seed}, evenly(families)
    )


def tree_weights(
    train: Sequence[KernelSample], seed: int = 0, *, analysed: bool = False
) -> dict[str, NDArray[Any]]:
    """Tensors of trees on `table_of`, of log seconds less the kernel's mean; with `analysed`, of
    the analytical model's residuals. Raises: MissingDependency without LightGBM."""
    tables, wanted = [], []
    for sample in train:
        rows = sample.rows(analysed=analysed)
        tables.append(table_of(sample.graph, rows))
        missed = sample.logs - rows[:, len(TILE)] if analysed else sample.logs
        wanted.append(missed - missed.mean())
    families = [sample.group for sample in train for _ in sample.configs]
    booster = boosted_by_family(np.concatenate(tables), np.concatenate(wanted), families, seed)
    return weights(booster)


def tree_predictions(
    trees: KernelTrees, sample: KernelSample, *, analysed: bool
) -> NDArray[np.float64]:
    """float64[c] predictions of trees for a sample, which was analysed as theirs were."""
    return trees.predicted(sample.graph, sample.rows(analysed=analysed)).astype(np.float64)


def trees_card(analysis: Analysis | None = None) -> dict[str, Any]:
    """A card's entries about trees of tiles."""
    beyond: dict[str, Any] = {}
    if analysis is not None:
        beyond = {"machine": dict(analysis.facts), "analysis": ANALYSIS_VERSION}
    return {
        "network": {"task": KernelTrees.task, "encoding": encoding_version(), **beyond},
        "settings": {"predictor": "trees", **_SETTINGS},
    }


def grown(
    train: Sequence[KernelSample], seed: int = 0, analysis: Analysis | None = None
) -> KernelTrees:
    """Trees trained on these kernels' tiles; on the residuals of an analysis, if there is one.
    Raises: MissingDependency without LightGBM."""
    tensors = tree_weights(train, seed, analysed=analysis is not None)
    return KernelTrees(trees_card(analysis), tensors)


def calibration(
    samples: Sequence[KernelSample], scores: Sequence[NDArray[np.float64]]
) -> dict[str, float]:
    """`slope`: factor of scores float64[c] within a kernel, lower is faster, to log seconds (least
    squares, at least 0); `floor`: standard deviation of the residual. Every kernel has the same
    weight."""
    both = product = missed = 0.0
    pairs = [
        (own - own.mean(), s.logs - s.logs.mean()) for s, own in zip(samples, scores, strict=True)
    ]
    for one, real in pairs:
        both += float(np.mean(one * real))
        product += float(np.mean(np.square(one)))
    slope = max(both / product, 0.0) if product else 0.0
    for one, real in pairs:
        missed += float(np.mean(np.square(slope * one - real)))
    return {"slope": slope, "floor": float(np.sqrt(missed / max(len(pairs), 1)))}
