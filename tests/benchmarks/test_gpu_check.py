"""The script behind `make gpu`, on an emulated GPU."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.io import mmwrite

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu" / "check.py"

pytest.importorskip("torch", reason="needs the extra learn or cuda")
pytestmark = [
    pytest.mark.gcc,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.slow,
]


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


def test_without_matrices_it_says_so(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--emulate", "--matrices", str(tmp_path)]
    command += ["--out", str(tmp_path / "gpu.json"), "--sections", "sample_times"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 1 and "has no matrix of" in ended.stdout
