"""Adopt a platform: measure some hundred samples, learn from them, and report what to expect.

The samples of each operation are a campaign of the strategy `improvement` in a folder of its own,
so that a run that was stopped continues, and one with more samples measures the difference.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from embeddb.core.blas import one_thread
from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError, UsageError
from embeddb.core.reports import Progress, ignore_progress
from embeddb.core.workload import matrices_only
from embeddb.cost_model.gaussian import GaussianProcess, OnMatrix
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.lookup import Lookup
from embeddb.index.vote import standard_error
from embeddb.learning import LEAST_GROUPS, LEAST_RUNS
from embeddb.learning.comparison import HeldOutChoices, vote_scores
from embeddb.learning.expected import (
    Candidates,
    Choices,
    CurvePoint,
    expected,
    learning_curve,
)
from embeddb.learning.few_samples import learned_model, own_samples
from embeddb.learning.left_out import inputs_of, without_group
from embeddb.learning.process import process_of
from embeddb.learning.samples import Samples
from embeddb.platforms.platform import Platform
from embeddb.ranking.rankers.order import MOST_CHOSEN, order_to_try
from indexer.campaign.budget.growing_plan import BudgetRequest, begin_again, extended
from indexer.campaign.folder import Campaign
from indexer.campaign.nodes.coordinator import ignore_message
from indexer.campaign.plan import Matrix
from indexer.campaign.run import CampaignJob, run_campaign
from indexer.runners.base import RunOptions

#: With more samples, to choose each takes longer than most programs run.
_MOST_SAMPLES = 5000
#: Samples of which the effect is estimated at the end.
FURTHER = 500
#: Least part of a space whose curve says what further samples add: they may find faster
#: configurations in the rest.
_LARGE_PART = 0.5
#: Methods that are compared, as in `AdoptedOp.methods`.
LEARNED, VOTE, FIXED = "learned", "neighbours", "best fixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptRequest:
    """Measure `samples` of each op on a platform. Raises: UsageError for too few, or no op."""

    platform: Platform
    ops: tuple[Op, ...]
    samples: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        if not LEAST_RUNS <= self.samples <= _MOST_SAMPLES:
            raise UsageError(
                f"cannot learn from {self.samples} samples on the way",
                hint=f"--samples {LEAST_RUNS} to {_MOST_SAMPLES}; for more `embeddb campaign plan` "
                "and `embeddb train costmodel`",
            )
        if not self.ops:
            raise UsageError(
                f"{self.platform.name} has no operation on a matrix",
                hint="name one of its space: --op",
            )
        matrices_only(self.ops, "adopting a platform")
        for op in self.ops:
            self.platform.space(op)


@dataclass(frozen=True, slots=True)
class AdoptedOp:
    """Measurements and learned model of one op. `methods` has held-out figures by method
    (`embeddb.learning.expected`), `configurations` the number among which was chosen: those that
    ran, and others where few did. `space` has so many for one matrix, None if too many to count.
    `difference` is the mean log share by which all samples are ahead of half of them, with its
    standard error over groups. `complete`: every point is measured; if these are too few to learn
    from, there are no figures."""

    op: Op
    matrices: int
    statuses: Counter[str]
    space: int | None
    complete: bool
    configurations: int = 0
    methods: dict[str, dict[str, float]] = field(default_factory=dict)
    gain: float | None = None
    curve: Sequence[CurvePoint] = field(default=(), repr=False)
    difference: float = 0.0
    error: float = 0.0

    @property
    def partial(self) -> bool:
        """True if the choices were among a small part of the space."""
        return self.space is None or self.configurations < _LARGE_PART * self.space

    @property
    def further(self) -> float | None:
        """The most that `FURTHER` samples can be expected to add to the share of the optimum at 1,
        if each doubling adds no more than the last; None where the last one shows no gain, nothing
        is left to measure, or the curve is of a small part of the space."""
        if self.complete or self.partial or self.difference <= self.error:
            return None
        last = self.curve[-1]
        doublings = math.log2(1 + FURTHER / last.samples)
        return min(last.share * math.expm1(self.difference * doublings), 1.0 - last.share)

    def document(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "op": str(self.op),
            "matrices": self.matrices,
            "samples": self.statuses.total(),
            "failed": self.statuses.total() - self.statuses["ok"],
            "statuses": dict(self.statuses),
            "complete": self.complete,
            "space": self.space,
            "configurations": self.configurations,
            "held_out": self.methods,
            "gain": self.gain,
            "curve": [{"samples": p.samples, "of_optimum@1": p.share} for p in self.curve],
            "difference": self.difference,
            "error": self.error,
            "further": {"samples": FURTHER, "at_most": self.further},
        }


@dataclass(frozen=True, slots=True)
class Adoption:
    """One call of `embeddb adopt`: `runner` measures on the matrices of `pool`, campaigns are below
    `folder`. Raises: InputError if the matrices have too few groups to hold out."""

    db: Lookup
    runner: Any
    request: AdoptRequest
    pool: Sequence[Matrix]
    folder: Path
    progress: Progress = ignore_progress
    note: Callable[[str], None] = ignore_message

    def __post_init__(self) -> None:
        groups = len({matrix.group for matrix in self.pool})
        if groups < LEAST_GROUPS:
            raise InputError(
                f"matrices of {groups} groups, fewer than the {LEAST_GROUPS} to judge by"
                if self.pool
                else "no matrix that can be read",
                hint="--matrices names a folder with more matrix files",
            )

    def run(self) -> list[AdoptedOp]:
        """Measure missing samples, learn, and evaluate, one op after the other.

        Raises: InputError if everything fails, too little ran, or a folder has another campaign;
        RunnerUnavailable if the machine fails: the same request continues.
        """
        here: Platform = self.runner.platform()
        return [self._expected(op, here, self._measured(op, here)) for op in self.request.ops]

    def _measured(self, op: Op, here: Platform) -> Campaign:
        request = self.request
        samples = BudgetRequest(
            platform=request.platform,
            op=op,
            strategy="improvement",
            budget=request.samples,
            seed=request.seed,
        )
        folder = self.folder / request.platform.name / str(op).replace(":", "_")
        begin_again(folder, samples, self.pool, here, self.note)
        campaign = extended(folder, samples, self.pool)
        job = CampaignJob(
            campaign, self.db, self.runner, RunOptions(), progress=self.progress, try_default=True
        )
        return run_campaign(job)[0]

    @one_thread()
    def _expected(self, op: Op, here: Platform, campaign: Campaign) -> AdoptedOp:
        self.progress(f"learn {op}", 0, 1)
        partition = self.db.answering(op, here)
        model = None if partition is None else learned_model(self.db, partition, here, op)
        done = campaign.progress()
        used = {campaign.plan.matrices[task.matrix].path for task in campaign.tasks()}
        space, points = self._space(op)
        complete = points is not None and done.measured >= points
        counted = (op, len(used), done.statuses, space, complete)
        if model is None and complete and done.statuses["ok"]:
            return AdoptedOp(*counted)
        if partition is None or model is None:
            spent = done.measured >= self.request.samples  # else nothing was left to measure
            raise InputError(
                f"{op}: nothing learned from {done.measured} samples, {done.statuses['ok']} of "
                f"which ran: needs {LEAST_GROUPS} groups of matrices and {LEAST_RUNS} runs",
                where=str(campaign.folder),
                hint=f"see failures by {self._status(campaign)}, or "
                + ("give more --samples" if spent else "add matrices"),
            )
        samples = own_samples(self.db, partition, here, op)
        if np.unique(samples.groups).size < 2:
            raise InputError(
                f"{op}: usable runs of one group of matrices only: nothing to judge by",
                where=str(campaign.folder),
                hint=f"see failures by {self._status(campaign)}",
            )
        more = len(used) < len({matrix.path for matrix in self.pool})
        process, among = process_of(model, op), Candidates.of(samples)
        curve = learning_curve(process, samples, among, matrices=more, seed=self.request.seed)
        choices = self._choices(process, partition, samples, among)
        difference = curve[-1].lost - curve[-2].lost
        group = np.unique(choices[LEARNED].group, return_inverse=True)[1]
        return AdoptedOp(
            *counted,
            len(among.configs),
            {name: one.figures() for name, one in choices.items()},
            float(np.exp(choices[LEARNED].gain.mean())),
            curve,
            float(difference.mean()),
            standard_error(difference, group),
        )

    def _space(self, op: Op) -> tuple[int | None, int | None]:
        """The most configurations of one matrix, and the points of the pool; None for too many."""
        spaces = [self.request.platform.space(op, matrix.sizes) for matrix in self.pool]
        # The same sizes, of those that the space reads, have the same space.
        symbols = [tuple(sorted(space.symbols.items())) for space in spaces]
        distinct = dict(zip(symbols, spaces, strict=True))
        counts = {key: space.size() for key, space in distinct.items()}
        points = [count for key in symbols if (count := counts[key]) is not None]
        return (max(points), sum(points)) if len(points) == len(spaces) else (None, None)

    def _status(self, campaign: Campaign) -> str:
        words = ["embeddb", "campaign", "status", self.db.store.place, str(campaign.folder)]
        return f"`{shlex.join(words)}`"

    @staticmethod
    def _choices(
        process: GaussianProcess, partition: AnswerIndex, samples: Samples, among: Candidates
    ) -> dict[str, HeldOutChoices]:
        """Held-out choices by method."""
        vote = partition.policy
        near = vote_scores(samples, k=vote.k, shrink=vote.shrink)
        fixed = vote_scores(samples, k=1, shrink=math.inf)
        choices = [
            learned_choices(process, samples, among),
            {row: among.best(row, among.scores(by_column)) for row, by_column in near.items()},
            {row: among.best(row, among.scores(by_column)) for row, by_column in fixed.items()},
        ]
        figures = expected(process, samples, among, choices)
        return dict(zip((LEARNED, VOTE, FIXED), figures, strict=True))


def learned_choices(process: GaussianProcess, samples: Samples, among: Candidates) -> Choices:
    """The five of each row in the order of a query without its guards, the row's group left out."""
    choices = {}
    for row, rest in without_group(process, samples, range(len(samples.rows))):
        legal = np.flatnonzero(among.legal[row])
        configs = [among.configs[at] for at in legal.tolist()]
        on = rest.on(inputs_of(samples, row, configs))
        place = {config: at for at, config in enumerate(configs)}

        def correlate(
            some: Sequence[Config], on: OnMatrix = on, place: dict[Config, int] = place
        ) -> Any:
            return on.correlation(np.array([place[config] for config in some]))

        order = order_to_try(configs, on.gain, on.spread(len(configs)), correlate)
        choices[row] = legal[order[:MOST_CHOSEN]]
    return choices
