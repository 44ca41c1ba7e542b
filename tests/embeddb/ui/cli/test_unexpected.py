"""An exception that nobody expected: one line, and a file that holds the rest."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from command_line import run_verb

from embeddb.ui.cli.verbs import platform


def test_it_is_one_line_and_says_where_the_details_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("odd\nname")

    monkeypatch.delenv("EMBEDDB_DEBUG")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(platform.platform_verb, "invoke", broken)
    assert run_verb(["platform", "list"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("embeddb: KeyError: ")
    found = re.search(r"traceback in (.+\.txt)\)", line)
    assert found is not None
    held = Path(found[1]).read_text()
    assert "Traceback" in held and "in broken" in held and "Python 3" in held
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    assert run_verb(["platform", "list"]) == 1
    assert "EMBEDDB_DEBUG=1" in capsys.readouterr().err
