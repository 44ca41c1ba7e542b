"""Contract tests of runners, as a base class.

class TestMine(RunnerContract):
    @pytest.fixture
    def runner(self): return MyRunner()
    @pytest.fixture
    def options(self): return RunOptions(repeats=2)
    @pytest.fixture
    def configs(self): return [Config({...}), Config({...})]   # legal, at least two, distinct
"""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.core.kinds import kind_of
from embeddb.core.pattern import Pattern
from embeddb.core.records import STATUSES, storable
from embeddb.core.workload import Workload
from embeddb.nests.examples import sample_nests
from embeddb.nests.nest import Nest
from embeddb.testing.common import has_own_name, leaves_all_alone
from indexer.runners.base import MeasuresFacts, ReportsState, Runner, RunOptions


class RunnerContract:
    """Contract of a runner. Subclasses define the fixtures `runner`, `options` and `configs`, and
    `op` if not SpMM. With `op = Op("nest")` the configurations are for the nest of `pattern`, a
    matrix product."""

    op = Op("spmm", 8)

    @pytest.fixture
    def runner(self) -> Runner:
        raise NotImplementedError

    @pytest.fixture
    def options(self) -> RunOptions:
        raise NotImplementedError

    @pytest.fixture
    def configs(self) -> list[Config]:
        raise NotImplementedError

    @pytest.fixture
    def pattern(self) -> Workload:
        """A small matrix with an empty row, a full row and an entry in the last column; or a nest
        of three loops."""
        return _matrix() if self.op.workload.sparse else _nest()

    def test_availability_is_none_or_one_line(self, runner: Runner) -> None:
        has_own_name("runner", runner)
        reason = runner.available()
        assert reason is None or (reason and "\n" not in reason)

    def test_the_platform_is_the_same_every_time(self, runner: Runner) -> None:
        first, second = runner.platform(), runner.platform()
        assert first.id == second.id and first.text == second.text
        assert first.kernel(self.op)

    def test_an_operation_of_another_kernel_is_an_error(
        self, runner: Runner, options: RunOptions, configs: list[Config], pattern: Workload
    ) -> None:
        """For operations on the same matrices that its platform does not have."""
        own = runner.platform().kernels
        lacking = [name for name in ("spmm", "sddmm", "spmv") if name not in own]
        for name in lacking:
            with pytest.raises(UsageError):
                list(runner.run(pattern, Op(name, 1), configs, options=options))

    def test_one_measurement_per_config_in_order(
        self, runner: Runner, options: RunOptions, configs: list[Config], pattern: Workload
    ) -> None:
        requested, began = [*configs, *reversed(configs)], time.time()
        with leaves_all_alone():
            runner.platform()
            answered = list(runner.run(pattern, self.op, requested, options=options))
        passed = time.time() - began
        assert [config for config, _ in answered] == requested
        for _, measurement in answered:
            assert storable(measurement)
            assert measurement.status == "ok", measurement.error
            assert not measurement.when or -1 <= measurement.when - began <= passed + 1, "`when`"
            for cpu in (measurement.cpu_max_s, measurement.cpu_sum_s):
                assert len(cpu) in (0, len(measurement.times_s))
        spent = sum(sum(m.times_s) for _, m in answered if m.source == "hardware")
        assert spent <= passed + 0.1, f"times of {spent:.3g} s in {passed:.3g}: are they seconds?"

    def test_measurements_stream(
        self, runner: Runner, options: RunOptions, configs: list[Config], pattern: Workload
    ) -> None:
        stream = runner.run(pattern, self.op, configs, options=options)
        first, _ = next(stream)
        stream.close()  # type: ignore[attr-defined]  # a generator, so that it can be left early
        assert first == configs[0]
        again = list(runner.run(pattern, self.op, configs[1:], options=options))
        assert [config for config, _ in again] == configs[1:]

    def test_facts_extend_the_environment(self, runner: Runner) -> None:
        """For runners with `facts`."""
        if not isinstance(runner, MeasuresFacts):
            return
        before = runner.platform()
        facts = runner.facts()
        after = runner.platform()
        assert all(isinstance(k, str) and isinstance(v, str) for k, v in facts.items())
        assert facts.items() <= after.environment.items() and after.id == before.id
        assert before.environment.keys() <= after.environment.keys()

    def test_a_state_is_positive_figures(self, runner: Runner) -> None:
        """For runners with `state`."""
        if not isinstance(runner, ReportsState):
            return
        one, other = runner.state(threads=1), runner.state(threads=1)
        assert one.keys() == other.keys()
        assert all(0 < value < math.inf for value in (*one.values(), *other.values()))

    def test_no_configs_no_measurements(
        self, runner: Runner, options: RunOptions, pattern: Workload
    ) -> None:
        assert list(runner.run(pattern, self.op, [], options=options)) == []

    def test_a_foreign_config_is_a_status(
        self, runner: Runner, options: RunOptions, configs: list[Config], pattern: Workload
    ) -> None:
        foreign = Config({"no_such_parameter": 1})
        requested = [configs[0], foreign, configs[1]]
        measured = dict(runner.run(pattern, self.op, requested, options=options))
        assert measured[configs[0]].ok and measured[configs[1]].ok
        assert measured[foreign].status in STATUSES and not measured[foreign].ok
        assert measured[foreign].error and "\n" not in measured[foreign].error
        assert measured[foreign].seconds == math.inf

    def test_an_operation_on_something_else_is_an_error(
        self, runner: Runner, options: RunOptions, configs: list[Config]
    ) -> None:
        """Override it for a runner of matrices and of nests."""
        other = Op("nest") if self.op.workload.sparse else Op("spmm", 8)
        subject = _matrix() if other.workload.sparse else _nest()
        with pytest.raises(UsageError):
            list(runner.run(subject, other, configs, options=options))

    def test_the_pattern_is_left_alone(
        self, runner: Runner, options: RunOptions, configs: list[Config], pattern: Workload
    ) -> None:
        before = _content(pattern)
        list(runner.run(pattern, self.op, configs, options=options))
        assert _content(pattern) == before


def _matrix() -> Pattern:
    rows = np.array([0, 0, 2, 2, 2, 2, 2, 3])
    cols = np.array([0, 4, 0, 1, 2, 3, 4, 4])
    return Pattern.from_coo((4, 5), rows, cols, name="contract")


def _nest() -> Nest:
    return sample_nests(16)["matmul"]


def _content(pattern: Workload) -> bytes:
    return kind_of(pattern.kind).encode(pattern)
