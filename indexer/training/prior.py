"""What a configuration gains on average on a platform: the part of a score that needs no matrix."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from embeddb.config import Op
from embeddb.costmodel import CostModel
from indexer.training.samples import Samples
from indexer.training.tables import Tables

__all__ = ["Prior", "fit_priors"]

#: Ridge penalty as a share of the entries: the inputs are of size one.
_RIDGE = 0.01
#: Pseudo-runs with which the mean of a configuration is drawn to what the regression says.
_PSEUDO_RUNS = 1.0
_ROUNDS = 8

Floats = NDArray[np.float64]
#: Tensors `nest` float32[53], `latent` float32[e], `ids` uint8[k,16], `rest` float32[k].
Prior = dict[str, NDArray[np.generic]]


def fit_priors(
    samples: Samples, tables: Tables, start: CostModel | None
) -> tuple[dict[Op, Prior], Floats]:
    """The prior of each op, and float64[x] that of every entry without the entry itself: a network
    that learns beside it must not meet its own answer there.

    The regression on loop nests is drawn to that of `start` (nearest width), on latents to zero.
    """
    priors: dict[Op, Prior] = {}
    of_entry = np.zeros(len(samples.gain))
    row_of = np.repeat(np.arange(len(samples.rows)), np.diff(samples.indptr))
    op_of = np.array([samples.ops.index(row.op) for row in samples.rows])[row_of]
    for i, op in enumerate(samples.ops):
        entries = np.flatnonzero(op_of == i)
        column, at = samples.column[entries], tables.at[entries]
        gain = _centred(samples.gain[entries], row_of[entries], column)
        weights = _regressed(tables, at, gain, _carried(start, op, tables.nests.shape[1]))
        inputs = np.hstack([tables.nests, tables.latents])
        plain = (inputs @ weights)[at]
        total = np.bincount(column, gain - plain, minlength=len(samples.configs))
        runs = np.bincount(column, minlength=len(samples.configs))
        own = gain - plain
        of_entry[entries] = plain + (total[column] - own) / (runs[column] - 1 + _PSEUDO_RUNS)
        ran = np.flatnonzero(runs)
        ids = [np.frombuffer(bytes.fromhex(samples.configs[c].id), np.uint8) for c in ran]
        split = tables.nests.shape[1]
        priors[op] = {
            "nest": weights[:split].astype(np.float32),
            "latent": weights[split:].astype(np.float32),
            "ids": np.stack(ids),
            "rest": (total[ran] / (runs[ran] + _PSEUDO_RUNS)).astype(np.float32),
        }
    return priors, of_entry


def _centred(gain: Floats, row: NDArray[np.int64], column: NDArray[np.int32]) -> Floats:
    """Gains without their row's level: the additive fit of `embeddb.policy.effects`, ragged."""
    mean = np.zeros(int(column.max()) + 1)
    in_row, in_column = np.maximum(np.bincount(row), 1), np.bincount(column) + _PSEUDO_RUNS
    level = np.zeros(len(in_row))
    for _ in range(_ROUNDS):
        level = np.bincount(row, gain - mean[column]) / in_row
        mean = np.bincount(column, gain - level[row]) / in_column
    found: Floats = gain - level[row]
    return found


def _carried(start: CostModel | None, op: Op, width: int) -> Floats:
    """float64[53] of the model one starts from."""
    if start is None or not start.card["settings"]["residual"]:
        return np.zeros(width)
    near = min(start.ops, key=lambda o: abs(math.log2(o.width / op.width)))
    return np.asarray(start.tensors[f"prior.{near}.nest"], dtype=np.float64)


def _regressed(tables: Tables, at: NDArray[np.int64], gain: Floats, nest: Floats) -> Floats:
    """Ridge weights float64[53+e]."""
    inputs = np.hstack([tables.nests, tables.latents]).astype(np.float64)
    toward = np.concatenate([nest, np.zeros(tables.latents.shape[1])])
    runs = np.bincount(at, minlength=len(inputs))
    rest = np.bincount(at, gain - (inputs @ toward)[at], minlength=len(inputs))
    square = (inputs * runs[:, None]).T @ inputs + _RIDGE * len(at) * np.eye(inputs.shape[1])
    weights: Floats = toward + np.linalg.solve(square, inputs.T @ rest)
    return weights
