"""Boosted trees as a cost model's members (`embeddb.learning.boosting`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import UsageError
from embeddb.cost_model.encoders.inputs import TreeTable
from embeddb.cost_model.model import CostModel
from embeddb.learning.boosting import ONE_MACHINE, boosted, levelled, settings_for, weights
from embeddb.learning.calibration import centred
from embeddb.learning.samples import Samples

Floats = NDArray[np.float64]
Table = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class FittedMember:
    """Tensors by name; `scores` of its held-out rows, prior included; `figures` on them; of a
    network the number of `epochs`."""

    weights: dict[str, NDArray[Any]]
    scores: dict[int, Floats]
    figures: dict[str, float]
    epochs: int = 0


def tables(samples: Samples, columns: TreeTable, source: CostModel | None) -> list[Table]:
    """float32[k,width] of the k entries of each row, with the predictions of the source.

    Raises: SpaceError for a configuration that is not of the platform's space; UsageError for a
    number that is not finite.
    """
    rows = []
    for at, row in enumerate(samples.rows):
        configs, problem = samples.ran(at), samples.problem(at)
        scores = source.score(problem, configs)[0] if source is not None else None
        table = columns.of(problem, configs, scores)
        if not np.isfinite(table).all():
            raise UsageError(f"{row.pattern_id}: a number of the matrix is not finite")
        rows.append(table)
    return rows


def fit_member(
    samples: Samples,
    rows: Sequence[Table],
    unseen: NDArray[np.bool_],
    seed: int,
    how: Mapping[str, Any] = ONE_MACHINE,
) -> FittedMember:
    """One member, trained on the rows that are not `unseen` bool[r]; `rows` are their `tables`.

    Raises: MissingDependency without LightGBM.
    """
    from indexer.training.cost_model.losses import figures, mean_figures  # imports torch

    seen = np.flatnonzero(~unseen)
    table = np.concatenate([rows[i] for i in seen.tolist()])
    settings = settings_for(how, len(table), seed)
    booster = boosted(table, levelled(samples.take(seen)), settings)
    scores, each, targets = {}, [], samples.targets
    for i in np.flatnonzero(unseen).tolist():
        scores[i] = np.asarray(booster.predict(rows[i], num_threads=1), dtype=np.float64)
        own = figures(scores[i], targets[samples.part(i)], float(np.log1p(samples.noise)))
        if own is not None:
            each.append(own)
    return FittedMember(weights(booster), scores, mean_figures(each) if each else {})


@dataclass(frozen=True, slots=True, eq=False)
class Grown:
    """The members of one model; those `judged` on rows they did not learn from, the same or others;
    and `loss`, the mean squared error of the latter in log gains (nan: none)."""

    members: list[FittedMember]
    judged: list[FittedMember]
    loss: float


def grow(
    samples: Samples,
    rows: Sequence[Table],
    unseen: Sequence[NDArray[np.bool_]],
    apart: Sequence[NDArray[np.bool_]],
    seed: int,
) -> Grown:
    """One member for each mask bool[r] of `unseen`, and for each of `apart` a model for evaluation
    alone; without any, the members are evaluated."""
    members = [fit_member(samples, rows, out, seed * 1000 + i) for i, out in enumerate(unseen)]
    judged = [fit_member(samples, rows, out, seed * 1000) for out in apart]
    judged = judged or [m for m in members if m.scores]
    targets = samples.targets
    missed = [
        np.square(centred(own) - centred(targets[samples.part(row)])).mean()
        for member in judged
        for row, own in member.scores.items()
    ]
    return Grown(members, judged, float(np.mean(missed)) if missed else math.nan)
