"""A machine's view of a large partition, with what a question's own neighbours add to it.

The view of the patterns that are held is made once. How a machine takes other sources, and what
holds for it as a whole, stays as it was found there; the rows of neighbours are pooled by it like
any others.
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


def asked_view(
    view: View, newer: RunMatrix, ids: Sequence[str], *, calls: float = math.inf
) -> View:
    """The view with rows of n patterns `ids` after its own. `newer` has their runs, and as its
    first configurations those of the view in their order."""
    old, new = view.gains.shape[1], len(newer.configs)
    beliefs = tuple(replace(b, shift=_wider(b.shift, new)) for b in view.beliefs)
    found = _rows(newer, ids, beliefs, view.apart, calls=calls)
    gains = votes(found.gains)
    effects = np.zeros((len(view.effects), new))
    effects[:, :old] = view.effects
    return replace(
        view,
        beliefs=beliefs,
        averages=_averages(view.averages, gains, old),
        gains=_below(view.gains, gains, np.nan),
        trust=_below(view.trust, found.trust, 0.0),
        shares=np.vstack([view.shares, found.shares]),
        failing=_below(view.failing, found.failing, 0.0),
        effects=effects,
    )


def _rows(
    newer: RunMatrix,
    ids: Sequence[str],
    beliefs: Sequence[Belief],
    apart: float,
    *,
    calls: float,
) -> Pooled:
    """The patterns as the view's machine sees them; a source that it does not know says nothing."""
    at = {belief.source: place for place, belief in enumerate(beliefs)}
    if len(beliefs) > 1:  # beside other sources a row without its default says nothing
        newer = newer.take(np.flatnonzero(newer.knows_default))
    layers = [layer for layer in layers_of(newer, ids, calls=calls) if layer.source in at]
    places = [at[layer.source] for layer in layers]
    if not layers:
        none = np.zeros((len(ids), len(newer.configs)))
        return Pooled(none + np.nan, none, np.zeros((len(ids), len(beliefs))), none)
    found = pooled(layers, [beliefs[place] for place in places], len(ids), apart)
    shares = np.zeros((len(ids), len(beliefs)))
    shares[:, places] = found.shares
    return replace(found, shares=shares)


def _averages(known: Averages, gains: Floats, old: int) -> Averages:
    """With the levels of new rows float64[n,c], and what is known of configurations that only these
    ran."""
    ran = np.isfinite(gains)
    values = np.where(ran, gains, 0.0)
    level = (values - ran * _wider(known.prior, gains.shape[1]))[:, :old].sum(axis=1)
    level /= np.maximum(ran[:, :old].sum(axis=1), 1)
    extra = (values - ran * level[:, None])[:, old:].sum(axis=0)
    prior = _wider(known.prior, gains.shape[1])
    prior[old:] = extra / (ran[:, old:].sum(axis=0) + PSEUDO_RUNS)
    mean = _wider(known.mean, gains.shape[1])
    rows = len(known.level) + len(gains)
    mean[old:] = values[:, old:].sum(axis=0) / max(rows, 1)
    return Averages(np.concatenate([known.level, level]), prior, mean, known.cover)


def _wider(values: Floats, count: int) -> Floats:
    """float64[count]: zeros after what is known."""
    found = np.zeros(count)
    found[: len(values)] = values
    return found


def _below(known: Floats, rows: Floats, missing: float) -> Floats:
    """float64[p+n,c]: what is known, wider by `missing`, and the new rows."""
    found = np.full((len(known) + len(rows), rows.shape[1]), missing)
    found[: len(known), : known.shape[1]] = known
    found[len(known) :] = rows
    return found
