"""Querying: a query is built, answered by the strongest evidence, and the answer stored."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from embeddb.core.blas import one_thread
from embeddb.core.config import Config, Op
from embeddb.core.errors import NestError, RunnerUnavailable, UsageError
from embeddb.core.records import WorkloadInfo
from embeddb.core.workload import Workload
from embeddb.featurizers.base import counted_parts
from embeddb.index.lookup import Lookup
from embeddb.platforms.kernel import INEXACT, VARYING
from embeddb.platforms.platform import Platform, platform_here, runner_for
from embeddb.ranking.alternatives import Deepen, insight, nearest_run
from embeddb.ranking.answers import keep
from embeddb.ranking.break_even import with_break_even
from embeddb.ranking.build import build_query, coordinates
from embeddb.ranking.confidence import confidence_of, default_fails, untried_doubt
from embeddb.ranking.fallback import RankedCandidates, answer
from embeddb.ranking.gain_terms import with_gain_terms
from embeddb.ranking.order_reason import with_order_reasons
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.order import with_failures
from embeddb.ranking.recommendation import (
    NOT_STORED,
    Candidate,
    CountersUse,
    Recommendation,
    RecommendedNeighbour,
    TransferredSchedule,
)
from embeddb.store.counters import counters_of

_INEXACT_FIRST = (
    "the first configuration rounds its operands to a shorter type; --exact (exact=True) leaves "
    "such configurations out"
)
_NOT_STATED = (
    "platform {} does not state which configurations of {} round their operands (`inexact` in its "
    "file), so --exact (exact=True) leaves none out"
)
#: Largest number of proposed configurations.
MOST_CANDIDATES = 1000
#: Number of calls above which preparation does not count.
_UNBOUNDED = 1e18
#: Ranks a query's candidates, like `embeddb.ranking.fallback.answer`.
Answerer = Callable[[Query, int], RankedCandidates]


def local_platform(platform: Platform) -> Platform:
    """The platform's instance of this machine, if it can be measured here; else unchanged."""
    if platform.instance or not platform.runner:
        return platform
    try:
        return platform_here(runner_for(platform), facts=False)
    except RunnerUnavailable:
        return platform


@dataclass(frozen=True, slots=True)
class Request:
    """A request for the best `count` configurations for an operation on a workload, used `calls`
    times. `answer_by` ranks.

    Raises: UsageError for a `count` other than 1 to 1000, and for `calls` below 1.
    """

    pattern: Workload | WorkloadInfo
    platform: Platform
    op: Op
    count: int = 5
    calls: float = math.inf
    answer_by: Answerer = answer

    def __post_init__(self) -> None:
        count, calls = _plain(self.count), _plain(self.calls)
        if not (type(count) is int and 1 <= count <= MOST_CANDIDATES):
            what = f"k is {self.count!r:.40}: an integer from 1 to {MOST_CANDIDATES} is needed"
            raise UsageError(what, hint="k=5 proposes five configurations")
        if not (type(calls) in (int, float) and calls >= 1):
            what = f"calls is {self.calls!r:.40}: a number of at least 1 is needed"
            raise UsageError(what, hint="without `calls`, preparation does not count")
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "calls", math.inf if calls > _UNBOUNDED else calls)


def _plain(number: Any) -> Any:
    """A number of numpy as one of Python."""
    return number.item() if isinstance(number, np.generic) else number


@one_thread()
def recommend(lookup: Lookup, request: Request, *, deepen: Deepen | None = None) -> Recommendation:
    """Rank configurations for a workload and store the answer; `deepen` may add to its diagnostics.

    Raises: UsageError if the platform has no such op; NothingFound if the pattern is known by
    name only and the evidence needs more.
    """
    stages: dict[str, float] = {}
    pattern, op = request.pattern, request.op
    query = build_query(lookup, pattern, request.platform, op, calls=request.calls, stages_s=stages)
    started = time.perf_counter()
    ranked = request.answer_by(query, request.count)
    stages["transfer"] = time.perf_counter() - started
    ranked = with_gain_terms(ranked)
    about = insight(ranked, nearest=nearest_run(lookup, query), deepen=deepen)
    stages["insight"] = time.perf_counter() - started - stages["transfer"]
    recommendation = _recommendation(lookup, query, ranked)
    info = _pictured(lookup, query.pattern, pattern)
    whole = {} if isinstance(pattern, WorkloadInfo) else op.workload.answer(pattern)
    if shown := coordinates(lookup, query, pattern):
        whole = {**whole, "features": shown.named(), "features_by": shown.by}
    recommendation = msgspec.structs.replace(
        recommendation, stages_s=stages, insight=about, pattern=info, **whole
    )
    if lookup.store.readonly:
        note = f"the database is read-only: {NOT_STORED}"
        return msgspec.structs.replace(recommendation, warnings=[*recommendation.warnings, note])
    stored = keep(lookup, recommendation)
    stages["store"] = time.perf_counter() - started - stages["transfer"] - stages["insight"]
    return stored


def first_answers(query: Query, count: int) -> list[Config]:
    """The configurations that `recommend` would propose, best first."""
    return [Config(candidate.config) for candidate in answer(query, count).candidates]


def _pictured(
    lookup: Lookup, info: WorkloadInfo, workload: Workload | WorkloadInfo
) -> WorkloadInfo:
    """Information on the workload with its thumbnail, for explanations: it need not be stored."""
    stored = lookup.store.pattern(info.id)
    picture = info.thumbnail or (stored.thumbnail if stored is not None else b"")
    if not picture and not isinstance(workload, WorkloadInfo):
        picture = info.workload.facts(workload).get("thumbnail", b"")
    return msgspec.structs.replace(info, thumbnail=picture, features={}, about={})


def _recommendation(lookup: Lookup, query: Query, ranked: RankedCandidates) -> Recommendation:
    created = time.time()
    confidence, warnings = _trust(query, ranked)
    warnings += [*lookup.repairs(), *_cautions(query, ranked.first)]
    part = query.platform.kernel(query.op)
    own_default = query.own.timings.get(query.default)
    generation = lookup.store.generation
    recommendation = Recommendation(
        id=Recommendation.make_id(
            query.pattern.id, query.op, query.platform.id, generation, created
        ),
        pattern_id=query.pattern.id,
        pattern_name=query.pattern.name,
        platform=query.platform.id,
        op=str(query.op),
        link=ranked.source,
        tuner=ranked.strategy,
        default=dict(query.default),
        candidates=_with_precision(
            query, with_failures(query, with_break_even(query, ranked.candidates))
        ),
        neighbours=_neighbours(query),
        confidence=confidence,
        warnings=warnings,
        rejected={str(config): reason for config, reason in query.vote.rejected.items()},
        features={},
        evidence_op=str(query.vote.origin.op or query.op),
        featurizer=query.vote.featurizer,
        featurizer_version=lookup.featurizer_version(query.vote.featurizer),
        generation=generation,
        seed=0,
        calls=query.calls if math.isfinite(query.calls) else None,
        simulated=query.platform.simulated,
        noise=query.vote.noise,
        created=created,
        default_seconds=own_default.seconds
        if own_default is not None and math.isfinite(own_default.seconds)
        else None,
        model=ranked.model,
        own_model=query.prediction.own_model if ranked.model else "",
        reproducible=VARYING in part.left_out,
        exact=INEXACT in part.left_out and part.inexact is not None,
        model_featurizer=query.prediction.featurizer if ranked.model else "",
        machines={name: share for name, share in query.vote.origin.machines.items() if share > 0.0},
        transfers=_transfers(query, ranked),
        counters=counters_use(lookup, query),
        time_unit=query.platform.time_unit,
    )
    return with_order_reasons(recommendation, with_failures(query, ranked.beyond))


def _with_precision(query: Query, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates, marked where they are inexact."""
    where, op = query.platform, query.op
    return [
        msgspec.structs.replace(c, inexact=not where.is_exact(op, Config(c.config)))
        for c in candidates
    ]


def _cautions(query: Query, first: Config) -> Iterator[str]:
    """Warnings about the query's platform, model and first configuration."""
    if query.prediction.note:
        yield query.prediction.note
    if query.platform.simulated:
        yield "this platform is simulated or modelled: no time is of real hardware"
    if not query.platform.is_exact(query.op, first):
        yield _INEXACT_FIRST
    part = query.platform.kernel(query.op)
    if INEXACT in part.left_out and part.inexact is None:
        yield _NOT_STATED.format(query.platform.id, query.op.name)


def _trust(query: Query, ranked: RankedCandidates) -> tuple[str, list[str]]:
    """`high`, `medium` or `low`, and warnings: what lowers it, and a failing default."""
    confidence, warnings = confidence_of(ranked.rankers.chosen, ranked.source, ranked.first)
    if ranked.unjudged:
        confidence, warnings = "low", [ranked.unjudged]
    if untried := untried_doubt(ranked.untried, ranked.candidates):
        confidence = "medium" if confidence == "high" else confidence
        warnings.append(untried)
    own_default = query.own.timings.get(query.default)
    if own_default is not None and not math.isfinite(own_default.seconds):
        warnings.append(default_fails(own_default.status))
    return confidence, warnings


def _neighbours(query: Query) -> list[RecommendedNeighbour]:
    return [
        RecommendedNeighbour(
            n.pattern_id,
            n.platform,
            n.name,
            n.distance,
            n.percentile if math.isfinite(n.percentile) else None,
            float(w),
            n.op,
        )
        for n, w in zip(query.vote.neighbours, query.vote.weights, strict=True)
    ]


def _transfers(query: Query, ranked: RankedCandidates) -> list[TransferredSchedule]:
    """Transferred schedules that are candidates or the fastest of their neighbour, which comes
    first."""
    answered = {Config(candidate.config) for candidate in ranked.candidates}
    transfers = query.vote.transfers
    fastest = {one.pattern_id: one for one in reversed(transfers)}
    return [
        one for one in transfers if Config(one.config) in answered or one is fastest[one.pattern_id]
    ]


def counters_use(lookup: Lookup, query: Query) -> CountersUse | None:
    """Use of the counters of a queried nest; None if it was not counted on this platform."""
    if not query.op.workload.counted:
        return None
    try:
        counters = counters_of(lookup.store, query.pattern.id, query.platform.id)
    except NestError as e:
        return CountersUse(source="", used=False, reason=str(e))
    if counters is None:
        return None
    used = counted_parts(query.vote.featurizer) is not None
    reason = "" if used else _why_not(lookup, query, counters.source)
    return CountersUse(source=counters.source, used=used, reason=reason)


def _why_not(lookup: Lookup, query: Query, source: str) -> str:
    place = query.platform.id
    plugs = lookup.featurizers().counted(place)
    if not plugs:
        return "no network here reads counters"
    if all(plug.source != source for plug in plugs):
        return f"the network learned from counters of {plugs[0].source}, these are of {source}"
    with_counters = lookup.by_counters(query.op, query.platform)
    if with_counters is not None:
        return f"held-out answers were no better than by {with_counters.featurizer}"
    plain = lookup.answering(query.op, query.platform)
    if plain is None or not query.vote.neighbours:
        return "there are no neighbours to look up"
    measured, vectors = plain.evidence.neighbour_ids, lookup.store.vectors
    most = max(len(vectors.get(p.name, p.version, measured, dim=p.dim)) for p in plugs)
    return (
        f"only {most:,} of {len(measured):,} measured nests have vectors with counters of {place}, "
        "and nine of ten must (`embeddb nest count DB` and `embeddb embed` make them)"
    )
