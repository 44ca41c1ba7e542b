"""Matrices tuned by a law in the place of gcc: what is tried, for how long, and what is kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, Run
from embeddb.database import Database
from embeddb.index import recorder
from embeddb.platforms.platform import default_of, load_platform, space_of
from tuners import search, tune_matrix
from tuners.tune_matrix import MatrixTuneRequest, MatrixTuning, Ranking

OP = Op("spmm", 32)
HERE = load_platform("cpu").at("somewhere", {"threads": "2"})
#: Seconds of the clock that any run takes.
COST_S = 0.5


def pattern(seed: int) -> Pattern:
    rows, cols = np.nonzero(np.random.default_rng(seed).random((40 + seed, 40)) < 0.1)
    return Pattern.from_coo((40 + seed, 40), rows, cols, name=f"p{seed}", group=f"g{seed}")


def seconds(config: Config) -> float:
    """Blocks are slow, many columns at a time are fast."""
    slow = 4.0 if config["format"] != "csr" else 1.0
    return 1e-3 * slow / (1 + math.log2(float(config.get("ktile") or 1)))


@dataclass
class Machine:
    """In the place of the runner; after `left` runs somebody presses Ctrl-C, and `breaks` fail."""

    left: int = 1 << 30
    breaks: frozenset[Config] = frozenset()
    session: int = 0
    ran: list[Config] = field(default_factory=list)

    def run(
        self, subject: Pattern, op: Op, configs: Sequence[Config], *, options: Any
    ) -> Iterator[tuple[Config, Measurement]]:
        for config in configs:
            if len(self.ran) == self.left:
                raise KeyboardInterrupt
            self.ran.append(config)
            when = 1e3 * self.session + len(self.ran)
            bad = Measurement("wrong", error="off by 1", when=when)
            good = Measurement(times_s=(seconds(config),), when=when)
            yield config, bad if config in self.breaks else good


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock is half of what a run takes later."""
    at = iter(range(1 << 30))
    played = SimpleNamespace(perf_counter=lambda: COST_S * next(at), monotonic=lambda: 0.0)
    for module in (recorder, search):
        monkeypatch.setattr(module, "time", played)


@pytest.fixture
def empty() -> Iterator[Database]:
    with Database.in_memory() as opened:
        yield opened


@pytest.fixture
def db(empty: Database) -> Database:
    """Eight matrices that ran a part of the space."""
    for seed in range(8):
        one = pattern(seed)
        space, default = space_of(HERE, OP, one), default_of(HERE, OP, one)
        configs = [default, *space.sample(40, rng=np.random.default_rng(1))]
        runs = [
            Run(one.id, OP, HERE.id, config, Measurement(times_s=(seconds(config),)))
            for config in dict.fromkeys(configs)
        ]
        empty.index.record(runs, one, HERE)
    empty.index.refresh(OP, "cpu")
    return empty


def tuned(db: Database, machine: Machine, **asked: Any) -> Any:
    request = MatrixTuneRequest(**{"hardware_s": 6.0, "model_s": 1.0, **asked})
    return MatrixTuning(db.index, machine, HERE, request).run(pattern(20), OP)


def kept(db: Database) -> list[Run]:
    return list(db.store.runs(HERE.id, OP, pattern(20).id))


@pytest.mark.usefixtures("clock")
def test_neighbours_rank_and_the_seconds_are_kept_to(db: Database) -> None:
    machine = Machine()
    done, ranked = tuned(db, machine)
    assert done.by == "neighbours" and done.ranked == len(ranked.configs) > 20
    assert done.hardware_s == pytest.approx(6.0) and len(done.tried) == 12
    assert machine.ran[0] == done.default
    assert set(machine.ran[1:12]) <= set(ranked.configs)
    assert done.gain > 1 and done.apart and done.best != done.default
    assert len(done.finalists) == 3 and len(machine.ran) == done.fresh == 12 + 4 * 3
    assert {one[0] for one in zip(*[iter(machine.ran[12:])] * 4, strict=True)} > {done.default}
    assert len(kept(db)) == len(machine.ran)
    again = Machine()
    same, _ = tuned(db, again)
    assert not again.ran and (same.best, same.gain) == (done.best, done.gain)


@pytest.mark.usefixtures("clock")
def test_a_model_that_learned_from_a_tuning_repeats_none_of_it(
    empty: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = space_of(HERE, OP, pattern(20)).sample(12, rng=np.random.default_rng(0))

    def learned(*_: Any, **__: Any) -> Ranking:
        """Another version, and another order, for every number of runs."""
        count = empty.store.count_runs()
        turned = np.random.default_rng(count).permutation(len(few))
        return Ranking("model", [few[at] for at in turned], model=f"version {count}")

    monkeypatch.setattr(tune_matrix, "ranking", learned)
    first, _ = tuned(empty, Machine(), hardware_s=100.0, rounds=1)
    for session, budget_s in enumerate((100.0, 150.0), 1):
        machine = Machine(session=session)
        done, ranked = tuned(empty, machine, hardware_s=budget_s, rounds=1)
        assert not machine.ran and (done.best, done.gain) == (first.best, first.gain)
    assert ranked.model != first.model


@pytest.mark.usefixtures("clock")
def test_more_seconds_go_further_and_the_default_runs_in_between(db: Database) -> None:
    tuned(db, Machine())
    machine = Machine(session=1)
    done, _ = tuned(db, machine, hardware_s=15.0)
    assert done.hardware_s >= 15.0 and len(done.tried) > 12
    assert machine.ran[0] == machine.ran[17] == done.default


@pytest.mark.usefixtures("clock")
def test_ctrl_c_loses_nothing_that_ran(db: Database) -> None:
    with pytest.raises(KeyboardInterrupt):
        tuned(db, Machine(left=5))
    assert len(kept(db)) == 5
    rest = Machine(session=1)
    done, _ = tuned(db, rest)
    assert len(done.tried) >= 11 and done.hardware_s == pytest.approx(6.0, abs=COST_S)
    assert len(kept(db)) == 5 + len(rest.ran)


@pytest.mark.usefixtures("clock")
def test_what_fails_is_told_and_never_best(db: Database) -> None:
    right, _ = tuned(db, Machine())
    with Database.in_memory() as other:
        machine = Machine(breaks=frozenset({right.best}))
        done, _ = tuned(other, machine, by="analytical", hardware_s=300.0)
    assert done.best != right.best and done.failed[right.best] == "wrong: off by 1"


@pytest.mark.usefixtures("clock")
def test_where_nothing_is_known_annealing_goes_by_what_is_measured(empty: Database) -> None:
    machine = Machine()
    done, ranked = tuned(empty, machine, hardware_s=40.0)
    assert (done.by, done.ranked, ranked.configs) == ("hardware", 0, ())
    assert machine.ran[0] == done.default and len(done.tried) == 80
    assert done.gain > 1
    again, _ = tuned(empty, Machine(session=1), hardware_s=45.0)
    assert len(again.tried) >= 90 and set(done.tried) <= set(again.tried)


def test_in_no_seconds_of_hardware_nothing_runs(db: Database) -> None:
    machine = Machine()
    done, ranked = tuned(db, machine, hardware_s=0.0)
    assert not machine.ran and done.best == done.default and done.gain is None
    assert len(ranked.configs) == done.ranked


def test_the_analytical_model_ranks_without_runs(empty: Database) -> None:
    done, ranked = tuned(empty, Machine(), hardware_s=0.0, by="analytical")
    size = space_of(HERE, OP, pattern(20)).size()
    assert done.by == "analytical" and len(set(ranked.configs)) == size


def test_who_is_asked_for_must_know_something(empty: Database) -> None:
    with pytest.raises(NothingFound, match="near this one ran spmm:32"):
        tuned(empty, Machine(), by="neighbours")
    with pytest.raises(NothingFound, match="no cost model"):
        tuned(empty, Machine(), by="model")


@pytest.mark.parametrize(
    "asked",
    [
        {"by": "luck"},
        {"hardware_s": -1.0},
        {"model_s": math.nan},
        {"by": "model", "model_s": 0.0},
        {"model_s": 0.0, "hardware_s": 0.0},
    ],
)
def test_budgets_and_rankers_that_are_none(asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        MatrixTuneRequest(**asked)
