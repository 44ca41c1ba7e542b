"""A cost model from few samples: a Gaussian process for each op, judged with groups left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.reports import Progress
from embeddb.cost_model.encoders.inputs import ConfigColumns
from embeddb.cost_model.gaussian import GaussianProcess, Inputs, Measured, joined
from embeddb.cost_model.model import CostModel
from embeddb.learning.calibration import calibrated
from embeddb.learning.comparison import group_folds, judge
from embeddb.learning.samples import Samples, fastest_and_others

Floats = NDArray[np.float64]

#: Most samples of an op for a process. The time of a query is linear in them, that of learning
#: cubic.
_MOST_SAMPLES = 2000


def learn(
    samples: Samples,
    card: Mapping[str, Any],
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> CostModel:
    """A calibrated process for each op of the samples. `held_out`, `hidden` and `calibration` are
    added to the `card`, from rows whose group was left out (amplitudes and lengths are those of all
    samples).

    Raises: as `Samples.check`; SpaceError for a configuration outside the space.
    """
    samples.check()
    tensors: dict[str, NDArray[Any]] = {}
    scores: dict[int, Floats] = {}
    judged: dict[str, Any] = {}
    hidden: dict[str, Any] = {}
    for done, op in enumerate(samples.ops):
        if progress is not None:
            progress("gaussian process", done, len(samples.ops))
        rows = [at for at, row in enumerate(samples.rows) if row.op == op]
        process = GaussianProcess.fit(measured(samples, rows, seed), seed=seed)
        tensors |= {f"process.{op}.{name}": a for name, a in process.tensors.items()}
        of_op = left_out(process, samples, rows)
        judged[str(op)], hidden[str(op)] = _figures(samples, rows, of_op)
        scores |= of_op
    return calibrated({**card, "held_out": judged, "hidden": hidden}, tensors, samples, [scores])


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


def _unseen(samples: Samples, rows: Sequence[int], scores: Mapping[int, Floats]) -> Iterator[bool]:
    """Yield for each row True if no row of the other folds ran its first choice."""
    for out in group_folds(samples.groups[list(rows)]):
        rest = [rows[int(i)] for i in np.flatnonzero(~out)]
        seen = np.unique(np.concatenate([samples.column[samples.part(i)] for i in rest]))
        for row in (rows[int(i)] for i in np.flatnonzero(out)):
            first = samples.column[samples.part(row)][int(scores[row].argmax())]
            yield first not in seen


def measured(samples: Samples, rows: Sequence[int], seed: int) -> Measured:
    """About `_MOST_SAMPLES` samples of some rows."""
    rng = np.random.default_rng(seed)
    each = max(2, _MOST_SAMPLES // len(rows))
    inputs, gains, of = [], [], []
    for place, row in enumerate(rows):
        part = samples.part(row)
        chosen = fastest_and_others(samples.gain[part], each, rng)
        configs = [samples.configs[c] for c in samples.column[part][chosen]]
        inputs.append(inputs_of(samples, row, configs))
        gains.append(samples.gain[part][chosen])
        of.append(np.full(len(chosen), place))
    return Measured(joined(inputs), np.concatenate(gains), np.concatenate(of))


def left_out(
    process: GaussianProcess,
    samples: Samples,
    rows: Sequence[int],
) -> dict[int, Floats]:
    """Scores float64[x] of the entries of each row that a process was trained on, as
    `without_group`. Empty with a single group."""
    return {
        row: rest.score(inputs_of(samples, row, samples.ran(row)), detailed=1)[0]
        for row, rest in without_group(process, samples, rows)
    }


def without_group(
    process: GaussianProcess,
    samples: Samples,
    rows: Sequence[int],
    subset: NDArray[np.bool_] | None = None,
) -> Iterator[tuple[int, GaussianProcess]]:
    """Yield each row that a process was trained on with the process without the row's group, and
    with a `subset` bool[n] of its samples only; hyper-parameters are unchanged. Nothing with a
    single group."""
    of = process.tensors["row"]
    for out in group_folds(samples.groups[list(rows)]):
        rest = process.without(out[of] if subset is None else out[of] | ~subset)
        for at in np.flatnonzero(out).tolist():
            yield rows[at], rest


def inputs_of(samples: Samples, row: int, configs: Sequence[Config]) -> Inputs:
    """Inputs of a process for configurations on the matrix of a row; derived quantities are those
    of the machine that ran it."""
    problem = samples.problem(row)
    return ConfigColumns(problem.platform, problem.op, configs).on(problem)


def process_of(model: CostModel, op: Op) -> GaussianProcess:
    """The process of an op in a model from `learn`."""
    return GaussianProcess(model.below(f"process.{op}."))
