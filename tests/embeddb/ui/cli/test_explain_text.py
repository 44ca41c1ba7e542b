"""Explanations as people read them: every case has a text, and no stranger's text harms it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from builders import CONFIGS, DEFAULT, OP, band, by_law, fill, patterns, runs_of, tiny
from explained import by_hand

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.database import Database
from embeddb.explain.explain import explain
from embeddb.explain.explanation import Explanation, MachineShare, OwnRuns
from embeddb.platforms.platform import parse_platform
from embeddb.ranking.alternatives import renewed
from embeddb.ranking.confidence import default_fails
from embeddb.ranking.recommendation import (
    Counterfactual,
    Diagnostics,
    NextRun,
    Recommendation,
    SimplerAnswer,
)
from embeddb.store import memory_store
from embeddb.ui.cli.explain_text import change, show_explanation
from embeddb.ui.cli.main import cli
from embeddb.ui.feature_words import feature_value, feature_words
from embeddb.ui.report.explanation import explanation_html
from indexer.embed import embed

A, B, C, D = CONFIGS
NEW = band(137, 14, name="new", group="new")

Show = Callable[[Explanation], str]


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Show:
    def text(e: Explanation) -> str:
        capsys.readouterr()
        show_explanation(e)
        return capsys.readouterr().out

    return text


def _asked(db: Database, **more: Any) -> Explanation:
    return db.explain(db.query(NEW, platform="tiny", op=OP, **more).id)


def _replaced(made: Recommendation, **changes: Any) -> Recommendation:
    return msgspec.structs.replace(made, **changes)


def test_an_answer_in_the_order_in_which_one_decides(show: Show) -> None:
    text = show(_asked(fill(Database.in_memory(), tiny()), why=True))
    parts = [
        "variant=c",
        "gain    2.",
        "sure    ",
        "novelty ",
        "rests on similar measured patterns",
        "answers of simpler methods",
        "parameters that the neighbours",
        "effect of each parameter",
        "counterfactuals: change of one statistic",
        "occlusion map",
        "what to measure next on this matrix",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert all(len(line) <= 100 for line in text.splitlines())


def test_what_was_not_looked_for_is_not_shown(show: Show) -> None:
    text = show(_asked(fill(Database.in_memory(), tiny())))
    assert "would change" not in text and "counts" not in text


def test_what_differs_from_the_answer() -> None:
    answer = {"format": "csr", "unroll": 4}
    assert change(answer, answer) == "the answer"
    assert change({"format": "bcsr", "block": "2x1"}, answer) == "block=2x1, format=bcsr, no unroll"
    assert len(change({"v": "x" * 5000}, answer)) <= 400


# -- the cases there are -----------------------------------------------------------------------


def test_nothing_was_ever_measured(show: Show) -> None:
    db = Database.in_memory()
    db.store.put_platform(tiny())
    text = show(_asked(db))
    assert "rests on no measurement" in text and "no neighbours were searched" in text
    assert "the platform's default, without evidence" in text
    assert "no measured pattern is comparable" in text


def test_only_winners_were_recorded(show: Show) -> None:
    db = Database.in_memory()
    platform = parse_platform(tiny().text + "\n[traits]\nwinners_only = 1\n")
    for p in patterns(6):
        best = min(range(4), key=lambda v: by_law(p, v))
        run = Run(p.id, OP, "tiny", CONFIGS[best], Measurement(times_s=(by_law(p, best),)))
        db.index.record([run], p, platform)
    embed(db.index)
    text = show(_asked(db))
    assert "gain    not known: the default was never measured" in text
    assert "is expected to be faster" in text


def test_a_default_that_fails_here_was_not_never_measured(show: Show) -> None:
    made, store = by_hand()
    told = _replaced(made, default_seconds=None, warnings=[default_fails("oom")])
    text = " ".join(show(explain(told, store)).split())
    assert "gain not known: the default fails on this matrix; by its neighbours" in text
    assert "never measured" not in text


def test_every_width_that_neighbours_ran_is_named(show: Show) -> None:
    made, store = by_hand()
    near = [
        msgspec.structs.replace(n, op=op)
        for n, op in zip(made.neighbours, ("spmm:32", "spmm:512", ""), strict=False)
    ]
    text = show(explain(_replaced(made, neighbours=near, evidence_op="spmm:512"), store))
    assert "runs behind it, of spmm:512 and spmm:32" in text


def test_simpler_methods_say_whether_they_were_measured(show: Show) -> None:
    e = _asked(fill(Database.in_memory(), tiny()))
    assert "(gain by the same evidence: expected)" in show(e)
    measured = msgspec.structs.replace(e, measured_gain=1.2)
    assert "(gain by the same evidence: measured here where they ran, else expected)" in show(
        measured
    )


def test_a_tuners_answer_is_compared_by_the_databases_own_ranking(show: Show) -> None:
    e = _asked(fill(Database.in_memory(), tiny()), tuner="transfer")
    assert "(gain by the database's own ranking, not by the tuner: expected)" in show(e)
    assert "judged by the database&#39;s own ranking, not by the tuner." in explanation_html(e)


def test_runs_of_two_sessions_are_told(show: Show) -> None:
    made, store = by_hand()
    own = OwnRuns(
        config={"variant": "c"},
        runs=1,
        times=5,
        seconds=1.0,
        fastest=1.0,
        slowest=1.0,
        first=1e9,
        last=1e9,
        sources=["hardware"],
    )
    default = msgspec.structs.replace(own, config={"variant": "a"}, first=1e9 - 7200.0)
    e = msgspec.structs.replace(explain(made, store), own=[own, default])
    assert "ran in different sessions (up to 2 h apart)" in " ".join(show(e).split())
    assert "ran in different sessions" in explanation_html(e)
    together = msgspec.structs.replace(default, first=1e9 - 60.0)
    simulated = msgspec.structs.replace(default, sources=["simulator"])
    for other in (together, simulated):
        assert not msgspec.structs.replace(e, own=[own, other]).sessions


def test_everything_failed_on_the_neighbours(show: Show) -> None:
    made, _ = by_hand()
    store = memory_store()
    store.put_platform(tiny())
    for n in made.neighbours:
        runs = [Run(n.pattern_id, OP, "tiny", c, Measurement(status="oom")) for c in CONFIGS]
        store.append(runs, patterns=[WorkloadInfo(id=n.pattern_id)])
    told = explain(made, store)
    assert all(n.ratios == [] and n.best == {} and n.failed == {"oom": 4} for n in told.neighbours)
    text = show(told)
    assert "not run" in text and "12 oom" in text


def test_runs_and_patterns_are_gone(show: Show) -> None:
    made, _ = by_hand()
    assert "runs behind it, of spmm:32: none is left" in show(explain(made, memory_store()))


def test_simulated_times_say_so_at_the_top(show: Show) -> None:
    db = fill(Database.in_memory(), tiny(simulated=True))
    assert "SIMULATED or modelled" in "\n".join(show(_asked(db)).splitlines()[:3])


def test_measured_answers_are_held_against_the_prediction(show: Show) -> None:
    made, store = by_hand()
    for seconds, verdict in ((2.0, "inside the interval"), (1.0, "OUTSIDE the interval")):
        first = msgspec.structs.replace(
            made.candidates[0], seconds=seconds, status="ok", gain_low=2.0, gain_high=4.0
        )
        done = _replaced(made, candidates=[first], default_seconds=6.0)
        text = " ".join(show(explain(done, store)).split())
        assert f"{6 / seconds:.2f}x over the default, measured on this matrix" in text
        assert verdict in text and "first the answer and the default themselves" not in text


def test_measured_earlier_or_at_another_width(show: Show) -> None:
    db = fill(Database.in_memory(), tiny())
    known = patterns()[2]
    text = show(db.explain(db.query(known, platform="tiny", op=OP).id))
    assert "rests on its own measurements" in text and "this very pattern was measured" in text
    told = db.explain(db.query(NEW, platform="tiny", op=Op("spmm", 64)).id)
    assert "runs behind it, of spmm:32" in show(told)


# -- strangers' text ---------------------------------------------------------------------------

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202egnp.exe\r\n" + "A" * 10_000


def test_hostile_names_stay_short_and_harmless(show: Show) -> None:
    made, store = by_hand()
    near = [msgspec.structs.replace(n, name=HOSTILE, platform="tiny") for n in made.neighbours]
    values = Config({"variant": HOSTILE.replace("\n", "")})
    done = _replaced(
        made,
        pattern_name=HOSTILE,
        warnings=[HOSTILE],
        neighbours=near,
        rejected={HOSTILE: HOSTILE},
        features={HOSTILE: (9.0, 3.0, 2.0), "fill": (5.5, 5.0, 1.0), "flat": (0.0, 0.0, 1.0)},
        insight=Diagnostics(
            simpler=[SimplerAnswer(method=HOSTILE[:40], config=dict(values))],
            next=[NextRun(config=dict(values), worth=0.5, chance=0.6, faster_by=0.9)],
            deep=True,
            moves=[
                Counterfactual(
                    feature=HOSTILE, start=1.0, end=2.0, deviations=1.0, winner=dict(values)
                )
            ],
        ),
    )
    text = show(explain(done, store))
    lines = text.splitlines()
    assert all(line.isprintable() for line in lines) and len(text) < 20_000
    assert max(map(len, lines)) < 600


def test_a_hostile_name_through_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "db"
    with Database.create(place) as db:
        fill(db, tiny(), [band(p.shape[0], 14, name=HOSTILE, group="g") for p in patterns(2)])
        db.query(NEW, platform="tiny", op=OP)
    cli.main(["explain", str(place), "last"], standalone_mode=False)
    out = capsys.readouterr().out
    assert all(line.isprintable() and len(line) < 300 for line in out.splitlines())
    assert "query again with `embeddb query ... --why`" in out


def test_json_is_the_document_of_the_explanation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "db"
    with Database.create(place) as db:
        fill(db, tiny(), patterns(2))
        told = db.explain(db.query(NEW, platform="tiny", op=OP, why=True).id).document()
    cli.main(["explain", str(place), "last", "--json"], standalone_mode=False)
    assert capsys.readouterr().out == json.dumps(told, indent=2) + "\n"


def test_why_is_asked_for_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "db"
    with Database.create(place) as db:
        fill(db, tiny())
        known = patterns()[2]
        db.index.record(runs_of(known, tiny()), known, tiny())
    asked = ["query", str(place), known.id, "--platform", "tiny", "--op", "spmm:32"]
    cli.main(asked, standalone_mode=False)
    assert "effect of each parameter" not in capsys.readouterr().out
    cli.main([*asked, "--why"], standalone_mode=False)
    out = capsys.readouterr().out
    assert "effect of each parameter" in out and "occlusion map" in out
    cli.main(["explain", str(place), "last"], standalone_mode=False)
    assert "effect of each parameter" in capsys.readouterr().out


def test_a_report_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, out = tmp_path / "db", tmp_path / "why.html"
    with Database.create(place) as db:
        fill(db, tiny())
        db.query(NEW, platform="tiny", op=OP)
    asked = ["explain", str(place), "last", "--html", str(out)]
    cli.main(asked, standalone_mode=False)
    written = out.read_text(encoding="utf-8")
    assert written.lower().startswith("<!doctype html")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        cli.main(asked, standalone_mode=False)
    assert out.read_text(encoding="utf-8") == written
    assert sorted(p.name for p in tmp_path.iterdir()) == ["db", "why.html"]


# -- features ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("feature", "value", "words", "figure"),
    [
        ("log_rows", np.log1p(81_306), "rows", "81,300"),
        ("row_mean", np.log1p(33.02), "nonzeros per row, mean", "33.0"),
        ("log_density", np.log(4.06e-4), "density", "0.000406"),
        ("fill_4x1", 0.7513, "fill of 4x1 blocks", "0.751"),
        ("reuse_4096", 0.0, "columns reused in 4096 nonzeros", "0"),
        ("imbalance_32", np.log(1.5), "heaviest of 32 equal parts over mean", "1.50"),
        ("scnn_17", -1.234, "scnn_17", "-1.23"),
        ("log_rows", 1e300, "rows", "1e+300"),
        ("anything", float("nan"), "anything", "nan"),
    ],
)
def test_features_in_words_and_in_their_own_unit(
    feature: str, value: float, words: str, figure: str
) -> None:
    assert (feature_words(feature), feature_value(feature, float(value))) == (words, figure)


def test_the_default_is_told_as_it_is(show: Show) -> None:
    text = show(_asked(fill(Database.in_memory(), tiny())))
    assert f"default {DEFAULT}" in text


# -- what was measured, what was counted -------------------------------------------------------


def test_when_how_often_and_how_evenly_it_was_measured(show: Show) -> None:
    db = fill(Database.in_memory(), tiny())
    day = 86_400.0
    runs = [
        Run(NEW.id, OP, "tiny", c, Measurement(times_s=times, when=day * at))
        for c, times, at in (
            (C, (1.0, 1.2, 1.1), 1),
            (C, (0.9, 1.0, 1.0), 3),
            (A, (2.0,), 2),
            (B, (5.0,), 2),
        )
    ]
    failed = Run(NEW.id, OP, "tiny", C, Measurement(status="oom", when=day * 9))
    db.index.record([*runs, failed], NEW, tiny())
    told = _asked(db)
    answer, default = told.own
    assert (answer.config, answer.runs, answer.times) == (dict(C), 2, 6)
    assert (answer.seconds, answer.fastest, answer.slowest) == (1.05, 0.9, 1.2)
    assert (answer.first, answer.last, answer.sources) == (day, 3 * day, ["hardware"])
    assert (default.config, default.runs, default.times) == (dict(A), 1, 1)
    text = show(told)
    assert "answer: 1.05 s, 900 ms to 1.2 s; 2 runs, 6 repeats in all, 1970-01-02 to 1970-" in text
    assert "default: 2 s; 1 run, 1 repeat in all, 1970-01-03; hardware" in text
    assert "vote" not in text.split("rests on")[1].split("runs behind it")[0]


def test_an_answer_of_the_model_has_no_votes(show: Show) -> None:
    made, store = by_hand()
    head = [f" {word} " for word in ("nearer", "vote", "configs")]
    asked = show(explain(made, store))
    assert all(word in asked for word in head)
    text = show(explain(_replaced(made, link="model"), store))
    assert " vote  " not in text and "similar patterns, for comparison" in text


def test_whether_preparation_counts_is_said(show: Show) -> None:
    made, store = by_hand()
    assert "without format conversion" in show(explain(made, store))
    first = msgspec.structs.replace(
        made.candidates[0], seconds=2.0, status="ok", gain_low=2.0, gain_high=4.0
    )
    done = _replaced(made, candidates=[first], default_seconds=6.0, calls=1000.0)
    told = explain(done, store)
    assert told.within_interval is None  # the prediction counts what the measurement leaves out
    text = " ".join(show(told).split())
    assert "known, amortised over 1,000 calls; measured times exclude it" in text
    assert "the interval" not in text


def test_ties_of_times_that_never_varied_are_no_noise(show: Show) -> None:
    made, store = by_hand()
    level = [msgspec.structs.replace(c, score=-1.0, expected_gain=2.0) for c in made.candidates]
    assert "within the noise" in show(explain(_replaced(made, candidates=level), store))
    text = show(explain(_replaced(made, candidates=level, noise=0.0), store))
    assert "as good no evidence of a difference, with" in text and "within the noise" not in text


def test_simulated_times_say_so_in_every_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "db"
    with Database.create(place) as db:
        fill(db, tiny(simulated=True))
        db.query(NEW, platform="tiny", op=OP)
        known = patterns()[2].id
    asked = ["query", str(place), known, "--platform", "tiny", "--op", "spmm:32"]
    for words, said in (
        (asked, "SIMULATED"),
        ([*asked, "--json"], '"simulated": true'),
        (["explain", str(place), "last"], "SIMULATED"),
        (["explain", str(place), "last", "--json"], '"simulated": true'),
        (["report", str(place)], "simulated"),
        (["report", str(place), "--json"], '"simulated": true'),
    ):
        cli.main(words, standalone_mode=False)
        assert said in capsys.readouterr().out, words
    for verb in (["explain", str(place), "last"], ["report", str(place)]):
        cli.main([*verb, "--html", str(tmp_path / "x.html")], standalone_mode=False)
        assert "<strong>Simulated.</strong>" in (tmp_path / "x.html").read_text(encoding="utf-8")


def test_moves_of_a_measured_pattern_leave_its_measurements_aside(show: Show) -> None:
    db = fill(Database.in_memory(), tiny())
    told = db.explain(db.query(patterns()[2], platform="tiny", op=OP, why=True).id)
    assert told.recommendation.link == "measured"
    assert "its own measurements are ignored" in show(told)
    assert "left aside" not in show(_asked(db, why=True))


@pytest.mark.parametrize("verb", ["explain", "report"])
def test_a_page_needs_a_place(verb: str, tmp_path: Path) -> None:
    place = tmp_path / "db"
    with Database.create(place) as db:
        fill(db, tiny(), patterns(2))
        db.query(NEW, platform="tiny", op=OP)
    asked = [verb, str(place), *(["last"] if verb == "explain" else []), "--html"]
    for out in (".", "/", str(tmp_path), str(tmp_path / "none" / "x.html")):
        with pytest.raises(UsageError, match=r"a folder, not a file|does not exist"):
            cli.main([*asked, out], standalone_mode=False)


def test_a_matrix_whose_name_is_no_path_can_be_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, name = tmp_path / "db", "A" * 10_000
    with Database.create(place) as db:
        known = band(137, 14, name=name, group="g")
        fill(db, tiny(), [*patterns(2), known])
        made = db.query(known, platform="tiny", op=OP)
    cli.main(["explain", str(place), name], standalone_mode=False)
    assert made.id in capsys.readouterr().out
    with pytest.raises(NothingFound):
        cli.main(["explain", str(place), "B" * 10_000], standalone_mode=False)


def test_what_was_measured_is_compared_with_what_was_measured() -> None:
    """An answer that neighbours gave, measured since: its promise is no longer its gain."""
    db = fill(Database.in_memory(), tiny())
    made = db.query(NEW, platform="tiny", op=OP)
    db.index.record(
        [Run(NEW.id, OP, "tiny", c, Measurement(times_s=(s,))) for c, s in ((A, 3.0), (C, 2.0))],
        NEW,
        tiny(),
    )
    first = msgspec.structs.replace(made.candidates[0], seconds=2.0, status="ok")
    taken = msgspec.structs.replace(
        made, candidates=[first, *made.candidates[1:]], default_seconds=3.0
    )
    told = db.explain(renewed(db.index, taken, NEW, tiny()).id)
    assert told.expected_gain == made.candidates[0].expected_gain
    assert (told.measured_gain, told.compared_gain) == (1.5, pytest.approx(1.5))
    same = [s.expected_gain for s in told.recommendation.insight.simpler if s.same]
    assert same and set(same) == {told.compared_gain}


def test_machines_are_rounded_as_on_the_page(show: Show) -> None:
    shares = {"tiny@a": 0.98, "tiny@b": 0.007, "tiny@c": 0.002}
    machines = [MachineShare(platform=p, share=x, own=False) for p, x in shares.items()]
    explained = msgspec.structs.replace(
        _asked(fill(Database.in_memory(), tiny())), machines=machines
    )
    text, page = show(explained), explanation_html(explained)
    assert "1 % of the vote from tiny@b" in text and "less than 1 % each from 1 other" in text
    assert '1\u00a0% <bdi title="tiny@b">' in page and '&lt; 1\u00a0% <bdi title="tiny@c">' in page
