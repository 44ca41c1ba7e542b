"""What is found out about an answer while the evidence is at hand: `insight`.

Beside every answer: what simpler methods would have said, and what is worth measuring next. Where
it is asked for (`deep`), what would change the answer (`embeddb.explain.counterfactuals`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.core.records import PatternInfo
from embeddb.database import Database
from embeddb.explain.counterfactuals import counterfactuals, partial_dependence
from embeddb.explain.occlusion import occlusion
from embeddb.platforms.platform import Platform
from embeddb.query.diagnostics import Diagnostics, NextRun, SimplerAnswer
from embeddb.query.fallback import Answer
from embeddb.query.posterior import Posterior
from embeddb.query.query import Query, Recommendation
from embeddb.query.rankers.base import posterior_of
from embeddb.query.rankers.choose import Rankers

__all__ = ["expected_improvement", "insight", "renewed"]

Floats = NDArray[np.float64]
#: Called with what is being done, how much of it is, and of how much.
Progress = Callable[[str, int, int], None]

#: Configurations worth measuring that are named, at most.
_MOST_NEXT = 5
#: What promises less than this share is not worth a measurement.
_LEAST_WORTH = 1e-3
#: The 90th percentile of a standard normal.
_NINETIETH = 1.2815515655446004


def insight(
    query: Query,
    found: Answer,
    db: Database,
    *,
    pattern: Pattern | None = None,
    deep: bool = False,
    progress: Progress | None = None,
) -> Diagnostics:
    """What simpler methods say and what to measure next; with `deep` also effects, moves and
    attention (the last only where `pattern` holds the structure, or the store does).

    Costs about a millisecond; `deep` up to some seconds.
    """
    answer, rankers = found.first, found.rankers
    held = posterior_of(rankers.chosen, found.link, answer)
    plain = Diagnostics(
        answer_gain=_gain(query, held, answer, found.link),
        simpler=list(_simpler(rankers, held, answer, found.link)),
        next=_next(query, held, answer),
    )
    if not deep:
        return plain
    side, cells = occlusion(query, db, pattern, progress=progress)
    return msgspec.structs.replace(
        plain,
        deep=True,
        effects=partial_dependence(held),
        moves=counterfactuals(rankers.chosen, db, progress=progress),
        attention=cells,
        attention_side=side,
    )


def renewed(
    db: Database,
    made: Recommendation,
    pattern: Pattern | PatternInfo,
    platform: Platform,
    *,
    deep: bool = False,
    progress: Progress | None = None,
) -> Recommendation:
    """The answer with its insight made anew from what is known now, and kept: after it was
    measured, or to look deeper.

    Raises: as `Database.prepare`.
    """
    op = Op.parse(made.op)
    where = platform.reproducible(op) if made.reproducible else platform
    query = db.prepare(pattern, where, op, calls=made.calls or math.inf)
    measured = bool(made.candidates) and made.candidates[0].seconds is not None and query.own
    link = "measured" if measured else made.link
    found = Answer(Rankers(query), link, made.tuner, made.candidates)
    structure = pattern if isinstance(pattern, Pattern) else None
    about = insight(query, found, db, pattern=structure, deep=deep, progress=progress)
    done = msgspec.structs.replace(made, insight=about)
    if not db.store.readonly:
        db.keep(done)
    return done


# -- simpler methods ---------------------------------------------------------------------------


def _simpler(
    rankers: Rankers, held: Posterior, answer: Config, link: str
) -> Iterator[SimplerAnswer]:
    for method, config in _said(rankers):
        yield SimplerAnswer(
            method=method,
            config=dict(config),
            expected_gain=_gain(rankers.query, held, config, link),
            same=config == answer,
        )


def _said(rankers: Rankers) -> Iterator[tuple[str, Config]]:
    """Each method that is possible here, with its first choice."""
    query = rankers.query
    yield "default", query.default
    if query.configs:
        yield "static-best", rankers.static_best.first
        if query.neighbours and np.isfinite(query.gains[0]).any():
            yield "nearest", query.configs[int(np.nanargmax(query.gains[0]))]
        if query.neighbours:
            yield "transfer", rankers.vote.first
    if query.predicted_configs:
        yield "rank", rankers.model.first


def _gain(query: Query, held: Posterior, config: Config, link: str) -> float | None:
    """A factor over the default; None where the answer's own evidence says nothing of it."""
    if not held.over_default:
        return None
    if config == query.default:
        return 1.0
    at = held.place(config)
    if at is None or not math.isfinite(held.mean[at]):
        return None
    return math.exp(held.mean[at]) if link != "measured" or held.known[at] else None


# -- what to measure next ----------------------------------------------------------------------


def expected_improvement(better: Floats, spread: Floats) -> Floats:
    """E[max(X, 0)] of X normal with mean float64[u] and standard deviation float64[u]:
    better * cdf(z) + spread * pdf(z), z = better / spread (Jones, Schonlau and Welch 1998, Eq. 15).
    Where the spread is 0, max(better, 0); nan stays."""
    sure = spread <= 0.0
    z = better / np.where(sure, 1.0, spread)
    pdf = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    cdf = 0.5 * (1.0 + np.array([math.erf(x / math.sqrt(2.0)) for x in z]))
    value: Floats = np.where(sure, np.maximum(better, 0.0), better * cdf + spread * pdf)
    return value


def _next(query: Query, held: Posterior, answer: Config) -> list[NextRun]:
    """By the expected improvement of the log gain over the answer's; its exponential less one is
    the geometric mean of what the better of the two gains."""
    at = held.place(answer)
    if at is None or not math.isfinite(held.mean[at]):
        return []
    open_ = ~held.known & np.isfinite(held.mean) & np.isfinite(held.apart)
    open_[at] = False
    if query.default in held.configs:
        open_[held.configs.index(query.default)] = False
    left = np.flatnonzero(open_)
    normal = expected_improvement(held.mean[left] - held.mean[at], held.apart[left])
    told = held.better[left]
    worth = np.expm1(np.where(np.isfinite(told), told, normal))
    best = [i for i in np.argsort(-worth, kind="stable")[:_MOST_NEXT] if worth[i] >= _LEAST_WORTH]
    return [_next_run(held, int(left[i]), float(worth[i])) for i in best]


def _next_run(held: Posterior, at: int, worth: float) -> NextRun:
    mean, spread = float(held.mean[at]), float(held.spread[at])
    told = held.over_default
    high = math.exp(mean + _NINETIETH * spread) if told and math.isfinite(spread) else None
    return NextRun(
        config=dict(held.configs[at]),
        expected_gain=math.exp(mean) if told else None,
        gain_high=high,
        worth=worth,
    )
