"""Measuring one matrix: what is run, what is written back, and what is said of it."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import CONFIGS, DEFAULT, OP, by_law, patterns, tiny

from embeddb.core.config import Config, Op
from embeddb.core.errors import PluginError, SpaceError
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement
from embeddb.database import Database
from embeddb.index.recorder import Machine
from indexer.measure import Measured, MeasureRequest, measure_sample
from indexer.runners.base import RunOptions

HERE = tiny().at("here")


class Lawful:
    """Every configuration takes what the law says; the third one fails."""

    def __init__(self, stop_after: int = 99) -> None:
        self.stop_after = stop_after

    def run(
        self, pattern: Pattern, op: Op, configs: Sequence[Config], *, options: Any
    ) -> Iterator[tuple[Config, Measurement]]:
        for done, config in enumerate(configs):
            if done == self.stop_after:
                raise KeyboardInterrupt
            at = CONFIGS.index(config)
            failed = Measurement(status="timeout")
            yield config, failed if at == 2 else Measurement(times_s=(by_law(pattern, at),))

    def baselines(self, pattern: Pattern, op: Op, *, options: Any) -> dict[str, Measurement]:
        return {"scipy": Measurement(times_s=(1.0,), conversion_s=2.0)}


def machine(runner: Any) -> Machine:
    return Machine(Database.in_memory().index, runner, HERE, RunOptions())


def measured(runner: Any, **asked: Any) -> Measured:
    return measure_sample(machine(runner), MeasureRequest(op=OP, **asked), patterns()[0])


def test_what_ran_is_written_back_and_ranked() -> None:
    here, pattern = machine(Lawful()), patterns()[0]
    request = MeasureRequest(op=OP, configs=3, baselines=True)
    steps: list[tuple[str, int, int]] = []
    document = measure_sample(here, request, pattern, lambda *step: steps.append(step)).document()
    assert steps == [(f"measure {pattern.name}", at, 4) for at in range(1, 5)]
    runs = list(here.db.store.runs(HERE.id, OP, pattern.id))
    assert {run.config for run in runs} == set(CONFIGS) and {r.campaign for r in runs} == {
        "measure"
    }
    assert document["default"]["config"] == dict(DEFAULT)
    seconds = [c["seconds"] for c in document["configs"]]
    assert seconds[:3] == sorted(seconds[:3]) and seconds[3] is None
    assert document["configs"][3]["status"] == "timeout"
    assert document["baselines"]["scipy"]["conversion_s"] == 2.0


def test_given_configurations_run_beside_the_default() -> None:
    given = measured(Lawful(), texts=["variant=b"])
    assert set(given.timings) == {DEFAULT, CONFIGS[1]} and given.baselines == {}
    with pytest.raises(SpaceError):
        measured(Lawful(), texts=["variant=zzz"])


def test_the_order_is_that_of_the_seed() -> None:
    orders = [list(measured(Lawful(), seed=s).timings) for s in (1, 1, 2, 3, 4)]
    assert orders[0] == orders[1] and any(order != orders[0] for order in orders[2:])


@pytest.mark.parametrize(
    ("results", "fault", "stored"),
    [
        (lambda all_of: all_of[:2], "it returned 2 results for 4 configurations", 2),
        (lambda all_of: [*all_of, all_of[0]], "it returned more than 4 results", 4),
        (lambda all_of: all_of[::-1], "it returned a result of .* where one of .* was due", 0),
        (lambda all_of: [(c, 1.0) for c, _ in all_of], ".*: it is a float, not a Meas", 0),
        (
            lambda all_of: [(c, Measurement("great", (1.0,))) for c, _ in all_of],
            "the result of .* cannot be stored: its status is 'great', none of ok, invalid",
            0,
        ),
        (
            lambda all_of: [(c, Measurement(times_s=(np.float64(1.0),))) for c, _ in all_of],
            "the result of .* cannot be stored: Encoding objects of type numpy.float64",
            0,
        ),
        (
            lambda all_of: [(c, Measurement(times_s=(0.0,))) for c, _ in all_of],
            r"the result of .* cannot be stored: it has a time of 0\.0 s",
            0,
        ),
        (
            lambda all_of: [m for _, m in all_of],
            "it returned a Measurement, not a configuration and its measurement",
            0,
        ),
        (lambda _: sys.exit(3), r"run raised SystemExit: 3 \(test_measure.py, line \d+\)", 0),
        (lambda all_of: [None] * 4, "it returned 0 results for 4 configurations", 0),
        (
            lambda _: Path("nope").read_text(),
            r"run raised FileNotFoundError: .*nope.*line \d+\)",
            0,
        ),
        (lambda all_of: all_of[9].x, r"run raised IndexError: .*\(test_measure.py, line \d+\)", 0),
    ],
)
def test_a_faulty_runner_is_named(
    results: Callable[[Any], Any], fault: str, stored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lawful = Lawful.run
    monkeypatch.setattr(Lawful, "run", lambda *a, **more: iter(results([*lawful(*a, **more)])))
    here, pattern = machine(Lawful()), patterns()[0]
    with pytest.raises(PluginError, match=f"runner Lawful, on {pattern.name}: {fault}") as caught:
        measure_sample(here, MeasureRequest(op=OP, configs=3), pattern)
    assert "RunnerContract" in caught.value.hint
    assert len(list(here.db.store.runs(HERE.id, OP, pattern.id))) == stored


def full(_: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("ours", "results", "error"),
    [
        (False, full, OSError),
        (False, lambda _: (_ for _ in ()).throw(MemoryError), MemoryError),
        (True, lambda all_of: all_of[9].x, IndexError),
    ],
)
def test_a_fault_of_the_machine_or_our_own_is_no_fault_of_a_plug_in(
    ours: bool,
    results: Callable[[Any], Any],
    error: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lawful = Lawful.run
    monkeypatch.setattr(Lawful, "run", lambda *a, **more: iter(results([*lawful(*a, **more)])))
    if ours:
        monkeypatch.setattr(Lawful, "__module__", "indexer.runners.lawful")
    with pytest.raises(error):
        measured(Lawful(), configs=3)


def test_what_was_measured_before_an_interruption_is_kept() -> None:
    here = machine(Lawful(stop_after=2))
    with pytest.raises(KeyboardInterrupt):
        measure_sample(here, MeasureRequest(op=OP), patterns()[0])
    assert here.db.store.counts()["run"] == 2
