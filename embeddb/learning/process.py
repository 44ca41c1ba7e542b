"""A cost model from few samples: a Gaussian process for each op, judged with groups left out, and
trees of the same inputs, which read all samples.

Beside the process alone, on an H200 with families held out, the mean of both changes first choices
by -0.6 to 2.3 points, most with all runs (docs/results/few-samples.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.blas import one_thread
from embeddb.core.config import Op
from embeddb.core.errors import MissingDependency
from embeddb.core.reports import Progress
from embeddb.cost_model.gaussian import GaussianProcess
from embeddb.cost_model.model import CostModel
from embeddb.learning.boosting import ONE_MACHINE, boosted, levelled, settings_for, weights
from embeddb.learning.calibration import as_predicted
from embeddb.learning.comparison import group_folds, judge
from embeddb.learning.expected import Candidates, by_mean, expected
from embeddb.learning.left_out import inputs_of, left_out, measured
from embeddb.learning.samples import Samples

Floats = NDArray[np.float64]

#: Most rows of which the expected share is computed, a tenth of a second each.
_MOST_EXPECTED = 64
#: Weight of the trees beside the process from so many samples of an op on, on average over the ops
#: of a model; chosen on an H200. With fewer they add nothing.
_SHARES = {400: 0.25, 1000: 0.5}
#: Most samples of an op for the trees, about ten seconds.
_MOST_GROWN = 100_000


@one_thread()
def learn(
    samples: Samples,
    card: Mapping[str, Any],
    *,
    seed: int = 0,
    progress: Progress | None = None,
    voted: Mapping[str, float] = {},
) -> CostModel:
    """A process for each op of the samples, and trees where LightGBM is at hand. `held_out`,
    `hidden` and `calibration` are added to the `card`, from rows whose group was left out, by the
    process alone (amplitudes and lengths are those of all samples); with log losses of a vote,
    `voted` by pattern, also how far ahead of it the process is.

    Raises: as `Samples.check`; SpaceError for a configuration outside the space.
    """
    samples.check()
    tensors: dict[str, NDArray[Any]] = {}
    predicted: dict[int, tuple[Floats, Floats]] = {}
    judged: dict[str, Any] = {}
    hidden: dict[str, Any] = {}
    for done, op in enumerate(samples.ops):
        if progress is not None:
            progress("gaussian process", done, len(samples.ops))
        rows = [at for at, row in enumerate(samples.rows) if row.op == op]
        process = GaussianProcess.fit(measured(samples, rows, seed), seed=seed)
        tensors |= {f"process.{op}.{name}": a for name, a in process.tensors.items()}
        of_op = left_out(process, samples, rows)
        scores = {row: gain for row, (gain, _) in of_op.items()}
        judged[str(op)], hidden[str(op)] = _figures(samples, rows, scores, voted)
        predicted |= of_op
    settings = dict(card["settings"])
    each = len(samples.gain) / len(samples.ops)
    share = max((share for least, share in _SHARES.items() if each >= least), default=0.0)
    with suppress(MissingDependency):
        tensors |= _trees(samples, seed) if share else {}
        settings["trees"] = share
    whole = {**card, "settings": settings, "held_out": judged, "hidden": hidden}
    return as_predicted(whole, tensors, samples, predicted)


def _trees(samples: Samples, seed: int) -> dict[str, NDArray[Any]]:
    """Tensors `trees.OP.NAME` of the trees of each op. Raises: as `boosted`."""
    tensors: dict[str, NDArray[Any]] = {}
    for op in samples.ops:
        own = samples.take([at for at, row in enumerate(samples.rows) if row.op == op])
        own = own.thinned(max(1, _MOST_GROWN // len(own.rows)), seed)
        rows = range(len(own.rows))
        table = np.concatenate([np.hstack(inputs_of(own, row, own.ran(row))) for row in rows])
        settings = settings_for(ONE_MACHINE, len(table), seed)
        booster = boosted(table.astype(np.float32), levelled(own), settings)
        tensors |= {f"trees.{op}.{name}": array for name, array in weights(booster).items()}
    return tensors


def _figures(
    samples: Samples,
    rows: Sequence[int],
    scores: Mapping[int, Floats],
    voted: Mapping[str, float],
) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
    """The card's `held_out` and `hidden` for the op of some rows: the share of the optimum among
    the row's runs. A configuration that never ran may be first if most first answers here were
    such."""
    if not scores:
        return {}, {"unrun_first": False}
    unseen = float(np.mean(list(_unseen(samples, rows, scores))))
    choices = judge(samples, scores)
    by_vote = [voted.get(samples.rows[row].pattern_id, math.nan) for row in sorted(scores)]
    figures = {**choices.figures(), **choices.ahead_of(np.array(by_vote))}
    return {"rank": figures}, {"unrun_first": unseen > 0.5}


def expected_figures(model: CostModel, samples: Samples) -> dict[str, float]:
    """Expected shares of the optimum (`embeddb.learning.expected`) of a model that `learn` made of
    the samples of one op, for at most 64 of their rows and by the five best means. Empty with a
    single group."""
    process, among = process_of(model, samples.ops[0]), Candidates.of(samples)
    rows = np.random.default_rng(0).permutation(len(samples.rows))[:_MOST_EXPECTED]
    choices = by_mean(process, samples, among, rows)
    return expected(process, samples, among, [choices])[0].figures() if choices else {}


def _unseen(samples: Samples, rows: Sequence[int], scores: Mapping[int, Floats]) -> Iterator[bool]:
    """Yield for each row with scores True if no row of the other folds ran its first choice."""
    for out in group_folds(samples.groups[list(rows)]):
        rest = [rows[int(i)] for i in np.flatnonzero(~out)]
        seen = np.unique(np.concatenate([samples.column[samples.part(i)] for i in rest]))
        for row in (rows[i] for i in np.flatnonzero(out).tolist() if rows[i] in scores):
            first = samples.column[samples.part(row)][int(scores[row].argmax())]
            yield first not in seen


def process_of(model: CostModel, op: Op) -> GaussianProcess:
    """The process of an op in a model from `learn`."""
    return GaussianProcess(model.below(f"process.{op}."))
