"""The attack runs in a process of its own: it forks, and the test's has threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Attack = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def attack(tmp_path_factory: pytest.TempPathFactory) -> Attack:
    """`attack("kill", "--rounds", "5")` is `python -m attack.kill --rounds 5`, to its end."""
    home = tmp_path_factory.mktemp("home")

    def run(name: str, *words: str) -> subprocess.CompletedProcess[str]:
        paths = [ROOT, ROOT / "tests", ROOT / "tests" / "fixtures"]
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "EMBEDDB_HOME": str(home / "embeddb"),
            "XDG_CACHE_HOME": str(home / "cache"),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        return subprocess.run(
            [sys.executable, "-m", f"attack.{name}", *words],
            env=env, cwd=home, capture_output=True, text=True, check=False, timeout=280,
        )  # fmt: skip

    return run
