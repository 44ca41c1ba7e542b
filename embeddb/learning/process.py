"""A cost model from few samples: a Gaussian process for each op, judged with groups left out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.reports import Progress
from embeddb.cost_model.encoders.inputs import ProcessColumns
from embeddb.cost_model.gaussian import GaussianProcess, Inputs, Measured, joined
from embeddb.cost_model.model import CostModel
from embeddb.learning.calibration import calibrated
from embeddb.learning.comparison import group_folds, judge
from embeddb.learning.samples import Samples, fastest_and_others

Floats = NDArray[np.float64]

#: Samples of an op that a process learns from. The time of a query grows with them, that of
#: learning with their cube.
MOST_SAMPLES = 2000
#: Shares of the samples of a learning curve, and draws of each.
_PARTS, _DRAWS = (0.25, 0.5, 1.0), 3
#: With fewer groups that its source has not seen, a process is not judged.
_FEWEST_FAIR = 5
#: With fewer groups hyper-parameters have the source's prior: by replay (SpMV, three machines left
#: out) first answers are 0.5 to 3.8 points better at 5 groups, and at 10 or more a point worse.
PRIOR_GROUPS = 10


def learn(
    samples: Samples,
    card: Mapping[str, Any],
    *,
    source: CostModel | None = None,
    seen: Collection[str] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> CostModel:
    """A process for each op of the samples, calibrated; `card` is what the model's card has beside
    `held_out`, `hidden` and `calibration`, which are of rows whose group was left out (amplitudes
    and lengths are those of all samples). With a `source` the process is of the differences to its
    predictions, and `held_out` has those of the source alone, too; rows of groups that the source
    has `seen` on other machines are learned from, but neither judge nor calibrate. Where fewer than
    five groups are left the card is `replayed`: its figures are those that the source reached with
    as many matrices of machines left out, its calibration is the source's.

    Raises: without a source as `Samples.check`; SpaceError for a configuration outside the space.
    """
    if source is None:  # of another, few runs correct something
        samples.check()
    tensors: dict[str, NDArray[Any]] = {}
    if source is not None:
        tensors |= {f"source.{name}": array for name, array in source.tensors.items()}
        card = {**card, "source": source.card}
    means = source_scores(samples, source)
    scores: dict[int, Floats] = {}
    judged: dict[str, Any] = {}
    hidden: dict[str, Any] = {}
    for done, op in enumerate(samples.ops):
        if progress is not None:
            progress("gaussian process", done, len(samples.ops))
        rows = [at for at, row in enumerate(samples.rows) if row.op == op]
        few = source is not None and np.unique(samples.groups[rows]).size < PRIOR_GROUPS
        prior = source.differences(op) if source is not None and few else {}
        part = _Part(samples, rows, means, seed, prior)
        tensors |= {f"process.{op}.{name}": a for name, a in part.process.tensors.items()}
        scores |= part.left_out(seen)
        judged[str(op)], hidden[str(op)] = part.figures()
    if source is not None and not scores:
        judged = {op: _replayed(source, Op.parse(op), samples) for op in judged}
        rest = {"calibration": source.card["calibration"], "replayed": True}
        return CostModel({**card, "held_out": judged, "hidden": hidden, **rest}, tensors)
    return calibrated({**card, "held_out": judged, "hidden": hidden}, tensors, samples, [scores])


def _replayed(source: CostModel, op: Op, samples: Samples) -> dict[str, dict[str, float]]:
    """The figures of an op after as many groups of machines left out, and of the source alone."""
    after = source.refined(op, int(np.unique(samples.groups).size))
    return {"rank": after, "source": source.refined(op, 0)} if after else {}


class _Part:
    """The samples of one op, and their process."""

    def __init__(
        self,
        samples: Samples,
        rows: list[int],
        means: Mapping[int, Floats],
        seed: int,
        prior: Mapping[str, NDArray[Any]],
    ) -> None:
        self.samples, self.rows, self.means = samples, rows, means
        measured = measured_of(samples, rows, means, MOST_SAMPLES, seed)
        self.process = GaussianProcess.fit(measured, seed=seed, residual=bool(means), prior=prior)
        self._scores: dict[int, Floats] = {}

    def left_out(self, seen: Collection[str]) -> dict[int, Floats]:
        """float64[x] scores of the entries of each row, by a process without the row's group; with
        a source only of groups that are not among `seen`, and none if these are fewer than 5."""
        scores = left_out(self.process, self.samples, self.rows, self.means)
        fair = {i: s for i, s in scores.items() if self.samples.rows[i].group not in seen}
        groups = {self.samples.rows[i].group for i in fair}
        self._scores = {} if self.means and len(groups) < _FEWEST_FAIR else fair
        return self._scores

    def figures(self) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
        """The card's `held_out` and `hidden` of the op: the share of the optimum of what ran on a
        row. One that ran nowhere may be first where most of the first answers here were such."""
        if not self._scores:
            return {}, {"unrun_first": False}
        unseen = float(np.mean(list(self._unseen())))
        figures = {"rank": judge(self.samples, self._scores).figures()}
        if self.means:
            alone = {i: self.means[i] for i in self._scores}
            figures["source"] = judge(self.samples, alone).figures()
        return figures, {"unrun_first": unseen > 0.5}

    def _unseen(self) -> Iterator[bool]:
        """Of each row, True if no row of the other folds ran its first choice."""
        samples = self.samples
        for out in group_folds(samples.groups[self.rows]):
            rest = [self.rows[i] for i in np.flatnonzero(~out)]
            seen = np.unique(np.concatenate([samples.column[samples.part(i)] for i in rest]))
            for row in (self.rows[i] for i in np.flatnonzero(out) if self.rows[i] in self._scores):
                first = samples.column[samples.part(row)][int(self._scores[row].argmax())]
                yield first not in seen


def measured_of(
    samples: Samples, rows: Sequence[int], means: Mapping[int, Floats], most: int, seed: int
) -> Measured:
    """About `most` samples of some rows, less the `means` float64[x] of their entries."""
    rng = np.random.default_rng(seed)
    each = max(2, most // len(rows))
    inputs, gains, of = [], [], []
    for place, row in enumerate(rows):
        part = samples.part(row)
        kept = fastest_and_others(samples.gain[part], each, rng)
        configs = [samples.configs[c] for c in samples.column[part][kept]]
        inputs.append(_inputs(samples, row, configs))
        gains.append((samples.gain[part] - means.get(row, 0.0))[kept])
        of.append(np.full(len(kept), place))
    return Measured(joined(inputs), np.concatenate(gains), np.concatenate(of))


def left_out(
    process: GaussianProcess,
    samples: Samples,
    rows: Sequence[int],
    means: Mapping[int, Floats],
    kept: NDArray[np.bool_] | None = None,
) -> dict[int, Floats]:
    """float64[x] scores of the entries of each of the rows that a process learned from, by the
    process without the row's group, and of its `kept` bool[n] samples only; hyper-parameters as
    they are. `means` are the `source_scores`. Empty with a single group."""
    scores: dict[int, Floats] = {}
    of = process.tensors["row"]
    for out in group_folds(samples.groups[list(rows)]):
        gone = out[of] if kept is None else out[of] | ~kept
        rest = process.without(gone)
        for row in (rows[int(i)] for i in np.flatnonzero(out)):
            scores[row] = process_scores(rest, samples, row) + means.get(row, 0.0)
    return scores


def process_scores(process: GaussianProcess, samples: Samples, row: int) -> Floats:
    """float64[x] scores of the entries of a row by a process."""
    return process.score(_inputs(samples, row, samples.ran(row)), detailed=1)[0]


def _inputs(samples: Samples, row: int, configs: Sequence[Config]) -> Inputs:
    """Configurations on the matrix of a row, as a process reads them: derived quantities are those
    of the machine that ran the row."""
    problem = samples.problem(row)
    return ProcessColumns(problem.platform, problem.op, configs).on(problem)


def source_scores(samples: Samples, source: CostModel | None) -> dict[int, Floats]:
    """float64[x] scores of the entries of each row by another model; empty without one."""
    if source is None:
        return {}
    rows = range(len(samples.rows))
    return {at: source.score(samples.problem(at), samples.ran(at))[0] for at in rows}


def process_of(model: CostModel, op: Op) -> GaussianProcess:
    """The process of an op in a model that `learn` made."""
    prefix = f"process.{op}."
    return GaussianProcess(
        {n.removeprefix(prefix): a for n, a in model.tensors.items() if n.startswith(prefix)}
    )


class CurvePoint(NamedTuple):
    """Held-out share of the optimum at 1 after so many samples; `lost` float64[r] is the log of it
    by row, the mean of the draws."""

    samples: int
    share: float
    lost: Floats


def learning_curve(
    model: CostModel, samples: Samples, *, matrices: bool, seed: int = 0
) -> list[CurvePoint]:
    """A quarter, half and all of the samples of a model of one op, judged on the same rows with
    their groups held out: some of the matrices, or with `matrices` False some runs of each."""
    process = process_of(model, samples.ops[0])
    rows, of = list(range(len(samples.rows))), process.tensors["row"]
    means = source_scores(samples, model.source)
    points = []
    for part in _PARTS:
        lost = []
        for draw in range(1 if part == 1.0 else _DRAWS):
            rng = np.random.default_rng([seed, draw])
            drawn = rng.random(len(rows))[of] if matrices else rng.random(len(of))
            kept = drawn <= np.quantile(drawn, part)
            lost.append(judge(samples, left_out(process, samples, rows, means, kept)).at_1)
        mean = np.mean(lost, axis=0)
        points.append(CurvePoint(round(part * len(of)), float(np.exp(mean.mean())), mean))
    return points
