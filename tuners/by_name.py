"""A tuner that the user names: any plug-in, watched while it works.

What a plug-in does wrong is told as that, with its name: the commands that use one
(`embeddb query --tuner`, `embeddb eval --tuner`) must not seem to be broken by it.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
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

T = TypeVar("T")

_HINT = (
    "its contract is a test class, embeddb.testing.tuners.TunerContract: docs/howto/new-reader.md"
)


def tuner_class(name: str) -> type[Tuner]:
    """The plug-in of that name.

    Raises: UsageError if there is none (the message lists those there are); PluginError if it is no
    class; MissingDependency if something it imports is not installed.
    """
    found: object = plugins.load("tuner", name)
    if not isinstance(found, type):
        raise PluginError(f"tuner {name}: its PLUGIN is no class", hint=_HINT)
    return found


class Watched:
    """The named tuner on one query. Candidates come back in the stored form of their
    configurations, and every one is kept in `asked`.

    With `strict` a configuration that is not legal, or was proposed before, is an error; without,
    the step is wasted, as the judge will see.

    Raises: as `tuner_class`; PluginError wherever the plug-in raises or breaks its contract.
    """

    def __init__(
        self, name: str, query: Query, *, rng: np.random.Generator, strict: bool = True
    ) -> None:
        self.name, self.query, self.strict = name, query, strict
        self.asked: list[Candidate] = []
        plugin = tuner_class(name)
        self._tuner = self._guarded("is made", lambda: plugin(query, rng=rng))
        if not isinstance(self._tuner, Tuner):
            raise self._fault("it lacks `ask` or `tell`")

    def ask(self, count: int) -> list[Candidate]:
        """The next candidates, at most `count`."""
        told = self._guarded(f"is asked for {count}", lambda: list(self._tuner.ask(count)))
        if len(told) > count:
            raise self._fault(f"it proposed {len(told)} where {count} were asked for")
        checked = [self._checked(candidate) for candidate in told]
        if self.strict:
            self._refuse_repeated(checked)
        self.asked += checked
        return checked

    def tell(self, config: Config, measurement: Measurement) -> None:
        self._guarded(f"is told of {config}", lambda: self._tuner.tell(config, measurement))

    def _checked(self, candidate: Candidate) -> Candidate:
        if not isinstance(candidate, Candidate):
            raise self._fault(f"it proposed {candidate!r:.80}, which is no Candidate")
        try:
            config = Config(candidate.config)
        except UsageError as e:
            raise self._fault(f"it proposed what is no configuration: {e}") from e
        reason = self.query.space.reason(config)
        if reason is not None and self.strict:
            raise self._fault(f"it proposed {config}, which is not legal here: {reason}")
        stored = config if reason is not None else self.query.space.canonical(config)
        return msgspec.structs.replace(candidate, config=dict(stored))

    def _refuse_repeated(self, candidates: list[Candidate]) -> None:
        before = {Config(c.config) for c in self.asked}
        for candidate in candidates:
            config = Config(candidate.config)
            if config in before:
                raise self._fault(f"it proposed {config} twice")
            before.add(config)

    def _guarded(self, when: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except MissingDependency:
            raise
        except Exception as e:
            last = traceback.extract_tb(e.__traceback__)[-1]
            where = f"{Path(last.filename).name}, line {last.lineno}"
            said = " ".join(str(e).split())[:200]
            what = f"{type(e).__name__}: {said}" if said else type(e).__name__
            raise self._fault(f"it raised {what} ({where}) when it {when}") from e

    def _fault(self, what: str) -> PluginError:
        pattern = self.query.pattern
        return PluginError(
            f"tuner {self.name}, on {pattern.name or pattern.id}: {what}", hint=_HINT
        )


def answer_by(name: str, query: Query, count: int, *, rng: np.random.Generator) -> RankedCandidates:
    """At most `count` candidates, in the order in which the named tuner asks for them.

    Raises: as `Watched`; NothingFound if it proposes nothing.
    """
    candidates = Watched(name, query, rng=rng).ask(count)
    if not candidates:
        one = one_of(query.op.kind)
        raise NothingFound(f"the tuner {name} proposes nothing for this {one}")
    return RankedCandidates(
        Rankers(query, rng=rng), "tuner", name, candidates, unjudged=_unjudged(name)
    )


def answerer(name: str) -> Answerer:
    """Return the tuner of that name as what ranks; the product's own chain if it is empty."""
    return partial(answer_by, name) if name else answer


def search_by(
    lookup: Lookup,
    made: Recommendation,
    pattern: Workload,
    platform: Platform | None,
    count: int,
) -> Search:
    """Return a search in which the tuner that gave an answer asks for `count` configurations, one
    by one, each told what the ones before it took; the default is measured and told first. If the
    tuner then has nothing to ask for, the candidates stay. `platform` is as in `measure_answer`.

    The search raises as `Watched`.
    """
    where, op = platform or lookup.platform(made.platform), Op.parse(made.op)
    where = where.restricted(op, reproducible=made.reproducible, exact=made.exact)
    query = build_query(lookup, pattern, where, op, calls=made.calls or math.inf)

    def search(made: Recommendation, run: Measure) -> list[Candidate]:
        tuner = Watched(made.tuner, query, rng=np.random.default_rng(made.seed))
        for config, measurement in run([Config(made.default)]):
            tuner.tell(config, measurement)
        tune(tuner, run, budget=count)
        return tuner.asked or made.candidates

    return search


def _unjudged(name: str) -> str:
    return (
        f"the tuner {name} ranked, and how good its answers are was not judged here: "
        f"`embeddb eval DB --tuner {name}` does"
    )
