"""The command line as its users see it: every verb, both forms of output, every exit code."""

from __future__ import annotations

import csv
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import scipy.sparse as sp
from command_line import run_verb
from counted_database import counted_database
from tensors import row_sum
from tiled_database import tiled_database

from embeddb.database import Database, open_database
from embeddb.store.sources import Push, Pushing
from embeddb.ui.cli import output
from embeddb.ui.cli.main import VERBS, cli
from indexer import starter
from indexer.calibration.report import CalibrationReport
from indexer.exchange.exchange import export_file
from indexer.shipped.__main__ import ship

ROOT = Path(__file__).resolve().parents[4]
#: HLO of one kernel.
DENSE = ROOT / "tests" / "fixtures" / "hlo" / "depthwise.after.txt"
TOML = """
name = "toy"
version = "1"
title = "A toy with a runner"
portable = true
runner = "toy"

[[space]]
kernels = ["spmm"]
heterogeneous = ["tile", "mode"]

[space.params]
tile = { type = "int", values = [4, 8, 16] }
mode = { type = "choice", values = ["a", "b"] }

[space.default]
tile = 4
mode = "a"
"""
RUNNER = """
import os
from embeddb.platforms.platform import load_platform
from embeddb.core.records import Measurement

class Toy:
    name = "toy"

    def available(self):
        return "the toy is broken" if os.environ.get("TOY_BROKEN") else None

    def platform(self, *, threads=0):
        return load_platform(os.environ["TOY_PLATFORM"]).at(f"t{threads}", {"threads": "1"})

    def run(self, pattern, op, configs, *, options):
        for config in configs:
            if os.environ.get("TOY_STOP"):
                raise KeyboardInterrupt
            fast = config["mode"] == "b"
            yield config, Measurement(times_s=((1e-3 if fast else 2e-3) / config["tile"],))

    def baselines(self, pattern, op, *, options):
        return {"plain": Measurement(times_s=(5e-3,))}

PLUGIN = Toy
"""
HOSTILE = "\x1b[31mred\x07"


PROGRAM = """
#define N 16
float C[N][N], A[N][N], B[N][N];
void product(void) {
#pragma scop
for (int i = 0; i < N; i++)
  for (int j = 0; j < N; j++)
    for (int k = 0; k < N; k++)
      C[i][j] += A[i][k] * B[k][j];
#pragma endscop
}
"""


class Board:
    """A folder with matrices, a run log, a platform and a database made from them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.db = str(folder / "runs.db")
        self.toml = str(folder / "toy.toml")
        self.log = str(folder / "runs.csv")
        self.matrices = folder / "matrices"
        self.new = str(folder / "new.npz")
        self.program = folder / "product.c"
        self.counted = folder / "counted.db"
        self.tiled = folder / "tiled.db"

    def query(self, *more: str, db: str = "", matrix: str = "") -> list[str]:
        asked = ["--platform", "toy", "--op", "spmm:32", *more]
        return ["query", db or self.db, matrix or self.new, *asked]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Board:
    board = Board(tmp_path_factory.mktemp("board"))
    plugins = board.folder / "plugins" / "runners"
    plugins.mkdir(parents=True)
    (plugins / "toy.py").write_text(RUNNER)
    Path(board.toml).write_text(TOML)
    board.matrices.mkdir()
    rng = np.random.default_rng(7)
    with Path(board.log).open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(["matrix", "group", "time_us", "tile", "mode"])
        for i in range(8):
            name = f"m{i}"
            save(board.matrices / f"{name}.npz", 60 + 20 * (i % 2), 0.05 + 0.2 * (i % 2), rng)
            for tile in (4, 8, 16):
                for mode in ("a", "b"):
                    good = (mode == "b") == (i % 2 == 1)
                    time = (100 if good else 200) * (1 + tile / 100) * rng.uniform(0.99, 1.01)
                    rows.writerow([name, f"family{i // 2}", time, tile, mode])
        rows.writerow(["m0", "family0", 5, 5, "a"])
        rows.writerows([[HOSTILE, "odd", time, 4, mode] for mode, time in (("a", 9), ("b", 8))])
    save(Path(board.new), 80, 0.25, rng)
    board.program.write_text(PROGRAM)
    counted_database(board.counted)
    tiled_database(board.tiled)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMBEDDB_PLUGINS", str(board.folder / "plugins"))
        patch.setenv("TOY_PLATFORM", board.toml)
        asked = ["--platform", board.toml, "--matrices", str(board.matrices), "--op", "spmm:32"]
        assert run_verb(["index", board.db, board.log, *asked]) == 0
    return board


def save(path: Path, n: int, density: float, rng: np.random.Generator) -> None:
    sp.save_npz(path, sp.random(n, n, density=density, random_state=rng, format="csr"))


@pytest.fixture
def board(made: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    """The board with a database of its own to write to."""
    monkeypatch.setenv("EMBEDDB_PLUGINS", str(made.folder / "plugins"))
    monkeypatch.setenv("TOY_PLATFORM", made.toml)
    own = Board(made.folder)
    own.db = str(tmp_path / "runs.db")
    shutil.copytree(made.db, own.db)
    return own


def leaves() -> Iterator[tuple[str, click.Command]]:
    for verb in VERBS:
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{verb} {name}", sub) for name, sub in command.commands.items())
        else:
            yield verb, command


@pytest.mark.parametrize(("name", "command"), [pytest.param(*x, id=x[0]) for x in leaves()])
def test_every_verb_has_help_with_an_example_json_and_a_line_in_the_docs(
    name: str, command: click.Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--json" in {text for param in command.params for text in param.opts}
    assert f"| `embeddb {name} " in (ROOT / "docs" / "reference" / "json.md").read_text(
        encoding="utf-8"
    )
    assert run_verb([*name.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"  Example:\n    embeddb {name} " in shown
    assert all(len(line) <= 100 for line in shown.splitlines())


# -- one document on stdout, for every verb ----------------------------------------------------


def _reading(board: Board) -> list[str]:
    matrices = ["--matrices", str(board.matrices)]
    return ["--platform", board.toml, "--op", "spmm:32", *matrices]


def _kernels(folder: Path) -> Path:
    """A database that knows a tensor kernel."""
    with open_database(str(folder), create=True) as made:
        made.index.add_pattern(row_sum(8, 16))
    return folder


def _eval_output(folder: Path) -> Path:
    """A row as `eval --json` writes it."""
    row = {"platform": "toy", "op": "spmm:32", "method": "embeddb", "speedups": [2.0, 1.0]}
    file = folder / "eval.json"
    file.write_text(json.dumps([row]))
    return file


def _team(tmp: Path) -> Path:
    """A database to push into."""
    if not (tmp / "team.db").is_dir():
        Database.create(tmp / "team.db").close()
    return tmp / "team.db"


def _commands(board: Board, tmp: Path) -> dict[str, list[str]]:
    plan = ["--platform", "toy", "--op", "spmm:32", "--matrices", str(board.matrices)]
    campaign = str(tmp / "camp")
    export = str(tmp / "out.jsonl")
    return {
        "init": ["init", str(tmp / "empty.db")],
        "index": ["index", str(tmp / "i.db"), board.log, *_reading(board)],
        "ingest": ["ingest", board.db, board.log, "--platform", "toy", "--op", "spmm:64"],
        "embed": ["embed", board.db],
        "query": board.query(),
        "explain": ["explain", board.db, "last"],
        "emit": [
            *("emit", board.db, "--config", "order=ijk,format=csr,threads=one", "--op", "spmm:8"),
            *("-o", str(tmp / "c")),
        ],
        "measure": ["measure", board.db, board.new, *plan[:4], "--configs", "2", "--baselines"],
        "calibrate": [
            *("calibrate", board.db, "--platform", "toy", "--op", "spmm:32"),
            *("--minutes", "0.5", "--matrices", str(board.matrices)),
        ],
        "adopt": [
            "adopt",
            str(tmp / "adopted.db"),
            *plan[2:],
            "--platform",
            board.toml,
            "--samples",
            "40",
        ],
        "campaign plan": ["campaign", "plan", board.db, campaign, *plan, "--configs", "3"],
        "campaign run": ["campaign", "run", board.db, campaign],
        "campaign resume": ["campaign", "resume", board.db, campaign],
        "campaign work": ["campaign", "work", campaign, "--task", "0000-spmm_32-0"],
        "campaign collect": ["campaign", "collect", board.db, campaign],
        "campaign status": ["campaign", "status", board.db, campaign],
        "eval": ["eval", board.db, "--seeds", "1", "--op", "spmm:32"],
        "export rule": [
            *("export", "rule", board.db, "-o", str(tmp / "rule.h"), "--platform", "toy"),
            *("--op", "spmm:32"),
        ],
        "clusters": ["clusters", board.db, "-k", "2"],
        "train featurizer": [
            *("train", "featurizer", str(board.matrices), "-o", str(tmp / "net.safetensors")),
            *("--network", "waco", "--size", "16", "--copies", "0", "--epochs", "1"),
            *("--threads", "1"),
        ],
        "train costmodel": [
            *("train", "costmodel", board.db, "--platform", "toy", "--op", "spmm:32"),
            *("-o", str(tmp / "cost.safetensors"), "--members", "1", "--epochs", "2"),
            *("--predictor", "mlp", "--threads", "1"),
        ],
        "train towers": [
            *("train", "towers", board.db, "-o", str(tmp / "towers.safetensors"), "--threads", "1"),
        ],
        "train nests": [
            *("train", "nests", str(board.counted), "-o", str(tmp / "nests.safetensors")),
            *("--epochs", "1", "--threads", "1"),
        ],
        "train kernels": [
            *("train", "kernels", str(board.tiled), "-o", str(tmp / "kernels.safetensors")),
            *("--task", "tile", "--hidden", "8", "--epochs", "1", "--threads", "1"),
        ],
        "nest import": ["nest", "import", str(tmp / "nests.db"), str(board.program)],
        "nest show": ["nest", "show", str(board.program)],
        "nest measure": [
            *("nest", "measure", str(tmp / "nests.db"), str(board.program)),
            *("--designed", "1", "--searched", "0", "--repeats", "1"),
        ],
        "nest count": [
            *("nest", "count", str(tmp / "nests.db"), str(board.program), "--source", "model"),
        ],
        "kernel import": ["kernel", "import", str(tmp / "tensors.db"), str(DENSE)],
        "kernel show": ["kernel", "show", str(DENSE)],
        "kernel measure": [
            *("kernel", "measure", str(_kernels(tmp / "kernels.db")), "row_sum"),
            *("--tiles", "2", "--repeats", "1"),
        ],
        "tune": [
            *("tune", str(_kernels(tmp / "kernels.db")), "row_sum", "--op", "tile"),
            *("-k", "1", "--rounds", "1"),
        ],
        "plot training": [
            *("plot", "training", str(tmp / "net.training" / "curve.jsonl")),
            *("-o", str(tmp / "training.svg")),
        ],
        "plot speedups": ["plot", "speedups", str(_eval_output(tmp)), "-o", str(tmp / "s.svg")],
        "plot map": [
            *("plot", "map", board.db, "--platform", "toy", "--op", "spmm:32"),
            *("-o", str(tmp / "map.svg")),
        ],
        "plot curve": [
            *("plot", "curve", board.db, "m0", "--platform", "toy", "--op", "spmm:32"),
            *("-o", str(tmp / "curve.svg")),
        ],
        "plot spy": ["plot", "spy", board.new, "-o", str(tmp / "spy.svg")],
        "plot winners": ["plot", "winners", board.db, "-o", str(tmp / "winners.svg")],
        "report": ["report", board.db],
        "completion": ["completion", "bash"],
        "dynamics": ["dynamics", board.new, "--op", "spmm:32"],
        "platform list": ["platform", "list", "--db", board.db],
        "platform show": ["platform", "show", "spade"],
        "platform draft": ["platform", "draft", board.log, "--op", "spmm:32"],
        "platform check": ["platform", "check", board.toml],
        "platform nearest": [
            *("platform", "nearest", "spade", "cpu"),
            *("--op", "spmm:32", "--sizes", "9,9,9"),
        ],
        "db stat": ["db", "stat", board.db],
        "db models": ["db", "models", board.db],
        "db check": ["db", "check", board.db],
        "db rebuild": ["db", "rebuild", board.db],
        "db export": ["db", "export", board.db, export],
        "db import": ["db", "import", str(tmp / "other.db"), export],
        "db push": ["db", "push", board.db, str(_team(tmp)), "--as", "ann"],
        "db sources": ["db", "sources", str(_team(tmp))],
        "db copy": ["db", "copy", board.db, str(tmp / "copy.db")],
        "db withdraw": ["db", "withdraw", board.db, "--op", "spmm:32"],
        "db compact": ["db", "compact", board.db],
    }


def test_every_verb_prints_one_document(
    board: Board, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = {}
    commands = _commands(board, tmp_path)
    for name, args in commands.items():
        assert run_verb([*args, "--json"]) == 0, (name, capsys.readouterr().err)
        documents[name] = json.loads(capsys.readouterr().out)
    pages = [ROOT / "docs" / "reference" / "json.md"]
    documented = "".join(page.read_text(encoding="utf-8") for page in pages)
    for name, document in documents.items():
        for one in document if isinstance(document, list) else [document]:
            missing = [key for key in one if f'"{key}"' not in documented]
            missing = [key for key in missing if f"`{key}`" not in documented]
            assert not missing or name == "eval", (name, missing)
    _check_documents(documents)


def _check_documents(documents: dict[str, Any]) -> None:
    file = documents["index"]["files"][0]
    assert (file["rows"], file["added"], file["rejected"]) == (51, 50, 1)
    (answers,) = documents["index"]["answers"]
    assert (answers["patterns"], answers["groups"], answers["stubs"]) == (9, 5, 1)
    assert any("known by name only" in line for line in answers["missing"])
    query = documents["query"]
    contract = {"id", "pattern_id", "platform", "op", "link", "default", "candidates"}
    assert contract | {"confidence", "warnings", "stages_s"} <= query.keys()
    assert set(query["default"]) == {"config", "seconds"} and query["default"]["seconds"] is None
    first = query["candidates"][0]
    assert {"rank", "config", "score", "expected_gain", "origin", "seconds", "status"} <= set(first)
    assert first["config"]["mode"] == "b" and first["seconds"] is None
    assert query["link"] == "neighbours" and query["stages_s"]["read"] > 0
    assert documents["explain"]["id"] == query["id"]
    assert len(documents["explain"]["neighbours"]) >= 3
    (measured,) = documents["measure"]
    assert measured["baselines"]["plain"]["seconds"] == 5e-3
    assert len(measured["configs"]) == 3
    assert documents["campaign run"]["measured"] == documents["campaign plan"]["points"] == 48
    assert documents["campaign resume"] == documents["campaign run"]
    assert documents["campaign status"]["tasks_stored"] == 16
    rows = documents["eval"]
    assert {"default", "static-best", "embeddb"} <= {row["method"] for row in rows}
    assert documents["platform check"]["problems"] == documents["db check"]["problems"] == []
    spade = {k["kernel"]: k for k in documents["platform show"]["kernels"]}
    assert spade["spmm"]["size"] == 256
    assert documents["db import"]["added"] == documents["db export"]["runs"] > 50
    assert documents["db compact"]["bytes"] <= documents["db compact"]["bytes_before"]


def test_an_answer_that_is_not_stored_is_not_sent_to_explain(
    board: Board, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = _commands(board, tmp_path)["query"]
    opening = partial(open_database, readonly=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("embeddb.ui.cli.verbs.query.open_database", opening)
        assert run_verb(query) == 0
    said = capsys.readouterr().out
    assert "this answer was not stored" in said and "embeddb explain" not in said
    assert "why: the same query with --why" in said


@pytest.mark.parametrize(
    ("module", "work", "words"),
    [
        ("db", "indexer.embed.embed", ["db", "rebuild", "{db}"]),
        ("measure", "indexer.calibrate.Calibration.run", ["calibrate", "{db}", "--op", "spmm:32"]),
        ("tune", "embeddb.database.Database.tune", ["tune", "{db}", "A", "--op", "spmm:32"]),
    ],
)
def test_long_work_does_not_begin_where_it_cannot_be_stored(
    board: Board,
    module: str,
    work: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    opening = partial(open_database, readonly=True)
    monkeypatch.setattr(f"embeddb.ui.cli.verbs.{module}.open_database", opening)
    monkeypatch.setattr(work, _interrupt)
    assert run_verb([word.format(db=board.db) for word in words]) == 1
    assert "opened read-only (copy the database" in capsys.readouterr().err


def test_a_query_without_a_platform_names_those_with_runs(
    board: Board, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb(["query", board.db, "A", "--op", "spmm:32"]) == 2
    said = capsys.readouterr().err
    assert "--platform is missing (platforms with runs here: toy)" in said, said


def test_every_leaf_has_a_json_test(tmp_path: Path) -> None:
    asked = _commands(Board(tmp_path), tmp_path)
    # `serve` does not end; test_serve_bounds.py has its JSON.
    assert set(asked) == {name for name, _ in leaves()} - {"serve"}


def test_every_verb_speaks_to_people(
    board: Board, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {}
    for name, args in _commands(board, tmp_path).items():
        assert run_verb(args) == 0, name
        said[name] = capsys.readouterr().out
        assert said[name].strip() and "\x1b" not in said[name]
    assert "1 rejected" in said["index"] and "runs.csv.rejects.jsonl" in said["index"]
    assert "try: embeddb query" in said["index"]
    assert "why: embeddb explain" in said["query"] and "mode=b" in said["query"]
    assert "rests on" in said["explain"]
    assert "scale" not in said["eval"] and "static-best" in said["eval"]
    assert "48 measurements planned" in said["campaign plan"]


def test_the_example_of_index_can_be_typed(
    board: Board, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_verb([*_commands(board, tmp_path)["index"], "--json"])
    example = json.loads(capsys.readouterr().out)["example"]
    assert run_verb(shlex.split(example)[1:]) == 0


# -- the whole flow ----------------------------------------------------------------------------


def test_export_and_import_give_the_same_answers(
    board: Board, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export, other = str(tmp_path / "all.jsonl.gz"), str(tmp_path / "other.db")
    assert run_verb(["db", "export", board.db, export]) == 0
    assert run_verb(["db", "import", other, export]) == 0
    for matrix in (board.new, "m3"):
        answers = []
        for db in (board.db, other):
            capsys.readouterr()
            assert run_verb(board.query("--json", db=db, matrix=matrix)) == 0
            answers.append(json.loads(capsys.readouterr().out))
        mine, theirs = answers
        assert mine["candidates"] == theirs["candidates"]
        assert mine["neighbours"] == theirs["neighbours"]
    assert run_verb(["db", "import", other, export, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["added"], again["duplicates"]) == (0, 50)


def test_a_measured_query_ranks_by_what_it_measured(
    board: Board, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb(board.query("--measure", "-k", "3", "--json")) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["platform"] == "toy@t0"
    assert made["default"]["seconds"] == pytest.approx(2e-3 / 4)
    times = [c["seconds"] for c in made["candidates"]]
    assert times == sorted(times) and made["candidates"][0]["status"] == "ok"
    assert run_verb(["explain", board.db, made["id"], "--json"]) == 0
    gain = json.loads(capsys.readouterr().out)["measured_gain"]
    assert gain == pytest.approx(2e-3 / 4 / times[0])
    assert run_verb(["explain", board.db, board.new, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == made["id"]


def test_stubs_get_their_structure_when_the_matrices_arrive(
    board: Board, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = str(tmp_path / "later.db")
    first = ["index", db, board.log, "--platform", board.toml, "--op", "spmm:32", "--json"]
    assert run_verb(first) == 0
    before = json.loads(capsys.readouterr().out)
    assert before["answers"][0]["stubs"] == 9 and before["answers"][0]["featurizer"] is None
    assert before["example"] == ""
    assert run_verb([*first, "--matrices", str(board.matrices)]) == 0
    after = json.loads(capsys.readouterr().out)
    assert after["adopted_runs"] == 48 and after["files"][0]["added"] == 0
    assert after["answers"][0]["featurizer"] == "stats"
    assert after["answers"][0]["groups"] == 5


# -- what goes wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["nonsense"], 2, "No such command"),
        (["query", "DB"], 2, "Missing argument"),
        (["query", "DB", "NEW", "--platform", "toy", "--op", "spmm"], 2, "dense columns"),
        (["query", "DB", "NEW", "--platform", "none", "--op", "spmm:4"], 2, "no platform 'none'"),
        (["query", "DB", "NEW", "--platform", "toy", "--op", "spmv"], 2, "has no spmv"),
        (["query", "DB", "gone.mtx", "--platform", "toy", "--op", "spmm:4"], 1, "no such file"),
        (["query", "DB", "m33", "--platform", "toy", "--op", "spmm:4"], 1, "did you mean m3"),
        (["query", "nowhere.db", "m0", "--platform", "toy", "--op", "spmm:4"], 1, "no database"),
        (["query", "DB", "NEW", "--platform", "spade", "--op", "spmm:32"], 3, "no evidence"),
        (["query", "DB", "TOML", "--platform", "toy", "--op", "spmm:4"], 1, "not a matrix file"),
        (["explain", "DB", "r000000000000"], 3, "no recommendation"),
        (["explain", "DB", "m1"], 3, "was never queried"),
        (["explain", "DB", "\udcff"], 3, "no recommendation"),
        (["explain", "DB", ""], 3, "no recommendation"),
        (["db", "withdraw", "DB", "--source", "\udcff"], 2, "no source"),
        (["eval", "DB", "--platform", "none"], 3, "there are: spmm:32 on toy"),
        (["db", "export", "DB", "x.csv", "--op", "spmm:7"], 3, "no runs of spmm:7"),
        (["db", "export", "DB", "x.what"], 2, "no export format has this file ending"),
        (["db", "export", "DB", "-", "--json"], 2, "stdout"),
        (["db", "import", "DB", "gone.jsonl"], 2, "no such file"),
        (["db", "import", "DB", "LOG"], 1, "header"),
        (["init", "DB"], 1, "there already"),
        (["init", "LOG"], 1, "a file, not a database (a database is a folder"),
        (["kernel", "measure", "LOG"], 1, "a file, not a database"),
        (["kernel", "measure", "gone.db"], 1, "`embeddb kernel import gone.db FILE` makes one"),
        (["init", "starter"], 2, "./starter"),
        (["index", "x.db", "gone.csv"], 1, "gone.csv: no such file"),
        (["ingest", "DB", "LOG"], 2, "--platform"),
        (["ingest", "DB", "LOG", "--platform", "toy", "--map", "x"], 2, "ROLE=COLUMN"),
        (["measure", "DB", "NEW", "--platform", "gpu-kernels", "--op", "spmm:4"], 1, "no runner"),
        (
            ["measure", "DB", "NEW", "--platform", "toy", "--op", "spmm:4", "--config", "tile=5"],
            1,
            "not one of 4, 8, 16",
        ),
        (["calibrate", "DB", "--platform", "gpu-kernels", "--op", "spmm:4"], 1, "no runner"),
        (["kernel", "measure", "DB", "--op", "fusion", "--platform", "tile-cpu"], 2, "no fusion"),
        (["calibrate", "DB", "--platform", "toy", "--op", "spmv"], 2, "has no spmv"),
        (["calibrate", "DB", "--platform", "toy", "--minutes", "0"], 2, "range"),
        (["calibrate", "DB", "--platform", "toy", "--matrices", "gone"], 1, "not a folder"),
        (["calibrate", "DB", "--platform", "spade"], 2, "name them: --op spmm:32"),
        (["campaign", "run", "DB", "nowhere"], 1, "campaign plan"),
        (["campaign", "work", "nowhere", "--task", "x"], 1, "campaign plan"),
        (["campaign", "work", "nowhere"], 2, "name tasks by --task"),
        (["campaign", "collect", "DB", "nowhere"], 1, "campaign plan"),
        (["platform", "show", "none"], 1, "no platform 'none'"),
        (["platform", "check", "gone.toml"], 1, "cannot be read"),
        (["query", "DB", "NEW", "--platform", "toy", "--op", "spmm:4", "-k", "0"], 2, "range"),
    ],
)
def test_errors_are_one_line_with_a_code(
    board: Board,
    args: list[str],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"DB": board.db, "NEW": board.new, "LOG": board.log, "TOML": board.toml}
    assert run_verb([names.get(word, word) for word in args]) == code
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "x.db").exists()


def test_a_platform_file_with_problems_is_said(
    board: Board, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text(
        TOML.replace('kernels = ["spmm"]', 'kernels = ["spmm"]\nconstraints = ["tile < 16"]')
    )
    assert run_verb(["platform", "check", str(bad)]) == 1
    assert "no legal configuration has the value 16" in capsys.readouterr().out
    args = ["index", str(tmp_path / "b.db"), board.log, "--platform", str(bad), "--op", "spmm:32"]
    assert run_verb([*args, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["platform_problems"]


def test_a_runner_that_is_broken_leaves_queries_working(
    board: Board, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOY_BROKEN", "1")
    assert run_verb(board.query("--measure")) == 1
    assert capsys.readouterr().err == "embeddb: the toy is broken\n"
    assert run_verb(board.query("--threads", "1")) == 0


def test_a_calibration_for_people(board: Board, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["calibrate", board.db, "--platform", "toy", "--minutes", "0.5"]
    (board.matrices / "bad.mtx").write_text("%%MatrixMarket nonsense\n")
    try:
        assert run_verb([*args, "--matrices", str(board.matrices)]) == 0
    finally:
        (board.matrices / "bad.mtx").unlink()
    shown = capsys.readouterr()
    assert "toy@t0: " in shown.out and " of 30 s" in shown.out
    assert "spmm:32 " in shown.out and "before, after: " in shown.out
    assert "nothing is left to measure" in shown.out
    assert "left out: " in shown.err and "bad.mtx" in shown.err


def test_a_calibration_continues_by_the_command_as_it_was_typed(
    board: Board, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = CalibrationReport("toy@t0", 30.0)
    monkeypatch.setattr("indexer.calibrate.Calibration.run", lambda *_: stopped)
    typed = ["calibrate", board.db, "--platform", "toy", "--minutes", "0.5", "--threads", "1"]
    assert run_verb(typed) == 0
    again = capsys.readouterr().out.partition("to continue: embeddb ")[2].splitlines()[0]
    assert sorted(again.split()) == sorted(typed)


def test_ctrl_c_keeps_what_was_measured(
    board: Board,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = _commands(board, tmp_path)["campaign plan"]
    assert run_verb(plan) == 0
    monkeypatch.setenv("TOY_STOP", "1")
    campaign = str(tmp_path / "camp")
    assert run_verb(["campaign", "run", board.db, campaign]) == 130
    assert f"embeddb campaign run {board.db} {campaign}" in capsys.readouterr().err
    monkeypatch.delenv("TOY_STOP")
    assert run_verb(["campaign", "resume", board.db, campaign]) == 0


def test_sources_with_moments_that_no_clock_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = _team(tmp_path)
    with Database.open(place) as db:
        for name, moment in (("ann", 1.0e9), ("late", 1e300)):
            pushing = Pushing(name, Push(id="p", when=moment, user="ann", host="c7"))
            db.store.engine.write(lambda txn, one=pushing: one.note(txn, 1, 0, 0))
    assert run_verb(["db", "sources", str(place)]) == 0
    said = capsys.readouterr().out
    assert "2001-09-09 01:46 UTC" in said and "late" in said


def test_damage_is_found_and_healed(board: Board, capsys: pytest.CaptureFixture[str]) -> None:
    (index,) = Path(board.db, "index").glob("*.npz")
    raw = bytearray(index.read_bytes())
    raw[-1] ^= 1
    index.write_bytes(raw)
    assert run_verb(["db", "check", board.db, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["damaged"]
    assert run_verb(["db", "rebuild", board.db]) == 0
    assert run_verb(["db", "check", board.db]) == 0
    data = Path(board.db, "data.mdb")
    os.truncate(data, data.stat().st_size // 2)
    assert run_verb(["db", "check", board.db]) == 1


def test_names_cannot_write_to_the_terminal(
    board: Board, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOY_BROKEN", "1")  # else the question is about this machine's toy
    assert run_verb(board.query(matrix=HOSTILE)) == 0
    assert run_verb(["explain", board.db, "last"]) == 0
    assert run_verb(board.query(matrix=HOSTILE + "none")) == 1
    run_verb(board.query("--json", matrix=HOSTILE))
    caught = capsys.readouterr()
    assert "\x1b" not in caught.out + caught.err and "\x07" not in caught.out + caught.err
    assert "?[31mred" in caught.out


# -- the starter database ----------------------------------------------------------------------


def ship_all(db: str, to: Path) -> None:
    with open_database(db) as opened:
        export_file(opened.index, to.with_suffix(".jsonl"))
    ship([to.with_suffix(".jsonl")], to)


def test_the_starter_is_unpacked_once(
    board: Board,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data, home = tmp_path / "starter.rows", tmp_path / "home"
    monkeypatch.setattr(starter, "STARTER_FILE", data)
    monkeypatch.setenv("EMBEDDB_HOME", str(home))
    assert run_verb(board.query(db="starter")) == 1
    assert "not part of this installation" in capsys.readouterr().err
    assert not home.exists()
    ship_all(board.db, data)
    home.mkdir()
    (home / ".starter-0123.999999999.part").mkdir()
    assert run_verb(board.query(db="starter")) == 0
    assert "unpacking the starter database" in capsys.readouterr().err
    (folder,) = home.iterdir()
    assert folder.name.startswith("starter-")
    assert run_verb(["explain", "starter", "last"]) == 0
    assert "unpacking" not in capsys.readouterr().err
    # A release that ships other models brings a database of its own.
    (tmp_path / "costmodel-cpu-spmm.safetensors").write_bytes(b"trained again")
    assert starter.starter_place() != folder


def test_an_interrupted_unpacking_leaves_no_half_database(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, home = tmp_path / "starter.rows", tmp_path / "home"
    ship_all(board.db, data)
    monkeypatch.setattr(starter, "STARTER_FILE", data)
    monkeypatch.setenv("EMBEDDB_HOME", str(home))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("indexer.embed.embed", _interrupt)
        assert run_verb(board.query(db="starter")) == 130
    assert not list(home.iterdir())
    assert run_verb(board.query(db="starter")) == 0


def _interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


# -- cost and form -----------------------------------------------------------------------------


def imported(args: list[str]) -> set[str]:
    code = "import atexit, sys; from embeddb.ui.cli.main import run\n"
    code += "atexit.register(lambda: print('\\n'.join(sys.modules), file=sys.stderr))\n"
    code += "run(sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, check=True)
    return {line.partition(".")[0] for line in done.stderr.decode().splitlines()}


def test_asking_imports_little(board: Board) -> None:
    heavy = {"torch", "pandas", "numba", "hypothesis", "pytest", "matplotlib", "rich"}
    assert not imported(board.query()) & heavy
    assert not imported(["explain", board.db, "last"]) & (heavy | {"scipy", "faiss"})


def test_json_has_no_nan_and_only_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit({"x": math.nan, "y": (np.float32(2), np.int64(3)), "é\udcff": {"b", "a"}})
    text = capsys.readouterr().out
    assert text.isascii()
    assert json.loads(text) == {"x": None, "y": [2.0, 3], "é\udcff": ["a", "b"]}


def test_progress_waits_then_says_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    with output.Progress() as progress:
        for second in range(40):
            now[0] = float(second)
            progress("measure", second, 40)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "measure: 2 of 40 (5 %), 38 s left",
        "measure: 17 of 40 (42 %), 23 s left",
        "measure: 32 of 40 (80 %), 8 s left",
    ]


def test_a_database_of_python_is_that_of_the_command_line(board: Board) -> None:
    from embeddb.matrix_files import read_pattern

    with Database.open(board.db) as db:
        made = db.query(read_pattern(board.new), platform="toy", op="spmm:32")
        assert db.explain(made.id).answer == made.candidates[0].config
