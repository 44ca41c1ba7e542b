"""Adopting a platform by one command: measured, resumed, extended, judged, and refused."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import scipy.sparse as sp
from campaign_board import BOARD, LawRunner
from command_line import run_verb

from embeddb.core.config import Op
from embeddb.core.errors import InputError
from embeddb.core.records import Measurement, Run
from embeddb.database import Database
from embeddb.kernels.machine_failures import ProgramKilled
from embeddb.platforms.platform import Platform, parse_platform
from indexer import adopt
from indexer.campaign.budget.growing_plan import BudgetRequest, begin_again, bought
from indexer.campaign.exclusive import alone
from indexer.campaign.folder import Campaign
from indexer.campaign.run import CampaignJob, run_campaign
from indexer.runners.base import RunOptions


class Law(LawRunner):
    """The best tile follows from the number of rows."""

    def _measured(self, pattern: Any, op: Op, config: Any, number: int) -> Measurement:
        tile, unroll = int(str(config["tile"])), int(str(config["unroll"]))
        best = 1 if pattern.shape[0] < 100 else 3
        return Measurement(
            times_s=(1e-6 * (1 + (tile.bit_length() - 1 - best) ** 2 + unroll / 100),)
        )


class Failing(Law):
    def _measured(self, *_: Any) -> Measurement:
        return Measurement("crash", error="no such file")


class FailingByJob(Law):
    def _measured(self, *_: Any) -> Measurement:
        return Measurement("crash", error=f"no such file, job {next(JOBS)}")


JOBS = itertools.count(100)


class Rebuilt(Law):
    def platform(self, *, threads: int = 0) -> Platform:
        return self._platform.at("", {"build": "2"})


class Killed(Law):
    """The program is killed with every configuration of `unroll` 8."""

    def run(self, pattern: Any, op: Op, configs: Any, *, options: Any) -> Any:
        for one in super().run(pattern, op, configs, options=options):
            if one[0]["unroll"] == 8:
                raise ProgramKilled("was ended by SIGKILL", signal="SIGKILL", hint="look")
            yield one


class DefaultSlow(Law):
    """The default alone is not done in time."""

    def _measured(self, pattern: Any, op: Op, config: Any, number: int) -> Measurement:
        if (config["tile"], config["unroll"]) == (1, 1):
            return Measurement("timeout", error="not done within 60 s")
        return super()._measured(pattern, op, config, number)


class KilledOnce(Law):
    """The program is killed at the first point, and never after."""

    killed = False

    def run(self, pattern: Any, op: Op, configs: Any, *, options: Any) -> Any:
        for one in super().run(pattern, op, configs, options=options):
            if not self.killed:
                self.killed = True
                raise ProgramKilled("was ended by SIGKILL", signal="SIGKILL", hint="look")
            yield one


class AllKilled(Law):
    def run(self, *_: Any, **__: Any) -> Any:
        raise ProgramKilled("was ended by SIGKILL", signal="SIGKILL", hint="look")
        yield


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    folder = tmp_path / "matrices"
    folder.mkdir()
    for at, size in enumerate(np.linspace(40, 200, 8).astype(int)):
        made = sp.random(size, size, 0.1, format="csr", random_state=at)
        sp.save_npz(folder / f"m{at}.npz", made)
    (tmp_path / "board.toml").write_text(BOARD)
    return ["adopt", str(tmp_path / "runs.db"), "--platform", str(tmp_path / "board.toml"),
            "--matrices", str(folder), "--op", "spmm:32"]  # fmt: skip


def _measured_by(monkeypatch: pytest.MonkeyPatch, kind: type[LawRunner], stop: int = -1) -> Any:
    made: list[LawRunner] = []

    def here(platform: Platform, threads: int) -> tuple[Any, Platform]:
        made.append(kind(platform, stop=stop))
        return made[-1], made[-1].platform()

    monkeypatch.setattr("embeddb.ui.cli.verbs.measure.runner_here", here)
    return made


def _document(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)["ops"][0]


def _errors(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines on stderr that are no progress, which a slow machine prints."""
    lines = capsys.readouterr().err.splitlines()
    return [line for line in lines if line.startswith("embeddb: ") or " of " not in line[:40]]


def test_it_measures_learns_and_extends(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _measured_by(monkeypatch, Law, stop=15)
    assert run_verb([*words, "--samples", "60", "--json"]) == 130
    capsys.readouterr()
    second = _measured_by(monkeypatch, Law)
    assert run_verb([*words, "--samples", "60", "--json"]) == 0
    found = _document(capsys)
    assert len(second[0].asked) == 45  # the others were measured before it was stopped
    assert (found["samples"], found["failed"], found["matrices"]) == (60, 0, 8)
    learned, fixed = found["held_out"]["learned"], found["held_out"]["best fixed"]
    assert 0 < learned["of_optimum@1"] <= learned["of_optimum@5"] <= 1
    assert 0 < fixed["of_optimum@1"] <= 1 and learned["groups"] == fixed["groups"] == 8
    assert [p["samples"] for p in found["curve"]] == [15, 30, 60]

    third = _measured_by(monkeypatch, Law)
    assert run_verb([*words, "--samples", "80"]) == 0
    out = capsys.readouterr().out
    assert "80 samples, on 8 matrices" in out and "500 more samples: " in out
    assert len(third[0].asked) == 20
    with Database.open(words[1], readonly=True) as db:
        assert db.store.count_runs() == 80
    fewer = _measured_by(monkeypatch, Law)
    assert run_verb([*words, "--samples", "40", "--json"]) == 0
    assert _document(capsys)["samples"] == 80 and not fewer[0].asked


def test_the_default_is_among_the_samples_of_every_matrix(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _measured_by(monkeypatch, Law)
    assert run_verb([*words, "--samples", "60", "--campaign", f"{words[1]}.camp"]) == 0
    campaign = Campaign(Path(f"{words[1]}.camp") / "board" / "spmm_32")
    spent = bought(campaign)
    assert spent is not None and (spent.budget, spent.measured, spent.matrices) == (60, 60, 8)
    by_matrix: dict[int, set[str]] = {}
    for task in campaign.tasks():
        path = campaign.plan.matrices[task.matrix].path
        by_matrix.setdefault(hash(path), set()).update(map(str, campaign.lines(task)))
    assert all("tile=1,unroll=1" in configs and len(configs) >= 2 for configs in by_matrix.values())
    assert sum(map(len, by_matrix.values())) == 60


def test_a_campaign_of_another_strategy_goes_on(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adopting bought by `spread` before."""
    _measured_by(monkeypatch, Law)
    words += ["--campaign", f"{words[1]}.camp"]
    with monkeypatch.context() as earlier:
        plain = adopt.BudgetRequest
        earlier.setattr(
            adopt, "BudgetRequest", lambda **about: plain(**{**about, "strategy": "spread"})
        )
        assert run_verb([*words, "--samples", "50"]) == 0
    assert run_verb([*words, "--samples", "60"]) == 0
    spent = bought(Campaign(Path(f"{words[1]}.camp") / "board" / "spmm_32"))
    assert spent is not None and (spent.name, spent.measured) == ("spread", 60)


@pytest.mark.parametrize(
    ("failing", "repaired"), [(Failing, Law), (Failing, Rebuilt), (FailingByJob, Law)]
)
def test_if_the_default_fails_it_stops_and_goes_on_after_a_repair(
    words: list[str],
    failing: type[LawRunner],
    repaired: type[LawRunner],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = f"{words[1]}.adopt/board/spmm_32"
    for _ in range(2):
        runner = _measured_by(monkeypatch, failing)
        assert run_verb([*words, "--samples", "60"]) == 1
        error = _errors(capsys)[-1]
        assert "all 3 samples so far failed, 3 of them alike: crash: no such file" in error
        assert f"`embeddb campaign status {words[1]} {folder}`" in error
        assert "after a repair run `adopt` again as before" in error
        assert f"`embeddb campaign resume {words[1]} {folder} --again crash`" in error
        assert len(runner[0].asked) == 3
    assert run_verb(["campaign", "status", words[1], folder]) == 0
    assert "3 crash: no such file" in capsys.readouterr().out
    _measured_by(monkeypatch, repaired)
    assert run_verb([*words, "--samples", "60", "--json"]) == 0
    assert run_verb(["campaign", "status", f"{words[1]}x", folder]) == 1, "now points ran"
    capsys.readouterr()
    assert run_verb([*words, "--samples", "60", "--json"]) == 0
    assert _document(capsys)["failed"] == 0


def test_a_round_without_a_run_is_measured_again(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an older version, or `campaign run`, leaves it."""
    _measured_by(monkeypatch, Failing)
    with monkeypatch.context() as earlier:
        earlier.setattr("indexer.campaign.run._TRIED", 0)
        assert run_verb([*words, "--samples", "60"]) == 1
    assert "all 40 samples so far failed, 40 of them alike" in _errors(capsys)[-1]
    _measured_by(monkeypatch, Rebuilt)
    assert run_verb([*words, "--samples", "60", "--json"]) == 0
    assert _document(capsys)["failed"] == 0


def test_resuming_all_failures_takes_another_build(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _measured_by(monkeypatch, Failing)
    assert run_verb([*words, "--samples", "60"]) == 1
    folder = f"{words[1]}.adopt/board/spmm_32"
    rebuilt = Rebuilt(Campaign(Path(folder)).platform)
    monkeypatch.setattr("embeddb.ui.cli.verbs.campaign_run.runner_here", lambda *_: (rebuilt, None))
    assert run_verb(["init", words[1]]) == 0
    assert run_verb(["campaign", "resume", words[1], folder]) == 1, "its results count"
    assert run_verb(["campaign", "resume", words[1], folder, "--again", "crash"]) == 0
    assert Campaign(Path(folder)).progress().statuses == {"ok": 60}


def test_a_corrected_file_begins_anew_where_nothing_ran(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _measured_by(monkeypatch, Failing)
    assert run_verb([*words, "--samples", "60"]) == 1
    Path(words[3]).write_text(BOARD + "# corrected\n")
    capsys.readouterr()
    _measured_by(monkeypatch, Law)
    assert run_verb([*words, "--samples", "60"]) == 0
    assert "begun anew" in capsys.readouterr().err
    assert Path(f"{words[1]}.adopt/board/spmm_32.failed-1").is_dir()
    Path(words[3]).write_text(BOARD)
    assert run_verb([*words, "--samples", "60"]) == 1
    error = _errors(capsys)[-1]
    assert "the text of its platform file differs" in error and "--campaign DIR" in error


def test_another_build_or_other_matrices(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _measured_by(monkeypatch, Law, stop=30)
    assert run_verb([*words, "--samples", "60"]) == 130
    capsys.readouterr()
    _measured_by(monkeypatch, Rebuilt)
    assert run_verb([*words, "--samples", "60"]) == 1
    error = _errors(capsys)[-1]
    assert "another build or machine" in error and "--campaign DIR" in error
    (Path(words[5]) / "m2.npz").rename(Path(words[5]).parent / "m2.npz")
    _measured_by(monkeypatch, Law)
    assert run_verb([*words, "--samples", "60"]) == 1
    error = _errors(capsys)[-1]
    assert "matrices missing here: m2" in error and "--campaign DIR" in error
    folder = f"{words[1]}.adopt/board/spmm_32"
    lost = Campaign(Path(folder))
    monkeypatch.setattr(
        "embeddb.ui.cli.verbs.campaign_run.runner_here", lambda *_: (Law(lost.platform), None)
    )
    assert run_verb(["campaign", "run", words[1], folder]) == 1
    error = _errors(capsys)[-1]
    assert "matrix files missing: " in error and "m2.npz" in error and "put back" in error


@pytest.mark.parametrize("text", [BOARD, BOARD + "# corrected\n"], ids=["same", "corrected"])
def test_a_folder_in_use_is_left_alone(
    text: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _measured_by(monkeypatch, Failing)
    assert run_verb([*words, "--samples", "60"]) == 1
    Path(words[3]).write_text(text)
    folder = Path(f"{words[1]}.adopt/board/spmm_32")
    files = ("plan.json", "measured-on.json", "again.json")
    before = [(folder / name).exists() and (folder / name).read_bytes() for name in files]
    _measured_by(monkeypatch, Rebuilt)
    with alone(folder):
        assert run_verb([*words, "--samples", "60"]) == 1
        there = Campaign(folder)
        job = CampaignJob(
            there,
            Database.in_memory().index,
            Rebuilt(there.platform),
            RunOptions(),
            again=["crash"],
        )
        with pytest.raises(InputError, match="another run of this campaign"):
            job.run()
    assert before == [(folder / n).exists() and (folder / n).read_bytes() for n in files]
    assert list(folder.parent.iterdir()) == [folder]
    nothing = BudgetRequest(
        platform=parse_platform(BOARD), op=Op("spmm", 32), strategy="random", budget=60
    )
    begin_again(folder, nothing, [], Rebuilt(there.platform).platform(), print)
    Campaign.create(folder, msgspec.structs.replace(there.plan, seed=9))
    with pytest.raises(InputError, match="begun since this command started"):
        job.run()


def test_a_finished_campaign_needs_no_matrices(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _measured_by(monkeypatch, Law)
    assert run_verb([*words, "--samples", "60"]) == 0
    folder = Path(f"{words[1]}.adopt/board/spmm_32")
    plan = msgspec.json.decode((folder / "plan.json").read_bytes())
    plan["buying"]["budget"] = 60 + 1000  # more than there is to buy
    runner = Law(Campaign(folder).platform)
    with Database.open(words[1]) as db:
        (folder / "plan.json").write_bytes(msgspec.json.encode(plan))
        job = CampaignJob(Campaign(folder), db.index, runner, RunOptions())
        run_campaign(job)
        asked = len(runner.asked)
        for file in Path(words[5]).iterdir():
            file.unlink()
        run_campaign(replace(job, campaign=Campaign(folder)))
    assert asked == 8 * 16 - 60 and len(runner.asked) == asked


def test_if_only_the_default_times_out_the_others_are_measured(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _measured_by(monkeypatch, DefaultSlow)
    run_verb([*words, "--samples", "60"])
    campaign = Campaign(Path(f"{words[1]}.adopt/board/spmm_32"))
    assert campaign.progress().statuses == {"ok": 52, "timeout": 8}


def test_a_machine_that_stays_broken_stores_no_crash(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _measured_by(monkeypatch, Law, stop=15)
    assert run_verb([*words, "--samples", "60"]) == 130
    campaign = Campaign(Path(f"{words[1]}.adopt/board/spmm_32"))
    for _ in range(3):
        _measured_by(monkeypatch, AllKilled)
        assert run_verb([*words, "--samples", "60"]) == 1
        assert campaign.progress().statuses == {"ok": 15}
    # The points of another command were killed once only.
    _measured_by(monkeypatch, KilledOnce)
    assert run_verb([*words, "--samples", "60"]) == 0
    assert Campaign(campaign.folder).progress().statuses == {"ok": 60}


def test_after_a_repair_one_end_of_a_program_is_no_crash(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _measured_by(monkeypatch, Killed)
    assert run_verb([*words, "--samples", "60"]) == 0
    folder = f"{words[1]}.adopt/board/spmm_32"
    runner = KilledOnce(Campaign(Path(folder)).platform)
    monkeypatch.setattr("embeddb.ui.cli.verbs.campaign_run.runner_here", lambda *_: (runner, None))
    assert run_verb(["campaign", "resume", words[1], folder, "--again", "crash"]) == 0
    assert Campaign(Path(folder)).progress().statuses == {"ok": 60} and runner.killed


def test_a_program_that_is_killed_again_at_a_point_is_a_crash(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others ran between, so it is not the machine."""
    _measured_by(monkeypatch, Killed)
    assert run_verb([*words, "--samples", "60", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)["ops"][0]
    assert found["samples"] == 60 and 0 < found["failed"] < 40
    campaign = Campaign(Path(f"{words[1]}.adopt/board/spmm_32"))
    for task in campaign.tasks():
        for config, one in campaign.lines(task).items():
            assert (one.status == "crash") == (config["unroll"] == 8)
            assert one.ok or one.error == "ended by SIGKILL, 2 times at this point"


def test_where_every_program_is_killed_nothing_is_stored_at_once(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _measured_by(monkeypatch, AllKilled)
    assert run_verb([*words, "--samples", "60"]) == 1
    error = _errors(capsys)[-1]
    assert "was ended by SIGKILL" in error and "stored as a crash" in error
    campaign = Campaign(Path(f"{words[1]}.adopt/board/spmm_32"))
    assert campaign.progress().measured == 0
    _measured_by(monkeypatch, Law)
    assert run_verb([*words, "--samples", "60", "--json"]) == 0
    assert _document(capsys)["failed"] == 0


def test_numbers_of_samples_agree(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _measured_by(monkeypatch, Law)
    assert run_verb([*words, "--samples", "60"]) == 0
    assert "learned from" not in capsys.readouterr().out
    assert run_verb([*words, "--samples", "50"]) == 0
    assert "--samples 50 is less than were measured before" in capsys.readouterr().out
    with Database.open(words[1]) as db:
        (pattern, *_), (name,) = db.store.patterns(), db.store.platforms()
        here = db.platform(name)
        configs = here.space(Op("spmm", 32)).sample(16, rng=np.random.default_rng(0))
        runs = [
            Run(pattern.id, Op("spmm", 32), name, c, Measurement(times_s=(1e-6,)), "query")
            for c in configs
        ]
        whole = db.store.workload(pattern.id)
        assert whole is not None
        db.index.record(runs, whole, here)
    assert run_verb([*words, "--samples", "60"]) == 0
    out = capsys.readouterr().out
    assert "60 samples, on 8 matrices; learned from " in out and "other runs" in out


@pytest.mark.parametrize(("tiles", "points"), [("[1, 2]", 16), ("[1, 2, 4, 8]", 128)])
def test_an_exhausted_space_needs_more_matrices(
    tiles: str,
    points: int,
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if its points are too few to learn from."""
    unroll = 'unroll = { type = "int", values = '
    if points == 16:
        small = BOARD.replace(f"{unroll}[1, 2, 4, 8]", f"{unroll}[1]")
        (tmp_path / "board.toml").write_text(small.replace("[1, 2, 4, 8]", tiles))
    _measured_by(monkeypatch, Law)
    assert run_verb([*words, "--samples", "200"]) == 0
    out = capsys.readouterr().out
    assert f"{points} samples, on 8 matrices" in out and "more samples" not in out
    assert f"all {points} points are measured" in out and "add matrices" in out
    assert ("learning curve" in out) == (points == 128)
    assert run_verb([*words, "--samples", "200", "--json"]) == 0
    found = _document(capsys)
    assert found["complete"] and found["further"]["at_most"] is None
    assert found["space"] == points // 8 and bool(found["held_out"]) == (points == 128)


def test_a_small_part_of_a_space_does_not_say_what_more_samples_add(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _measured_by(monkeypatch, Law)
    assert run_verb([*words, "--samples", "60"]) == 0
    out = capsys.readouterr().out
    assert "configurations of the whole space" in out and "500 more samples: not" not in out
    assert "6.0" not in out and "10.0 points (RMS) off at 50 samples" in out
    values = ", ".join(map(str, range(1, 129)))
    large = BOARD.replace("values = [1, 2, 4, 8]", f"values = [{values}]")
    Path(words[3]).write_text(large.replace('"board"', '"large"'))
    assert run_verb([*words, "--samples", "60"]) == 0
    out = capsys.readouterr().out
    assert "configurations of 16,384, groups held out" in out and "spread over groups" in out
    assert "500 more samples: not estimated" in out and "at most" not in out


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"--samples": "19"}, 2, "--samples 20"),
        ({"--samples": "5001"}, 2, "to 5000"),
        ({"--op": "spmv"}, 2, "has no spmv"),
        ({"--op": "nest"}, 2, "is about matrices"),
        ({"--matrices": "empty"}, 1, "no matrix that can be read"),
        ({"--matrices": "none"}, 1, "none"),
        ({"--manifest": "one.csv"}, 1, "matrices of 1 groups, fewer than the 5"),
    ],
)
def test_what_is_refused(
    words: list[str],
    change: dict[str, str],
    code: int,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    rows = "".join(f"m{at},one\n" for at in range(8))
    (tmp_path / "one.csv").write_text(f"name,family\n{rows}")
    _measured_by(monkeypatch, Law)
    options = dict(zip(words[2::2], words[3::2], strict=True)) | change
    assert run_verb([*words[:2], *(word for pair in options.items() for word in pair)]) == code
    (error,) = _errors(capsys)
    assert message in error
    assert not Path(words[1]).exists()


def test_a_platform_without_a_runner(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(words) == 1
    (error,) = _errors(capsys)
    assert "has no runner" in error
