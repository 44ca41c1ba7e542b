"""What `campaign plan` and `campaign status` say, beside what test_cli.py asks of every verb."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import scipy.sparse as sp
from command_line import run_verb

from embeddb.core.config import Op
from embeddb.database import Database
from embeddb.platforms.platform import load_platform
from embeddb.ui.cli.verbs.campaign_run import show_agreement
from indexer.campaign.agreement import Agreement
from indexer.campaign.folder import Campaign


def _run(*args: str) -> int:
    return run_verb(["campaign", *args])


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    """Arguments of `campaign plan` for three matrices in an empty database."""
    Database.create(tmp_path / "runs.db").close()
    folder = tmp_path / "matrices"
    folder.mkdir()
    for at, size in enumerate((20, 40, 80)):
        sp.save_npz(folder / f"m{at}.npz", sp.eye(size, format="csr"))
    places = [str(tmp_path / "runs.db"), str(tmp_path / "camp")]
    return [*places, "--platform", "spade", "--op", "spmm:32", "--matrices", str(folder)]


def test_a_plan_with_everything(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--configs", "20", "--sample", "per-matrix", "--shared", "5", "--grid", "1"]
    options += ["--rounds", "2"]  # of a platform that is simulated, one is usual
    limits = ["--grid-op", "spmm:32", "--max-work", "1500", "--repeat-share", "0.5", "--json"]
    assert _run("plan", *asked, *options, *limits) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["left_out"] == [{"matrix": "m2", "op": "spmm:32"}] and told["matrices"] == 3
    (grid,) = told["grid"]["matrices"]
    assert grid in ("m0", "m1") and told["grid"]["op"] == "spmm:32"
    assert told["top"] == {"spmm:32": 0} and told["tasks"] == 4
    whole = Campaign(Path(asked[1])).plan.choices["spmm:32"][int(grid[1])]
    assert len(whole.configs) == told["configs"]["spmm:32"] > 20
    assert told["points"] == sum(math.ceil(1.5 * n) for n in (20, len(whole.configs)))
    assert _run("plan", *asked, *options, *limits[:-1]) == 0
    said = capsys.readouterr().out
    assert (
        "every configuration of spmm:32 on 1 matrix" in said and "1 pair of matrix and op" in said
    )
    assert _run("status", *asked[:2]) == 0
    assert "0 of " in capsys.readouterr().out


def test_a_platform_without_a_runner_is_not_planned(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked[asked.index("spade")], asked[asked.index("spmm:32")] = "spmv-formats", "spmv"
    assert _run("plan", *asked, "--configs", "3") != 0
    err = capsys.readouterr().err
    assert "spmv-formats has no runner" in err and not Path(asked[1]).exists()


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--max-work", "1"], 2, "no matrix to measure"),
        (["--grid", "1"], 2, "planned operations"),
        (["--grid", "1", "--grid-op", "spmv"], 2, "planned operations"),
        (["--repeat-share", "0"], 2, "repeat-share"),
        (["--sample", "all"], 2, "sample"),
    ],
)
def test_what_cannot_be_planned(
    asked: list[str], options: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run("plan", *asked, *options) == code
    err = capsys.readouterr().err
    assert said in err and len(err.splitlines()) == 1
    assert not Path(asked[1]).exists()


def test_a_budget_above_what_there_is_to_buy_is_pointed_out(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run("plan", *asked, "--budget", "100000") == 0
    err = capsys.readouterr().err
    there = int(err.removeprefix("warning: there are ").split()[0].replace(",", ""))
    space = load_platform("spade").space(Op.parse("spmm:32"), m=20, n=20).size()
    assert space is not None and there >= 3 * space
    asked[1] += "-all"
    assert _run("plan", *asked, "--budget", str(there)) == 0
    assert capsys.readouterr().err == ""


def test_an_old_plan_is_refused_in_one_line(
    tmp_path: Path, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "camp").mkdir()
    (tmp_path / "camp" / "plan.json").write_text('{"platform": "", "ops": []}')
    assert _run("status", *asked[:2]) == 1
    err = capsys.readouterr().err
    assert "a plan of version 0" in err and len(err.splitlines()) == 1


def test_the_agreement_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"bad{at}" for at in range(12)]
    one = Agreement("spmm:32", 80, 2, 0.97, 0.9, 0.86, 0.7, 0.021, 10, 100, names, ["mended"])
    none = Agreement("spmv", 0, 3, math.nan, math.nan, math.nan, math.nan, math.nan, 0, 0, [], [])
    show_agreement([one, none])
    said = capsys.readouterr().out
    assert "0.970 (0.900)" in said and "0.860 (0.700)" in said and "2.1 %" in said
    assert "10 %" in said and "bad9 and 2 more" in said and "bad10" not in said
    assert "spmv: rounds not compared on 3 matrices" in said and "nan" not in said
    show_agreement([])
    assert capsys.readouterr().out == ""


# -- nodes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--script", "x.sh"], 2, "--script is of an --executor"),
        (["--no-wait"], 2, "--no-wait is of an --executor"),
        (["--executor", "carrier"], 2, "executors there are: dask, local, slurm"),
        (["--executor", "local", "--no-wait"], 2, "leave out --no-wait"),
        (["--executor", "local", "--address", "tcp://x"], 2, "neither --address nor --script"),
        (["--executor", "slurm"], 1, "sbatch not found"),
    ],
)
def test_executors_that_cannot_be_used(
    asked: list[str],
    options: list[str],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _run("plan", *asked, "--configs", "3") == 0
    capsys.readouterr()
    if "slurm" in options:
        monkeypatch.setenv("PATH", "/nowhere")
    assert _run("run", *asked[:2], *options) == code
    err = capsys.readouterr().err
    assert said in err and len(err.splitlines()) == 1


def test_work_by_hand_is_collected_and_shown(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run("plan", *asked, "--configs", "3", "--rounds", "1") == 0
    db, folder = asked[:2]
    first, second, third = (task.id for task in Campaign(Path(folder)).tasks())
    assert _run("work", folder, "--task", first, "--task", second) == 0
    assert "2 tasks done here" in capsys.readouterr().out
    assert _run("work", folder, "--task", second) == 0
    assert "1 were done already" in capsys.readouterr().out
    assert _run("collect", db, folder) == 0
    assert "2 tasks read, 6 runs added" in capsys.readouterr().out
    assert _run("status", db, folder) == 0
    said = capsys.readouterr().out
    assert "tasks: 2 done, 0 running, 0 waiting" in said and "spade@" in said
    assert "a sample" in said and "cost_per_sample" not in said, "the file is none of the user's"
    assert _run("work", folder, "--task", "nothing") == 1
    assert "no task 'nothing'" in capsys.readouterr().err
    assert _run("work", folder, "--submission", "1", "--chunk", "0") == 1
    assert "not a submission" in capsys.readouterr().err
    for matrix in Campaign(Path(folder)).plan.matrices:
        Path(matrix.path).unlink()
    assert _run("work", folder, "--task", third) == 1
    assert "1 task failed: " in capsys.readouterr().err


@pytest.mark.slow
def test_a_campaign_through_processes_of_this_machine(
    asked: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(Path(__file__).resolve().parents[3])
    monkeypatch.setenv("PYTHONPATH", root)
    assert _run("plan", *asked, "--configs", "3", "--rounds", "2") == 0
    capsys.readouterr()
    assert _run("run", *asked[:2], "--executor", "local", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tasks_stored"] == told["tasks"] == 6 and told["measured"] == 18
    (host,) = told["nodes"]["hosts"]
    assert host["done"] == 6 and host["host"] and host["instance"].startswith("spade@")
