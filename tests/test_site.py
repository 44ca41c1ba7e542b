"""The documentation site builds without a warning, its reference generated."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

if find_spec("mkdocs") is None or find_spec("mkdocstrings") is None:
    pytest.skip("needs the extra docs", allow_module_level=True)


@pytest.mark.timeout(600)
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = {p.name: p.read_text(encoding="utf-8") for p in (tmp_path / "reference").glob("*.html")}
    assert "embeddb campaign plan" in page["cli.html"] and "--budget" in page["cli.html"]
    assert "embeddb.database.Database.query" in page["api.html"]
    assert "break_even_calls" in page["json.html"]
