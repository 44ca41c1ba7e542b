"""Tuning of a matrix: configurations ranked by neighbours or a model, then run on this machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.reports import Progress, ignore_progress
from embeddb.index.lookup import Lookup
from embeddb.index.recorder import Machine
from embeddb.platforms.platform import Platform, this_machine
from embeddb.ranking.build import build_query
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import Ranker
from embeddb.ranking.rankers.choose import FEWEST_NEIGHBOURS, Rankers
from embeddb.ranking.rankers.search import POOL, Predicted, predicted_whole, search
from indexer.runners.base import RunOptions
from tuners.search import (
    Effort,
    Report,
    Trials,
    Tuned,
    annealed,
    check_budgets,
    final_rounds,
    in_order,
)

#: Rankings that may be requested.
RANKERS = ("neighbours", "model", "analytical")
#: Annealing on measured seconds, without a ranking.
HARDWARE = "hardware"
#: Predictions between two looks at the clock.
_LEG = 2048
#: Most configurations with a roofline, a random sample of a larger space.
_MOST_ANALYSED = 2000
#: The platform of that roofline.
_ANALYSED = "cpu"


@dataclass(frozen=True, slots=True)
class Ranking:
    """`configs` in the order to try, `by` `neighbours`, `model`, `neighbours and model` or
    `analytical`; `hardware` without any. `model` is the version of the model, if there is one, and
    `model_s` the seconds of its search."""

    by: str
    configs: Sequence[Config] = ()
    model: str = ""
    model_s: float = 0.0


def ranking(
    query: Query, pattern: Pattern, by: str, model_s: float, *, seed: int, report: Report
) -> Ranking:
    """Rank the configurations by one of `RANKERS`, or with an empty `by` as a query does, unless
    `model_s` is 0. If the space is too large for a prediction of every configuration, the cost
    model is searched for `model_s` seconds.

    Raises: NothingFound without neighbours or model, as requested; UsageError for the analytical
    model of another platform than `cpu`; MissingDependency without numba, which it needs.
    """
    if not model_s and not by:
        return Ranking(HARDWARE)
    if by == "analytical":
        return _analytical(query, pattern, seed)
    rankers = Rankers(query)
    near = len(query.vote.neighbours) >= FEWEST_NEIGHBOURS and bool(query.vote.configs)
    if by == "neighbours" and not near:
        what = f"fewer than {FEWEST_NEIGHBOURS} matrices near this one ran {query.op}"
        raise NothingFound(what, hint="`embeddb measure` makes runs; --by analytical needs none")
    if by == "model" and query.prediction.predict is None:
        why = query.prediction.note or f"there is no cost model of {query.op}"
        raise NothingFound(why, hint="`embeddb train costmodel` makes one")
    chosen = {"neighbours": rankers.vote, "model": rankers.model}.get(by) or rankers.chosen
    if chosen.by_model and not chosen.by_vote and not predicted_whole(query):
        return _searched(query, model_s, seed, report)
    if not (near or chosen.by_model):
        return Ranking(HARDWARE)
    return _ranked(query, chosen)


def _ranked(query: Query, ranker: Ranker) -> Ranking:
    names = (("neighbours", ranker.by_vote), ("model", ranker.by_model))
    by = " and ".join(name for name, part in names if part)
    configs = [Config(candidate.config) for candidate in ranker.candidates()]
    return Ranking(by, configs, query.prediction.version if ranker.by_model else "")


def _searched(query: Query, model_s: float, seed: int, report: Report) -> Ranking:
    """Search the model's predictions for so long, from random configurations each time."""
    begun = time.monotonic()
    rng = np.random.default_rng(seed)
    seen = Predicted(query, len(query.prediction.configs) + _LEG)
    seen.start()
    while (spent := time.monotonic() - begun) < model_s:
        report(spent)
        before = seen.count
        seen.budget = before + _LEG
        search(seen, query.space.sample(POOL, rng=rng))
        if seen.count == before:
            break
    return Ranking("model", seen.best(), query.prediction.version, time.monotonic() - begun)


def _analytical(query: Query, pattern: Pattern, seed: int) -> Ranking:
    from embeddb.dynamics.roofline import Machine, Roofline

    if query.platform.name != _ANALYSED:
        what = f"the analytical model knows no {query.platform.name}"
        raise UsageError(what, hint="choose another --by")
    configs = query.space.sample(_MOST_ANALYSED, rng=np.random.default_rng(seed))
    machine = Machine.of(query.platform.environment)
    seconds = Roofline(pattern, machine).seconds(query.platform, query.op, configs)
    order = np.argsort(seconds, kind="stable")
    return Ranking("analytical", [configs[int(at)] for at in order])


#: Runs between two of the default, which show drift of the machine.
_DEFAULT_EVERY = 16
#: Fastest configurations that run again: the minimum of single runs is biased.
_FINALISTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixTuneRequest:
    """Budgets of tuning a matrix: seconds of searching a model, where the space is too large for a
    prediction of every configuration, and of hardware, compilation included; then `rounds` of the
    fastest and the default, unless the platform is simulated. `by` is the ranking: `neighbours`,
    `model`, `analytical` or, empty, that of a query. With 0 seconds of a model and an empty `by`
    there is no ranking.

    Raises: UsageError for an unknown `by` or invalid budgets.
    """

    by: str = ""
    model_s: float = 60.0
    hardware_s: float = 60.0
    rounds: int = 3
    seed: int = 0
    options: RunOptions = field(
        default_factory=lambda: RunOptions(repeats=3, max_repeats=9, min_time_s=0.003)
    )

    def __post_init__(self) -> None:
        if self.by not in ("", *RANKERS):
            raise UsageError(f"no ranker {self.by!r}", hint=f"there are: {', '.join(RANKERS)}")
        check_budgets(self.model_s, self.hardware_s)
        if self.by == "model" and not self.model_s:
            raise UsageError("a model cannot rank in 0 seconds", hint="leave --by out")
        if not self.model_s and not self.hardware_s and not self.by:
            raise UsageError("both budgets are 0: there is nothing to tune by")


@dataclass(frozen=True, slots=True)
class MatrixTuning:
    """Tunes a matrix into `db` with a `runner` of `here`, the platform's instance on this machine.
    Runs are stored at once: the same tuning continues an interrupted one."""

    db: Lookup
    runner: Any
    here: Platform
    request: MatrixTuneRequest
    progress: Progress = ignore_progress

    def run(self, pattern: Pattern, op: Op) -> tuple[Tuned, Ranking]:
        """Tune; the outcome and the ranking that it used.

        Raises: as `tuners.tune_matrix.ranking`; RunnerUnavailable if the machine fails in the
        middle of it.
        """
        query = build_query(self.db, pattern, self.here, op)
        by, model_s, seed = self.request.by, self.request.model_s, self.request.seed
        report = self._report("predict", model_s)
        ranked = ranking(query, pattern, by, model_s, seed=seed, report=report)
        done = Tuned(
            subject=pattern,
            default=query.default,
            by=ranked.by,
            ranked=len(ranked.configs),
            model=ranked.model,
            model_s=ranked.model_s,
            exact=self.here.simulated,
        )
        if self.request.hardware_s:
            self._measure(done, ranked, query)
        return done, ranked

    def _measure(self, done: Tuned, ranked: Ranking, query: Query) -> None:
        request = self.request
        effort = Effort(
            seconds=request.hardware_s,
            default_every=0 if done.exact else _DEFAULT_EVERY,
            finalists=_FINALISTS,
            rounds=0 if done.exact else request.rounds,
        )
        machine = Machine(self.db, self.runner, self.here, request.options)
        report = self._report("measure", request.hardware_s)
        # Not what ranked, nor its version: a model learns from these runs, and becomes another.
        by = request.by or ("query" if request.model_s else HARDWARE)
        label = f"tune:{by}/{request.seed}"
        with Trials(machine, done.subject, query.op, label) as trials:
            if ranked.by == HARDWARE:
                annealed(done, trials, query.space, effort, seed=request.seed, report=report)
            else:
                in_order(done, trials, [*trials.known(), *ranked.configs], effort, report)
            final_rounds(
                done, trials, effort, lambda at: self.progress("rounds", at, request.rounds)
            )
            done.fresh = trials.fresh
            trials.save()
            done.warning = trials.warning

    def _report(self, task: str, budget_s: float) -> Report:
        return lambda spent_s: self.progress(f"{task}, seconds", int(spent_s), math.ceil(budget_s))


@dataclass(frozen=True, slots=True)
class MatrixTuned:
    """The outcome on the instance `platform`, and the ranking that it used; times are in the
    `time_unit` of answers (`Recommendation.time_unit`)."""

    platform: str
    op: Op
    tuned: Tuned
    ranking: Ranking
    time_unit: str = "s"


def tune_matrix(
    db: Lookup,
    pattern: Pattern,
    where: tuple[Op, Platform],
    request: MatrixTuneRequest,
    *,
    progress: Progress | None = None,
    note: Callable[[str], None],
) -> MatrixTuned:
    """Tune a matrix on this machine; `note` receives a remark if times are simulated.

    Raises: as `MatrixTuning.run`; RunnerUnavailable if the platform cannot be measured here.
    """
    op, platform = where
    runner, here = this_machine(platform)
    if here.simulated:
        note(f"{here.id} is simulated: no time is of real hardware")
    tuning = MatrixTuning(db, runner, here, request, progress or ignore_progress)
    tuned, ranking = tuning.run(pattern, op)
    return MatrixTuned(here.id, op, tuned, ranking, here.time_unit)
