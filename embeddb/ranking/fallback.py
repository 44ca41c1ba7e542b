"""The answer to a query: the strongest link of the fallback chain that has evidence.

Neighbours and cost model are one link. They rank alone or together, whichever was best with groups
held out (figures in the model's card); a model of every machine always ranks with the neighbours. A
model that was never judged does not rank, nor does one where the cost of preparation is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from embeddb.core.config import Config
from embeddb.core.timing import TimingSummary
from embeddb.ranking.order_reason import often_failed
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import default_candidate
from embeddb.ranking.rankers.choose import FEWEST_NEIGHBOURS, Rankers
from embeddb.ranking.rankers.order import MOST_CHOSEN, likely_last
from embeddb.ranking.rankers.search import SearchRanker
from embeddb.ranking.recommendation import Candidate

#: Fewest measured configurations of a choice.
_FEWEST_MEASURED = 2
#: Fewest candidates that are ranked: the largest set to try, the default, and some behind them.
_FEWEST_RANKED = 2 * MOST_CHOSEN + 2


@dataclass(frozen=True, slots=True, eq=False)
class RankedCandidates:
    """Ranked candidates, the `source` of their evidence (one of `LINKS`) and the `strategy` that
    ranked them; `rankers` are those of the query, `model` is the version of the cost model that any
    candidate rests on, else empty. `unjudged` is the reason why the quality of such answers is
    unknown; empty where it is known. `untried` never ran here and are expected to beat all that
    did, by the low ends of their gains. `beyond` are the next candidates that are no longer part of
    the answer: some rank behind others with a lower gain."""

    rankers: Rankers
    source: str
    strategy: str
    candidates: list[Candidate]
    model: str = ""
    unjudged: str = ""
    untried: Sequence[Candidate] = ()
    beyond: Sequence[Candidate] = ()

    @property
    def first(self) -> Config:
        """The first candidate, else the default."""
        query = self.rankers.query
        return Config(self.candidates[0].config) if self.candidates else query.default


def answer(query: Query, count: int) -> RankedCandidates:
    """At most `count` candidates: measured here, else at another width, else by neighbours or cost
    model, else the platform's static best, else its default. Never anything illegal in the query's
    space."""
    rankers = Rankers(query)
    ranker = rankers.chosen
    # Behind the sets that rankers choose, the best of those skipped comes first. One answer needs
    # no search, which takes longer than the rest of the query.
    fewest = 1 if count == 1 and isinstance(ranker, SearchRanker) else _FEWEST_RANKED
    enough = max(count, fewest) + len(query.own.timings) + len(query.own.other_width)
    rest = likely_last(query, _not_failed(query, list(islice(ranker.candidates(), enough))))
    model = query.prediction.version if ranker.by_model else ""
    timed = _from_timings(query, query.own.timings)
    if len(timed) >= _FEWEST_MEASURED:
        return _looked_up(rankers, "measured", timed, rest, count, model)
    timed = _not_failed(query, _from_timings(query, query.own.other_width, other_width=True))
    if timed:
        return _looked_up(rankers, "other-width", timed, rest, count, model)
    near = len(query.vote.neighbours) >= FEWEST_NEIGHBOURS and bool(query.vote.configs)
    if rest and (near or ranker.by_model):
        shown, beyond = rest[:count], rest[count:]
        return RankedCandidates(rankers, ranker.source, ranker.name, shown, model, beyond=beyond)
    static = rankers.static_best
    average = likely_last(query, _not_failed(query, list(islice(static.candidates(), enough))))
    ranked = [c for c in average if c.score < 0.0]
    if ranked:
        return RankedCandidates(rankers, static.source, static.name, ranked[:count])
    return RankedCandidates(rankers, "default", "default", [default_candidate(query)])


def _looked_up(
    rankers: Rankers,
    source: str,
    measured: list[Candidate],
    ranked: list[Candidate],
    count: int,
    model: str,
) -> RankedCandidates:
    """An answer with the measured candidates first and ranked ones after them. Of too many, the
    slower measured ones give way to the untried: to measure those again would change nothing."""
    once: dict[Config, Candidate] = {}
    for candidate in [*measured, *ranked]:
        once.setdefault(Config(candidate.config), candidate)
    ran = {Config(c.config) for c in measured}
    measured, others = [once[c] for c in once if c in ran], [once[c] for c in once if c not in ran]
    best = max((c.expected_gain or math.inf for c in measured), default=math.inf)
    untried = [c for c in others if source == "measured" and (c.gain_low or 0.0) > best]
    ahead = measured[: max(count - len(untried), 1)]
    surely = {id(c) for c in untried}
    # A stable sort: within both parts the order of the ranker.
    chosen = sorted(others, key=lambda c: id(c) not in surely)[: count - len(ahead)]
    among = {id(c) for c in chosen}
    candidates = [*ahead, *(c for c in others if id(c) in among)]
    return RankedCandidates(
        rankers, source, "lookup", candidates, model if chosen else "", untried=untried
    )


def _not_failed(query: Query, candidates: list[Candidate]) -> list[Candidate]:
    """The candidates without those that failed on this very pattern."""
    own, stored = query.own.timings.items(), query.space.canonical
    failed = {stored(config) for config, timing in own if not math.isfinite(timing.seconds)}
    return [c for c in candidates if Config(c.config) not in failed] if failed else candidates


def _from_timings(
    query: Query, timings: dict[Config, TimingSummary], *, other_width: bool = False
) -> list[Candidate]:
    default = timings.get(query.default)
    base = math.inf if default is None else cost_of(default, query.calls)
    origin = f"measured at {query.own.other_op}" if other_width else "measured here"
    behind: Mapping[Config, str] = {} if other_width else query.own.behind
    candidates = []
    for config, timing in timings.items():
        cost = cost_of(timing, query.calls)
        if not math.isfinite(cost) or query.space.reason(config) is not None:
            continue
        gain = base / cost if math.isfinite(base) else None
        candidates.append(
            Candidate(
                config=dict(query.space.canonical(config)),
                score=math.log(cost) if gain is None else -math.log(gain),
                origin=origin,
                expected_gain=gain,
                seconds=None if other_width else timing.seconds,
                status=None if other_width else timing.status,
                order_reason=often_failed(timing) or behind.get(config, ""),
            )
        )
    return sorted(candidates, key=lambda c: (bool(c.order_reason), c.score, str(c.config)))


def cost_of(timing: TimingSummary, calls: float) -> float:
    """Seconds per call with the preparation shared out."""
    return timing.seconds + timing.conversion_s / calls
