"""A cost model from few samples: a Gaussian process for each op, judged with groups left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.blas import one_thread
from embeddb.core.config import Op
from embeddb.core.reports import Progress
from embeddb.cost_model.gaussian import GaussianProcess
from embeddb.cost_model.model import CostModel
from embeddb.learning.calibration import as_predicted
from embeddb.learning.comparison import group_folds, judge
from embeddb.learning.expected import Candidates, by_mean, expected
from embeddb.learning.left_out import left_out, measured
from embeddb.learning.samples import Samples

Floats = NDArray[np.float64]

#: Most rows of which the expected share is computed, a tenth of a second each.
_MOST_EXPECTED = 64


@one_thread()
def learn(
    samples: Samples,
    card: Mapping[str, Any],
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> CostModel:
    """A process for each op of the samples. `held_out`, `hidden` and `calibration` are added to the
    `card`, from rows whose group was left out (amplitudes and lengths are those of all samples).

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
        judged[str(op)], hidden[str(op)] = _figures(samples, rows, scores)
        predicted |= of_op
    whole = {**card, "held_out": judged, "hidden": hidden}
    return as_predicted(whole, tensors, samples, predicted)


def _figures(
    samples: Samples, rows: Sequence[int], scores: Mapping[int, Floats]
) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
    """The card's `held_out` and `hidden` for the op of some rows: the share of the optimum among
    the row's runs. A configuration that never ran may be first if most first answers here were
    such."""
    if not scores:
        return {}, {"unrun_first": False}
    unseen = float(np.mean(list(_unseen(samples, rows, scores))))
    return {"rank": judge(samples, scores).figures()}, {"unrun_first": unseen > 0.5}


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
