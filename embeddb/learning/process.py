"""A cost model from few samples: a Gaussian process for each op, judged with groups left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.reports import Progress
from embeddb.cost_model.encoders.inputs import ProcessColumns
from embeddb.cost_model.gaussian import GaussianProcess, Inputs, joined
from embeddb.cost_model.model import CostModel
from embeddb.index.held_out import split_groups
from embeddb.learning.calibration import calibrated
from embeddb.learning.samples import Samples

Floats = NDArray[np.float64]

#: Samples of an op that a process learns from. The time of a query grows with them, that of
#: learning with their cube.
MOST_SAMPLES = 2000
_FOLDS, _COUNT = 10, 5


def learn(
    samples: Samples, card: Mapping[str, Any], *, seed: int = 0, progress: Progress | None = None
) -> CostModel:
    """A process for each op of the samples, calibrated; `card` is what the model's card has beside
    `held_out`, `hidden` and `calibration`, which are of rows whose group was left out (amplitudes
    and lengths are those of all samples).

    Raises: as `Samples.check`; SpaceError for a configuration that is not of the space.
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
        part = _Part(samples, rows, seed)
        tensors |= {f"process.{op}.{name}": a for name, a in part.process.tensors.items()}
        scores |= part.left_out()
        judged[str(op)], hidden[str(op)] = part.figures()
    made = calibrated({**card, "held_out": judged, "hidden": hidden}, tensors, samples, [scores])
    return made


class _Part:
    """The samples of one op, and their process."""

    def __init__(self, samples: Samples, rows: list[int], seed: int) -> None:
        self.samples, self.rows = samples, rows
        rng = np.random.default_rng(seed)
        inputs, gains, of = [], [], []
        for place, row in enumerate(rows):
            info, part = samples.rows[row], samples.part(row)
            kept = _kept(samples.gain[part], max(2, MOST_SAMPLES // len(rows)), rng)
            configs = [samples.configs[c] for c in samples.column[part][kept]]
            columns = ProcessColumns(samples.platform, info.op, configs)
            inputs.append(columns.on(samples.problem(row)))
            gains.append(samples.gain[part][kept])
            of.append(np.full(len(kept), place))
        self._of = np.concatenate(of)
        self.process = GaussianProcess.fit(
            joined(inputs), np.concatenate(gains), self._of, seed=seed
        )
        self._scores: dict[int, Floats] = {}
        self._unseen: list[bool] = []

    def left_out(self) -> dict[int, Floats]:
        """float64[x] scores of the entries of each row, by a process without the row's group."""
        samples = self.samples
        groups = samples.groups[self.rows]
        folds = min(_FOLDS, np.unique(groups).size)
        if folds < 2:
            return {}
        fold = split_groups(groups, folds, 0)
        for at in range(folds):
            out = np.flatnonzero(fold == at)
            process = self.process.without(np.isin(self._of, out))
            rest = [self.rows[i] for i in np.flatnonzero(fold != at)]
            seen = np.unique(np.concatenate([samples.column[samples.part(i)] for i in rest]))
            for row in (self.rows[i] for i in out):
                columns = self._columns(row)
                gain, _ = process.score(columns, detailed=1)
                self._scores[row] = gain
                first = samples.column[samples.part(row)][int(gain.argmax())]
                self._unseen.append(first not in seen)
        return self._scores

    def _columns(self, row: int) -> Inputs:
        columns = ProcessColumns(
            self.samples.platform, self.samples.rows[row].op, self.samples.ran(row)
        )
        return columns.on(self.samples.problem(row))

    def figures(self) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
        """The card's `held_out` and `hidden` of the op: the share of the optimum of what ran on a
        row. One that ran nowhere may be first where most of the first answers here were such."""
        if not self._scores:
            return {}, {"unrun_first": False}
        at_1, at_5 = [], []
        for row, score in self._scores.items():
            gain = self.samples.gain[self.samples.part(row)]
            order = np.argsort(-score, kind="stable")[:_COUNT]
            at_1.append(gain[order[0]] - gain.max())
            at_5.append(gain[order].max() - gain.max())
        groups = np.unique(self.samples.groups[list(self._scores)]).size
        share = float(np.exp(np.mean(at_1)))
        shares = {
            "of_optimum@1": share,
            "error@1": share * float(np.std(at_1)) / math.sqrt(groups),
            "of_optimum@5": float(np.exp(np.mean(at_5))),
            "groups": float(groups),
        }
        return {"rank": shares}, {"unrun_first": float(np.mean(self._unseen)) > 0.5}


def _kept(gain: Floats, most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Positions of the entries of a row that are learned from: all, or half of them of the fastest
    and half of the others, drawn evenly."""
    if len(gain) <= most:
        return np.arange(len(gain))
    fast = np.argsort(-gain, kind="stable")[:most]
    near = rng.choice(fast, most // 2, replace=False)
    rest = np.setdiff1d(np.arange(len(gain)), near)
    return np.sort(np.concatenate([near, rng.choice(rest, most - len(near), replace=False)]))
