"""Tuner plug-ins by name, with checks: an error of a plug-in is reported with its name, so that
`embeddb query --tuner` and `embeddb eval --tuner` do not seem broken by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec
import numpy as np

from embeddb.core import plugins
from embeddb.core.config import Config, Op
from embeddb.core.errors import MissingDependency, NothingFound, PluginError, UsageError
from embeddb.core.records import Measurement
from embeddb.core.wording import one_of
from embeddb.core.workload import Workload
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform
from embeddb.ranking.answer import Answerer
from embeddb.ranking.build import build_query
from embeddb.ranking.fallback import RankedCandidates, answer
from embeddb.ranking.measure import Measure, Search
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.choose import Rankers
from embeddb.ranking.recommendation import Candidate, Recommendation
from tuners.base import Tuner, tune
from tuners.ranking import RankTuner, SearchTuner

T = TypeVar("T")

_HINT = (
    "its contract is a test class, embeddb.testing.tuners.TunerContract: docs/howto/new-tuner.md"
)


def tuner_class(name: str) -> type[Tuner]:
    """Load the plug-in of that name.

    Raises: UsageError, listing all plug-ins, if there is none; PluginError if it is no class;
    MissingDependency if something it imports is not installed.
    """
    plugin: object = plugins.load("tuner", name)
    if not isinstance(plugin, type):
        raise PluginError(f"tuner {name}: its PLUGIN is no class", hint=_HINT)
    return plugin


class CheckedTuner:
    """The named tuner on one query. Its candidates, with canonical configurations, are recorded in
    `proposed`. With `strict` an illegal or repeated configuration is an error; without, it is
    returned as it is.

    Raises: as `tuner_class`; PluginError wherever the plug-in raises or breaks its contract.
    """

    def __init__(
        self, name: str, query: Query, *, rng: np.random.Generator, strict: bool = True
    ) -> None:
        self.name, self.query, self.strict = name, query, strict
        self.proposed: list[Candidate] = []
        plugin = tuner_class(name)
        self._tuner = self._guarded("its constructor", lambda: plugin(query, rng=rng))
        if not isinstance(self._tuner, Tuner):
            raise self._fault("it does not implement `tuners.base.Tuner`")

    def ask(self, count: int) -> list[Candidate]:
        """The next candidates, at most `count`."""
        candidates = self._guarded(f"ask({count})", lambda: list(self._tuner.ask(count)))
        if len(candidates) > count:
            raise self._fault(f"ask({count}) returned {len(candidates)} candidates")
        before = {Config(c.config) for c in self.proposed}
        for candidate in map(self._checked, candidates):
            config = Config(candidate.config)
            if self.strict and config in before:
                raise self._fault(f"it proposed {config} twice")
            before.add(config)
            self.proposed.append(candidate)
        return self.proposed[len(self.proposed) - len(candidates) :]

    def tell(self, config: Config, measurement: Measurement) -> None:
        self._guarded(f"tell of {config}", lambda: self._tuner.tell(config, measurement))

    def _checked(self, candidate: Candidate) -> Candidate:
        if not isinstance(candidate, Candidate):
            raise self._fault(f"it proposed {candidate!r:.80}, which is no Candidate")
        try:
            config = Config(candidate.config)
        except UsageError as e:
            raise self._fault(f"it proposed what is no configuration: {e}") from e
        gain = candidate.expected_gain
        if gain is not None and not (isinstance(gain, (int, float)) and 0 < gain < math.inf):
            raise self._fault(f"the expected gain of {config} is {gain!r:.80}, no number above 0")
        score = candidate.score
        if not (isinstance(score, (int, float)) and math.isfinite(score)):
            raise self._fault(f"the score of {config} is {score!r:.80}, no number")
        reason = self.query.space.reason(config)
        if reason is not None and self.strict:
            raise self._fault(f"it proposed {config}, which is not legal here: {reason}")
        stored = config if reason is not None else self.query.space.canonical(config)
        return msgspec.structs.replace(candidate, config=dict(stored))

    def _guarded(self, method: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except MissingDependency:
            raise
        except plugins.FAULTS as e:
            raise self._fault(f"{method} raised {plugins.raised(e)}") from e

    def _fault(self, what: str) -> PluginError:
        pattern = self.query.pattern
        return PluginError(
            f"tuner {self.name}, on {pattern.name or pattern.id}: {what}", hint=_HINT
        )


def answer_by(name: str, query: Query, count: int) -> RankedCandidates:
    """At most `count` candidates in the order of the named tuner.

    Raises: as `CheckedTuner`; NothingFound if it proposes nothing, or the default for want of a
    cost model.
    """
    candidates = CheckedTuner(name, query, rng=np.random.default_rng(0)).ask(count)
    if not candidates:
        one = one_of(query.op.kind)
        raise NothingFound(f"the tuner {name} proposes nothing for this {one}")
    if tuner_class(name) in (RankTuner, SearchTuner) and not query.prediction.configs:
        train = "`embeddb train costmodel` trains one; " if query.op.workload.learned else ""
        raise NothingFound(
            f"the tuner {name} has no cost model of {query.op} on {query.platform.id}",
            hint=f"{train}without --tuner other evidence answers",
        )
    unjudged = (
        f"the tuner {name} ranked, and how good its answers are was not judged here: "
        f"`embeddb eval DB --tuner {name}` does"
    )
    return RankedCandidates(Rankers(query), "tuner", name, candidates, unjudged=unjudged)


def answerer(name: str) -> Answerer:
    """The named tuner as the source of candidates; the product's own ranking without a name."""
    return partial(answer_by, name) if name else answer


def search_by(
    lookup: Lookup,
    answered: Recommendation,
    pattern: Workload,
    platform: Platform | None,
    count: int,
) -> Search:
    """A search that measures the default, then `count` proposals of the tuner of an answer, each
    proposed with the measurements of those before. If the tuner proposes nothing, the candidates of
    the answer stay. `platform` is as in `measure_answer`.

    The search raises as `CheckedTuner`.
    """
    where, op = platform or lookup.platform(answered.platform), Op.parse(answered.op)
    where = where.restricted(op, reproducible=answered.reproducible, exact=answered.exact)
    query = build_query(lookup, pattern, where, op, calls=answered.calls or math.inf)

    def search(answered: Recommendation, run: Measure) -> list[Candidate]:
        tuner = CheckedTuner(answered.tuner, query, rng=np.random.default_rng(answered.seed))
        for config, measurement in run([Config(answered.default)]):
            tuner.tell(config, measurement)
        tune(tuner, run, budget=count)
        return tuner.proposed or answered.candidates

    return search
