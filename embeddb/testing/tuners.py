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
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.records import STATUSES, Measurement, WorkloadInfo
from embeddb.nests.examples import sample_nests
from embeddb.nests.nest import Nest
from embeddb.nests.schedule import designed
from embeddb.platforms.platform import default_of, load_platform, parse_platform, space_of
from embeddb.ranking.query import Neighbour, Query
from embeddb.testing.common import leaves_all_alone
from tuners.base import Tuner

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
        with leaves_all_alone():
            proposed = tuner.ask(count)
        assert len(proposed) <= count, f"requested {count}, got {len(proposed)}"
        for candidate in proposed:
            config = Config(candidate.config)
            assert query.space.reason(config) is None, f"illegal: {query.space.reason(config)}"
            assert config not in seen, f"{config} is proposed twice"
            assert math.isfinite(candidate.score)
            gain = candidate.expected_gain
            assert gain is None or 0 < gain < math.inf, f"a gain of {gain!r}"
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


# -- Edge-case queries for the contract tests of tuners -------------------------------------------

_PLATFORM = """
name = "contract"
version = "1"
title = "For tuner contracts"

[[space]]
kernels = ["spmm"]
constraints = ["tile <= NUM_MATRIX_ROWS"]

[space.params]
tile = { type = "int", values = [1, 4, 16, 64] }
order = { type = "choice", values = ["ij", "ji"] }
chunk = { type = "int", values = [1, 8], when = "order == 'ji'" }

[space.default]
tile = 1
order = "ij"
"""


def sample_queries() -> dict[str, Query]:
    """Queries about a matrix and about loop nests, by description."""
    return {**_of_a_matrix(), **dict(_of_nests())}


def _of_a_matrix() -> dict[str, Query]:
    platform, op = parse_platform(_PLATFORM), Op("spmm", 8)
    small = WorkloadInfo(id="0" * 32, m=20, n=20, nnz=40, name="small", group="g")
    space = platform.space(op, small.sizes)
    bare = Query(small, platform, op, space, platform.default(op))
    configs = tuple(space.enumerate())
    c = len(configs)
    rng = np.random.default_rng(0)
    gains = rng.normal(size=(5, c))
    average = _voting(
        bare,
        configs=configs,
        gains=np.zeros((0, c)),
        prior=gains.mean(axis=0) - gains.mean(),
        mean=gains.mean(axis=0),
        cover=rng.permutation(c)[: c - 1],
    )
    voted = _voting(
        average,
        gains=gains,
        levels=gains.mean(axis=1),
        weights=np.linspace(2.0, 1.0, 5),
        shrink=1.0,
        neighbours=tuple(_neighbour(i, platform.id) for i in range(5)),
        vector=np.ones(3, dtype=np.float32),
        featurizer="none",
    )
    holes = np.where(rng.random(gains.shape) < 0.6, np.nan, gains)
    holes[:, 0] = np.nan
    none = np.full(c, np.nan)
    return {
        "nothing known": bare,
        "only averages": average,
        "neighbours": voted,
        "neighbours, no trust in the average": _voting(voted, shrink=0.0),
        "neighbours, all trust in the average": _voting(voted, shrink=math.inf),
        "few runs": _voting(voted, gains=holes, mean=np.where(np.arange(c) == 0, np.nan, 0.1)),
        "nothing ran": _voting(voted, gains=np.full(gains.shape, np.nan), mean=none),
        "all alike": _voting(voted, gains=np.zeros(gains.shape), prior=np.zeros(c)),
        "the default unknown": _voting(voted, knows_default=False),
        "one configuration": _only_first(voted),
        "a cost model alone": _predicted(bare, configs),
        "a cost model and neighbours": _predicted(voted, configs),
        "a cost model, few runs": _predicted(_voting(voted, gains=holes), configs[::2]),
        "a cost model, a space too large": _predicted(voted, configs[:2]),
        "a cost model, the default unknown": _voting(
            _predicted(voted, configs), knows_default=False
        ),
        "a price for preparation": replace(voted, calls=10.0),
    }


def _of_nests() -> Iterator[tuple[str, Query]]:
    """A matrix product, and loops with few legal schedules: their spaces are too large to
    enumerate, and the nest's own rules decide on each configuration."""
    for name, nest in sample_nests(64).items():
        if name in ("matmul", "triangular"):
            yield f"a nest ({name}), nothing known", _about(nest)
            yield f"a nest ({name}), neighbours", _ran_by_others(_about(nest))


def _about(nest: Nest) -> Query:
    platform, op = load_platform("nest-cpu"), Op("nest")
    space, default = space_of(platform, op, nest), default_of(platform, op, nest)
    return Query(WorkloadInfo.of(nest), platform, op, space, default)


def _ran_by_others(query: Query) -> Query:
    """The query with gains of three neighbours by the legal ones of forty designed schedules."""
    tried = designed(query.pattern.named["DEPTH"])[:40]
    reasons = {schedule.config: query.space.reason(schedule.config) for schedule in tried}
    configs = tuple(config for config, reason in reasons.items() if reason is None)
    gains = np.random.default_rng(0).normal(size=(3, len(configs)))
    return _voting(
        query,
        configs=configs,
        rejected={config: reason for config, reason in reasons.items() if reason is not None},
        gains=gains,
        levels=gains.mean(axis=1),
        weights=np.ones(3),
        prior=gains.mean(axis=0) - gains.mean(),
        mean=gains.mean(axis=0),
        shrink=1.0,
        neighbours=tuple(_neighbour(i, query.platform.id) for i in range(3)),
    )


def _voting(query: Query, **changes: Any) -> Query:
    """The query with a changed vote."""
    return replace(query, vote=replace(query.vote, **changes))


def _predicted(query: Query, configs: Sequence[Config]) -> Query:
    """The query with predictions for some configurations: a hash of their texts."""

    def predict(queried: Sequence[Config]) -> Any:
        law = [zlib.crc32(c.json.encode()) / 2**32 for c in (query.default, *queried)]
        gain = np.array(law)
        return gain[1:] - gain[0], np.full(len(queried), 0.1)

    gain, spread = predict(configs)
    return replace(
        query,
        prediction=replace(
            query.prediction,
            configs=tuple(configs),
            gain=gain - gain.mean(),
            spread=spread,
            predict=predict,
            version="made up",
            judged={"transfer": 0.8, "rank": 0.9, "transfer+rank": 0.95},
        ),
    )


def _neighbour(i: int, platform_id: str) -> Neighbour:
    return Neighbour(f"{i}" * 32, platform_id, f"n{i}", f"g{i}", float(i), i / 5)


def _only_first(query: Query) -> Query:
    vote, zero = query.vote, np.zeros(1)
    first: dict[str, Any] = {"configs": vote.configs[:1], "gains": vote.gains[:, :1]}
    return _voting(query, **first, prior=zero, mean=zero, cover=np.zeros(1, dtype=np.int64))
