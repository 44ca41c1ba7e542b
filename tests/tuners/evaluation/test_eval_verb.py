"""`eval --learned`: what it judges, what it says, and what is missing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import CONFIGS, OP, fill, patterns, tiny, winner
from command_line import run_verb

from embeddb.core.errors import UsageError
from embeddb.cost_model import Problem
from embeddb.database import Database
from embeddb.ui.cli.arguments import threads
from tuners.evaluation import learned_rankers as rankers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("eval") / "runs.db"
    with Database.create(path) as db:
        fill(db, tiny())
    return str(path)


def test_a_machine_that_is_not_judged_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Database.create(tmp_path / "runs.db") as db:
        pair = tiny("pair", portable=True)
        default = CONFIGS.index(pair.default(OP))
        for instance, variants in (("one", range(4)), ("two", {*range(4)} - {default})):
            fill(db, pair.at(instance), variants=[*variants])
    assert run_verb(["eval", str(tmp_path / "runs.db"), "--seeds", "1"]) == 0
    shown = capsys.readouterr()
    assert "on pair@one" in shown.out and "on pair@two" not in shown.out
    why = "not evaluated: too few matrices with a measured default"
    assert f"{OP} on pair@two: {why}" in shown.err and "on pair@one:" not in shown.err
    for words, out in ((["eval"], []), (["plot", "winners"], ["-o", str(tmp_path / "won.svg")])):
        typed = [*words, str(tmp_path / "runs.db"), "--platform", "pair@two", *out]
        assert run_verb(typed) == 3
        assert "pair@two is one machine of pair, whose runs count" in capsys.readouterr().err
    assert run_verb(["db", "stat", str(tmp_path / "runs.db")]) == 0
    assert "of several machines: of their averaged gains" in capsys.readouterr().out


def _asked(args: list[str]) -> int:
    """The exit code of a command line."""
    return run_verb(args)


class _Even:
    """All are equally fast."""

    def score(self, _problem: Any, configs: Any) -> Any:
        return np.zeros(len(configs)), np.full(len(configs), math.nan)


def _instead(monkeypatch: pytest.MonkeyPatch, fit: Callable[..., Any]) -> None:
    monkeypatch.setattr(rankers, "learned_rankers", lambda **_: {"even": fit})


def test_learned_rankers_are_in_the_table(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _instead(monkeypatch, lambda *_: _Even())
    assert _asked(["eval", folder, "--seeds", "1", "--learned", "--json"]) == 0
    methods = [row["method"] for row in json.loads(capsys.readouterr().out)]
    assert methods[-3:] == ["even", "even+transfer", "oracle"]
    assert _asked(["eval", folder, "--seeds", "1", "--json"]) == 0
    methods = [row["method"] for row in json.loads(capsys.readouterr().out)]
    assert "even" not in methods


def test_the_model_that_a_query_learns_is_evaluated_where_it_learns_one(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def methods() -> dict[str, float]:
        assert _asked(["eval", folder, "--seeds", "1", "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        return {row["method"]: row["of_optimum@1"] for row in rows}

    seen = methods()
    assert 0.9 < seen["process"] <= 1.0 and "process+transfer" not in seen
    monkeypatch.setattr(rankers, "ranks", lambda *_: True)  # by a trained model
    assert "process" not in methods()
    _instead(monkeypatch, lambda *_: _Even())
    assert _asked(["eval", folder, "--seeds", "1", "--learned", "--json"]) == 0
    assert "process" in {row["method"] for row in json.loads(capsys.readouterr().out)}


def test_one_that_cannot_learn_is_named(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusing(*_: Any) -> Any:
        raise UsageError("3 runs too few")

    _instead(monkeypatch, refusing)
    assert _asked(["eval", folder, "--seeds", "1", "--learned"]) == 0
    shown = capsys.readouterr()
    assert "even is not judged: 3 runs too few" in shown.err
    assert "even" not in shown.out and "oracle" in shown.out


def test_without_torch_one_line_says_what_to_install(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rankers, "find_spec", lambda _: None)
    assert _asked(["eval", folder, "--learned"]) == 1
    assert "learn" in capsys.readouterr().err


@pytest.mark.slow
def test_the_cost_model_learns_from_what_the_judge_gives(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from indexer.training.cost_model import train as costmodel

    short = partial(costmodel.CostSettings, members=1, epochs=20, few_epochs=20)
    monkeypatch.setattr(costmodel, "CostSettings", short)
    # As the verb does: several threads on busy cores take minutes.
    with threads(1):
        _judged_winners(folder, right_of=15)


def _judged_winners(folder: str, *, right_of: int) -> None:
    with Database.open(folder, readonly=True) as db:
        evidence, vectors = db.index.evidence(OP, "tiny")
        found = {p.id: db.store.pattern(p.id) for p in patterns()}
    infos = {i: info for i, info in found.items() if info is not None}
    fit = rankers.learned_rankers()["costmodel"]
    model = fit(evidence, {"stats": vectors["stats"]}, infos, tiny(), OP, dict.fromkeys(infos))
    right = 0
    for pattern in patterns():
        sizes = (*pattern.shape, pattern.nnz)
        gain, spread = model.score(
            Problem(vectors["stats"][pattern.id], tiny(), OP, sizes), CONFIGS
        )
        assert np.isfinite(gain).all() and (spread > 0).all()
        right += int(gain.argmax()) == winner(pattern)
    assert right >= right_of


def test_a_named_featurizer_is_evaluated(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _asked(["eval", folder, "--seeds", "1", "--featurizer", "sizes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["matrices"] == 20
    name = patterns()[0].name
    query = ["query", folder, name, "--platform", "tiny", "--op", str(OP), "--json"]
    assert _asked([*query, "--featurizer", "sizes"]) == 0
    assert json.loads(capsys.readouterr().out)["featurizer"] == "sizes"


@pytest.mark.parametrize("verb", ["eval", "query"])
def test_an_unknown_featurizer_is_one_line(
    folder: str, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    rest = [patterns()[0].name, "--platform", "tiny", "--op", str(OP)] if verb == "query" else []
    assert _asked([verb, folder, *rest, "--featurizer", "nowhere"]) == 2
    shown = capsys.readouterr()
    assert not shown.out and "no featurizer named 'nowhere'" in shown.err


def test_without_vectors_nothing_is_evaluated(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _asked(["eval", folder, "--featurizer", "nest-stats"]) == 3
    shown = capsys.readouterr().err
    assert "has a vector of nest-stats" in shown and "embeddb embed" in shown


def test_choices_among_what_ran_are_shown_where_they_differ(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from embeddb.ui.cli.verbs import eval as verb

    assert _asked(["eval", folder, "--seeds", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    answers = next(row for row in rows if row["method"] == "embeddb")
    assert "of_optimum_ran@1" not in answers
    verb._show(str(OP), "tiny", rows)
    assert "ran@1" not in capsys.readouterr().out
    answers |= {"of_optimum_ran@1": 0.5, "of_optimum_ran@5": 0.75}
    verb._show(str(OP), "tiny", rows)
    assert "ran@1" in capsys.readouterr().out
