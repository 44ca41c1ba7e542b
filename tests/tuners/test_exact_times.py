"""A simulated platform is exact: nothing is repeated, and there is no noise."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_line import run_verb
from scipy.io import mmwrite
from scipy.sparse import random as random_matrix

from embeddb.core.config import Op
from embeddb.database import Database

BOARD = """
name = "tina"
version = "1"
title = "A simulator"
simulated = SIMULATED
runner = "command"
cost_per_sample = 5000
[command]
run = ["PYTHON", "sim.py", "{matrix}", "{config.lanes}", "{config.panel}"]
time = { regex = 'cycles: (\\d+)', unit = "us" }
[[space]]
kernels = ["spmm"]
[space.params]
lanes = { type = "int", values = [2, 4, 8] }
panel = { type = "int", values = [16, 32, 64] }
[space.default]
lanes = 2
panel = 16
"""
SIMULATOR = """
import sys
from pathlib import Path
with Path("calls").open("a") as calls:
    calls.write("x")
print("cycles:", 1000 * int(sys.argv[2]) + int(sys.argv[3]))
"""


@pytest.fixture
def at(tmp_path: Path) -> Path:
    board = BOARD.replace("PYTHON", sys.executable)
    (tmp_path / "tina.toml").write_text(board.replace("SIMULATED", "true"))
    (tmp_path / "board.toml").write_text(board.replace("SIMULATED", "false"))
    (tmp_path / "sim.py").write_text(SIMULATOR)
    (tmp_path / "matrices").mkdir()
    for seed in range(3):
        matrix = random_matrix(9 + seed, 8, 0.3, random_state=seed)
        mmwrite(tmp_path / "matrices" / f"m{seed}.mtx", matrix)
    return tmp_path


def calls(at: Path) -> int:
    return len((at / "calls").read_text())


def asked(at: Path, file: str = "tina.toml") -> list[str]:
    return ["--platform", str(at / file), "--op", "spmm:32"]


def test_tuning_runs_each_configuration_once(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Database.create(at / "a.db").close()
    words = ["tune", str(at / "a.db"), str(at / "matrices" / "m0.mtx"), *asked(at)]
    assert run_verb([*words, "--hardware-seconds", "60", "--json"]) == 0
    tuned = json.loads(capsys.readouterr().out)
    assert calls(at) == tuned["tried"] == tuned["fresh"] == 9
    assert tuned["best"] == tuned["default"]


def test_what_a_simulator_said_is_not_bought_again(
    at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, matrix = str(at / "a.db"), str(at / "matrices" / "m0.mtx")
    assert run_verb(["measure", db, str(at / "none.mtx"), *asked(at)]) == 1
    assert not (at / "a.db").exists()
    measure = ["measure", db, matrix, *asked(at), "--configs", "5"]
    assert run_verb(measure) == 0
    assert calls(at) == 6
    capsys.readouterr()
    assert run_verb(measure) == 0
    assert "6 of 6 already measured (simulated), 0 configurations now" in capsys.readouterr().out
    assert run_verb([*measure[:-1], "8", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["earlier"], len(told["configs"])) == (6, 9) and calls(at) == 9
    query = ["query", db, matrix, *asked(at), "--measure", "-k", "3"]
    assert run_verb(query) == 0
    assert "configurations measured before did not run again" in capsys.readouterr().out
    assert run_verb(["tune", db, matrix, *asked(at), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tried"] == calls(at) == 9
    with Database.open(db, readonly=True) as opened:
        assert opened.store.count_runs() == 9


def test_a_crash_of_a_simulator_runs_again(at: Path) -> None:
    db, matrix = str(at / "a.db"), str(at / "matrices" / "m0.mtx")
    Database.create(db).close()
    fails = "if sys.argv[2:] == ['4', '32']: sys.exit(1)\n"
    (at / "sim.py").write_text(SIMULATOR.replace("print", fails + "print"))
    for _ in range(2):
        assert run_verb(["measure", db, matrix, *asked(at), "--configs", "8"]) == 0
    assert calls(at) == 10


def test_what_crashed_in_a_tuning_and_ran_since_counts(
    at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, matrix = str(at / "a.db"), str(at / "matrices" / "m0.mtx")
    Database.create(db).close()
    fails = "if sys.argv[2:] == ['4', '32'] and not Path('mended').exists(): sys.exit(1)\n"
    (at / "sim.py").write_text(SIMULATOR.replace("print", fails + "print"))
    tune = ["tune", db, matrix, *asked(at), "--json"]
    failed = []
    for name in ("first", "mended"):
        (at / name).touch()
        assert run_verb(["measure", db, matrix, *asked(at), "--configs", "8"]) == 0
        capsys.readouterr()
        assert run_verb(tune) == 0
        failed.append(len(json.loads(capsys.readouterr().out)["failed"]))
    assert failed == [1, 0] and calls(at) == 11


def test_a_plan_has_one_round_and_says_what_it_costs(
    at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, folder = str(at / "new.db"), str(at / "camp")
    plan = ["campaign", "plan", db, folder, *asked(at), "--matrices", str(at / "matrices")]
    assert run_verb([*plan, "--configs", "4", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert (planned["rounds"], planned["points"]) == (1, 12)
    assert planned["seconds_per_sample"] is None and planned["estimated_seconds"] is None
    assert run_verb(["campaign", "run", db, folder, "--platform", asked(at)[1]]) == 0
    assert calls(at) == 12
    capsys.readouterr()
    assert run_verb(["campaign", "status", db, folder, "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["seconds_per_sample"] > 0 and "cost_per_sample" in done["cost_note"]
    plan[3] = str(at / "more")
    assert run_verb([*plan, "--configs", "5", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    each = planned["seconds_per_sample"]
    assert each > 0 and planned["estimated_seconds"] == pytest.approx(15 * each)


def test_a_plan_of_hardware_has_two_rounds(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = [str(at / "new.db"), str(at / "camp")]
    plan = ["campaign", "plan", *places, "--matrices", str(at / "matrices")]
    assert run_verb([*plan, *asked(at, "board.toml"), "--configs", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rounds"] == 2


def test_five_samples_are_bought_in_a_new_database(at: Path) -> None:
    db, folder = str(at / "new.db"), str(at / "camp")
    plan = ["campaign", "plan", db, folder, *asked(at), "--matrices", str(at / "matrices")]
    assert run_verb([*plan, "--strategy", "ea10", "--budget", "5"]) == 0
    assert run_verb(["campaign", "run", db, folder, "--platform", asked(at)[1]]) == 0
    with Database.open(db, readonly=True) as opened:
        assert opened.store.count_runs() == 5


def test_a_plan_that_fails_leaves_no_database(at: Path) -> None:
    (at / "empty").mkdir()
    plan = ["campaign", "plan", str(at / "new.db"), str(at / "camp"), *asked(at)]
    assert run_verb([*plan, "--matrices", str(at / "empty")]) != 0
    assert not (at / "new.db").exists()


def test_the_noise_of_an_answer_is_0(at: Path) -> None:
    Database.create(at / "a.db").close()
    matrices = [str(at / "matrices" / f"m{seed}.mtx") for seed in range(3)]
    for _ in range(2):
        assert run_verb(["measure", str(at / "a.db"), *matrices, *asked(at)]) == 0
    (at / "sim.py").write_text(SIMULATOR.replace("1000", "999"))
    with Database.open(at / "a.db", readonly=True) as db:
        made = db.query(matrices[0], platform="tina", op=Op.parse("spmm:32"))
    assert made.noise == 0.0 and made.simulated
