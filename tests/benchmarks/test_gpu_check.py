"""The script behind `make gpu`, on an emulated GPU."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.io import mmwrite

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu" / "check.py"

pytest.importorskip("torch", reason="needs the extra learn or cuda")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import a script of the folder by name, as its sections do one another."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    yield importlib.import_module
    for name in {path.stem for path in SCRIPT.parent.glob("*.py")} - before:
        sys.modules.pop(name, None)


@pytest.mark.gcc
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.slow
def test_it_runs_emulated(tmp_path: Path) -> None:
    """Every section, on one small matrix of a name that ran; the times mean nothing."""
    rng = np.random.default_rng(0)
    mmwrite(tmp_path / "bcspwr10.mtx", sp.random(80, 80, 0.1, random_state=rng))
    out = tmp_path / "gpu.json"
    command = [sys.executable, str(SCRIPT), "--emulate", "--matrices", str(tmp_path)]
    ended = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    document = json.loads(out.read_text())
    kernels, times = document["check_kernels"], document["sample_times"]
    assert kernels["ok"] and kernels["checked"] > 20 and kernels["special"] > 10
    assert times["ok"] and times["compared"]["all"]["count"] == len(times["rows"]) > 4
    assert {row["status"] for row in times["rows"]} == {"ok"}
    assert "Spearman" in ended.stdout
    handle = document["handle"]
    assert handle["ok"] and set(handle["gcn_ms"]["bcspwr10"]) == {"handle", "torch"}
    assert handle["summary"]["spmm:32"]["10"]["cusparse"]["geometric_mean"] > 0
    assert document["handle_tests"]["ok"] and " passed" in ended.stdout


@pytest.mark.slow
def test_without_matrices_it_says_so(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--emulate", "--matrices", str(tmp_path)]
    command += ["--out", str(tmp_path / "gpu.json"), "--sections", "sample_times"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 1 and "has no matrix of" in ended.stdout


@pytest.mark.slow
def test_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    command = [sys.executable, str(SCRIPT), "--emulate", "--matrices", str(tmp_path / "none")]
    command += ["--out", str(out), "--sections", "handle,sample_times"]
    assert subprocess.run(command, capture_output=True).returncode == 1
    for section in json.loads(out.read_text()).values():
        assert section["error"] == f"{tmp_path / 'none'}: not a folder"


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_takes_a_python_that_is_there() -> None:
    """`make gpu VENV=` makes no environment and installs nothing."""
    command = ["make", "-n", "-s", "gpu", "PYTHON=mine", "OPTIONS=--seconds 9"]
    own = subprocess.run([*command, "VENV="], cwd=ROOT, capture_output=True, text=True)
    assert own.stdout.split("\n") == ["mine benchmarks/gpu/check.py --seconds 9", ""], own
    fresh = subprocess.run([*command, "VENV=other"], cwd=ROOT, capture_output=True, text=True)
    assert "mine -m venv other" in fresh.stdout and "pip install" in fresh.stdout
    assert fresh.stdout.endswith("other/bin/python benchmarks/gpu/check.py --seconds 9\n")


@pytest.mark.parametrize(
    ("ends", "error"), [("time.sleep(60)", "not done within 3 s"), ("sys.exit(3)", "exit status 3")]
)
def test_a_section_that_ends_early_keeps_what_it_has(
    ends: str,
    error: str,
    module: Callable[[str], ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check = module("check")
    written = "import sys, time\nout = sys.argv[sys.argv.index('--out') + 1]\n"
    written += f"open(out, 'w').write('{{\"ok\": true, \"cases\": 5}}')\n{ends}\n"
    (tmp_path / "early.py").write_text(written)
    monkeypatch.setattr(check, "HERE", tmp_path)
    monkeypatch.setattr(check, "_GRACE_S", 0.1)
    result = check.run_section("early", Namespace(matrices=tmp_path, emulate=False), 3.0)
    assert result["cases"] == 5 and not result["ok"] and error in result["error"]


def test_cases_run_by_size_while_there_is_time(
    module: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A case is left out that by the time of the one before, scaled by its size, takes too long."""
    handle = module("handle")
    monkeypatch.setattr(handle, "known_entries", lambda: {"small": 10, "large": 1000})
    guessed = tmp_path / "other.mtx"
    guessed.write_bytes(b"x" * 800)
    paths = {"large": tmp_path, "other": guessed, "small": tmp_path}
    planned = handle.sizes(paths, ("spmm:32", "spmv"))
    assert [(size, f"{name}/{op}") for size, name, op in planned] == [
        (10, "small/spmv"),
        (100, "other/spmv"),
        (320, "small/spmm:32"),
        (1000, "large/spmv"),
        (3200, "other/spmm:32"),
        (32000, "large/spmm:32"),
    ]
    clock = [0.0]

    def one_case(place: Any, size: Any, op: Any) -> dict[str, Any]:
        clock[0] += 1.0
        return {}

    class Left:
        kept: list[int]

        def __init__(self) -> None:
            self.kept = []

        @property
        def left_s(self) -> float:
            return 19.0 - clock[0]

        def keep(self, result: dict[str, Any]) -> None:
            self.kept.append(len(result["cases"]))

    left = Left()
    monkeypatch.setattr(handle.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(handle, "one_case", one_case)
    place = Namespace(tensor=lambda path: path)
    cases = handle.timed_cases(place, planned, paths, {"ok": True}, left)
    assert list(cases) == [f"{name}/{op}" for _, name, op in planned[:5]], "the last is 10 times"
    assert left.kept == [1, 2, 3, 4, 5]


def test_configurations_invalid_on_another_gpu_are_no_failure(
    module: Callable[[str], ModuleType],
) -> None:
    summary = module("sample_times").summary
    row = {"matrix": "A", "op": "spmv", "config": "work=rows", "error": "registers", "us": None}
    rows = [{**row, "status": "ok", "us": 2.0, "shipped_us": 1.0}, {**row, "status": "invalid"}]
    assert summary(rows, {"gpu": "NVIDIA A100"})["ok"]
    assert summary(rows, {"gpu": "NVIDIA A100"})["statuses"] == {"ok": 1, "invalid": 1}
    assert not summary(rows, {"gpu": "NVIDIA H200"})["ok"]
    assert not summary([*rows, {**row, "status": "wrong"}], {"gpu": "NVIDIA A100"})["ok"]


def test_without_pytest_the_tests_of_handles_are_skipped(
    module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = module("handle_tests")
    monkeypatch.setattr(tests, "find_spec", lambda name: None if name == "pytest" else name)
    assert tests.section(Namespace(left_s=9.0))["skipped"] == "no pytest here"
