"""Boosted trees as a cost model's members: LightGBM learns, `cost_model.trees_numpy` answers.

From few matrices they are right more often than networks are: a split needs no scale, and cannot
be led astray between the values it has seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import MissingDependency, ModelError, UsageError
from embeddb.core.files.safe_read import reason_of
from embeddb.cost_model.encoders.inputs import TreeTable
from embeddb.cost_model.model import CostModel
from embeddb.cost_model.trees_numpy import MOST_SPLITS, TENSORS
from embeddb.index.vote import effects
from embeddb.learning.calibration import centred
from embeddb.learning.samples import Samples

_TREES = 400
SETTINGS: dict[str, Any] = {
    "objective": "regression",
    "learning_rate": 0.05,
    "num_leaves": 31,
    "extra_trees": True,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "max_bin": 63,
    "use_missing": False,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbose": -1,
}
#: Samples in a leaf: fewer where there are few at all.
LEAF, _LEAF_SHARE = 50, 40

Floats = NDArray[np.float64]
Table = NDArray[np.float32]


def lightgbm() -> Any:
    """The library. Raises: MissingDependency where it cannot be loaded."""
    try:
        return import_module("lightgbm")
    except (ImportError, OSError) as e:
        raise MissingDependency(
            f"boosted trees need lightgbm: {reason_of(e)}",
            hint="pip install lightgbm; it needs the system's libgomp (apt-get install libgomp1)",
        ) from None


@dataclass(frozen=True, slots=True, eq=False)
class FittedTrees:
    """Tensors by name; `scores` of its held-out rows; `figures` on them."""

    weights: dict[str, NDArray[Any]]
    scores: dict[int, Floats]
    figures: dict[str, float]


def tables(samples: Samples, columns: TreeTable, source: CostModel | None) -> list[Table]:
    """float32[k,width] of the k entries of each row, with what the source says of them.

    Raises: SpaceError for a configuration that is not of the platform's space; UsageError for a
    number that is not finite.
    """
    found = []
    for at, row in enumerate(samples.rows):
        configs, asked = samples.ran(at), samples.problem(at)
        said = source.score(asked, configs)[0] if source is not None else None
        table = columns.of(asked, configs, said)
        if not np.isfinite(table).all():
            raise UsageError(f"{row.pattern_id}: a number of the matrix is not finite")
        found.append(table)
    return found


def boosted(
    table: Table, wanted: Floats, settings: Mapping[str, Any], weight: Floats | None = None
) -> Any:
    """A LightGBM model of what is wanted float64[x] of rows float32[x,columns], some counting more
    than others by `weight` float64[x].

    Raises: MissingDependency without LightGBM; ModelError where it fails.
    """
    library = lightgbm()
    data = library.Dataset(table, wanted, weight=weight, params=dict(settings))
    try:
        return library.train(dict(settings), data, _TREES)
    except library.basic.LightGBMError as e:
        raise ModelError(f"lightgbm grows no trees of these runs: {reason_of(e)}") from None


def levelled(samples: Samples) -> Floats:
    """float64[x]: gains less the level of their row. The level is that of a two-way fit, so that a
    row that ran good configurations only does not look like one that ran all."""
    row = np.repeat(np.arange(len(samples.rows)), np.diff(samples.indptr))
    gains = np.full((len(samples.rows), len(samples.configs)), np.nan)
    gains[row, samples.column] = samples.gain
    level, _ = effects(gains)
    found: Floats = samples.gain - level[row]
    return found


def fit_member(
    samples: Samples, rows: Sequence[Table], held: NDArray[np.bool_], seed: int
) -> FittedTrees:
    """One member, of the rows that are not `held` bool[r]; `rows` are their `tables`.

    Raises: MissingDependency without LightGBM.
    """
    from indexer.training.cost_model.losses import figures  # imports torch

    known = np.flatnonzero(~held)
    table = np.concatenate([rows[i] for i in known.tolist()])
    leaf = max(1, min(LEAF, len(table) // _LEAF_SHARE))
    settings = {**SETTINGS, "min_data_in_leaf": leaf, "seed": seed}
    booster = boosted(table, levelled(samples.take(known)), settings)
    scores, told = {}, []
    for i in np.flatnonzero(held).tolist():
        scores[i] = np.asarray(booster.predict(rows[i], num_threads=1), dtype=np.float64)
        own = figures(scores[i], samples.gain[samples.part(i)], float(np.log1p(samples.noise)))
        if own is not None:
            told.append(own)
    named: dict[str, float] = {}
    if told:
        names = ("valid_prl", "valid_opa", "valid_tau")
        named = dict(zip(names, np.mean(told, axis=0).tolist(), strict=True))
    return FittedTrees(weights(booster), scores, named)


@dataclass(frozen=True, slots=True, eq=False)
class Grown:
    """The members of one model; those that were `judged` by rows they did not learn from, the same
    or others; and `loss`, the mean squared error of the latter in log gains (nan: none was)."""

    members: list[FittedTrees]
    judged: list[FittedTrees]
    loss: float


def grow(
    samples: Samples,
    rows: Sequence[Table],
    held: Sequence[NDArray[np.bool_]],
    apart: Sequence[NDArray[np.bool_]],
    seed: int,
) -> Grown:
    """One member for each mask bool[r] of `held`, and for each of `apart` one that is only judged;
    without any, the members are."""
    members = [fit_member(samples, rows, out, seed * 1000 + i) for i, out in enumerate(held)]
    judged = [fit_member(samples, rows, out, seed * 1000) for out in apart]
    judged = judged or [m for m in members if m.scores]
    missed = [
        np.square(centred(own) - centred(samples.gain[samples.part(row)])).mean()
        for member in judged
        for row, own in member.scores.items()
    ]
    return Grown(members, judged, float(np.mean(missed)) if missed else math.nan)


def weights(booster: Any) -> dict[str, NDArray[Any]]:
    """The tensors of a LightGBM model, as `embeddb.cost_model.trees_numpy` reads them."""
    found: dict[str, list[Any]] = {name: [] for name in TENSORS}
    for tree in booster.dump_model()["tree_info"]:
        splits = int(tree["num_leaves"]) - 1
        assert 0 <= splits <= MOST_SPLITS
        found["splits"].append(splits)
        places = {name: len(found[name]) for name in ("feature", "value")}
        for name in ("feature", "threshold", "left", "right"):
            found[name] += [0] * splits
        found["value"] += [0.0] * (splits + 1)
        _place(tree["tree_structure"], found, places["feature"], places["value"])
    arrays = {name: np.array(found[name], dtype=np.float64) for name in TENSORS}
    most = float(np.finfo(np.float32).max)
    exact = np.clip(arrays["threshold"], -most, most)
    # Numbers are float32: those at most a threshold are those at most the next float32 below it.
    rounded = exact.astype(np.float32)
    below = np.nextafter(rounded, np.float32(-np.inf))
    arrays["threshold"] = np.where(rounded > exact, below, rounded)
    return {name: array.astype(TENSORS[name]) for name, array in arrays.items()}


def _place(node: dict[str, Any], found: dict[str, list[Any]], split: int, leaf: int) -> int:
    """Writes a node and what is below it; returns its name in its tree. `split` and `leaf` are
    where the tree's own begin."""
    if "split_index" not in node:
        at = int(node.get("leaf_index", 0))
        found["value"][leaf + at] = node["leaf_value"]
        return ~at
    assert node["decision_type"] == "<="
    assert node["missing_type"] == "None"
    at = int(node["split_index"])
    found["feature"][split + at] = node["split_feature"]
    found["threshold"][split + at] = node["threshold"]
    found["left"][split + at] = _place(node["left_child"], found, split, leaf)
    found["right"][split + at] = _place(node["right_child"], found, split, leaf)
    return at
