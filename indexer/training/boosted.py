"""The honest cheap competitor: boosted trees on statistics and plain configuration features.

LightGBM regresses the log gain over the matrix's mean configuration. A model is never written: it
is trained where it is judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.config import Config, Op
from embeddb.encoders.layout import Layout
from embeddb.encoders.mapper import homogeneous
from embeddb.errors import MissingDependency
from embeddb.evidence import Evidence
from embeddb.platform import Platform
from embeddb.policy import effects
from embeddb.records import PatternInfo
from indexer.training.samples import Samples, from_evidence

__all__ = ["Boosted", "available", "fit", "train"]

Sizes = tuple[int, int, int]

_TREES = 400
_SETTINGS: dict[str, Any] = {
    "objective": "regression",
    "learning_rate": 0.05,
    "num_leaves": 31,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "max_bin": 63,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "seed": 0,
    "verbose": -1,
}
#: Samples in a leaf: fewer where there are few at all.
_LEAF, _LEAF_SHARE = 50, 40


def available() -> bool:
    """Whether LightGBM is installed."""
    return find_spec("lightgbm") is not None


class Boosted:
    """Trees fitted to one kernel on one platform; `score` is what the judge asks."""

    def __init__(self, trees: Any) -> None:
        self._trees = trees

    def score(
        self,
        vector: NDArray[np.float32],
        platform: Platform,
        op: Op,
        configs: Sequence[Config],
        sizes: Sizes = (-1, -1, -1),
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Log gain float64[c] over the mean of these configurations, higher is faster, of a matrix
        with features float32[d]; and nan[c], as trees tell no spread."""
        if not configs:
            return np.zeros(0), np.zeros(0)
        table = _table(vector, platform, op, configs, sizes)
        gain = np.asarray(self._trees.predict(table, num_threads=1), dtype=np.float64)
        return gain - gain.mean(), np.full(len(configs), math.nan)


def fit(
    evidence: Evidence,
    vectors: Mapping[str, Mapping[str, NDArray[np.float32]]],
    infos: Mapping[str, PatternInfo],
    platform: Platform,
    op: Op,
) -> Boosted:
    """`train` on all of the evidence, with the first featurizer of `vectors` (by pattern id).

    Raises: as `train`; UsageError where only winners were recorded.
    """
    name, raw = next(iter(vectors.items()), ("", {}))
    return train(from_evidence(evidence, raw, infos, platform, op, featurizer=(name, "")))


def train(samples: Samples) -> Boosted:
    """Trees that regress the log gain over the mean configuration of each matrix.

    Raises: MissingDependency without LightGBM; UsageError for too few samples; SpaceError for a
    configuration that is not of the platform's space.
    """
    if not available():
        raise MissingDependency("boosted trees need lightgbm", hint="install the extra `boosted`")
    samples.check()
    target = _centred(samples)
    tables = []
    for at, row in enumerate(samples.rows):
        configs = [samples.configs[c] for c in samples.column[samples.part(at)]]
        vector = samples.vectors[at]
        tables.append(_table(vector, samples.platform, row.op, configs, row.sizes))
    return Boosted(_train(np.concatenate(tables), target))


def _centred(samples: Samples) -> NDArray[np.float64]:
    """float64[x]: gains less the level of their row. The level is that of a two-way fit, so that a
    row that ran good configurations only does not look like one that ran all."""
    row = np.repeat(np.arange(len(samples.rows)), np.diff(samples.indptr))
    gains = np.full((len(samples.rows), len(samples.configs)), np.nan)
    gains[row, samples.column] = samples.gain
    level, _ = effects(gains)
    centred: NDArray[np.float64] = samples.gain - level[row]
    return centred


def _train(table: NDArray[np.float32], target: NDArray[np.float64]) -> Any:
    lightgbm = import_module("lightgbm")
    leaf = max(1, min(_LEAF, len(table) // _LEAF_SHARE))
    settings = {**_SETTINGS, "min_data_in_leaf": leaf}
    data = lightgbm.Dataset(table, target, params=settings)
    return lightgbm.train(settings, data, _TREES)


def _table(
    vector: NDArray[np.float32],
    platform: Platform,
    op: Op,
    configs: Sequence[Config],
    sizes: Sizes,
) -> NDArray[np.float32]:
    """float32[c,d+1+53+h]: matrix, width, loop nest and the platform's own parameters."""
    own = Layout(platform.kernel(op)).raw(configs)
    nest = homogeneous(platform, op, configs, sizes=sizes)
    matrix = np.append(vector, math.log2(max(op.width, 1))).astype(np.float32)
    return np.hstack([np.broadcast_to(matrix, (len(configs), len(matrix))), nest, own])
