"""What a configuration gains on average on a platform: the part of a score that needs no matrix."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.cost_model.encoders.loop_nest import HOMOGENEOUS_DIM
from embeddb.cost_model.model import CostModel, space_digest
from embeddb.learning.samples import Samples
from indexer.training.cost_model.tables import Tables

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

    The regression on loop nests is drawn to that of `start` (nearest width), on latents to zero;
    where `start` is for the same configurations, all of it is drawn to what they gained there.
    """
    priors: dict[Op, Prior] = {}
    of_entry = np.zeros(len(samples.gain))
    row_of = np.repeat(np.arange(len(samples.rows)), np.diff(samples.indptr))
    op_of = np.array([samples.ops.index(row.op) for row in samples.rows])[row_of]
    for i, op in enumerate(samples.ops):
        entries = np.flatnonzero(op_of == i)
        column, at = samples.column[entries], tables.at[entries]
        gain = _centred(samples.gain[entries], row_of[entries], column)
        # Not of the tiles: on few matrices a line through them leads anywhere.
        nests = tables.nests[:, :HOMOGENEOUS_DIM]
        inputs = np.hstack([nests, tables.latents])
        toward, known = _carried(start, samples, op, inputs.shape[1])
        weights = _regressed(inputs, at, gain, toward)
        plain = (inputs @ weights)[at]
        seen = np.bincount(column, gain - plain, minlength=len(samples.configs))
        total = seen + _PSEUDO_RUNS * known
        runs = np.bincount(column, minlength=len(samples.configs))
        own = gain - plain
        of_entry[entries] = plain + (total[column] - own) / (runs[column] - 1 + _PSEUDO_RUNS)
        ran = np.flatnonzero((runs > 0) | (known != 0))
        ids = [np.frombuffer(bytes.fromhex(samples.configs[c].id), np.uint8) for c in ran]
        priors[op] = {
            "nest": weights[:HOMOGENEOUS_DIM].astype(np.float32),
            "latent": weights[HOMOGENEOUS_DIM:].astype(np.float32),
            "ids": np.stack(ids),
            "rest": (total[ran] / (runs[ran] + _PSEUDO_RUNS)).astype(np.float32),
        }
    return priors, of_entry


def _centred(gain: Floats, row: NDArray[np.int64], column: NDArray[np.int32]) -> Floats:
    """Gains without their row's level: the additive fit of `embeddb.index.vote.effects`, ragged."""
    mean = np.zeros(int(column.max()) + 1)
    in_row, in_column = np.maximum(np.bincount(row), 1), np.bincount(column) + _PSEUDO_RUNS
    level = np.zeros(len(in_row))
    for _ in range(_ROUNDS):
        level = np.bincount(row, gain - mean[column]) / in_row
        mean = np.bincount(column, gain - level[row]) / in_column
    found: Floats = gain - level[row]
    return found


def _carried(
    start: CostModel | None, samples: Samples, op: Op, width: int
) -> tuple[Floats, Floats]:
    """Weights float64[width] of the model one starts from, and float64[c] what each configuration
    gains there beyond them."""
    weights, rest = np.zeros(width), np.zeros(len(samples.configs))
    if start is None or not start.card["settings"]["residual"]:
        return weights, rest
    near = min(start.ops, key=lambda o: abs(math.log2(o.width / op.width)))
    held = start.below(f"prior.{near}.")
    weights[:HOMOGENEOUS_DIM] = held["nest"]
    if start.card["platform"]["space"] == space_digest(samples.platform, op):
        weights[HOMOGENEOUS_DIM:] = held["latent"]
        known = {bytes(i): float(r) for i, r in zip(held["ids"], held["rest"], strict=True)}
        rest[:] = [known.get(bytes.fromhex(c.id), 0.0) for c in samples.configs]
    return weights, rest


def _regressed(
    rows: NDArray[np.float32], at: NDArray[np.int64], gain: Floats, toward: Floats
) -> Floats:
    """Ridge weights float64[53+e]."""
    inputs = rows.astype(np.float64)
    runs = np.bincount(at, minlength=len(inputs))
    rest = np.bincount(at, gain - (inputs @ toward)[at], minlength=len(inputs))
    square = (inputs * runs[:, None]).T @ inputs + _RIDGE * len(at) * np.eye(inputs.shape[1])
    weights: Floats = toward + np.linalg.solve(square, inputs.T @ rest)
    return weights
