"""From how many calls on preparing a configuration has paid off beside the default."""

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
    """Calls after which `prepared`, the cost of preparing, is made up for by what each call saves,
    in the same unit; None where nothing is saved."""
    if not (0 < saved < math.inf and math.isfinite(prepared)):
        return None
    return max(prepared, 0.0) / saved


def with_break_even(query: Query, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates with their `break_even_calls`: by what was measured on the very pattern, else
    by the preparation that is expected and the gain that is promised."""
    found = []
    for candidate in candidates:
        calls = _measured(query, Config(candidate.config))
        if calls is None and candidate.seconds is None:
            calls = _promised(query, candidate)
        found.append(msgspec.structs.replace(candidate, break_even_calls=calls))
    return found


def _measured(query: Query, config: Config) -> float | None:
    """None too where preparation was not recorded: 0 seconds then say nothing."""
    own, default = query.own.timings.get(config), query.own.timings.get(query.default)
    if own is None or default is None or config == query.default:
        return None
    if own.conversion_s == 0.0 and query.vote.preparation is None:
        return None
    return break_even(own.conversion_s - default.conversion_s, default.seconds - own.seconds)


def _promised(query: Query, candidate: Candidate) -> float | None:
    """In calls of the default. A promise made for some calls has its part of the preparation in it,
    which is taken out again."""
    config = Config(candidate.config)
    if query.vote.preparation is None or candidate.expected_gain is None or config == query.default:
        return None
    ratio, base = map(float, query.vote.preparation.of([config, query.default]))
    total = (1.0 + base / query.calls) / candidate.expected_gain
    return break_even(ratio - base, 1.0 - max(total - ratio / query.calls, 0.0))


def measured_break_even(made: Recommendation, runs: Sequence[Run]) -> Recommendation:
    """The answer with `break_even_calls` by what its runs took, the default's among them; where
    they do not tell what preparing took, None."""
    curves = summarise_runs(runs)
    told = {run.config for run in runs if run.measurement.conversion_s is not None}
    default = curves.get(Config(made.default))
    candidates = []
    for candidate in made.candidates:
        config, calls = Config(candidate.config), None
        if default is not None and config in told and config != Config(made.default):
            own = curves[config]
            extra = own.conversion_s - default.conversion_s
            calls = break_even(extra, default.seconds - own.seconds)
        candidates.append(msgspec.structs.replace(candidate, break_even_calls=calls))
    return msgspec.structs.replace(made, candidates=candidates)
