"""Runner `cuda` on an emulated GPU: right numbers, and every failure a status."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embeddb.core.config import Config, Op
from embeddb.core.errors import RunnerUnavailable
from embeddb.core.pattern import Pattern
from embeddb.core.plugins import load
from embeddb.core.records import Measurement
from embeddb.kernels.cuda import plan as cuda_plan
from embeddb.kernels.cuda.device import NoDeviceMemory
from embeddb.testing.runners import RunnerContract
from indexer.runners import cuda
from indexer.runners.base import RunOptions
from indexer.runners.cuda import CudaRunner

pytest.importorskip("torch", reason="needs the extra learn or cuda")
pytestmark = [
    pytest.mark.gcc,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.usefixtures("kernels"),
]

QUICK = RunOptions(repeats=3, timeout_s=60.0)
ROWS = Config.parse(
    "work=rows,lanes=8,vec=1,cols=1,stage=direct,unroll=1,block=64,grid=columns,reorder=none"
)
PIECES = ROWS.replace(work="pieces", piece=4)
LIBRARY = Config.parse("work=cusparse,algorithm=csr2")
WINDOWS = Config.parse(
    "work=windows,math=tf32x3,window=8,cols=1,block=64,grid=columns,reorder=none"
)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU and its packages, in the worker and in this process."""
    fixtures = Path(__file__).parents[2] / "fixtures"
    monkeypatch.setenv("PYTHONPATH", str(fixtures))
    monkeypatch.setattr(cuda, "find_spec", lambda name: name)


def faulty(monkeypatch: pytest.MonkeyPatch, **asked: Any) -> CudaRunner:
    monkeypatch.setenv("EMULATED_GPU", json.dumps(asked))
    return CudaRunner("emulated_worker")


@pytest.fixture(scope="module")
def shared_runner() -> Iterator[CudaRunner]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "fixtures"))
        with CudaRunner("emulated_worker") as runner:
            yield runner


def matrix(m: int = 41, n: int = 29, density: float = 0.3) -> Pattern:
    rows, cols = np.nonzero(np.random.default_rng(0).random((m, n)) < density)
    return Pattern.from_coo((m, n), rows, cols, name="random")


def measured(
    runner: CudaRunner,
    text: str,
    configs: list[Config],
    pattern: Pattern | None = None,
    **more: Any,
) -> list[Measurement]:
    options = RunOptions(**{"repeats": 3, "timeout_s": 60.0, **more})
    chosen = matrix() if pattern is None else pattern
    return [m for _, m in runner.run(chosen, Op.parse(text), configs, options=options)]


class TestContract(RunnerContract):
    @pytest.fixture
    def runner(self, shared_runner: CudaRunner) -> CudaRunner:
        return shared_runner

    @pytest.fixture
    def options(self) -> RunOptions:
        return QUICK

    @pytest.fixture
    def configs(self) -> list[Config]:
        return [ROWS, PIECES, LIBRARY]


def test_the_plugin_is_listed() -> None:
    assert load("runner", "cuda") is CudaRunner


@pytest.mark.parametrize("text", ["spmm:8:f64", "spmm:8:f16", "spmm:8:bf16", "spmm:8"])
def test_every_value_type(shared_runner: CudaRunner, text: str) -> None:
    for one in measured(shared_runner, text, [ROWS, PIECES, LIBRARY]):
        # Of a product that is slow, as one emulated on a busy machine is, fewer are timed.
        assert one.ok and 1 <= len(one.times_s) <= 3, one.error
        assert one.tolerance and one.compile_s is not None and one.conversion_s is not None
        assert one.context["cache"] == "warm" and 1 <= one.context["graph_products"] <= 20


def test_vectors_and_sampled_products(shared_runner: CudaRunner) -> None:
    vector = [
        Config.parse("work=rows,lanes=8,unroll=1,block=64,reorder=none"),
        Config.parse("work=slices,unroll=1,sigma=0,block=64"),
        Config.parse("work=cusparse,algorithm=csr1"),
    ]
    sampled = [Config.parse("work=coo,lanes=8,vec=1,unroll=1,block=64,piece=2")]
    results = [
        *measured(shared_runner, "spmv", vector),
        *measured(shared_runner, "sddmm:8", sampled),
    ]
    assert [m.status for m in results] == ["ok"] * 4, [m.error for m in results]


def test_a_matrix_without_entries(shared_runner: CudaRunner) -> None:
    empty = Pattern.from_coo((5, 4), np.zeros(0, int), np.zeros(0, int))
    results = measured(shared_runner, "spmm:8", [ROWS, LIBRARY], empty)
    assert [m.status for m in results] == ["ok", "ok"], [m.error for m in results]


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        ("hang", "timeout", "no answer within 2 s"),
        ("fault", "crash", "an illegal memory access"),
        ("oom", "oom", "CUDA out of memory"),
        ("registers", "invalid", "more registers than a block of 64 threads"),
        ("build", "build", "error: no such luck"),
        ("wrong", "wrong", "row 0 is off by"),
    ],
)
def test_a_failing_kernel_is_a_status(
    monkeypatch: pytest.MonkeyPatch, fault: str, status: str, said: str
) -> None:
    """Named in its measurement; the next configuration runs, in a fresh worker if need be."""
    with faulty(monkeypatch, faults={"spmm<float,float,1": fault}) as runner:
        runner.prepare(Op("spmm", 8), [ROWS])
        assert measured(runner, "spmm:8", [ROWS])[0].ok, "compiled before the short time limit"
        results = measured(runner, "spmm:8", [ROWS, PIECES, ROWS], timeout_s=2.0)
        generation = runner.session.generation
    assert [m.status for m in results] == ["ok", status, "ok"], [m.error for m in results]
    assert said in results[1].error and "\n" not in results[1].error
    assert generation == (2 if fault in ("hang", "fault") else 1)


def test_illegal_configurations_and_padding(shared_runner: CudaRunner) -> None:
    diagonal = np.arange(3000) * 16
    sparse = Pattern.from_coo((48000, 48000), diagonal, diagonal)
    asked = [ROWS.replace(vec=4), ROWS.replace(lanes=7), WINDOWS]
    results = measured(shared_runner, "spmm:33", asked[:2])
    assert [m.status for m in results] == ["invalid"] * 2
    assert "vec=4" in results[0].error
    (padded,) = measured(shared_runner, "spmm:32", asked[2:], sparse)
    assert padded.status == "oom" and "would store" in padded.error


def test_max_bytes_bounds_operands_and_formats(shared_runner: CudaRunner) -> None:
    pattern = matrix(200, 200, 0.5)
    (one,) = measured(shared_runner, "spmm:8", [ROWS], pattern, max_bytes=10_000)
    assert one.status == "oom" and "matrix and dense operands need" in one.error
    need = shared_runner._bytes(pattern, Op("spmm", 8), QUICK)
    found = measured(shared_runner, "spmm:8", [PIECES, ROWS], pattern, max_bytes=need + 100)
    assert [m.status for m in found] == ["oom", "ok"] and "the format needs" in found[0].error


def test_the_default_limit_is_most_of_the_gpus_memory(
    shared_runner: CudaRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern, fits = matrix(200, 200, 0.5), []
    for share in (0.8, 1e-5):
        monkeypatch.setattr(cuda, "_MEMORY_SHARE", share)
        fits += measured(shared_runner, "spmm:8", [ROWS], pattern)
        fits += measured(shared_runner, "spmm:8", [ROWS], pattern, max_bytes=4 << 30)
    assert [m.status for m in fits] == ["ok", "ok", "oom", "ok"]
    assert fits[2].error.endswith(f"bytes of {int((1 << 30) * 1e-5)}"), "of the emulated 1 GiB"


def test_no_memory_of_a_library_ends_no_process() -> None:
    from indexer.runners.cuda_worker import Worker

    class Full(Worker):
        def measure(self, request: dict[str, Any]) -> Any:
            raise NoDeviceMemory("cusparseSpMM_preprocess: insufficient resources")

    reply = Full(lambda: None).answer({"do": "measure"}, b"")  # type: ignore[arg-type,return-value]
    assert reply["status"] == "oom" and "insufficient resources" in reply["error"]


def test_too_many_entries_are_refused(
    shared_runner: CudaRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pattern, "nnz", property(lambda _: 1 << 31))
    (one,) = measured(shared_runner, "spmm:8", [ROWS])
    assert one.status == "invalid" and f"at most {cuda_plan.MOST_ENTRIES}" in one.error


def test_without_a_check_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    with faulty(monkeypatch, faults={"spmm<float,float,0": "wrong"}) as runner:
        (poisoned,) = measured(runner, "spmm:8", [ROWS])
        (one,) = measured(runner, "spmm:8", [ROWS], check=False, repeats=1)
    assert poisoned.status == "wrong" and "off by nan" in poisoned.error
    assert one.ok and one.tolerance is None and len(one.times_s) == 1


def test_facts_are_measured_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with faulty(monkeypatch, identity={"gpu": "Another GPU"}) as runner:
        before = runner.platform()
        assert "copy_gb_s" not in before.environment
        facts = runner.facts()
        assert {"copy_gb_s", "launch_us", "graph_launch_us", "multiprocessors"} <= facts.keys()
        assert runner.platform().id == before.id
    with faulty(monkeypatch, identity={"gpu": "Another GPU"}) as other:
        assert facts.items() <= other.platform().environment.items()


def test_the_instance_names_gpu_and_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = []
    for identity in ({}, {"capability": "80"}, {"driver": "12.8"}):
        with faulty(monkeypatch, identity=identity) as runner:
            ids.append(runner.platform().id)
            environment = runner.platform().environment
    monkeypatch.setattr(cuda_plan, "GENERATION", 99)
    with faulty(monkeypatch) as runner:
        ids.append(runner.platform().id)
    assert len(set(ids)) == 4 and environment["driver"] == "12.8"


def test_without_a_gpu_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with faulty(monkeypatch, missing="no NVIDIA GPU") as runner:
        assert runner.available() == "no NVIDIA GPU" and runner.state() == {}
        with pytest.raises(RunnerUnavailable, match="no NVIDIA GPU"):
            measured(runner, "spmm:8", [ROWS])
        with pytest.raises(RunnerUnavailable, match="no NVIDIA GPU"):
            runner.platform()


@pytest.mark.parametrize("package", ["torch", "cuda"])
def test_without_the_extra_one_clear_line(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "find_spec", lambda name: None if name == package else name)
    runner = CudaRunner()
    assert f"need {package}: pip install" in str(runner.available())
    assert runner.session.generation == 0, "no process was started"
