"""Break-even of a configuration: calls that amortise its preparation relative to the default."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from embeddb.core.config import Config
from embeddb.core.records import Run
from embeddb.core.timing import summarise_runs
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
        calls = _measured(query, Config(candidate.config))
        if calls is None and candidate.seconds is None:
            calls = _predicted(query, candidate)
        updated.append(msgspec.structs.replace(candidate, break_even_calls=calls))
    return updated


def _measured(query: Query, config: Config) -> float | None:
    """Measured break-even; None also where the preparation was not recorded (0 seconds)."""
    own, default = query.own.timings.get(config), query.own.timings.get(query.default)
    if own is None or default is None or config == query.default:
        return None
    if own.conversion_s == 0.0 and query.vote.preparation is None:
        return None
    return break_even(own.conversion_s - default.conversion_s, default.seconds - own.seconds)


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
    curves = summarise_runs(runs)
    with_preparation = {run.config for run in runs if run.measurement.conversion_s is not None}
    default = curves.get(Config(answer.default))
    candidates = []
    for candidate in answer.candidates:
        config, calls = Config(candidate.config), None
        if default is not None and config in with_preparation and config != Config(answer.default):
            own = curves[config]
            extra = own.conversion_s - default.conversion_s
            calls = break_even(extra, default.seconds - own.seconds)
        candidates.append(msgspec.structs.replace(candidate, break_even_calls=calls))
    return msgspec.structs.replace(answer, candidates=candidates)
