"""Break-even of a configuration: calls that amortise its preparation relative to the default."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from embeddb.core.config import Config
from embeddb.core.records import Run
from embeddb.core.timing import TimingSummary, summarise_runs
from embeddb.ranking.query import Query
from embeddb.ranking.recommendation import Candidate, Recommendation


def break_even(prepared: float, saved: float) -> float | None:
    """Calls that amortise `prepared`, the cost of the preparation, by saving `saved` each, in the
    same unit; None where nothing is saved."""
    if not (0 < saved < math.inf and math.isfinite(prepared)):
        return None
    return max(prepared, 0.0) / saved


def with_break_even(query: Query, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates with their `break_even_calls`: from measurements of the very pattern, else
    from the expected preparation and the predicted gain."""
    updated = []
    for candidate in candidates:
        config = Config(candidate.config)
        own = query.own.timings.get(config)
        # Without any preparation in the evidence, 0 seconds mean that it was not recorded.
        recorded = own is not None and (own.conversion_s or query.vote.preparation is not None)
        calls = _measured(query.own.timings, config, query.default) if recorded else None
        if calls is None and candidate.seconds is None:
            calls = _predicted(query, candidate)
        updated.append(msgspec.structs.replace(candidate, break_even_calls=calls))
    return updated


def _measured(
    timings: Mapping[Config, TimingSummary], config: Config, default: Config
) -> float | None:
    """Measured break-even; None if either was not measured."""
    own, base = timings.get(config), timings.get(default)
    if own is None or base is None or config == default:
        return None
    return break_even(own.conversion_s - base.conversion_s, base.seconds - own.seconds)


def _predicted(query: Query, candidate: Candidate) -> float | None:
    """Predicted break-even, in calls of the default. A gain predicted for a number of calls
    includes its share of the preparation, which is removed here."""
    config = Config(candidate.config)
    if query.vote.preparation is None or candidate.expected_gain is None or config == query.default:
        return None
    ratio, base = map(float, query.vote.preparation.of([config, query.default]))
    total = (1.0 + base / query.calls) / candidate.expected_gain
    return break_even(ratio - base, 1.0 - max(total - ratio / query.calls, 0.0))


def measured_break_even(answer: Recommendation, runs: Sequence[Run]) -> Recommendation:
    """The answer with `break_even_calls` from its runs and the default's; None where they do not
    record the preparation."""
    timings, default = summarise_runs(runs), Config(answer.default)
    recorded = {run.config for run in runs if run.measurement.conversion_s is not None}
    candidates = []
    for candidate in answer.candidates:
        config = Config(candidate.config)
        calls = _measured(timings, config, default) if config in recorded else None
        candidates.append(msgspec.structs.replace(candidate, break_even_calls=calls))
    return msgspec.structs.replace(answer, candidates=candidates)
