"""Mean gain of a configuration on a platform: the part of a score that needs no matrix."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.cost_model.encoders.loop_nest import HOMOGENEOUS_DIM
from embeddb.cost_model.model import CostModel, rest_of, space_digest
from embeddb.learning.samples import Samples
from indexer.training.cost_model.tables import Tables

#: Ridge penalty as a share of the entries: the inputs are of size one.
_RIDGE = 0.01
#: Pseudo-runs that shrink the mean of a configuration towards the regression.
_PSEUDO_RUNS = 1.0
_ROUNDS = 8

Floats = NDArray[np.float64]
#: Tensors `nest` float32[53], `latent` float32[e], `ids` uint8[k,16], `rest` float32[k].
Prior = dict[str, NDArray[np.generic]]


def fit_priors(
    samples: Samples, tables: Tables, start: CostModel | None
) -> tuple[dict[Op, Prior], Floats]:
    """The prior of each op, and the leave-one-out prior float64[x] of every entry, so that the
    network's target does not leak into its input.

    The regression on loop nests is shrunk towards that of `start` (nearest width), on latents
    towards zero; for the same configurations as those of `start` towards their gains there.
    """
    priors: dict[Op, Prior] = {}
    of_entry, targets = np.zeros(len(samples.gain)), samples.targets
    row_of = np.repeat(np.arange(len(samples.rows)), np.diff(samples.indptr))
    op_of = np.array([samples.ops.index(row.op) for row in samples.rows])[row_of]
    for i, op in enumerate(samples.ops):
        entries = np.flatnonzero(op_of == i)
        column, at = samples.column[entries], tables.at[entries]
        gain = _centred(targets[entries], row_of[entries], column)
        # Without tiles: a regression on them does not generalise from few matrices.
        nests = tables.nests[:, :HOMOGENEOUS_DIM]
        inputs = np.hstack([nests, tables.latents])
        toward, earlier = _inherited(start, samples, op, inputs.shape[1])
        weights = _regressed(inputs, at, gain, toward)
        plain = (inputs @ weights)[at]
        seen = np.bincount(column, gain - plain, minlength=len(samples.configs))
        total = seen + _PSEUDO_RUNS * earlier
        runs = np.bincount(column, minlength=len(samples.configs))
        own = gain - plain
        of_entry[entries] = plain + (total[column] - own) / (runs[column] - 1 + _PSEUDO_RUNS)
        ran = np.flatnonzero((runs > 0) | (earlier != 0))
        ids = [np.frombuffer(bytes.fromhex(samples.configs[c].id), np.uint8) for c in ran]
        priors[op] = {
            "nest": weights[:HOMOGENEOUS_DIM].astype(np.float32),
            "latent": weights[HOMOGENEOUS_DIM:].astype(np.float32),
            "ids": np.stack(ids),
            "rest": (total[ran] / (runs[ran] + _PSEUDO_RUNS)).astype(np.float32),
        }
    return priors, of_entry


def without_rows(
    samples: Samples,
    tables: Tables,
    start: CostModel | None,
    out: NDArray[np.bool_],
    of_entry: Floats,
) -> Floats:
    """`of_entry` with the entries of the rows `out` bool[r] by priors fitted to the other rows: by
    all rows, a family of many matrices would predict itself. 0 for an op that no other row ran."""
    if not out.any():
        return of_entry
    row_of = np.repeat(np.arange(len(samples.rows)), np.diff(samples.indptr))
    rest = samples.take(np.flatnonzero(~out))
    priors, _ = fit_priors(rest, replace(tables, samples=rest, at=tables.at[~out[row_of]]), start)
    inputs = np.hstack([tables.nests[:, :HOMOGENEOUS_DIM], tables.latents])
    op_of = np.array([samples.ops.index(row.op) for row in samples.rows])[row_of]
    prior_of = np.where(out[row_of], 0.0, of_entry)
    for op, prior in priors.items():
        own = np.flatnonzero(out[row_of] & (op_of == samples.ops.index(op)))
        plain = inputs @ np.concatenate([prior["nest"], prior["latent"]])
        rest_gain = rest_of(prior, samples.configs)
        prior_of[own] = plain[tables.at[own]] + rest_gain[samples.column[own]]
    return prior_of


def _centred(gain: Floats, row: NDArray[np.int64], column: NDArray[np.int32]) -> Floats:
    """Gains without their row's level: the additive fit of `embeddb.index.vote.effects`, ragged."""
    mean = np.zeros(int(column.max()) + 1)
    in_row, in_column = np.maximum(np.bincount(row), 1), np.bincount(column) + _PSEUDO_RUNS
    level = np.zeros(len(in_row))
    for _ in range(_ROUNDS):
        level = np.bincount(row, gain - mean[column]) / in_row
        mean = np.bincount(column, gain - level[row]) / in_column
    centred: Floats = gain - level[row]
    return centred


def _inherited(
    start: CostModel | None, samples: Samples, op: Op, width: int
) -> tuple[Floats, Floats]:
    """Weights float64[width] of the start model, and each configuration's residual gain float64[c]
    there."""
    weights, rest = np.zeros(width), np.zeros(len(samples.configs))
    if start is None or not start.card["settings"]["residual"]:
        return weights, rest
    prior = start.below(f"prior.{start.nearest_op(op)}.")
    weights[:HOMOGENEOUS_DIM] = prior["nest"]
    if start.card["platform"]["space"] == space_digest(samples.platform, op):
        weights[HOMOGENEOUS_DIM:] = prior["latent"]
        rest = rest_of(prior, samples.configs)
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
