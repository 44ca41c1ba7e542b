"""The state of a machine: distance of two, and runs that are outliers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from builders import CONFIGS, OP, band, fill, tiny
from hypothesis import given
from hypothesis import strategies as st

from embeddb.core import plugins
from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, Run, in_context
from embeddb.core.timing import (
    APART,
    between,
    distance,
    is_outlier,
    median_state,
    state_now,
    state_of,
    summarise_runs,
)
from embeddb.database import Database
from embeddb.platforms.platform import Platform, parse_platform, platform_here
from embeddb.ranking.measure import Remeasurement, measure_answer
from indexer.runners.base import RunOptions

QUIET = {"stream": 100.0, "adds": 50.0}
BUSY = {"stream": 50.0, "adds": 25.0}

figures = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.floats(1e-3, 1e6, allow_nan=False), max_size=3
)


@given(figures, figures)
def test_apart_is_a_distance(one: dict[str, float], other: dict[str, float]) -> None:
    far = distance(one, other)
    assert far is None or far == pytest.approx(distance(other, one))
    assert (far is None) == (not one.keys() & other.keys())
    assert distance(one, one) == (0.0 if one else None)
    assert far is None or far == pytest.approx(
        distance({k: 2 * v for k, v in one.items()}, {k: 2 * v for k, v in other.items()})
    )


def test_a_halved_machine_is_apart() -> None:
    assert distance(QUIET, BUSY) == pytest.approx(math.log(2))
    assert distance(QUIET, {"adds": 50.0, "else": 1.0}) == 0.0
    assert distance({"adds": math.nan}, QUIET) is None


@given(figures, figures)
def test_a_context_tells_its_state(before: dict[str, float], after: dict[str, float]) -> None:
    context = between(before, after)
    told = state_of({"cache": "warm", "load1": 1.0, **context})
    assert told.keys() == before.keys() | after.keys()
    for name, value in told.items():
        held = [s[name] for s in (before, after) if name in s]
        assert min(held) * 0.999 <= value <= max(held) * 1.001
    assert ("state_drift" in context) == bool(before.keys() & after.keys())


def test_what_is_usual_is_the_median_of_each_figure() -> None:
    states = [QUIET, QUIET, BUSY, {"adds": math.inf}]
    assert median_state(states) == QUIET and median_state([]) == {}


def test_runs_in_another_state_or_while_it_changed_are_astray() -> None:
    assert not is_outlier(between(QUIET, QUIET), QUIET)
    assert is_outlier(between(BUSY, BUSY), QUIET)
    assert is_outlier(between(QUIET, BUSY), {})
    assert not is_outlier({"load1": 3.0}, QUIET) and not is_outlier(between(BUSY, BUSY), {})


def test_a_runner_that_tells_no_state_has_none() -> None:
    class Telling:
        def state(self, *, threads: int = 0) -> dict[str, float]:
            return {"stream": 2.0 * threads, "bad": math.nan, "worse": -1.0}

    assert state_now(object()) == {} and state_now(Telling(), threads=3) == {"stream": 6.0}


# -- what counts less --------------------------------------------------------------------------


def _run(seconds: float, context: Mapping[str, float], variant: int = 0) -> Run:
    measured = in_context(Measurement(times_s=(seconds,)), context)
    return Run("ab" * 16, OP, "tiny", CONFIGS[variant], measured)


def test_runs_in_the_usual_state_decide_where_there_are_some() -> None:
    quiet, busy = between(QUIET, QUIET), between(BUSY, BUSY)
    mixed = [_run(1.0, quiet), _run(2.0, busy), _run(2.2, busy)]
    (curve,) = summarise_runs(mixed, lambda: QUIET).values()
    assert (curve.seconds, curve.spread, curve.runs) == (1.0, 0.0, 3)
    (curve,) = summarise_runs(mixed).values()
    assert curve.seconds == 2.0
    (curve,) = summarise_runs(mixed[1:], lambda: QUIET).values()
    assert curve.seconds == pytest.approx(2.1)
    (curve,) = summarise_runs([*mixed[1:], _run(3.0, {})], lambda: QUIET).values()
    assert curve.seconds == 3.0, "a run that tells nothing is not spoken against"


def test_the_usual_state_is_only_looked_up_where_runs_tell_theirs() -> None:
    def never() -> dict[str, float]:
        raise AssertionError("asked for")

    summarise_runs([_run(1.0, {}), _run(2.0, {"load1": 1.0})], never)
    summarise_runs([_run(1.0, between(BUSY, BUSY)), _run(1.0, {}, variant=1)], never)


def test_evidence_rests_on_the_usual_state_of_the_instance() -> None:
    """The median of the instance, though on one matrix most runs were made in another state."""
    db, platform = Database.in_memory(), tiny()
    fill(db, platform, indexed=False)
    quiet, busy = between(QUIET, QUIET), between(BUSY, BUSY)
    first = band(50, 5, name="first")
    told = [(first, 1.0, quiet), (first, 9.0, busy), (first, 9.5, busy)]
    told += [(band(60 + at, 5, name=f"b{at}"), 1.0, quiet) for at in range(4)]
    for pattern, seconds, state in told:
        measured = in_context(Measurement(times_s=(seconds,)), state)
        db.index.record([Run(pattern.id, OP, platform.id, CONFIGS[0], measured)], pattern, platform)
    assert db.store.usual_at(platform.id)() == QUIET
    evidence, _ = db.index.evidence(OP, "tiny")
    row = next(i for i, r in enumerate(evidence.rows) if r.pattern_id == first.id)
    assert evidence.seconds[evidence.indptr[row]] == 1.0
    assert db.store.usual_at("nowhere")() == {}


# -- what an answer says -----------------------------------------------------------------------


class Stateful:
    """Times and state are as told; the facts are measured once."""

    name = "stateful"
    now = QUIET
    measured = 0

    def available(self) -> str | None:
        return None

    def facts(self, *, threads: int = 0) -> dict[str, str]:
        Stateful.measured += 1
        return {"speed": "7"}

    def platform(self, *, threads: int = 0) -> Platform:
        facts = {"speed": "7"} if self.measured else {}
        return _lab().at("here", {"threads": str(threads), **facts})

    def state(self, *, threads: int = 0) -> dict[str, float]:
        return dict(self.now)

    def run(
        self, pattern: Pattern, op: Op, configs: Sequence[Config], *, options: RunOptions
    ) -> Iterator[tuple[Config, Measurement]]:
        for config in configs:
            yield config, Measurement(times_s=(1.0 + CONFIGS.index(config),))


def _lab() -> Platform:
    text = tiny("lab", portable=True).text
    return parse_platform(text.replace('title = "F', 'runner = "stateful"\ntitle = "F'))


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Database:
    real: Any = plugins.load
    known = {"stateful": Stateful}
    monkeypatch.setattr(plugins, "load", lambda kind, name: known.get(name) or real(kind, name))
    monkeypatch.setattr(Stateful, "measured", 0)
    monkeypatch.setattr(Stateful, "now", QUIET)
    return fill(Database.in_memory(), _lab().at("elsewhere"))


def test_an_answer_says_that_the_machine_is_in_another_state(
    lab: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []
    for state in (QUIET, QUIET, QUIET, BUSY):
        monkeypatch.setattr(Stateful, "now", state)
        new = band(130 + len(said), 14, name=f"new{len(said)}")
        made = lab.query(new, platform="lab", op=OP)
        done = measure_answer(lab.index, made, new, Remeasurement(RunOptions()))
        said.append([w for w in done.warnings if "state" in w])
        (run, *_) = lab.store.runs("lab@here", OP, new.id)
        assert state_of(run.measurement.context) == state
        assert lab.recommendation(done.id).warnings == done.warnings
    assert said[:3] == [[], [], []]
    (line,) = said[3]
    assert "2.0 times apart" in line and "\n" not in line


def test_a_plain_question_measures_no_facts(lab: Database) -> None:
    made = lab.query(band(137, 14), platform="lab", op=OP)
    assert made.platform == "lab@here" and Stateful.measured == 0
    measure_answer(lab.index, made, band(137, 14), Remeasurement(RunOptions()))
    assert Stateful.measured == 1
    found = lab.store.platform("lab@here")
    assert found is not None and found.environment["speed"] == "7"
    assert platform_here(Stateful()).environment["speed"] == "7"


def test_the_limit_is_a_fourth() -> None:
    assert not is_outlier(between(QUIET, QUIET), {k: 1.2 * v for k, v in QUIET.items()})
    assert is_outlier(between(QUIET, QUIET), {k: 1.3 * v for k, v in QUIET.items()})
    assert math.exp(APART) == pytest.approx(1.284, abs=1e-3)
