"""A matrix tuned: configurations in the order of neighbours, a cost model or an analytical one run
on this machine for so many seconds, the fastest of them again beside the default."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from embeddb.core.config import Op
from embeddb.core.errors import UsageError
from embeddb.core.pattern import Pattern
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform
from embeddb.ranking.build import build_query
from embeddb.ranking.query import Query
from indexer.measure import Machine
from indexer.runners.base import RunOptions
from tuners.hardware.outcome import Tuned
from tuners.hardware.trials import Trials
from tuners.hardware.turns import Effort, annealed, final_rounds, in_order
from tuners.matrices.ranking import HARDWARE, RANKERS, Ranking, ranking

__all__ = ["MatrixTuneRequest", "MatrixTuning"]

#: The default runs again before so many others: a machine that drifts is seen.
_DEFAULT_EVERY = 16
#: The fastest of one turn are partly lucky: so many run again.
_FINALISTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixTuneRequest:
    """So many seconds of a model, where the space is too large to be predicted at once, and of
    hardware, compiling counted; `rounds` of the fastest beside the default come after, unless the
    platform is simulated: its times are exact. `by` says
    who ranks: `neighbours`, `model` or `analytical`; empty: as a query is answered. With 0 seconds
    of a model nobody ranks, unless neighbours or the analytical model were asked for.

    Raises: UsageError for a `by` or budgets that are none.
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
        for budget in (self.model_s, self.hardware_s):
            if not 0 <= budget < math.inf:
                raise UsageError(f"a budget is 0 seconds or more, not {budget}")
        if self.by == "model" and not self.model_s:
            raise UsageError("a model cannot rank in 0 seconds", hint="leave --by out")
        if not self.model_s and not self.hardware_s and not self.by:
            raise UsageError("both budgets are 0: there is nothing to tune by")


@dataclass(frozen=True, slots=True)
class MatrixTuning:
    """Tunes a matrix into `db` with a `runner` of `here`, the platform as this machine is. What ran
    is written back, also where it is stopped: the same tuning again goes on there, and with more
    seconds further."""

    db: Lookup
    runner: Any
    here: Platform
    request: MatrixTuneRequest
    progress: Callable[[str, int, int], None] | None = None

    def run(self, pattern: Pattern, op: Op) -> tuple[Tuned, Ranking]:
        """What ran, and the ranking that it ran by.

        Raises: as `tuners.matrices.ranking.ranking`; RunnerUnavailable if the machine fails in the
        middle of it.
        """
        asked = self.request
        query = build_query(self.db, pattern, self.here, op)
        ranked = self._ranked(query, pattern)
        done = Tuned(
            subject=pattern,
            default=query.default,
            by=ranked.by,
            ranked=len(ranked.configs),
            model=ranked.model,
            model_s=ranked.model_s,
            exact=self.here.simulated,
        )
        if not asked.hardware_s:
            return done, ranked
        self._tried(done, ranked, query)
        return done, ranked

    def _ranked(self, query: Query, pattern: Pattern) -> Ranking:
        asked = self.request
        if not asked.model_s and not asked.by:
            return Ranking(HARDWARE)
        told = self._told("predict", asked.model_s)
        return ranking(query, pattern, asked.by, asked.model_s, seed=asked.seed, told=told)

    def _tried(self, done: Tuned, ranked: Ranking, query: Query) -> None:
        asked = self.request
        effort = Effort(
            seconds=asked.hardware_s,
            default_every=0 if done.exact else _DEFAULT_EVERY,
            finalists=_FINALISTS,
            rounds=0 if done.exact else asked.rounds,
        )
        machine = Machine(self.db, self.runner, self.here, asked.options)
        told = self._told("measure", asked.hardware_s)
        label = f"tune:{ranked.by}/{ranked.model[:8]}/{asked.seed}"
        with Trials(machine, done.subject, query.op, label) as trials:
            if ranked.by == HARDWARE:
                annealed(done, trials, query.space, effort, seed=asked.seed, told=told)
            else:
                before = list(trials.known())
                in_order(done, trials, [*before, *ranked.configs], effort, told)
            final_rounds(done, trials, effort, self._round)
            done.fresh = trials.fresh
            trials.keep()
            done.warning = trials.warning

    def _round(self, at: int) -> None:
        if self.progress is not None:
            self.progress("rounds", at, self.request.rounds)

    def _told(self, what: str, budget_s: float) -> Callable[[float], None]:
        def told(spent_s: float) -> None:
            if self.progress is not None:
                self.progress(f"{what}, seconds", int(spent_s), math.ceil(budget_s))

        return told
