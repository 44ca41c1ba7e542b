"""The report of a whole database: its figures by hand, its page, its command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import html5lib
import msgspec
import pytest
from builders import CONFIGS, OP, band, fill, patterns, runs_of, tiny
from command_line import run_verb
from played_xla import chain, played
from report_cases import HOSTILE
from tensors import softmax
from test_report import outside

from embeddb.core.config import Op
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.database import Database
from embeddb.platforms.platform import load_platform
from embeddb.ui.cli.verbs.report import _fixed
from embeddb.ui.report import DatabaseFacts, database_facts, database_html
from embeddb.ui.report.commands import again_all, measure, stand_ins, the_default
from embeddb.ui.report.database import Judged
from embeddb.ui.report.gaps import Gap
from indexer.coverage import scope_states
from indexer.tensor_runs import FusionJob, FusionRequest


@pytest.fixture(scope="module")
def db() -> Database:
    """Twenty patterns of five groups; each variant wins on five, each step away costs 1.5."""
    return fill(Database.in_memory(), tiny())


@pytest.fixture(scope="module")
def facts(db: Database) -> DatabaseFacts:
    return database_facts(db, place="my runs.db")


def kinds(gaps: list[Gap]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for gap in gaps:
        found.setdefault(gap.kind, []).append(gap.what)
    return found


def test_what_was_measured(facts: DatabaseFacts) -> None:
    assert (facts.statuses, facts.sources) == ({"ok": 80}, {"hardware": 80})
    (scope,) = facts.scopes
    assert (scope.op, scope.platform, scope.runs) == ("spmm:32", "tiny", 80)
    assert (scope.patterns, scope.groups, scope.configs, scope.per_pattern) == (20, 5, 4, 4.0)
    assert (scope.indexed, scope.without_default, scope.distinct_winners) == (20, 0, 4)
    # 100 to 128 rows: of 2 and 6 nonzeros, of 14, of 30
    assert facts.sizes.counts[0] == [5, 10, 5, 0, 0] and facts.sizes.unknown == 0
    assert sum(map(sum, facts.sizes.counts)) == 20


def test_what_wins(facts: DatabaseFacts) -> None:
    winners = {w.config["variant"]: (w.patterns, w.gain) for w in facts.scopes[0].winners}
    assert winners == {v: (5, pytest.approx(1.5**at)) for at, v in enumerate("abcd")}
    (like,) = facts.scopes[0].preferences
    assert like.shares == dict.fromkeys("abcd", 0.25) and like.others == 0


def test_what_one_fixed_choice_brings(facts: DatabaseFacts) -> None:
    found = {(c.kind, c.name): c for c in facts.scopes[0].classes}
    everything = found["all", "all matrices"]
    assert everything.config["variant"] in "bc"  # both gain a step on average in half
    assert everything.gain == pytest.approx(1.5**0.5)
    assert everything.headroom == pytest.approx(1.5**1.5)
    assert found["row length", "under 4"].config == {"variant": "a"}
    assert found["row length", "16 to 64"].gain == pytest.approx(1.5**3)
    assert ("row length", "64 or more") not in found
    assert found["group", "g0"].patterns == 4


def test_cuts_and_fused_kernels_have_no_common_winners() -> None:
    db = Database.in_memory()
    programs = [chain(6), chain(7), softmax()]
    FusionJob(played(db.index), FusionRequest(cuts=6)).programs(programs)
    facts = database_facts(db, place="tensors.db")
    assert {s.op for s in facts.scopes} == {"fused", "fusion"} and facts.gaps == []
    for scope in facts.scopes:
        assert scope.runs > 5 and not (scope.winners or scope.classes or scope.preferences)
    page = database_html(facts)
    assert "What wins" not in page and "What one fixed choice" not in page


def test_one_matrix_is_no_class() -> None:
    """The best fixed choice for one matrix is its own best, which says nothing of others."""
    few = [band(300 + at, 2, name=f"few{at}", group=f"few{at}") for at in range(2)]
    many = [band(400 + at, 14, name=f"many{at}", group=f"many{at}") for at in range(3)]
    told = database_facts(fill(Database.in_memory(), tiny(), [*few, *many], indexed=False))
    classes = {(c.kind, c.name): c.patterns for c in told.scopes[0].classes}
    assert classes == {("all", "all matrices"): 5, ("row length", "4 to 16"): 3}


def test_a_page_about_one_run_of_one_matrix_tells_it_in_the_singular() -> None:
    db = fill(Database.in_memory(), tiny(), patterns()[:1], variants=(0,), indexed=False)
    page = database_html(database_facts(db))
    assert "<p>1 matrix of 1 group ran 1 configuration, 1 run in all." in page
    assert "<caption>1 configuration is the fastest on some matrix</caption>" in page


def test_a_failure_counts_as_the_default_in_a_fixed_choice() -> None:
    among = [band(90 + at, 30, name=f"m{at}", group=f"g{at}") for at in range(4)]
    db = fill(Database.in_memory(), tiny(), among, indexed=False)
    broken = Run(among[0].id, OP, "tiny", CONFIGS[3], Measurement(status="crash"))
    db.store.append([broken])
    (scope,) = database_facts(db).scopes
    assert scope.statuses == {"ok": 16, "crash": 1}
    for p in among:  # one more that only failed
        db.store.append([Run(p.id, Op("spmv"), "tiny", CONFIGS[3], Measurement(status="oom"))])
        db.store.append(runs_of(p, tiny(), op=Op("spmv"), variants=(0, 2)))
    spmv = next(s for s in database_facts(db).scopes if s.op == "spmv")
    assert spmv.classes[0].config == {"variant": "c"}


def test_a_fixed_choice_is_no_worse_than_another_on_the_matrices_that_ran_both() -> None:
    """b ran where all gain; c gains more there, and nothing on the other matrices."""
    db, among = Database.in_memory(), patterns()
    for at, pattern in enumerate(among):
        seconds = [1.0, 1 / 1.3, 1 / 1.36] if at < 12 else [1.0, None, 1.0]
        runs = [
            Run(pattern.id, OP, "tiny", CONFIGS[v], Measurement(times_s=(time,)))
            for v, time in enumerate(seconds)
            if time is not None
        ]
        failed = Run(pattern.id, OP, "tiny", CONFIGS[3], Measurement("crash"))
        db.index.record([*runs, failed], pattern, tiny())
    everything = database_facts(db).scopes[0].classes[0]
    assert everything.config == {"variant": "c"} and everything.tried == 20
    assert everything.gain == pytest.approx(1.36**0.6)
    db = Database.in_memory()
    for pattern in among:  # nothing beats the default, and what always fails is no choice
        slow = Run(pattern.id, OP, "tiny", CONFIGS[1], Measurement(times_s=(2.0,)))
        usual = Run(pattern.id, OP, "tiny", CONFIGS[0], Measurement(times_s=(1.0,)))
        failed = Run(pattern.id, OP, "tiny", CONFIGS[3], Measurement("crash"))
        db.index.record([slow, usual, failed], pattern, tiny())
    assert database_facts(db).scopes[0].classes[0].config == {"variant": "a"}


def test_noise_within_and_between_runs() -> None:
    pattern = band(64, 6, name="p")
    db = Database.in_memory()
    db.store.put_platform(tiny())
    times = [(1.0, 1.1, 1.2), (1.4, 1.5, 1.6), (2.0,)]
    runs = [
        Run(pattern.id, OP, "tiny", CONFIGS[0 if len(t) > 1 else 1], Measurement(times_s=t))
        for t in times
    ]
    db.store.append(runs, patterns=[WorkloadInfo(id=pattern.id, m=64, n=64, nnz=384, name="p")])
    noise = database_facts(db).scopes[0].noise
    assert noise.within == pytest.approx((0.1 / 1.1 + 0.1 / 1.5) / 2)
    assert noise.between == pytest.approx(0.4 / (2 * 1.3))
    assert (noise.repeated, noise.disagreeing) == (1, 0)


def test_gaps_name_what_to_run(db: Database, facts: DatabaseFacts) -> None:
    found = kinds(facts.gaps)
    assert found["kernel"] == ["spmv on tiny"] and found["noise"] == [
        "a second round: spmm:32 on tiny"
    ]
    assert all(not gap.command for gap in facts.gaps), "nothing here can be measured: no runner"


def test_words_that_stand_for_files_of_the_reader_are_explained() -> None:
    campaign = again_all("my.db", "board@x", "spmm:32")
    assert stand_ins([campaign, "", campaign]) == (
        "camp is a new folder; board.toml is the file that describes the platform; "
        "matrices/ is a folder of matrix files"
    )
    assert "FILE is the file of the workload" in stand_ins([measure("DB", ["FILE"], "cpu", "x", 3)])
    assert stand_ins([again_all("DB", "nest-cpu", "nest")]) == "PROGRAM.c is a file of nests"
    default = the_default("DB", load_platform("nest-cpu"), "nest-cpu", "nest")
    assert stand_ins([default]).startswith("PROGRAM is the file of the program")
    assert stand_ins([measure("DB", ["A.mtx"], "cpu", "spmv", 3), ""]) == ""


def test_the_report_explains_them_below_the_commands(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gap = Gap(kind="width", what="a", why="b", command=again_all("DB", "cpu", "spmv"))
    monkeypatch.setattr("embeddb.ui.report.database.gaps_of", lambda *_: [gap])
    assert run_verb(["report", folder]) == 0
    said = "n the commands, camp is a new folder; matrices/ is a folder of matrix files"
    assert said in capsys.readouterr().out
    with Database.open(folder) as opened:
        assert said in database_html(database_facts(opened))


def test_questions_that_were_hardly_covered_are_gaps() -> None:
    db = fill(Database.in_memory(), tiny())
    near, far = band(131, 6, name="near", group="z"), band(20_000, 1, name="far", group="z")
    for pattern in (near, far):
        db.query(pattern, platform="tiny", op=OP)
        db.query(pattern, platform="tiny", op=OP)
    assert [w for w in kinds(database_facts(db).gaps)["question"] if w.startswith("far")] == [
        "far: spmm:32 on tiny"
    ]
    db.index.record(runs_of(far, tiny()), far, tiny())
    assert not [w for w in kinds(database_facts(db).gaps).get("question", []) if "far" in w]


def test_patterns_with_few_runs_at_another_width_are_gaps() -> None:
    db = fill(Database.in_memory(), tiny(), indexed=False)
    among = patterns()[:4]
    db.store.append(r for p in among for r in runs_of(p, tiny(), op=Op("spmm", 64)))
    assert "16 matrices: spmm:64 on tiny" in kinds(database_facts(db).gaps)["width"]


def test_progress_is_told_of_all_runs(db: Database) -> None:
    told: list[tuple[str, int, int]] = []
    database_facts(db, progress=lambda *now: told.append(now))
    assert told[-1] == ("read", 80, 80)
    assert [n for _, n, _ in told] == sorted(n for _, n, _ in told)


def rows() -> list[dict[str, Any]]:
    figures = {"speedup@1": 1.5, "of_optimum@1": 0.93, "of_optimum@5": 0.97, "spread": 0.0}
    figures |= {"speedup_q50@1": 1.41, "speedup_max@1": 6.75}
    base = {"platform": "tiny", "op": "spmm:32", "matrices": 20, "opa": None, **figures}
    return [{**base, "method": m} for m in ("default", "embeddb")]


def test_the_page_is_valid_closed_and_complete(facts: DatabaseFacts) -> None:
    judged = msgspec.convert(rows(), list[Judged])
    html = database_html(msgspec.structs.replace(facts, judged=judged))
    html5lib.HTMLParser(strict=True).parse(html)
    assert outside(html) == [] and len(html.encode()) < 200_000
    for heading in (
        "What was measured",
        "How good the answers are",
        "How noisy the times are",
        "Gaps worth measuring",
        "spmm:32 on",
        "What one fixed choice would bring",
        "What wins",
        "What the platform likes",
        "Where they lie",
        "As evaluated",
        "Where this comes from",
        "embeddb report &#39;my runs.db&#39;",
    ):
        assert heading in html, heading
    assert all(f"{x}×" in html for x in ("1.50", "1.41", "6.75"))
    assert "As evaluated" not in database_html(facts)


def test_a_model_tells_what_its_data_cost(facts: DatabaseFacts) -> None:
    known = msgspec.structs.replace(
        facts.scopes[0], model="m1", model_dce=1234.0, model_of_optimum={"model": 0.9}
    )
    html = database_html(msgspec.structs.replace(facts, scopes=[known]))
    assert "its data cost 1,234 samples" in html
    assert "its data cost" not in database_html(facts)


def test_an_empty_database_has_a_page() -> None:
    html = database_html(database_facts(Database.in_memory()))
    html5lib.HTMLParser(strict=True).parse(html)
    assert "there are no runs" in html and "How noisy" not in html


@pytest.mark.parametrize("text", [t for t in HOSTILE if "\ud800" not in t])
def test_names_of_strangers_are_text(text: str) -> None:
    among = [band(64 + at, 4 + at, name=f"{text}{at}", group=text) for at in range(4)]
    db = fill(Database.in_memory(), tiny(), among)
    db.query(band(5000, 1, name=text), platform="tiny", op=OP)
    html = database_html(database_facts(db, place=text))
    html5lib.HTMLParser(strict=True).parse(html)
    assert outside(html) == [] and len(html.encode()) < 200_000
    assert "\u202e" not in html and "\x00" not in html and "<script" not in html


def test_a_simulated_platform_is_called_so() -> None:
    db = fill(Database.in_memory(), tiny("sim", simulated=True), patterns(2), indexed=False)
    facts = database_facts(db)
    assert facts.scopes[0].simulated
    assert "none is of real hardware" in database_html(facts)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    with fill(Database.create(tmp_path / "runs.db"), tiny()):
        return str(tmp_path / "runs.db")


def test_the_verb(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(["report", folder]) == 0
    text = capsys.readouterr().out
    assert "spmm:32" in text and "worth measuring" in text and "spmv on tiny" in text
    assert run_verb(["report", folder, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["scopes"][0]["runs"] == 80 and document["place"] == folder
    (tmp_path / "eval.json").write_text(json.dumps(rows()))
    out = tmp_path / "r.html"
    given = ["--eval", str(tmp_path / "eval.json"), "--html", str(out)]
    assert run_verb(["report", folder, *given]) == 0
    assert capsys.readouterr().out == ""
    assert "As evaluated" in out.read_text(encoding="utf-8")


def test_evaluations_of_single_machines_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = tiny("pair", portable=True)
    with Database.create(tmp_path / "runs.db") as db:
        for name in ("one", "two"):
            fill(db, pair.at(name))
    machines = [{**row, "platform": f"pair@{at}"} for at in ("one", "two") for row in rows()]
    (tmp_path / "eval.json").write_text(json.dumps(machines))
    given = ["--eval", str(tmp_path / "eval.json"), "--html", str(tmp_path / "r.html")]
    assert run_verb(["report", str(tmp_path / "runs.db"), *given]) == 0
    assert "not shown" not in capsys.readouterr().err
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    for name in ("one", "two"):
        assert f"of <bdi>pair@{name}</bdi>, groups held out</caption>" in page


def test_an_evaluation_of_another_database_is_not_dropped_in_silence(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = [{**row, "platform": "other"} for row in rows()]
    (tmp_path / "eval.json").write_text(json.dumps(foreign))
    given = ["--eval", str(tmp_path / "eval.json"), "--html", str(tmp_path / "r.html")]
    assert run_verb(["report", folder, *given]) == 0
    said = capsys.readouterr().err
    assert "eval.json: not shown is" in said and f"on other, of which {folder} has no runs" in said


@pytest.mark.parametrize("content", ["", "[]]", '{"a": 1}', '[{"platform": 3}]'])
def test_what_is_no_evaluation_is_refused(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    file = tmp_path / "eval.json"
    file.write_text(content)
    assert run_verb(["report", folder, "--eval", str(file)]) == 1
    assert "not the output of `embeddb eval --json`" in capsys.readouterr().err


def test_figures_are_numbers(facts: DatabaseFacts) -> None:
    def walk(value: Any) -> None:
        if isinstance(value, float):
            assert math.isfinite(value)
        for part in value.values() if isinstance(value, dict) else ():
            walk(part)
        for part in value if isinstance(value, list) else ():
            walk(part)

    walk(msgspec.to_builtins(facts))


def test_what_is_known_of_machines_is_told_in_words() -> None:
    """Of instances with an environment; old ones without facts stay readable."""
    pair = tiny("pair", portable=True)
    db = fill(Database.in_memory(), pair.at("one", {"l2_bytes": "1048576", "<i x>": "x"}))
    fill(db, pair.at("old"))
    facts = database_facts(db)
    assert facts.machines == {"pair@one": [("second level cache", "1 MiB"), ("<i x>", "x")]}
    page = database_html(facts)
    assert "second level cache" in page and "1 MiB" in page and "<i x>" not in page


def test_a_matrix_counts_once_on_each_machine() -> None:
    """Pairs of matrix and machine are called so, and winners are in the order of their figures."""
    pair = tiny("pair", portable=True)
    among = [band(150 + at, 6, name=f"w{at}", group=f"w{at}") for at in range(2)]
    db = fill(Database.in_memory(), pair.at("one"), patterns(3))  # each variant wins three
    for name in ("two", "three"):
        fill(db, pair.at(name), [p for p in patterns(3) if p.name in ("m0c", "m1c")])
    fill(db, pair.at("four"), among)  # b wins five
    bare = [p for p in patterns(3) if p.name in ("m0d", "m1d")]
    fill(db, pair.at("five"), bare, variants=(1, 2, 3))  # without the default
    (scope,) = database_facts(db).scopes
    order = [(winner.config["variant"], winner.patterns) for winner in scope.winners]
    assert order[0] == ("b", 5) and dict(order) == {"a": 3, "b": 5, "c": 3, "d": 3}
    everything = scope.classes[0]
    assert (everything.patterns, everything.pairs, everything.tried_pairs) == (14, 20, 18)
    assert _fixed(everything).endswith("x on 18 of 20")
    (gap,) = (gap for gap in database_facts(db).gaps if gap.kind == "default")
    assert gap.what == "2 pairs of matrix and machine: spmm:32 on pair"
    (state,) = scope_states(db.index)
    assert state["missing"][0].startswith("2 pairs of pattern and machine without an ok run")
    assert "(18 of 20 pairs with a machine)" in database_html(database_facts(db))


def test_samples_that_differ_by_matrix_have_no_fixed_choice() -> None:
    """Each configuration but the default ran on a single matrix: no mean compares them."""
    among = [band(90 + at, 30, name=f"m{at}", group=f"g{at}") for at in range(3)]
    db = Database.in_memory()
    db.store.put_platform(tiny())
    for at, pattern in enumerate(among):
        db.store.put_structure(pattern, WorkloadInfo.whole(pattern))
        db.store.append(runs_of(pattern, tiny(), variants=(0, at + 1)))
    (scope,) = database_facts(db).scopes
    assert scope.classes[0].gain is None
