"""A tuner that the user names: tuner while it works, asked for an answer, told what it took."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import CONFIGS, DEFAULT, OP, band, by_law, fill, patterns, runs_of, tiny

from embeddb.core import plugins
from embeddb.core.config import Config
from embeddb.core.errors import NothingFound, PluginError, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, Run
from embeddb.database import Database
from embeddb.platforms.platform import Platform, parse_platform
from embeddb.ranking.build import build_query
from embeddb.ranking.query import Query
from embeddb.testing.tuners import TunerContract, sample_queries
from embeddb.ui.cli.main import run
from indexer.embed import embed
from indexer.runners.base import RunOptions
from tuners.by_name import CheckedTuner, answer_by, tuner_class
from tuners.evaluation.evaluate import EvalOptions, evaluate

#: Asks in alphabetical order, and for the rest backwards once it was told of a failure: what it
#: asks depends on what it was told.
MINE = '''
"""Alphabetical."""
from embeddb.ranking import Candidate

TOLD = []


class Alphabetical:
    def __init__(self, query, *, rng):
        self.left = sorted(query.space.enumerate(), key=str)

    def ask(self, count):
        asked, self.left = self.left[:count], self.left[count:]
        return [Candidate(config=dict(c), score=0.0, origin="alphabet") for c in asked]

    def tell(self, config, measurement):
        if config in self.left:
            self.left.remove(config)
        TOLD.append((config["variant"], measurement.status))
        if not measurement.ok:
            self.left.reverse()


PLUGIN = Alphabetical
'''
#: What each of these does wrong is in its name.
WRONG = {
    "raises": "def ask(self, count):\n        return {}['nothing']",
    "exits": "def ask(self, count):\n        raise SystemExit(2)",
    "no_gain": "def ask(self, count):\n"
    "        return [Candidate(config={'variant': 'a'}, score=0, origin='x', expected_gain=0.0)]",
    "no_score": "def ask(self, count):\n"
    "        return [Candidate(config={'variant': 'a'}, score=float('nan'), origin='x')]",
    "raises_when_told": "def tell(self, config, measurement):\n        raise ValueError('of this')",
    "too_many": "def ask(self, count):\n        return super().ask(count + 1)",
    "twice": "def ask(self, count):\n        return super().ask(1) * 2",
    "no_candidate": "def ask(self, count):\n        return [{'variant': 'a'}]",
    "illegal": "def ask(self, count):\n"
    "        return [Candidate(config={'variant': 'z'}, score=0.0, origin='x')]",
    "unstorable": "def ask(self, count):\n"
    "        return [Candidate(config={'variant': [[1]]}, score=0.0, origin='x')]",
    "no_number": "def ask(self, count):\n"
    "        return [Candidate(config={'variant': 'a'}, score=0, origin='x', expected_gain='2x')]",
    "silent": "def ask(self, count):\n        return []",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Plug-ins of the user's own: `alphabetical`, one that is no tuner, and the wrong ones."""
    (tmp_path / "tuners").mkdir()
    (tmp_path / "tuners" / "alphabetical.py").write_text(MINE)
    (tmp_path / "tuners" / "number.py").write_text("PLUGIN = 7\n")
    (tmp_path / "tuners" / "mute.py").write_text(
        "class PLUGIN:\n    def __init__(self, query, *, rng):\n        pass\n"
    )
    for name, method in WRONG.items():
        code = MINE.replace("PLUGIN = Alphabetical", "")
        code += f"class Wrong(Alphabetical):\n    {method}\n\n\nPLUGIN = Wrong\n"
        (tmp_path / "tuners" / f"{name}.py").write_text(code)
    monkeypatch.setenv("EMBEDDB_PLUGINS", str(tmp_path))
    _forget()
    yield tmp_path
    _forget()


def _forget() -> None:
    plugins._locate.cache_clear()
    plugins._load_file.cache_clear()


@pytest.fixture(scope="module")
def lawful() -> Database:
    return fill(Database.in_memory(), tiny())


def _query(db: Database) -> Query:
    return build_query(db.index, band(137, 14, name="new"), tiny(), OP)


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _exit(args: Sequence[str]) -> int:
    with pytest.raises(SystemExit) as stopped:
        run(list(args))
    return int(stopped.value.code or 0)


# -- what is wrong with a tuner is told as that -------------------------------------------------


@pytest.mark.parametrize("name", ["transfer", "random", "search"])
class TestWatchedKeepsTheContract(TunerContract):
    @pytest.fixture(autouse=True)
    def _named(self, name: str) -> None:
        self.name = name

    def make(self, query: Query, rng: np.random.Generator) -> CheckedTuner:
        return CheckedTuner(self.name, query, rng=rng)


@pytest.mark.usefixtures("folder")
def test_an_unknown_tuner_is_told_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="no tuner named 'alphabet'") as caught:
        tuner_class("alphabet")
    assert "alphabetical" in caught.value.hint and "transfer" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("number", "no class"),
        ("mute", "it does not implement"),
        ("raises", r"ask\(2\) raised KeyError: 'nothing' \(raises.py, line \d+\)"),
        ("exits", r"ask\(2\) raised SystemExit: 2 \(exits.py, line \d+\)"),
        ("no-gain", r"the expected gain of variant=a is 0\.0, no number above 0"),
        ("no-score", "the score of variant=a is nan, no number"),
        ("too-many", r"ask\(2\) returned 3 candidates"),
        ("twice", "it proposed variant=a twice"),
        ("no-candidate", "no Candidate"),
        ("illegal", "variant=z, which is not legal here: parameter 'variant'"),
        ("unstorable", "no configuration"),
        ("no-number", "the expected gain of variant=a is '2x', no number"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_broken_contract_names_tuner_and_fault(lawful: Database, name: str, said: str) -> None:
    with pytest.raises(PluginError, match=said) as caught:
        CheckedTuner(name, _query(lawful), rng=_rng()).ask(2)
    assert name in str(caught.value) and "\n" not in str(caught.value)
    assert "TunerContract" in caught.value.hint


@pytest.mark.usefixtures("folder")
def test_a_tuner_that_raises_when_told_is_named(lawful: Database) -> None:
    tuner = CheckedTuner("raises-when-told", _query(lawful), rng=_rng())
    with pytest.raises(PluginError, match=r"tell of variant=a.* raised ValueError: of this"):
        tuner.tell(DEFAULT, Measurement(times_s=(1.0,)))


@pytest.mark.usefixtures("folder")
def test_proposals_are_in_their_stored_form() -> None:
    """A number that stands for a size of the matrix is stored as its symbol."""
    query = sample_queries()["neighbours"]
    asked = CheckedTuner("transfer", query, rng=_rng()).ask(50)
    stored = [Config(c.config) for c in asked]
    assert stored == [query.space.canonical(c) for c in stored]


# -- query --tuner ------------------------------------------------------------------------------


@pytest.mark.usefixtures("folder")
def test_its_proposals_are_the_answer(lawful: Database) -> None:
    made = lawful.query(band(137, 14, name="new"), platform="tiny", op=OP, tuner="alphabetical")
    assert (made.link, made.tuner, made.confidence) == ("tuner", "alphabetical", "low")
    assert [c.config["variant"] for c in made.candidates] == ["a", "b", "c", "d"]
    assert "eval DB --tuner alphabetical" in made.warnings[0]
    assert lawful.recommendation(made.id).candidates == made.candidates
    told = lawful.explain(made.id)
    assert (told.recommendation.link, told.recommendation.tuner, told.voted) == (
        "tuner",
        "alphabetical",
        False,
    )
    own = lawful.query(band(137, 14, name="new"), platform="tiny", op=OP)
    assert own.link == "neighbours" and own.candidates[0].config == {"variant": "c"}


@pytest.mark.usefixtures("folder")
def test_a_tuner_that_proposes_nothing_is_told(lawful: Database) -> None:
    with pytest.raises(NothingFound, match="silent proposes nothing"):
        answer_by("silent", _query(lawful), 5)


@pytest.mark.parametrize("name", ["rank", "search"])
def test_without_a_cost_model_its_tuners_find_nothing(lawful: Database, name: str) -> None:
    with pytest.raises(NothingFound, match=f"{name} has no cost model of {OP} on tiny") as caught:
        answer_by(name, _query(lawful), 5)
    assert "train costmodel" in caught.value.hint


def _labelled() -> Platform:
    text = tiny("lab", portable=True).text.replace('title = "F', 'runner = "law"\ntitle = "F')
    return parse_platform(text)


class LawRunner:
    """Knows the law; variant b crashes."""

    name = "law"

    def available(self) -> str | None:
        return None

    def platform(self, *, threads: int = 0) -> Platform:
        return _labelled().at("here")

    def run(
        self, pattern: Pattern, op: Any, configs: Sequence[Config], *, options: RunOptions
    ) -> Iterator[tuple[Config, Measurement]]:
        for config in configs:
            at = CONFIGS.index(config)
            failed = Measurement("crash", error="signal 11")
            yield config, failed if at == 1 else Measurement(times_s=(by_law(pattern, at),))


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database of a platform that can be measured here, and a matrix in it without runs."""
    real: Callable[[str, str], Any] = plugins.load

    def load(kind: str, name: str) -> Any:
        return LawRunner if (kind, name) == ("runner", "law") else real(kind, name)

    monkeypatch.setattr(plugins, "load", load)
    with Database.create(tmp_path / "lab.db") as db:
        fill(db, _labelled().at("elsewhere"))
        db.index.add_pattern(band(137, 14, name="new"))
    return str(tmp_path / "lab.db")


@pytest.mark.usefixtures("folder")
def test_measured_it_is_told_of_each_before_the_next(
    lab: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The default (a) comes first, then b crashes, so that it goes on from the other end: d, not
    c."""
    args = ["query", lab, "new", "--platform", "lab", "--op", str(OP), "-k", "2"]
    assert _exit([*args, "--tuner", "alphabetical", "--json"]) == 0
    cold = json.loads(capsys.readouterr().out)
    assert [c["config"]["variant"] for c in cold["candidates"]] == ["a", "b"]
    assert _exit([*args, "--tuner", "alphabetical", "--measure", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    found = {c["config"]["variant"]: c["status"] for c in made["candidates"]}
    assert found == {"d": "ok", "b": "crash"} and made["candidates"][0]["config"] == {
        "variant": "d"
    }
    new = band(137, 14)
    assert made["candidates"][0]["seconds"] == pytest.approx(by_law(new, 3))
    assert made["default"]["seconds"] == pytest.approx(by_law(new, 0))
    with Database.open(lab, readonly=True) as db:
        ran = {r.config["variant"] for r in db.store.runs("lab@here", OP, new.id)}
    assert ran == {"a", "b", "d"}


@pytest.mark.usefixtures("folder")
def test_one_that_has_only_the_default_leaves_the_answer(
    lab: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["query", lab, "new", "--platform", "lab", "--op", str(OP), "--tuner", "default"]
    assert _exit([*args, "--measure", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert [c["config"] for c in made["candidates"]] == [dict(DEFAULT)]


@pytest.mark.usefixtures("folder")
def test_the_command_line_says_what_is_wrong(lab: str, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["query", lab, "new", "--platform", "lab", "--op", str(OP), "--tuner"]
    assert _exit([*args, "nobodys"]) == 2
    assert "tuners there are: alphabetical" in capsys.readouterr().err
    assert _exit([*args, "illegal"]) == 1
    assert "not legal here" in capsys.readouterr().err
    assert _exit([*args, "alphabetical", "--why"]) == 2
    assert "--why" in capsys.readouterr().err
    assert _exit([*args, "alphabetical"]) == 0
    shown = capsys.readouterr().out
    assert "ranked by: alphabetical" in shown and "link: tuner" in shown and "not judged" in shown


# -- eval --tuner -------------------------------------------------------------------------------


@pytest.mark.usefixtures("folder")
def test_it_is_judged_beside_the_others(lawful: Database) -> None:
    rows = {
        r.method: r
        for r in evaluate(
            lawful.index, EvalOptions(seeds=(0,), tuners=("alphabetical", "transfer"))
        )
    }
    plain = {r.method: r for r in evaluate(lawful.index, EvalOptions(seeds=(0,)))}
    assert list(rows)[-3:] == ["alphabetical", "transfer", "oracle"]
    assert {name: rows[name] for name in plain} == plain  # nobody else's figures change
    # In the order of the alphabet the first is the default, and all are seen after four.
    mine = rows["alphabetical"].figures
    assert mine["of_optimum@1"] == pytest.approx(1.5**-1.5)
    assert mine["of_optimum@2"] == pytest.approx(1.5**-0.75)
    assert mine["of_optimum@5"] == mine["of_optimum@10"] == pytest.approx(1.0)
    assert rows["transfer"].figures["of_optimum@1"] == rows["embeddb"].figures["of_optimum@1"]
    assert "of_optimum@10" not in rows["embeddb"].document()


@pytest.mark.usefixtures("folder")
def test_it_is_told_of_what_was_recorded() -> None:
    """b crashed everywhere, so that it goes on from the other end: c is its last."""
    db = Database.in_memory()
    for pattern in patterns():
        ran = [r for r in runs_of(pattern, tiny()) if r.config != CONFIGS[1]]
        failed = Run(pattern.id, OP, "tiny", CONFIGS[1], Measurement("crash", error="signal 11"))
        db.index.record([*ran, failed], pattern, tiny())
    embed(db.index)
    rows = {
        r.method: r for r in evaluate(db.index, EvalOptions(seeds=(0,), tuners=("alphabetical",)))
    }
    told = sys.modules[tuner_class("alphabetical").__module__].TOLD  # type: ignore[attr-defined]  # its own
    assert told == [("a", "ok"), ("b", "crash"), ("d", "ok"), ("c", "ok")] * 20
    mine = rows["alphabetical"].figures
    assert mine["of_optimum@2"] == mine["of_optimum@1"] < mine["of_optimum@5"] == 1.0


@pytest.mark.usefixtures("folder")
def test_a_name_of_the_table_stays_its_own(lawful: Database) -> None:
    rows = {
        r.method: r
        for r in evaluate(lawful.index, EvalOptions(seeds=(0,), tuners=("random", "default")))
    }
    assert rows["default (tuner)"].figures["speedup@1"] == 1.0
    assert rows["random"].figures != rows["random (tuner)"].figures


@pytest.mark.usefixtures("folder")
def test_illegal_proposals_waste_steps_and_are_told(lawful: Database) -> None:
    notes: list[str] = []
    rows = evaluate(lawful.index, EvalOptions(seeds=(0,), tuners=("illegal",)), note=notes.append)
    row = next(r for r in rows if r.method == "illegal")
    assert row.figures["illegal"] == row.matrices and row.figures["speedup@5"] == 1.0
    assert len(notes) == 1 and "variant=z" in notes[0]


@pytest.mark.usefixtures("folder")
def test_eval_tells_a_broken_tuner(lawful: Database) -> None:
    for name, said in (("raises", "KeyError"), ("nobodys", "no tuner named")):
        with pytest.raises((PluginError, UsageError), match=said):
            evaluate(lawful.index, EvalOptions(seeds=(0,), tuners=(name,)))


@pytest.mark.usefixtures("folder")
def test_the_verb_shows_how_it_got_there(lab: str, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["eval", lab, "--seeds", "1"]
    assert _exit([*args, "--tuner", "alphabetical", "--tuner", "random"]) == 0
    shown = capsys.readouterr().out
    assert "after this many measurements" in shown and "random (tuner)" in shown
    assert _exit([*args, "--tuner", "alphabetical", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [r["of_optimum@10"] for r in rows if r["method"] == "alphabetical"] == [
        pytest.approx(1.0)
    ]
    assert _exit(args) == 0
    assert "alphabetical" not in capsys.readouterr().out
    assert _exit([*args, "--across", "--tuner", "alphabetical"]) == 2
    assert "--across does not go with --tuner" in capsys.readouterr().err
