"""`embeddb export rule`: the file, what is said, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import fill, patterns, tiny
from command_line import run_verb

from embeddb.database import Database


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("rule") / "runs.db"
    with Database.create(path) as db:
        fill(db, tiny(simulated=True), patterns(6))
    return str(path)


def asked(place: str, out: Path, *more: str, op: str = "spmm:32") -> list[str]:
    return ["export", "rule", place, "-o", str(out), "--platform", "tiny", "--op", op, *more]


def test_a_header_is_written_and_told(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rule.h"
    assert run_verb(asked(place, out)) == 0
    said = capsys.readouterr()
    assert "24 matrices in 6 groups" in said.out and "best of the portfolio" in said.out
    assert "simulated" in said.err
    text = out.read_text()
    assert "int embeddb_rule_tiny_spmm_32(" in text and "whole group held out" in text
    assert "(simulated)" in text


def test_the_document_says_what_the_comment_says(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rule.h"
    assert run_verb(asked(place, out, "--configs", "2", "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["file"] == str(out) and len(document["configs"]) == 2
    assert document["simulated"] is True and document["judged"] == 24
    text = out.read_text()
    assert "_COUNT 2" in text
    for row in document["held_out"]:
        line = next(line for line in text.splitlines() if line.startswith(f" * {row['method']} "))
        assert f"{row['of_optimum@1']:.3f}" in line


def test_errors_are_one_line(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rule.h"
    assert run_verb(asked(place, out, op="spmm:64")) == 3
    assert "no runs of spmm:64 on tiny (there are: spmm:32 on tiny)" in capsys.readouterr().err
    assert run_verb(asked(place, out, "--configs", "0")) == 2
    assert run_verb(asked(place, out, op="nest")) == 2
    assert run_verb(asked(place, tmp_path / "none" / "rule.h")) == 1
    assert capsys.readouterr().err.count("\n") == 3
    assert not out.exists()
