"""Diagnostics of an answer: the first choices of simpler methods, and what to measure next.

Counterfactuals (`embeddb.explain.deep`) are added by the caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.records import WorkloadInfo
from embeddb.core.timing import summarise_runs
from embeddb.core.workload import Workload
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform, default_of
from embeddb.ranking.answers import keep
from embeddb.ranking.build import build_query
from embeddb.ranking.fallback import RankedCandidates, cost_of
from embeddb.ranking.posterior import Posterior
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import posterior_of
from embeddb.ranking.rankers.choose import Rankers
from embeddb.ranking.recommendation import (
    LIKELY,
    Diagnostics,
    NextRun,
    Recommendation,
    SimplerAnswer,
)
from embeddb.store.versions import instance_at_latest

Floats = NDArray[np.float64]
#: Adds to the diagnostics of an answer.
Deepen = Callable[[Diagnostics, RankedCandidates], Diagnostics]

#: Most configurations worth measuring that are listed.
_MOST_NEXT = 5
#: Smallest expected gain (as a share) that is worth a measurement.
_LEAST_WORTH = 1e-3


class NearestRun(NamedTuple):
    """The fastest configuration of the nearest neighbour that is legal here, and its `gain` there:
    a factor over the neighbour's own default (None: that did not run)."""

    config: Config
    gain: float | None


def nearest_run(lookup: Lookup, query: Query) -> NearestRun | None:
    """The fastest legal run of the nearest neighbour, on the machine that counts most there; None
    without a neighbour, or a legal configuration that it ran."""
    if not query.vote.neighbours:
        return None
    near, store = query.vote.neighbours[0], lookup.store
    carried = (one for one in query.vote.transfers if one.pattern_id == near.pattern_id)
    if (fastest := next(carried, None)) is not None:
        return NearestRun(Config(fastest.config), fastest.gain)
    platform, op = instance_at_latest(store, near.platform), Op.parse(near.op or str(query.op))
    if platform is None:
        return None
    timings = summarise_runs(
        store.runs(platform.id, op, near.pattern_id), store.usual_at(platform.id)
    )
    costs = {c: cost_of(t, query.calls) for c, t in timings.items() if math.isfinite(t.seconds)}
    by_cost = sorted(costs, key=lambda config: (costs[config], config.json))
    # A check takes a tenth of a millisecond, and the first is usually legal.
    best = next((config for config in by_cost if query.space.reason(config) is None), None)
    if best is None:
        return None
    info = store.pattern(near.pattern_id) or WorkloadInfo(id=near.pattern_id)
    base = costs.get(default_of(platform, op, store.workload_or_info(info)))
    gain = None if base is None else base / costs[best]
    return NearestRun(query.space.canonical(best), gain)


def insight(
    ranked: RankedCandidates, *, nearest: NearestRun | None = None, deepen: Deepen | None = None
) -> Diagnostics:
    """The answers of simpler methods and what to measure next; takes about a millisecond.
    `nearest` is the `nearest_run` of the query, if the database is available; `deepen` may add."""
    query, answer, rankers = ranked.rankers.query, ranked.first, ranked.rankers
    posterior = posterior_of(rankers.chosen, ranked.source, answer)
    plain = Diagnostics(
        answer_gain=_gain(query, posterior, answer, ranked.source),
        simpler=list(_simpler(rankers, posterior, answer, ranked.source, nearest)),
        next=_next(query, posterior, answer),
    )
    return plain if deepen is None else deepen(plain, ranked)


def renewed(
    lookup: Lookup,
    recommendation: Recommendation,
    pattern: Workload | WorkloadInfo,
    platform: Platform,
    *,
    deepen: Deepen | None = None,
) -> Recommendation:
    """The answer with its insight recomputed from the present evidence, and stored: after a
    measurement, or to add deeper diagnostics.

    Raises: as `build_query`.
    """
    op = Op.parse(recommendation.op)
    where = platform.restricted(
        op, reproducible=recommendation.reproducible, exact=recommendation.exact
    )
    query = build_query(lookup, pattern, where, op, calls=recommendation.calls or math.inf)
    first = recommendation.first
    measured = first is not None and first.seconds is not None and query.own.timings
    link = "measured" if measured else recommendation.link
    ranked = RankedCandidates(Rankers(query), link, recommendation.tuner, recommendation.candidates)
    about = insight(ranked, nearest=nearest_run(lookup, query), deepen=deepen)
    done = msgspec.structs.replace(recommendation, insight=about)
    return done if lookup.store.readonly else keep(lookup, done)


# -- simpler methods ---------------------------------------------------------------------------


def _simpler(
    rankers: Rankers, posterior: Posterior, answer: Config, link: str, nearest: NearestRun | None
) -> Iterator[SimplerAnswer]:
    """The first choice of each method that is possible here."""
    query = rankers.query
    first = {"default": query.default}
    if query.vote.configs:
        first["static-best"] = rankers.static_best.first
        if nearest is not None:
            first["nearest"] = nearest.config
        if query.vote.neighbours:
            first["transfer"] = rankers.vote.first
    if query.prediction.configs:
        first["rank"] = rankers.model.first
    for method, config in first.items():
        yield SimplerAnswer(
            method=method,
            config=dict(config),
            expected_gain=_gain(query, posterior, config, link),
            same=config == answer,
            gain_there=nearest.gain if nearest is not None and method == "nearest" else None,
        )


def _gain(query: Query, posterior: Posterior, config: Config, link: str) -> float | None:
    """Expected factor over the default by the answer's evidence; None if unknown."""
    if not posterior.over_default:
        return None
    if config == query.default:
        return 1.0
    at = posterior.place(config)
    failed = query.failing.get(config, 0.0) >= LIKELY
    if at is None or failed or not math.isfinite(posterior.mean[at]):
        return None
    return math.exp(posterior.mean[at]) if link != "measured" or posterior.measured[at] else None


# -- what to measure next ----------------------------------------------------------------------


def expected_improvement(better: Floats, spread: Floats) -> tuple[Floats, Floats]:
    """E[max(X, 0)] of X normal with mean float64[u] and standard deviation float64[u],
    better * cdf(z) + spread * pdf(z) with z = better / spread (Jones, Schonlau and Welch 1998,
    Eq. 15), and P(X > 0), both float64[u]. Where the spread is 0, max(better, 0) and 0 or 1; nan
    stays in the first."""
    sure = spread <= 0.0
    z = better / np.where(sure, 1.0, spread)
    pdf = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    cdf = 0.5 * (1.0 + np.array([math.erf(x / math.sqrt(2.0)) for x in z]))
    value: Floats = np.where(sure, np.maximum(better, 0.0), better * cdf + spread * pdf)
    return value, np.where(sure, (better > 0.0).astype(np.float64), cdf)


def _next(query: Query, posterior: Posterior, answer: Config) -> list[NextRun]:
    """Configurations with the largest expected improvement of the log gain over the answer's; its
    exponential less one is the mean (geometric) gain of the better of the two."""
    at = posterior.place(answer)
    if at is None or not math.isfinite(posterior.mean[at]):
        return []
    open_ = ~posterior.measured & np.isfinite(posterior.mean) & np.isfinite(posterior.apart)
    open_[at] = False
    failed = {config for config, share in query.failing.items() if share >= LIKELY}
    for one in {query.default, *failed}:
        if (place := posterior.place(one)) is not None:
            open_[place] = False
    left = np.flatnonzero(open_)
    better, chance = posterior.better[left], posterior.chance[left]
    no_votes = ~np.isfinite(better)
    normal = left[no_votes]
    better[no_votes], chance[no_votes] = expected_improvement(
        posterior.mean[normal] - posterior.mean[at], posterior.apart[normal]
    )
    order = np.argsort(-better, kind="stable")[:_MOST_NEXT]
    return [
        NextRun(
            config=dict(posterior.configs[left[i]]),
            worth=math.expm1(better[i]),
            chance=float(chance[i]),
            faster_by=math.expm1(better[i] / chance[i]),
        )
        for i in order
        if better[i] >= math.log1p(_LEAST_WORTH)
    ]
