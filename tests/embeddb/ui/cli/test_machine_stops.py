"""Every verb that measures ends with code 1 where the machine fails, and goes on when it can."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import scipy.sparse as sp
from command_files import platform_of
from command_line import run_verb

from embeddb.core.config import Op
from embeddb.database import Database
from embeddb.kernels import build as cpu_build

#: Fails like a killed program from the third call on, as long as there is a file `full`.
SCRIPT = """
echo x >> calls
test -e full && test "$(wc -l < calls)" -ge 3 && kill -KILL $$
echo t=1
"""
OP = "spmm:8"
Call = Callable[..., tuple[str, str]]


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """A database, a matrix, and a platform whose machine has failed."""
    platform_of(tmp_path, SCRIPT)
    (tmp_path / "m").mkdir()
    sp.save_npz(tmp_path / "m" / "a.npz", sp.eye(9, format="csr"))
    (tmp_path / "full").touch()
    Database.create(tmp_path / "x.db").close()

    def called(code: int, *words: str) -> tuple[str, str]:
        ended = run_verb(words)
        said = capsys.readouterr()
        assert ended == code, said.err
        return said.out, said.err

    return called


def stored(tmp_path: Path) -> list[str]:
    with Database.open(tmp_path / "x.db") as db:
        return [
            run.measurement.status
            for name in db.store.platforms()
            for run in db.store.runs(name, Op.parse(OP))
        ]


def test_campaign(call: Call, tmp_path: Path) -> None:
    db, camp, file = (str(tmp_path / name) for name in ("x.db", "camp", "other.toml"))
    plan = ("--op", OP, "--matrices", str(tmp_path / "m"), "--rounds", "1")
    call(0, "campaign", "plan", db, camp, "--platform", file, *plan)
    typed = ("campaign", "resume", db, camp, "--platform", file, "--threads", "1", "--settle", "0")
    _, said = call(1, *typed)
    assert "was ended by SIGKILL" in said and f"campaign resume {db} {camp}" in said
    again = said.partition("continue with: embeddb ")[2].splitlines()[0]
    assert sorted(shlex.split(again)) == sorted(typed), "of other threads it would be refused"
    assert stored(tmp_path) == []
    progress = json.loads(call(0, "campaign", "status", db, camp, "--json")[0])
    assert progress["measured"] == 2 and progress["statuses"] == {"ok": 2}
    (tmp_path / "full").unlink()
    call(0, "campaign", "resume", db, camp, "--platform", file)
    assert stored(tmp_path) == ["ok"] * 3
    assert "'bad' is no failure" in call(2, "campaign", "run", db, camp, "--again", "bad")[1]
    assert "'ok' is no failure" in call(2, "campaign", "resume", db, camp, "--again", "ok")[1]
    call(0, "campaign", "run", db, camp, "--platform", file, "--again", "build, crash")


def test_measure_and_query(call: Call, tmp_path: Path) -> None:
    db, file = str(tmp_path / "x.db"), str(tmp_path / "other.toml")
    asked = (str(tmp_path / "m" / "a.npz"), "--platform", file, "--op", OP)
    assert "was ended by SIGKILL" in call(1, "measure", db, *asked)[1]
    assert stored(tmp_path) == ["ok"] * 2, "what was measured before is kept"
    _, said = call(1, "query", db, *asked, "--measure")
    assert "was ended by SIGKILL" in said and stored(tmp_path) == ["ok"] * 2
    (tmp_path / "full").unlink()
    assert "2 of 3 already measured (simulated)" in call(0, "measure", db, *asked)[0]
    assert stored(tmp_path) == ["ok"] * 3


def test_calibrate(call: Call, tmp_path: Path) -> None:
    db, file = str(tmp_path / "x.db"), str(tmp_path / "other.toml")
    asked = ("--platform", file, "--op", OP, "--minutes", "0.2", "--matrices", str(tmp_path / "m"))
    assert "was ended by SIGKILL" in call(1, "calibrate", db, *asked)[1]
    assert set(stored(tmp_path)) <= {"ok"}


@pytest.mark.slow
@pytest.mark.gcc
@pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
def test_the_cpu_with_a_full_disk(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that finds no space, whatever it compiles, as long as there is a file `full`."""
    gcc, full = cpu_build.compiler(), tmp_path / "full"
    assert gcc is not None
    stub = tmp_path / "cc"
    stub.write_text(
        f'#!/bin/sh\ntest "$1" != --version && test -e {full} && '
        f"echo 'as: No space left on device' >&2 && exit 1\nexec {gcc[0]} \"$@\"\n"
    )
    stub.chmod(0o755)
    monkeypatch.setenv(cpu_build.COMPILER_VARIABLE, str(stub))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    db, camp = str(tmp_path / "x.db"), str(tmp_path / "camp")
    plan = ("--platform", "cpu", "--op", "spmv", "--matrices", str(tmp_path / "m"))
    call(0, "campaign", "plan", db, camp, *plan, "--configs", "3", "--rounds", "1", "--top", "0")
    _, said = call(1, "campaign", "run", db, camp)
    assert "No space left on device" in said and os.environ.get("TMPDIR", "/tmp") in said
    full.unlink()
    call(0, "campaign", "resume", db, camp)
    progress = json.loads(call(0, "campaign", "status", db, camp, "--json")[0])
    assert progress["statuses"].get("build", 0) == 0
    assert progress["measured"] == progress["points"] > 0
