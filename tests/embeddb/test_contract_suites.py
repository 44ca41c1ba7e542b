"""The shipped contract suites fail a plug-in that is subtly wrong."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import tiny

from embeddb.core.config import Config, Op
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


class Leaning(Dropping):
    """A reader that yields one dictionary again and again, or once it has read nothing."""

    read = False

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow]:
        config: dict[str, Any] = {}
        for row in () if self.read else super().rows(path, options=options):
            config.update(row.config)
            yield RunRow(row.matrix, row.op, config, row.measurement, row.line)


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
    suite, leaning = Suite(), Leaning()
    suite.make = lambda: leaning  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="'a': 'x'"):
        suite.test_reading_twice_gives_the_same(tmp_path)
    leaning.read = True
    with pytest.raises(AssertionError, match="an earlier reader left a trace"):
        suite.test_reading_twice_gives_the_same(tmp_path)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda: sys.stdout.write("embedding"), "prints on standard output: 'embedding"),
        (lambda: os.write(1, b"embedding"), "prints on standard output: 'embedding"),
        (lambda: np.random.seed(0), "changes the state of numpy.random"),  # noqa: NPY002
        (lambda: random.seed(0), "changes the state of random"),
        (lambda: np.seterr(all="ignore"), "changes numpy's handling of errors"),
        (lambda: os.chdir("/"), "changes the current folder"),
    ],
)
def test_a_plug_in_that_changes_what_all_share(
    act: Callable[[], object], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Loud(Stats):
        def embed(self, pattern: Any) -> Any:
            act()
            return super().embed(pattern)

    suite = FeaturizerContract()
    suite.make = Loud  # type: ignore[method-assign]
    monkeypatch.chdir(tmp_path)
    with np.errstate(), pytest.raises(AssertionError, match=said):
        suite.test_every_pattern_gives_finite_float32()


def test_a_vector_that_changes_with_the_next() -> None:
    class Shared(Stats):
        room = np.zeros(len(Stats.names), dtype=np.float32)

        def embed(self, pattern: Any) -> Any:
            self.room[:] = super().embed(pattern)
            return self.room

    suite = FeaturizerContract()
    suite.make = Shared  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="no rows"):
        suite.test_only_the_structure_counts()


def test_a_name_of_one_that_ships() -> None:
    class Apart(Stats):
        version = "mine"

    suite = FeaturizerContract()
    suite.make = Apart  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="stats is a featurizer that ships"):
        suite.test_name_version_and_coordinates_are_valid()


def test_an_assertion_shows_what_differs(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "from embeddb.testing.featurizers import FeaturizerContract\n"
        "from embeddb.featurizers.sizes import LogSizes\n"
        "class Wide(LogSizes):\n"
        "    name = 'wide'\n"
        "    def embed(self, pattern): return super().embed(pattern).astype(float)\n"
        "class TestIt(FeaturizerContract):\n"
        "    def make(self): return Wide()\n"
    )
    args = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    said = subprocess.run(args, cwd=tmp_path, capture_output=True, text=True, timeout=120).stdout
    assert "assert dtype('float64') == <class 'numpy.float32'>" in said


def test_a_runner_whose_times_cannot_be_stored() -> None:
    class Narrow(Moving):
        def run(self, _pattern: Any, _op: Op, configs: Any, **_: Any) -> Iterator[Any]:
            for config in configs:
                yield config, Measurement(times_s=(np.float32(1.0),))  # type: ignore[arg-type]

    pattern = FeaturizerContract().patterns()["dense"]
    with pytest.raises(TypeError, match="numpy"):
        RunnerContract().test_one_measurement_per_config_in_order(
            Narrow(),  # type: ignore[arg-type]
            RunOptions(),
            [Config({"variant": "a"})],
            pattern,
        )


def test_a_runner_that_mistakes_units() -> None:
    class Slow(Moving):
        when = 0.0

        def run(self, _pattern: Any, _op: Op, configs: Any, **_: Any) -> Iterator[Any]:
            for config in configs:
                yield config, Measurement(times_s=(1e-6 if self.when else 9.0,), when=self.when)

    pattern, runner = FeaturizerContract().patterns()["dense"], Slow()
    args: Any = (runner, RunOptions(), [Config({"variant": "a"})], pattern)
    with pytest.raises(AssertionError, match="are they seconds"):
        RunnerContract().test_one_measurement_per_config_in_order(*args)
    runner.when = time.time() * 1000
    with pytest.raises(AssertionError, match="when"):
        RunnerContract().test_one_measurement_per_config_in_order(*args)


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
