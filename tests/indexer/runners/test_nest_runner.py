"""The nest runner: every schedule checked, every failure a status, nothing unsafe ever compiled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from nest_forms import NESTS, ix

from embeddb.core.config import Config, Op
from embeddb.core.errors import NestError, RunnerUnavailable, UsageError
from embeddb.core.plugins import available, load
from embeddb.core.records import Measurement
from embeddb.kernels.build import compiler
from embeddb.kernels.nests.generate import c_function
from embeddb.nests.nest import Nest
from embeddb.nests.parts import Array, Loop
from embeddb.nests.schedule import Schedule
from embeddb.testing.runners import RunnerContract
from indexer.runners.base import RunOptions
from indexer.runners.harness import building, measuring
from indexer.runners.nest import NestRunner
from indexer.runners.nest_code import job as nest_job

needs_gcc = pytest.mark.skipif(compiler() is None, reason="needs gcc")
pytestmark = [pytest.mark.gcc, needs_gcc]

OP = Op("nest")
QUICK = RunOptions(repeats=1, max_repeats=1, threads=1)
MATMUL = NESTS["matmul"]
PLAIN = Schedule((0, 1, 2), (0, 0, 0)).config
SWAPPED = Schedule((0, 2, 1), (0, 0, 0), inner="simd").config
TILED = Schedule((2, 0, 1), (4, 0, 8), "second", "dynamic", 4, "unroll4", "read1").config
JAMMED = Schedule((0, 1, 2), (0, 8, 0), "outer", inner="jam4", pack="read2").config
FEW = [PLAIN, SWAPPED, TILED, JAMMED]


@pytest.fixture(scope="module")
def shared_runner() -> Iterator[NestRunner]:
    with NestRunner() as made:
        yield made


def statuses(
    runner: NestRunner, nest: Nest, configs: list[Config], options: RunOptions = QUICK
) -> list[str]:
    found = runner.run(nest, OP, configs, options=options)
    return [f"{m.status} {m.error}".strip() for _, m in found]


class TestContract(RunnerContract):
    op = OP

    @pytest.fixture
    def runner(self, shared_runner: NestRunner) -> NestRunner:
        return shared_runner

    @pytest.fixture
    def options(self) -> RunOptions:
        return QUICK

    @pytest.fixture
    def configs(self) -> list[Config]:
        return FEW

    @pytest.fixture
    def pattern(self) -> Nest:  # type: ignore[override]  # what this runner's subjects are
        return MATMUL

    def test_the_pattern_is_left_alone(self) -> None:
        """A nest holds no arrays."""


def test_it_is_a_plugin_for_nests() -> None:
    assert "nest" in available("runner")
    assert load("runner", "nest") is NestRunner


def test_a_measurement_tells_what_it_was(shared_runner: NestRunner) -> None:
    options = RunOptions(repeats=3, max_repeats=4, min_time_s=10.0, threads=2)
    for _, m in shared_runner.run(MATMUL, OP, FEW, options=options):
        assert m.ok and len(m.times_s) == 4 and m.compile_s and m.when
        assert m.tolerance is not None and 1e-7 < m.tolerance < 1e-4
        assert m.context["threads"] == 2 and m.context["cache"] == "warm"
        assert m.context["limit_s"] <= options.timeout_s


def test_the_platform_tells_the_flags(shared_runner: NestRunner) -> None:
    here, other = shared_runner.platform(threads=1), shared_runner.platform(threads=2)
    assert here.name == "nest-cpu" and here.instance != other.instance
    assert "-ffast-math" in here.environment["flags"] and here.environment["threads"] == "1"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (Config({**PLAIN, "tile_1": 5}), "tile_1"),
        (Config({**PLAIN, "order_3": ("1", "1", "2")}), "order_3"),
        (Config({**PLAIN, "inner": "fast"}), "inner"),
    ],
)
def test_an_unknown_value_is_invalid(shared_runner: NestRunner, config: Config, said: str) -> None:
    (found,) = statuses(shared_runner, MATMUL, [config])
    assert found.startswith("invalid") and said in found


def test_an_illegal_order_is_invalid(shared_runner: NestRunner) -> None:
    scan = NESTS["scan"]
    parallel = Schedule((1, 0), (0, 0), "outer").config
    (found,) = statuses(shared_runner, scan, [parallel])
    assert found.startswith("invalid loop i2 cannot run in parallel")


def poisoned(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """Other code for schedules in another order than the nest's."""

    def told(nest: Nest, schedule: Schedule, name: str) -> str:
        text = c_function(nest, schedule, name)
        if schedule.order == (0, 1, 2):
            return text
        assert old in text
        return text.replace(old, new)

    monkeypatch.setattr(nest_job, "c_function", told)


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ("+= 1.001f *", "wrong a0[0, 0] is off by"),
        ("= 0 *", "wrong a0[0, 0] is off by"),
        ("+= *(volatile int *)8 + ", "crash the worker ended with signal SIGSEGV"),
        ("+= no_such_thing *", "build gcc failed:"),
    ],
)
def test_a_failing_schedule_is_a_status(
    monkeypatch: pytest.MonkeyPatch, shared_runner: NestRunner, new: str, expected: str
) -> None:
    poisoned(monkeypatch, "+=", new)
    found = statuses(shared_runner, MATMUL, [PLAIN, SWAPPED, JAMMED])
    assert found[0] == found[2] == "ok"
    assert found[1].startswith(expected)


def test_an_endless_schedule_is_ended_soon(
    monkeypatch: pytest.MonkeyPatch, shared_runner: NestRunner
) -> None:
    poisoned(monkeypatch, "{\n    for", "{\n    for (volatile int x = 1; x;) ;\n    for")
    found = statuses(shared_runner, MATMUL, [PLAIN, SWAPPED, JAMMED])
    assert found[0] == found[2] == "ok"
    limit = float(found[1].split("within ")[1].split(" s")[0])
    assert found[1].startswith("timeout no answer within") and limit < 1


def test_a_slow_schedule_is_run_once(
    monkeypatch: pytest.MonkeyPatch, shared_runner: NestRunner
) -> None:
    poisoned(
        monkeypatch, "{\n    for", "{\n    for (volatile int x = 0; x < 400000000;) x++;\n    for"
    )
    monkeypatch.setattr(measuring, "SLOWEST_BESIDE_S", 20.0)
    options = RunOptions(repeats=3, max_repeats=3, threads=1)
    found = dict(shared_runner.run(MATMUL, OP, [PLAIN, SWAPPED], options=options))
    assert len(found[PLAIN].times_s) == 3 and len(found[SWAPPED].times_s) == 1


def test_an_unsafe_nest_is_never_compiled(
    monkeypatch: pytest.MonkeyPatch, shared_runner: NestRunner
) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(building, "compile_to", lambda *asked: compiled.append("it") or "")
    outside = replace(MATMUL, loops=(Loop(ix(), ix(22)), *MATMUL.loops[1:]))
    with pytest.raises(NestError, match="outside 0 to 20"):
        statuses(shared_runner, outside, FEW)
    assert not compiled


def test_the_compiled_reference_serves_large_nests(
    monkeypatch: pytest.MonkeyPatch, shared_runner: NestRunner
) -> None:
    monkeypatch.setattr(nest_job, "suits", lambda _: False)
    assert statuses(shared_runner, MATMUL, FEW) == ["ok"] * 4
    poisoned(monkeypatch, "+=", "+= 1.001f *")
    assert statuses(shared_runner, MATMUL, [SWAPPED])[0].startswith("wrong a0[0, 0]")


def test_too_large_arrays_are_oom(shared_runner: NestRunner) -> None:
    found = statuses(shared_runner, MATMUL, FEW[:1], replace(QUICK, max_bytes=10_000))
    assert found[0].startswith("oom the arrays need") and found[0].endswith("of 10000")


def test_without_a_check_there_is_no_tolerance(shared_runner: NestRunner) -> None:
    options = replace(QUICK, check=False)
    (m,) = (m for _, m in shared_runner.run(MATMUL, OP, [PLAIN], options=options))
    assert m.ok and m.tolerance is None


def test_what_was_written_is_put_back_before_each_call(shared_runner: NestRunner) -> None:
    """Products in place would run off to 0 or infinity."""
    options = RunOptions(repeats=25, threads=1)
    gains = Schedule((0, 1), (0, 0)).config
    (m,) = (m for _, m in shared_runner.run(NESTS["row_products"], OP, [gains], options=options))
    assert m.ok and len(m.times_s) == 25


def test_another_operation_is_refused(shared_runner: NestRunner) -> None:
    with pytest.raises(UsageError, match="the nest runner has no spmm:8"):
        next(shared_runner.run(MATMUL, Op("spmm", 8), FEW, options=QUICK))


def test_without_gcc_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with NestRunner() as runner:
        assert runner.available() is not None
        with pytest.raises(RunnerUnavailable, match="gcc not found"):
            next(runner.run(MATMUL, OP, FEW, options=QUICK))


def test_whole_numbers_are_checked_exactly(
    monkeypatch: pytest.MonkeyPatch, shared_runner: NestRunner
) -> None:
    histogram = NESTS["histogram"]
    config = Schedule((0, 1), (0, 0)).config

    def told(nest: Nest, schedule: Schedule, name: str) -> str:
        text = c_function(nest, schedule, name)
        return text.replace("i1 < 70", "i1 < 69") if schedule.parallel == "none" else text

    monkeypatch.setattr(nest_job, "c_function", told)
    (found,) = statuses(shared_runner, histogram, [config])
    assert found.startswith("wrong a0[")


def test_an_array_that_is_assigned_is_no_leftover(
    monkeypatch: pytest.MonkeyPatch, shared_runner: NestRunner
) -> None:
    """What one schedule wrote is not taken for the result of the next, which writes nothing."""
    stencil = NESTS["stencil"]

    def told(nest: Nest, schedule: Schedule, name: str) -> str:
        text = c_function(nest, schedule, name)
        return text.replace("< 61", "< 0") if schedule.order == (1, 0) else text

    monkeypatch.setattr(nest_job, "c_function", told)
    configs = [Schedule((0, 1), (0, 0)).config, Schedule((1, 0), (0, 0)).config]
    found = statuses(shared_runner, stencil, configs)
    assert found[0] == "ok" and found[1].startswith("wrong a0[1, 1]")


def test_numbers_of_another_seed_are_other_numbers() -> None:
    from indexer.runners.nest_code.fill import filled

    array = Array("f32", (10,))
    assert not np.array_equal(filled(array, 0, 0), filled(array, 0, 1))


def test_a_measurement_of_a_failure_has_no_times(shared_runner: NestRunner) -> None:
    (m,) = (m for _, m in shared_runner.run(MATMUL, OP, [Config({"x": 1})], options=QUICK))
    assert isinstance(m, Measurement) and m.status == "invalid" and not m.times_s
