"""The shipped contract suites fail a plug-in that is subtly wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import tiny

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.core.records import Measurement
from embeddb.featurizers.stats import Stats
from embeddb.testing.featurizers import FeaturizerContract
from embeddb.testing.readers import ReaderContract
from embeddb.testing.runners import RunnerContract
from indexer.readers.base import MatrixRef, ReadOptions, RunRow
from indexer.runners.base import RunOptions


class Apart(Stats):
    """Its vectors of sizes alone are not those of the matrices."""

    def from_info(self, info: Any) -> Any:
        return np.full(self.dim, info.nnz, dtype=np.float32)


class Dropping:
    """A reader that skips the rows that it cannot read."""

    name, platform, generic = "dropping", "", False

    def sniff(self, _path: Path, _head: bytes) -> bool:
        return True

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow]:
        for line, text in enumerate(path.read_text().splitlines(), 1):
            cells = text.split()
            if len(cells) == 3:
                run = Measurement("ok", (float(cells[2]),), "imported")
                yield RunRow(MatrixRef(cells[0]), Op("spmm", 8), {"a": cells[1]}, run, line)


class Moving:
    """A runner with another instance in every call, which measures any operation as SpMM."""

    calls = 0

    def platform(self, *, threads: int = 0) -> Any:
        self.calls += 1
        return tiny().at(f"{self.calls:08x}")

    def run(self, _pattern: Any, _op: Op, configs: Any, **_: Any) -> Iterator[Any]:
        for config in configs:
            yield config, Measurement(times_s=(1.0,))


def test_vectors_of_information_are_those_of_the_matrix() -> None:
    suite = FeaturizerContract()
    suite.make = Apart  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        suite.test_information_gives_the_same_vector_or_none()


def test_a_reader_that_drops_rows_or_takes_any_text(tmp_path: Path) -> None:
    class Suite(ReaderContract):
        def make(self) -> Any:
            return Dropping()

        def example(self, folder: Path) -> tuple[Path, ReadOptions, int]:
            path = folder / "log.txt"
            path.write_text("cube x 1.5\nmesh y 0.75\n")
            return path, ReadOptions(), 2

    Suite().test_reads_its_example(tmp_path)
    with pytest.raises(AssertionError):
        Suite().test_a_row_cut_short_is_no_row_less(tmp_path)
    with pytest.raises(AssertionError):
        Suite().test_recognises_its_example_only(tmp_path)


def test_a_plug_in_that_prints() -> None:
    class Loud(Stats):
        def embed(self, pattern: Any) -> Any:
            sys.stdout.write("embedding")
            return super().embed(pattern)

    suite = FeaturizerContract()
    suite.make = Loud  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="prints on standard output: 'embedding"):
        suite.test_every_pattern_gives_finite_float32()


def test_a_runner_whose_times_cannot_be_stored() -> None:
    class Narrow(Moving):
        def run(self, _pattern: Any, _op: Op, configs: Any, **_: Any) -> Iterator[Any]:
            for config in configs:
                yield config, Measurement(times_s=(np.float32(1.0),))  # type: ignore[arg-type]

    pattern = FeaturizerContract().patterns()["dense"]
    with pytest.raises(UsageError, match="cannot be stored"):
        RunnerContract().test_one_measurement_per_config_in_order(
            Narrow(),  # type: ignore[arg-type]
            RunOptions(),
            [Config({"variant": "a"})],
            pattern,
        )


def test_a_runner_of_another_instance_each_time_or_of_any_operation() -> None:
    suite, runner = RunnerContract(), Moving()
    with pytest.raises(AssertionError):
        suite.test_the_platform_is_the_same_every_time(runner)  # type: ignore[arg-type]
    pattern = FeaturizerContract().patterns()["dense"]
    with pytest.raises(pytest.fail.Exception):
        suite.test_an_operation_of_another_kernel_is_an_error(
            runner,
            RunOptions(),
            [Config({"variant": "a"})],
            pattern,  # type: ignore[arg-type]
        )
