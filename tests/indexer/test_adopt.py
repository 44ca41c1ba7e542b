"""Adopting a platform by one command: measured, resumed, extended, judged, and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from campaign_board import BOARD, LawRunner
from command_line import run_verb

from embeddb.core.config import Op
from embeddb.core.records import Measurement
from embeddb.database import Database
from embeddb.platforms.platform import Platform
from indexer import adopt
from indexer.campaign.budget.growing_plan import bought
from indexer.campaign.folder import Campaign


class Law(LawRunner):
    """The best tile follows from the number of rows."""

    def _measured(self, pattern: Any, op: Op, config: Any, number: int) -> Measurement:
        tile, unroll = int(str(config["tile"])), int(str(config["unroll"]))
        best = 1 if pattern.shape[0] < 100 else 3
        return Measurement(
            times_s=(1e-6 * (1 + (tile.bit_length() - 1 - best) ** 2 + unroll / 100),)
        )


class Failing(LawRunner):
    def _measured(self, *_: Any) -> Measurement:
        return Measurement("crash")


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


def test_if_all_fails_it_stops_after_a_round(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = _measured_by(monkeypatch, Failing)
    assert run_verb([*words, "--samples", "80"]) == 1
    (error,) = _errors(capsys)
    assert "all 40 samples so far failed" in error
    assert len(runner[0].asked) == 40


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"--samples": "39"}, 2, "--samples 40"),
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
