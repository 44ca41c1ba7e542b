"""Tuners that the user names under the judge: asked, and told what was measured, by replay."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from embeddb.core.config import Config
from embeddb.core.records import Measurement, Run
from embeddb.ranking.query import Query
from embeddb.store import Store
from indexer.runners.base import RunOptions
from indexer.runners.replay import ReplayRunner
from tuners.base import tune
from tuners.by_name import Watched
from tuners.evaluation.bench import Bench
from tuners.evaluation.figures import Outcome, Truth, judge

#: After so many measurements a tuner's best is compared with the optimum.
STEPS = (1, 2, 5, 10)
#: Rows of the table that are no tuner's: one of such a name gets another.
_TAKEN = frozenset(
    {"default", "random", "static-best", "static-top-k", "knn-stats", "embeddb"}
    | {"costmodel", "boosted", "measured-again", "oracle"}
)


class Replayed:
    """The named tuners on the matrices of one bench. Each starts anew on every matrix, knows what
    the training groups measured, and is told of one recorded run after another.

    `illegal` has, by row name, the first proposal that was not legal, with the reason.
    """

    def __init__(self, bench: Bench, store: Store, names: Sequence[str]) -> None:
        self._bench, self._store = bench, store
        self._names = dict.fromkeys(names)
        self.illegal: dict[str, str] = {}

    def judged(self, row: int, query: Query, *, seed: int) -> Iterator[tuple[str, Outcome]]:
        """Every tuner on one held-out row, by the name of its row in the table.

        Raises: PluginError where a tuner breaks its contract.
        """
        if not self._names:
            return
        truth = self._bench.truth(row)
        known = self._recordings(row, truth)
        replay = ReplayRunner(lambda _pattern_id, _op, config: known.get(config))
        for name in self._names:
            # A generator of its own: what one tuner draws changes nothing for the others.
            tuner = Watched(name, query, rng=np.random.default_rng((seed, row)), strict=False)
            tried = tune(
                tuner,
                lambda configs: replay.run(query.pattern, query.op, configs, options=RunOptions()),
                budget=max(STEPS),
            )
            yield _row_name(name), self._outcome(name, query, truth, [c for c, _ in tried])

    def _outcome(
        self, name: str, query: Query, truth: Truth, proposals: Sequence[Config]
    ) -> Outcome:
        reasons = {c: r for c in proposals if (r := query.space.reason(c)) is not None}
        for config, reason in list(reasons.items())[:1]:
            self.illegal.setdefault(_row_name(name), f"{config} on {query.pattern.name}: {reason}")
        shares = {k: math.log(truth.best_s / truth.after(proposals, k)) for k in STEPS}
        return replace(judge(truth, proposals, illegal=len(reasons)), after=shares)

    def _recordings(self, row: int, truth: Truth) -> Mapping[Config, Measurement]:
        """What the judge knows of a row, as the measurements it was made from."""
        whose = self._bench.evidence.rows[row]
        runs: dict[Config, list[Run]] = {}
        for run in self._store.runs(whose.platform, self._bench.op, whose.pattern_id):
            if run.config in truth.times:
                runs.setdefault(run.config, []).append(run)
        return {config: _told(of, truth.times[config]) for config, of in runs.items()}


def _told(runs: Sequence[Run], seconds: float) -> Measurement:
    """Of the runs of one configuration that which is nearest to the time it is judged by; of
    failures the last."""
    if not math.isfinite(seconds):
        return runs[-1].measurement
    timed = [run for run in runs if 0 < run.seconds < math.inf]
    return min(timed, key=lambda run: abs(math.log(run.seconds / seconds))).measurement


def _row_name(tuner: str) -> str:
    return f"{tuner} (tuner)" if tuner in _TAKEN else tuner
