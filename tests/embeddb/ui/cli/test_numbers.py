"""Numbers on the command line: "nan" is within no bounds."""

from __future__ import annotations

import pytest
from command_line import run_verb

WORDS = {
    "--agree": ["campaign", "status", "db", "folder"],
    "--calls": ["query", "db", "A.mtx", "--platform", "cpu", "--op", "spmm:32"],
    "--lr": ["train", "costmodel", "db", "--platform", "cpu", "--op", "spmm:32"],
    "--max-upload": ["serve", "db"],
    "--minutes": ["calibrate", "db"],
    "--repeat-share": ["campaign", "plan", "db", "folder"],
}


@pytest.mark.parametrize("option", WORDS)
def test_what_is_no_number_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb([*WORDS[option], option, "nan"]) == 2
    assert f"Invalid value for '{option}': 'nan' is not a number" in capsys.readouterr().err
