"""Contract tests of tuners, as a base class.

from embeddb.testing.tuners import TunerContract

class TestMine(TunerContract):
    def make(self, query, rng):
        return MyTuner(query, rng=rng)

pytest then runs every test below on it, each on every query of `sample_queries`. `check_tuner`
does the same for one query of your own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np

from embeddb.core.config import Config
from embeddb.core.records import STATUSES, Measurement
from embeddb.ranking.query import Query
from embeddb.testing.queries import sample_queries
from tuners.base import Tuner

__all__ = ["Make", "TunerContract", "check_tuner", "sample_queries"]

#: A new tuner for a query and a generator.
Make = Callable[[Query, np.random.Generator], Tuner]


def check_tuner(make: Make, query: Query) -> None:
    """Run the contract on one query. Raises: AssertionError for a violation of
    `tuners.base.Tuner`."""
    for test in (_proposals, _repeatable, _measured, _failures, _untouched):
        test(make, query)


def _new(make: Make, query: Query) -> Tuner:
    return make(query, np.random.default_rng(7))


def _proposals(make: Make, query: Query) -> None:
    tuner = _new(make, query)
    assert tuner.ask(0) == []
    seen: list[Config] = []
    first = None
    for count in (1, 3, 2, 1000):
        proposed = tuner.ask(count)
        assert len(proposed) <= count, f"requested {count}, got {len(proposed)}"
        for candidate in proposed:
            config = Config(candidate.config)
            assert query.space.reason(config) is None, f"illegal: {query.space.reason(config)}"
            assert config not in seen, f"{config} is proposed twice"
            assert math.isfinite(candidate.score)
            assert candidate.origin
            first = candidate if first is None else first
            assert first.score <= candidate.score, "the first does not have the least score"
            seen.append(config)


def _repeatable(make: Make, query: Query) -> None:
    one, other = _new(make, query), _new(make, query)
    assert [one.ask(n) for n in (1, 4, 50)] == [other.ask(n) for n in (1, 4, 50)]


def _measured(make: Make, query: Query) -> None:
    tuner = _new(make, query)
    measured = [query.default, *_some(query)[::2]]
    for config in measured:
        tuner.tell(config, Measurement(times_s=(1e-3,)))
    again = {Config(c.config) for c in tuner.ask(1000)} & set(measured)
    assert not again, f"proposed measured configurations again: {again}"


def _some(query: Query) -> list[Config]:
    """All legal configurations, or in a large space those that others ran."""
    return list(query.space.enumerate() if query.space.size() else query.configs)


def _failures(make: Make, query: Query) -> None:
    tuner = _new(make, query)
    for status in STATUSES:
        for candidate in tuner.ask(1):
            times = (1e-3,) if status == "ok" else ()
            tuner.tell(Config(candidate.config), Measurement(status=status, times_s=times))
    tuner.tell(Config({"never": "heard of"}), Measurement(status="crash"))
    tuner.ask(1000)


def _untouched(make: Make, query: Query) -> None:
    """A query may be shared between tuners and threads."""
    frozen = replace(query)
    for field in fields(query):
        value = getattr(query, field.name)
        if isinstance(value, np.ndarray):
            frozen_array = value.copy()
            frozen_array.flags.writeable = False
            object.__setattr__(frozen, field.name, frozen_array)
    wanted = _new(make, query).ask(1000)
    assert _new(make, frozen).ask(1000) == wanted


class TunerContract:
    """Contract of a tuner: inherit, name the class `Test...`, and define `make`."""

    def make(self, query: Query, rng: np.random.Generator) -> Tuner:
        """A new tuner."""
        raise NotImplementedError

    def queries(self) -> dict[str, Query]:
        """Test cases; override to add queries of your own."""
        return sample_queries()

    def _check(self, test: Callable[[Make, Query], None]) -> None:
        for what, query in self.queries().items():
            try:
                test(self.make, query)
            except AssertionError as e:
                raise AssertionError(f"{what}: {e}") from e

    def test_proposals_are_legal_distinct_and_best_first(self) -> None:
        self._check(_proposals)

    def test_the_same_query_and_generator_give_the_same_proposals(self) -> None:
        self._check(_repeatable)

    def test_it_never_proposes_measured_configurations(self) -> None:
        self._check(_measured)

    def test_no_failure_raises(self) -> None:
        self._check(_failures)

    def test_the_query_is_left_alone(self) -> None:
        self._check(_untouched)
