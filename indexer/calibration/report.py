"""Report of a calibration: noise, difference from other machines, accuracy with its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.core.records import Run
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.pooling import Source
from embeddb.index.view import View, losses_before_and_after
from embeddb.index.vote import is_default
from embeddb.platforms.platform import Platform

Floats = NDArray[np.float64]

#: An answer counts as slower than the best beyond so many times the noise: twice the difference
#: between two runs of the same configuration.
_BEYOND = 4.0
#: Configurations named whose gains differ most from elsewhere.
_NAMED = 3


@dataclass(slots=True)
class Tally:
    """Ids of the matrices visited for one op, and the numbers of its runs and failures."""

    matrices: set[str] = field(default_factory=set)
    runs: int = 0
    failures: int = 0

    def add(self, runs: Sequence[Run]) -> None:
        """Count runs of one matrix."""
        self.matrices |= {run.pattern_id for run in runs}
        self.runs += len(runs)
        self.failures += sum(not run.measurement.ok for run in runs)


@dataclass(frozen=True, slots=True)
class OpReport:
    """Results for one op on this machine; None where too little ran.

    `measured` counts matrices with runs of this machine, of earlier calls too. `noise` is half the
    relative range of the runs of one configuration (median). `differs` is the share
    of matrices on which the first answer of other machines' runs is slower than the best measured
    by more than four times that. `shift` is the mean factor by which gains differ from theirs, and
    `moved` the configurations with the largest factors. `before` and `after` are the shares of the
    best measured time that first answers reach by runs of others alone, and with those of this
    machine; the matrix's group is left out of both.
    """

    op: str
    matrices: int
    runs: int
    failures: int
    measured: int
    noise: float | None = None
    differs: float | None = None
    shift: float | None = None
    moved: tuple[tuple[Mapping[str, Any], float], ...] = ()
    before: float | None = None
    after: float | None = None

    def document(self) -> dict[str, Any]:
        """The released JSON form."""
        body = asdict(self)
        body["moved"] = [{"config": dict(c), "factor": factor} for c, factor in self.moved]
        return body


@dataclass(slots=True)
class CalibrationReport:
    """Result of one call of `calibrate`. `complete`: nothing is left to measure; `indexed`: there
    was time to rebuild the partitions; `learned` are the ops whose cost model learned from this
    machine's runs; `too_large` counts matrices that would have taken too much of the time."""

    platform: str
    requested_s: float
    seconds: float = 0.0
    complete: bool = False
    indexed: bool = False
    learned: list[str] = field(default_factory=list)
    too_large: int = 0
    problems: list[str] = field(default_factory=list)
    ops: list[OpReport] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """The released JSON form."""
        return {
            "platform": self.platform,
            "asked_s": self.requested_s,
            "seconds": self.seconds,
            "complete": self.complete,
            "indexed": self.indexed,
            "learned": self.learned,
            "runs": sum(op.runs for op in self.ops),
            "failures": sum(op.failures for op in self.ops),
            "too_large": self.too_large,
            "problems": self.problems,
            "ops": [op.document() for op in self.ops],
        }


def op_report(partition: AnswerIndex | None, here: Platform, op: Op, tally: Tally) -> OpReport:
    """The report of one op, from the current evidence."""
    done = (str(op), len(tally.matrices), tally.runs, tally.failures)
    if partition is None:
        return OpReport(*done, measured=0)
    rows = [
        at
        for at, row in enumerate(partition.evidence.rows)
        if row.platform == here.id and not row.op
    ]
    noise = _noise(partition, rows)
    view = partition.view(here)
    source, inputs = Source(here.id, op), partition.view_input
    losses = losses_before_and_after(inputs, source, view) if rows else None
    shift, moved = _shifts(partition, view)
    if losses is None:
        return OpReport(*done, len(rows), noise, shift=shift, moved=moved)
    before, after = losses
    before = before[np.isfinite(before)]
    slower = np.expm1(before) > _BEYOND * (noise or 0.0)
    return OpReport(
        *done,
        len(rows),
        noise,
        differs=float(slower.mean()) if before.size else None,
        shift=shift,
        moved=moved,
        before=float(np.exp(-before.mean())) if before.size else None,
        after=float(np.exp(-after.mean())),
    )


def _noise(partition: AnswerIndex, rows: Sequence[int]) -> float | None:
    """Median relative error of the times of configurations that ran twice."""
    evidence = partition.evidence
    spread = [evidence.row(at).spread for at in rows]
    seen = np.concatenate(spread) if spread else np.zeros(0)
    seen = seen[seen > 0]
    return float(np.median(seen)) if seen.size else None


def _shifts(
    partition: AnswerIndex, view: View
) -> tuple[float | None, tuple[tuple[Mapping[str, Any], float], ...]]:
    """Mean factor by which gains here differ from other machines' gains, weighted by precision,
    over the configurations that ran here; and those with the largest factors."""
    others = [b for b in view.beliefs if b.source.platform != view.target.platform and b.patterns]
    others = [b for b in others if b.source.op == view.target.op] or others
    own = partition.view_input.layer_of(view.target)
    if own is None or not others:
        return None, ()
    weight = np.array([1.0 / max(b.variance, 1e-6) for b in others])
    shift: Floats = weight @ np.array([b.shift for b in others]) / weight.sum()
    ran = np.isfinite(own.gains).any(axis=0) & ~is_default(own.gains)
    if not ran.any():
        return None, ()
    most = [int(at) for at in np.argsort(-np.where(ran, abs(shift), -1.0))[:_NAMED] if ran[at]]
    configs = partition.view_input.configs
    moved = tuple((dict(configs[at]), float(np.exp(shift[at]))) for at in most)
    return float(np.exp(abs(shift[ran]).mean())), moved
