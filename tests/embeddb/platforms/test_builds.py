"""One instance per build of a simulator: what counts as its environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command_line import run_verb
from scipy.io import mmwrite
from scipy.sparse import random as random_matrix

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, Run
from embeddb.database import Database
from embeddb.platforms.machines import same_build
from embeddb.platforms.platform import load_platform, runner_for

BOARD = """
name = "tina"
version = "1"
title = "A simulator"
simulated = true
runner = "command"
[command]
run = ["PYTHON", "sim.py", "{matrix}", "{config.lanes}"]
time = { regex = 'cycles: (\\d+)', unit = "cycles" }
[[space]]
kernels = ["spmm"]
[space.params]
lanes = { type = "int", values = [2, 4] }
[space.default]
lanes = 2
"""
GOOD = "import sys\nprint('cycles:', 1000 * int(sys.argv[2]))\n"
OP = Op.parse("spmm:32")
PATTERN = Pattern.from_coo((4, 5), [0, 0, 3], [1, 4, 2])


def instance(folder: Path, text: str = BOARD, script: str = GOOD) -> str:
    (folder / "tina.toml").write_text(text)
    (folder / "sim.py").write_text(script)
    return str(runner_for(load_platform(folder / "tina.toml")).platform().instance)


def a_python(folder: Path, comment: str) -> Path:
    """Another python3 for the PATH."""
    folder.mkdir()
    program = folder / "python3"
    program.write_text(f'#!/bin/sh\n# {comment}\nexec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return program


def test_which_python_the_path_finds_is_no_fact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = BOARD.replace("PYTHON", "python3")
    seen = set()
    for name in ("one", "two"):
        program = a_python(tmp_path / name, name)
        monkeypatch.setenv("PATH", str(program.parent), prepend=":")
        seen.add(instance(tmp_path, board))
        seen.add(instance(tmp_path, BOARD.replace("PYTHON", str(program))))
    assert len(seen) == 1
    assert instance(tmp_path, board, GOOD + "# changed\n") not in seen


def test_a_program_of_its_own_counts_by_its_content(tmp_path: Path) -> None:
    board = BOARD.replace("PYTHON", "./tool")
    seen = set()
    for text in ("a", "b"):
        (tmp_path / "tool").write_text(f"#!/bin/sh\n# {text}\n")
        (tmp_path / "tool").chmod(0o755)
        seen.add(instance(tmp_path, board))
    assert len(seen) == 2


def test_builds_that_differ_in_the_interpreter_alone() -> None:
    old = {"command": "c", "program": "python3.11:aa sim.py:bb"}
    assert same_build(old, {"command": "c", "program": "python3.12:cc sim.py:bb"})
    assert same_build(old, {"command": "c", "program": "sim.py:bb"})
    assert not same_build(old, {"command": "c", "program": "sim.py:bc"})
    assert not same_build(old, {"command": "d", "program": "sim.py:bb"})
    assert not same_build({"cpu": "x"}, {"cpu": "x"}) and not same_build({}, {})


def stored(db: Database, program: str, status: str) -> str:
    base = load_platform(Path(str(db.store.path)).parent / "tina.toml")
    platform = base.at("", {"command": "c", "program": program})
    times = (1e-6,) if status == "ok" else ()
    found = Measurement(status, times, "simulator")
    db.index.record(
        [Run(PATTERN.id, OP, platform.id, Config({"lanes": 2}), found)], PATTERN, platform
    )
    return platform.id


def test_a_bare_name_is_the_one_instance_that_differs_and_ran(tmp_path: Path) -> None:
    instance(tmp_path, BOARD.replace("PYTHON", "python3"))
    with Database.create(tmp_path / "a.db") as db:
        for program in ("python3.11:a sim.py:x", "python3.12:b sim.py:x", "sim.py:x"):
            stored(db, program, "ok")
        for program in ("sim.py:y", "sim.py:z"):
            stored(db, program, "crash")
        assert db.platform("tina").environment["program"].endswith("sim.py:x")
        stored(db, "sim.py:w", "ok")
        with pytest.raises(UsageError, match="2 instances"):
            db.platform("tina")


FAILING = {
    "raises": ("import sys\nraise RuntimeError('bad tile')\n", "RuntimeError: bad tile"),
    "prints nothing": ("\n", "no time in its stdout, exit status 0"),
    "prints something else": ("print('ready')\nprint('done')\n", "ready | done"),
    "ends": ("import sys\nprint('half')\nsys.exit(7)\n", "exit status 7: half"),
}


@pytest.mark.parametrize("kind", FAILING)
def test_a_simulator_that_fails_is_shown_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    script, reason = FAILING[kind]
    instance(tmp_path, BOARD.replace("PYTHON", sys.executable), script)
    mmwrite(tmp_path / "a.mtx", random_matrix(9, 8, 0.3, random_state=1))
    Database.create(tmp_path / "a.db").close()
    words = [str(tmp_path / name) for name in ("a.db", "a.mtx")]
    asked = ["measure", *words, "--platform", str(tmp_path / "tina.toml"), "--op", "spmm:32"]
    assert run_verb(asked) == 1
    told = capsys.readouterr()
    assert (told.out + told.err).count(reason) == 1
    assert run_verb([*asked, "--json"]) == 1
    assert capsys.readouterr().out.count(reason) >= 1
    (tmp_path / "sim.py").write_text(GOOD)
    assert run_verb(asked) == 0
    assert run_verb(["query", words[0], words[1], "--platform", "tina", "--op", "spmm:32"]) == 0
