"""A machine's view of a large partition, extended by the rows of a query's own neighbours.

The view of the sample is computed once. Beliefs about other sources and the averages of the
platform are those of the sample; the rows of the neighbours are pooled by them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from embeddb.index.pooling import Belief, Pooled, layers_of, pooled
from embeddb.index.run_matrix import RunMatrix
from embeddb.index.view import Averages, View
from embeddb.index.vote import PSEUDO_RUNS, votes

Floats = NDArray[np.float64]


def query_view(
    view: View, newer: RunMatrix, ids: Sequence[str], *, calls: float = math.inf
) -> View:
    """The view with rows of n patterns `ids` after its own. `newer` has their runs; its first
    configurations are those of the view, in order."""
    old, new = view.gains.shape[1], len(newer.configs)
    beliefs = tuple(replace(b, shift=_wider(b.shift, new)) for b in view.beliefs)
    rows = _rows(newer, ids, beliefs, view.apart, calls=calls)
    gains = votes(rows.gains)
    effects = np.zeros((len(view.effects), new))
    effects[:, :old] = view.effects
    return replace(
        view,
        beliefs=beliefs,
        averages=_averages(view.averages, gains, old),
        gains=_below(view.gains, gains, np.nan),
        trust=_below(view.trust, rows.trust, 0.0),
        shares=np.vstack([view.shares, rows.shares]),
        failing=_below(view.failing, rows.failing, 0.0),
        effects=effects,
    )


def _rows(
    newer: RunMatrix, ids: Sequence[str], beliefs: Sequence[Belief], apart: float, *, calls: float
) -> Pooled:
    """Pooled rows of the patterns; sources without a belief are left out."""
    at = {belief.source: place for place, belief in enumerate(beliefs)}
    if len(beliefs) > 1:  # rows without their default cannot be compared with other sources
        newer = newer.take(np.flatnonzero(newer.knows_default))
    layers = [layer for layer in layers_of(newer, ids, calls=calls) if layer.source in at]
    places = [at[layer.source] for layer in layers]
    if not layers:
        none = np.zeros((len(ids), len(newer.configs)))
        return Pooled(none + np.nan, none, np.zeros((len(ids), len(beliefs))), none)
    rows = pooled(layers, [beliefs[place] for place in places], len(ids), apart)
    shares = np.zeros((len(ids), len(beliefs)))
    shares[:, places] = rows.shares
    return replace(rows, shares=shares)


def _averages(before: Averages, gains: Floats, old: int) -> Averages:
    """Averages with the levels of new rows float64[n,c], and the means of configurations that only
    these ran."""
    ran = np.isfinite(gains)
    values = np.where(ran, gains, 0.0)
    prior = _wider(before.prior, gains.shape[1])
    level = (values - ran * prior)[:, :old].sum(axis=1)
    level /= np.maximum(ran[:, :old].sum(axis=1), 1)
    extra = (values - ran * level[:, None])[:, old:].sum(axis=0)
    prior[old:] = extra / (ran[:, old:].sum(axis=0) + PSEUDO_RUNS)
    mean = _wider(before.mean, gains.shape[1])
    rows = len(before.level) + len(gains)
    mean[old:] = values[:, old:].sum(axis=0) / max(rows, 1)
    return Averages(np.concatenate([before.level, level]), prior, mean, before.cover)


def _wider(values: Floats, count: int) -> Floats:
    """float64[count]: the values, then zeros."""
    return np.pad(values, (0, count - len(values)))


def _below(values: Floats, rows: Floats, missing: float) -> Floats:
    """float64[p+n,c]: the values, padded with `missing` columns, and the new rows below."""
    columns = (0, rows.shape[1] - values.shape[1])
    return np.vstack([np.pad(values, ((0, 0), columns), constant_values=missing), rows])
