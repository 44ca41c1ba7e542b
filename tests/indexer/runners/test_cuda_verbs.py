"""The verbs that measure, on platform `cuda` with an emulated GPU."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from command_line import run_verb
from scipy.io import mmwrite

from embeddb.core.config import Op
from embeddb.database import Database
from indexer.runners import cuda
from indexer.runners.cuda import CudaRunner

pytest.importorskip("torch", reason="needs the extra learn or cuda")
pytestmark = [
    pytest.mark.gcc,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.usefixtures("kernels", "emulated"),
]

#: Configurations that share two kernels, so that the emulation compiles no more.
FIRST = "work=rows,lanes=4,unroll=1,reorder=none,block="
SECOND = "work=rows,lanes=8,unroll=1,reorder=none,block="
CONFIGS = [f"{kernel}{block}" for block in (64, 128, 256, 512) for kernel in (FIRST, SECOND)]


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The plug-in `cuda`, its worker replaced by the emulated one."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "fixtures"))
    monkeypatch.setattr(cuda, "find_spec", lambda name: name)
    runners: list[CudaRunner] = []

    def opened() -> CudaRunner:
        runners.append(CudaRunner("emulated_worker"))
        return runners[-1]

    monkeypatch.setattr(cuda, "PLUGIN", opened)
    yield
    for runner in runners:
        runner.close()


@pytest.fixture(scope="module")
def matrices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("matrices")
    for seed in range(3):
        rng = np.random.default_rng(seed)
        mmwrite(folder / f"m{seed}.mtx", sp.random(60 + 20 * seed, 70, 0.1, random_state=rng))
    return folder


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    code = run_verb([*words, "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_measure_query_tune_and_calibrate(
    tmp_path: Path, matrices: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, op = str(tmp_path / "runs.db"), ("--platform", "cuda", "--op", "spmv")
    files = [str(file) for file in sorted(matrices.glob("*.mtx"))]
    given = [word for config in CONFIGS for word in ("--config", config)]
    with Database.create(db):
        pass
    for document in answered(capsys, "measure", db, *files, *op, *given):
        assert not document["failures"] and len(document["configs"]) >= len(CONFIGS)
        assert document["platform"].startswith("cuda@")
    shown = answered(capsys, "platform", "show", "cuda", "--db", db)
    (environment,) = shown["instances"].values()
    assert environment["gpu"] == "Emulated GPU" and float(environment["copy_gb_s"]) > 0
    answer = answered(capsys, "query", db, files[0], *op, "-k", "2", "--measure")
    assert answer["platform"].startswith("cuda@") and "measured" in json.dumps(answer)
    tuned = answered(capsys, "tune", db, files[0], *op, "--hardware-seconds", "2", "-k", "2")
    assert "cuda@" in json.dumps(tuned)
    calibrated = answered(
        capsys, "calibrate", db, *op, "--matrices", str(matrices), "--minutes", "0.1"
    )
    assert "cuda@" in json.dumps(calibrated)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_campaign(tmp_path: Path, matrices: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db, folder = str(tmp_path / "runs.db"), str(tmp_path / "campaign")
    plan = ("--platform", "cuda", "--op", "spmv", "--matrices", str(matrices), "--configs", "3")
    assert run_verb(["campaign", "plan", db, folder, *plan]) == 0
    assert run_verb(["campaign", "run", db, folder]) == 0, capsys.readouterr().err
    with Database.open(db) as opened:
        (here,) = opened.store.platforms()
        runs = list(opened.store.runs(here, Op("spmv")))
    assert len(runs) >= 9 and all(run.platform.startswith("cuda@") for run in runs)
    assert sum(run.measurement.ok for run in runs) > len(runs) / 2


def test_without_a_gpu_measuring_ends_with_a_sentence(
    tmp_path: Path,
    matrices: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EMULATED_GPU", json.dumps({"missing": "no NVIDIA GPU in this machine"}))
    file = str(next(matrices.glob("*.mtx")))
    with Database.create(tmp_path / "runs.db"):
        pass
    words = ["measure", str(tmp_path / "runs.db"), file, "--platform", "cuda", "--op", "spmm:8"]
    assert run_verb(words) == 1
    assert "no NVIDIA GPU in this machine" in capsys.readouterr().err
    assert run_verb(["platform", "show", "cuda"]) == 0
