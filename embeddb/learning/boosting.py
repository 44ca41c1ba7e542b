"""Boosted trees: trained by LightGBM, evaluated by `embeddb.cost_model.trees_numpy`.

With few matrices they are more accurate than networks: a split needs no scale and does not
extrapolate between the values of the training data.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import MissingDependency, ModelError
from embeddb.core.files.safe_read import reason_of
from embeddb.cost_model.trees_numpy import MOST_SPLITS, TENSORS
from embeddb.index.vote import FIT_ROUNDS, PSEUDO_RUNS
from embeddb.learning.samples import Samples

_SETTINGS: dict[str, Any] = {
    "objective": "regression",
    "learning_rate": 0.05,
    "num_leaves": 31,
    "feature_fraction": 0.5,
    "bagging_freq": 1,
    "use_missing": False,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbose": -1,
}
#: LightGBM's settings for the runs of one machine, where they are up to 5 points ahead of the
#: others, and for those of all machines, where both are level (docs/results/gpu.md).
ONE_MACHINE: Mapping[str, Any] = {
    **_SETTINGS,
    "num_iterations": 700,
    "bagging_fraction": 0.8,
    "min_data_in_leaf": 20,
}
EVERY_MACHINE: Mapping[str, Any] = {
    **_SETTINGS,
    "num_iterations": 400,
    "extra_trees": True,
    "bagging_fraction": 0.7,
    "max_bin": 63,
    "min_data_in_leaf": 50,
}
#: The number of samples divided by the least number in a leaf is at least this.
_LEAVES = 40

Floats = NDArray[np.float64]
Table = NDArray[np.float32]


def lightgbm() -> Any:
    """The library. Raises: MissingDependency if it cannot be loaded."""
    try:
        return import_module("lightgbm")
    except (ImportError, OSError) as e:
        raise MissingDependency(
            f"boosted trees need lightgbm: {reason_of(e)}",
            hint="pip install lightgbm; it needs the system's libgomp (apt-get install libgomp1)",
        ) from None


def settings_for(how: Mapping[str, Any], count: int, seed: int) -> dict[str, Any]:
    """The settings `how` for a number of samples: few have smaller leaves."""
    leaf = max(1, min(how["min_data_in_leaf"], count // _LEAVES))
    return {**how, "min_data_in_leaf": leaf, "seed": seed}


def boosted(
    table: Table, wanted: Floats, settings: Mapping[str, Any], weight: Floats | None = None
) -> Any:
    """A LightGBM model of the targets `wanted` float64[x] for rows float32[x,columns], with the
    weights float64[x] if given.

    Raises: MissingDependency without LightGBM; ModelError if it fails.
    """
    library, how = lightgbm(), dict(settings)
    trees = how.pop("num_iterations")
    data = library.Dataset(table, wanted, weight=weight, params=how)
    try:
        return library.train(how, data, trees)
    except library.basic.LightGBMError as e:
        raise ModelError(f"lightgbm grows no trees of these runs: {reason_of(e)}") from None


def levelled(samples: Samples) -> Floats:
    """float64[x]: targets less the level of their row, so that one with good configurations alone
    has a higher level: the two-way fit `embeddb.index.vote.effects`, in memory for what ran alone.
    """
    column, row = samples.column, np.repeat(np.arange(len(samples.rows)), np.diff(samples.indptr))
    of_row, of_column = np.bincount(row), np.bincount(column) + PSEUDO_RUNS
    level, prior, gain = np.zeros(len(of_row)), np.zeros(len(of_column)), samples.targets
    for _ in range(FIT_ROUNDS):
        level = np.bincount(row, gain - prior[column]) / np.maximum(of_row, 1)
        prior = np.bincount(column, gain - level[row]) / of_column
    residual: Floats = gain - level[row]
    return residual


def weights(booster: Any) -> dict[str, NDArray[Any]]:
    """The tensors of a LightGBM model, for `embeddb.cost_model.trees_numpy`."""
    parts: dict[str, list[Any]] = {name: [] for name in TENSORS}
    for tree in booster.dump_model()["tree_info"]:
        splits = int(tree["num_leaves"]) - 1
        assert 0 <= splits <= MOST_SPLITS
        parts["splits"].append(splits)
        places = {name: len(parts[name]) for name in ("feature", "value")}
        for name in ("feature", "threshold", "left", "right"):
            parts[name] += [0] * splits
        parts["value"] += [0.0] * (splits + 1)
        _place(tree["tree_structure"], parts, places["feature"], places["value"])
    arrays = {name: np.array(parts[name], dtype=np.float64) for name in TENSORS}
    most = float(np.finfo(np.float32).max)
    exact = np.clip(arrays["threshold"], -most, most)
    # Inputs are float32, so thresholds are rounded down to float32.
    rounded = exact.astype(np.float32)
    below = np.nextafter(rounded, np.float32(-np.inf))
    arrays["threshold"] = np.where(rounded > exact, below, rounded)
    return {name: array.astype(TENSORS[name]) for name, array in arrays.items()}


def _place(node: dict[str, Any], parts: dict[str, list[Any]], split: int, leaf: int) -> int:
    """Write a node and its children; return its name in its tree. `split` and `leaf` are the first
    positions of the tree's splits and leaves."""
    if "split_index" not in node:
        at = int(node.get("leaf_index", 0))
        parts["value"][leaf + at] = node["leaf_value"]
        return ~at
    assert node["decision_type"] == "<="
    assert node["missing_type"] == "None"
    at = int(node["split_index"])
    parts["feature"][split + at] = node["split_feature"]
    parts["threshold"][split + at] = node["threshold"]
    parts["left"][split + at] = _place(node["left_child"], parts, split, leaf)
    parts["right"][split + at] = _place(node["right_child"], parts, split, leaf)
    return at
