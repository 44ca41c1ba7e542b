"""`embeddb plot`: files that show what is stored, and errors before any work is done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import scipy.sparse as sp
from command_line import run_verb

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, Run
from embeddb.database import Database
from embeddb.featurizers import scnn
from embeddb.index.projection import Projection
from embeddb.platforms.platform import Platform, load_platform
from embeddb.ui.cli.verbs.plot import figures, short_names

TOML = """
name = "{name}"
version = "1"
title = "For plots"
simulated = {simulated}
[[space]]
kernels = ["spmm"]
heterogeneous = ["tile", "mode"]
[space.params]
tile = {{ type = "int", values = [4, 8, 16] }}
mode = {{ type = "choice", values = ["a", "b"] }}
[space.default]
tile = 4
mode = "a"
"""
OP = Op.parse("spmm:32")
HOSTILE = "<script>&\x1b[31m"


def platform(folder: Path, name: str = "toy", *, simulated: bool = False) -> Platform:
    file = folder / f"{name}.toml"
    file.write_text(TOML.format(name=name, simulated=str(simulated).lower()))
    return load_platform(str(file))


def pattern_of(matrix: Any, name: str, group: str = "") -> Pattern:
    return Pattern.from_csr(matrix.shape, matrix.indptr, matrix.indices, name=name, group=group)


def runs(pattern: Pattern, where: Platform, best: str) -> list[Run]:
    made = []
    for tile in (4, 8, 16):
        for mode in ("a", "b"):
            seconds = (1.0 if mode == best else 2.0) * (1 + tile / 16)
            failed = tile == 16 and mode != best
            measured = Measurement(status="crash") if failed else Measurement(times_s=(seconds,))
            config = Config({"tile": tile, "mode": mode})
            made.append(Run(pattern.id, OP, where.id, config, measured))
    return made


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Nine patterns, one with a hostile name: on six of them mode b wins."""
    folder = tmp_path_factory.mktemp("plots")
    where = platform(folder)
    rng = np.random.default_rng(3)
    with Database.create(folder / "runs.db") as db, pytest.MonkeyPatch.context() as patch:
        patch.setattr(scnn, "SHIPPED", folder / "none")  # embedding with a network takes seconds
        for at in range(9):
            matrix = sp.random(
                60 + at, 50, density=0.05 + 0.02 * at, random_state=rng, format="csr"
            )
            name = HOSTILE if at == 8 else f"m{at}"
            pattern = pattern_of(matrix, name=name, group=f"family{at // 3}")
            db.index.record(runs(pattern, where, "a" if at % 3 == 0 else "b"), pattern, where)
    return str(folder / "runs.db")


def drawn(words: list[str], out: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, Any]:
    """The file, checked as XML, and the document."""
    capsys.readouterr()
    assert run_verb(["plot", *words, "-o", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    text = out.read_text(encoding="utf-8")
    ElementTree.fromstring(text.encode())
    assert document["file"] == str(out) and document["title"]
    return text, document


def on(*more: str) -> list[str]:
    return ["--platform", "toy", "--op", "spmm:32", *more]


@pytest.mark.parametrize(
    ("color", "kinds"),
    [
        ("winner", {"mode=b": 6, "mode=a": 3}),
        ("group", {"family0": 3, "family1": 3, "family2": 3}),
        ("platform", {"toy": 9}),
    ],
)
def test_map(
    place: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    color: str,
    kinds: dict[str, int],
) -> None:
    words = ["map", place, *on("--color", color)]
    svg, document = drawn(words, tmp_path / "map.svg", capsys)
    assert document["kinds"] == kinds and document["patterns"] == 9
    assert document["simulated"] is False
    assert all(kind in svg for kind in kinds) and "m3\nfamily1\nbest: " in svg
    assert "<script>" not in svg and "&lt;script&gt;&amp;" in svg
    again, _ = drawn(words, tmp_path / "again.svg", capsys)
    assert again == svg


def test_map_follows_the_atlas(
    place: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = Config({"tile": 4, "mode": "a"}).json
    made = Projection(
        op="spmm:32",
        scope="toy",
        featurizer="stats",
        generation=1,
        ids=["00", "01", "02"],
        x=[0.0, 1.0, 0.5],
        y=[0.0, 0.0, 1.0],
        winners=[config, "", config],
        names=["one", "two", ""],
        groups=["", "g", ""],
    )
    monkeypatch.setattr(Database, "atlas", lambda *_: made)
    svg, document = drawn(["map", place, *on()], tmp_path / "map.svg", capsys)
    assert document["kinds"] == {"mode=a,tile=4": 2, "(nothing ran)": 1}
    assert "two\ng\nnothing ran" in svg and "02\nbest: " in svg


def test_curve(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg, document = drawn(["curve", place, "m1", *on()], tmp_path / "c.svg", capsys)
    (fact,) = document["platforms"]
    assert (fact["configs"], fact["ran"], fact["failed"]) == (6, 5, {"crash": 1})
    assert fact["best"] == {"mode": "b", "tile": 4}
    assert fact["best_s"] == 1.25 and fact["default_s"] == 2.5
    assert ">best 1<" in svg and ">default 2<" in svg
    assert run_verb(["plot", "curve", place, "m1", *on(), "-o", str(tmp_path / "d.svg")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "  toy: 5 of 6 configurations ran; best 1.25 s, default 2.5 s"


def test_simulated_times_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = platform(tmp_path, "sim", simulated=True)
    pattern = pattern_of(sp.eye(40, format="csr"), name="eye")
    with Database.create(tmp_path / "sim.db") as db:
        db.index.record(runs(pattern, where, "a"), pattern, where)
    place, asked = str(tmp_path / "sim.db"), ["--platform", "sim", "--op", "spmm:32"]
    for words in (["curve", place, "eye", *asked], ["map", place, *asked], ["winners", place]):
        svg, document = drawn(words, tmp_path / "x.svg", capsys)
        assert document["simulated"] is True and "(simulated)" in document["title"]
        assert "(simulated)" in svg


def test_curve_of_failures_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = platform(tmp_path)
    pattern = pattern_of(sp.eye(40, format="csr"), name="eye")
    failed = Measurement(status="timeout")
    run = Run(pattern.id, OP, where.id, Config({"tile": 4, "mode": "a"}), failed)
    with Database.create(tmp_path / "runs.db") as db:
        db.index.record([run], pattern, where)
    words = ["curve", str(tmp_path / "runs.db"), "eye", *on()]
    svg, document = drawn(words, tmp_path / "c.svg", capsys)
    assert "nothing to draw" in svg
    assert document["platforms"][0]["best_s"] is None
    assert document["platforms"][0]["failed"] == {"timeout": 1}


def test_spy(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored, document = drawn(["spy", place, "m1"], tmp_path / "a.svg", capsys)
    assert (document["m"], document["n"]) == (61, 50) and document["nnz"] > 0
    file = tmp_path / "eye.mtx"
    file.write_text("%%MatrixMarket matrix coordinate pattern general\n2 2 2\n1 1\n2 2\n")
    svg, document = drawn(["spy", str(file)], tmp_path / "b.svg", capsys)
    assert document["title"] == "eye: 2 × 2, 2 non-zeros" and svg != stored
    same, _ = drawn(["spy", place, str(file)], tmp_path / "c.svg", capsys)
    assert same == svg


def test_winners(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg, document = drawn(["winners", place, "--op", "spmm:32"], tmp_path / "w.svg", capsys)
    assert document["patterns"] == 9 and document["configs"] == 2
    assert [(w["config"]["mode"], w["wins"]) for w in document["winners"]] == [("b", 6), ("a", 3)]
    assert "66.7 %" in svg and "33.3 %" in svg
    everything, _ = drawn(["winners", place, "--platform", "toy"], tmp_path / "w.svg", capsys)
    assert everything == svg


def test_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    curve = tmp_path / "curve.jsonl"
    lines: list[dict[str, float]] = [
        {"epoch": 1, "train_loss": 2.0, "valid_loss": 1.0, "valid_tau": -0.1, "seconds": 9.0},
        {"epoch": 2, "train_loss": 1.0, "valid_loss": 0.5, "valid_tau": 0.5, "seconds": 9.0},
        {"epoch": 3, "train_loss": 0.5, "valid_loss": 0.7, "epochs_left": 0},
    ]
    curve.write_text("".join(json.dumps(line) + "\n" for line in lines))
    svg, document = drawn(["training", str(curve)], tmp_path / "t.svg", capsys)
    assert document["figures"] == ["train_loss", "valid_loss", "valid_tau"]
    assert document["title"] == "training: 3 epochs"
    assert ">best 0.5<" in svg and "order of pairs" in svg and "seconds" not in svg
    loss, _ = drawn(["training", str(curve)], tmp_path / "t.svg", capsys)
    assert loss == svg
    found = figures(lines, ["valid_loss", "valid_tau"])
    assert found[0].marks == {"best": 1} and list(found[1].x) == [1, 2]
    curve.write_text('{"epoch": 1, "seconds": 2}\n')
    empty, document = drawn(["training", str(curve)], tmp_path / "t.svg", capsys)
    assert "nothing to draw" in empty and document["figures"] == []


def test_speedups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "eval.json"
    methods = {"default": [1.0, 1.0], "embeddb": [4.0, 1.5, 0.5], "random": []}
    rows = [
        {"platform": "toy", "op": "spmm:32", "method": m, "speedups": s, "simulated": True}
        for m, s in methods.items()
    ]
    file.write_text(json.dumps([*rows, {**rows[1], "op": "spmv", "extra": 1}]))
    svg, document = drawn(["speedups", str(file)], tmp_path / "s.svg", capsys)
    assert [(r["op"], r["method"]) for r in document["rows"]] == [
        ("spmm:32", "embeddb"),
        ("spmv", "embeddb"),
    ]
    first = document["rows"][0]
    assert (first["matrices"], first["median"], first["largest"]) == (3, 1.5, 4.0)
    assert "spmm:32 on toy: 3 matrices, largest first" in svg
    assert document["title"] == "speed-up over the default (simulated)"
    one, document = drawn(["speedups", str(file), "--op", "spmv"], tmp_path / "s.svg", capsys)
    assert len(document["rows"]) == 1 and "spmm:32" not in one


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("[", [], "not the output of `embeddb eval --json`"),
        ('[{"platform": "toy"}]', [], "missing required field"),
        ("[]", [], "0 platforms and ops to draw"),
        ('[{"platform":"a","op":"spmv","method":"x","speedups":[1]}]', ["--op", "b"], "--method"),
        (
            '[{"platform":"a","op":"spmv","method":"embeddb","speedups":[1]}]',
            ["--method", "embedb"],
            "--platform a; --op spmv; --method embeddb",
        ),
    ],
)
def test_speedups_of_a_strange_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: list[str], said: str
) -> None:
    file = tmp_path / "eval.json"
    file.write_text(text)
    out = tmp_path / "s.svg"
    assert run_verb(["plot", "speedups", str(file), "-o", str(out), *words]) == 1
    assert said in capsys.readouterr().err and not out.exists()
    file.unlink()
    assert run_verb(["plot", "speedups", str(file), "-o", str(out), *words]) == 1
    assert "no such file" in capsys.readouterr().err


def test_png(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("resvg_py")
    out = tmp_path / "spy.png"
    if run_verb(["plot", "spy", place, "m1", "-o", str(out)]) != 0:
        assert "font" in capsys.readouterr().err
        pytest.skip("no font here")
    assert out.read_bytes().startswith(b"\x89PNG")


def test_errors_come_first_and_say_what_to_do(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "x.svg")
    cases: list[tuple[list[str], int, str]] = [
        (["map", "nowhere", *on(), "-o", "x.pdf"], 2, "end in .svg or .png"),
        (["map", "nowhere", *on(), "-o", str(tmp_path / "no" / "x.svg")], 2, "the folder"),
        (["map", place, *on(), "-o", str(tmp_path)], 2, "must end in"),
        (["map", place, "--platform", "toy", "--op", "spmm:64", "-o", out], 3, "spmm:32 on toy"),
        (["curve", place, "m99", *on(), "-o", out], 1, "no pattern of that name"),
        (["winners", place, "--op", "sddmm:8", "-o", out], 3, "spmm:32 on toy"),
        (["spy", "nothing.mtx", "-o", out], 1, "nothing.mtx"),
        (["training", str(tmp_path / "none"), "-o", out], 1, "cannot be read"),
        (["map", place, *on()], 2, "'-o'"),
    ]
    for words, code, said in cases:
        assert run_verb(["plot", *words]) == code, words
        error = capsys.readouterr().err.splitlines()
        assert len(error) == 1 and error[0].startswith("embeddb: ") and said in error[0], error
    assert not list(tmp_path.iterdir())


def test_a_width_without_runs_draws_no_other(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Queries fall back to another width; a drawing would show what was not asked for."""
    words = ["curve", place, "m1", "--platform", "toy", "--op", "spmm:64", "-o"]
    assert run_verb(["plot", *words, str(tmp_path / "x.svg")]) == 3
    assert "no runs of spmm:64 on toy for m1" in capsys.readouterr().err


def test_names_leave_out_what_is_the_same() -> None:
    a, b = Config({"x": 1, "y": 2}), Config({"x": 1, "z": 3})
    assert short_names([a, b]) == {a: "y=2", b: "z=3"}
    assert short_names([a]) == {a: "x=1,y=2"} and short_names([]) == {}


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("map", "curve", "spy", "winners", "training", "speedups"):
        assert run_verb(["plot", verb, "--help"]) == 0
        said = capsys.readouterr().out
        assert f"embeddb plot {verb} " in said and "--json" in said
