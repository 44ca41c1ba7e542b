"""Tensor kernels asked about: tiles of others vote as they are, and what is said names kernels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import measured_kernels as law
import pytest
from command_line import run_verb
from tensors import dot_add, op, row_sum

from embeddb.core.config import Config
from embeddb.core.errors import TensorError
from embeddb.database import Database
from embeddb.platforms.platform import default_of, space_of
from embeddb.tensors.check import computation
from embeddb.tensors.tensor_graph import Operation, Shape
from embeddb.tensors.tensor_text import tensor_text
from tuners.evaluation.bench import Bench
from tuners.evaluation.evaluate import EvalOptions, evaluate

#: What is said of matrices and nests alone.
OTHERS = re.compile(r"matri|\bturns?\b|nonzero|non-zero|\bloops?\b|\bnests?\b|PROGRAM", re.I)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield law.make(tmp_path_factory.mktemp("kernels") / "kernels.db")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("asked") / "asked.json"
    place.write_bytes(tensor_text(law.asked()))
    return place


def test_a_kernel_that_nobody_ran_gets_a_tile_of_its_neighbours(folder: Path) -> None:
    asked = law.asked()
    with Database.open(folder, readonly=True) as db:
        made = db.query(asked, platform=law.here(), op=law.OP, k=10)
    assert made.link == "neighbours" and made.featurizer == "kernel-stats" and not made.transfers
    best = Config(made.best)
    assert law.seconds(asked, best) < 0.6 * law.seconds(
        asked, default_of(law.here(), law.OP, asked)
    )
    space = space_of(law.here(), law.OP, asked)
    assert len(made.candidates) == 10
    assert all(space.reason(Config(c.config)) is None for c in made.candidates)
    assert {near.name.partition("_")[0] for near in made.neighbours} == {"dot"}


def test_a_kernel_without_tiles_is_refused_with_the_reason(folder: Path) -> None:
    operations = [
        op("parameter", (8,), number=0),
        Operation("sort", (Shape("f32", (8,)),), (0,), {"dimension": 0}),
    ]
    asked = computation(operations, [1], name="sorted")
    with (
        Database.open(folder, readonly=True) as db,
        pytest.raises(TensorError, match=r"sorted has no tiles: .*sort"),
    ):
        db.query(asked, platform=law.here(), op=law.OP)


def test_what_is_not_legal_here_is_rejected_with_the_reason(folder: Path) -> None:
    """Tiles as long as the dimension; those of kernels of another rank are not told of at all."""
    with Database.open(folder, readonly=True) as db:
        made = db.query(dot_add(64, 100, 24), platform=law.here(), op=law.OP)
    reasons = set(made.rejected.values())
    assert reasons and all("t1" in why or "t2" in why for why in reasons)
    assert all("t3" not in config for config in made.rejected)
    assert not any("t1=64" in str(Config(c.config)) for c in made.candidates)


def test_the_judge_of_tiles_says_why_not(folder: Path) -> None:
    """Legal by every size, but there would be too many."""
    with Database.open(folder, readonly=True) as db:
        made = db.query(dot_add(4096, 100, 4096), platform=law.here(), op=law.OP)
    small = Config({"t1": 8, "t2": 16, "tr": 0})
    assert "131,072 tiles" in made.rejected[str(small)]
    assert small not in {Config(c.config) for c in made.candidates}


def test_too_few_kernels_promise_nothing(tmp_path: Path) -> None:
    """The default goes first; tiles of neighbours are behind it."""
    few = [one for one in law.measured() if one.name.startswith("row")]
    with Database.open(law.make(tmp_path / "few.db", kernels=few)) as db:
        asked = row_sum(300, 1000)
        made = db.query(asked, platform=law.here(), op=law.OP)
    assert made.best == dict(default_of(law.here(), law.OP, asked))


def test_each_kernel_is_judged_among_what_ran_on_it(folder: Path) -> None:
    with Database.open(folder, readonly=True) as db:
        assert Bench(db.index, law.OP, "tile-cpu").ready
        rows = {
            row.method: row.figures for row in evaluate(db.index, EvalOptions(seeds=[0], folds=3))
        }
    assert rows["embeddb"]["illegal"] == 0 and rows["oracle"]["of_optimum@1"] == 1.0
    assert rows["embeddb"]["of_optimum@5"] > 0.9 > rows["default"]["of_optimum@5"]


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert run_verb(words) == 0
    return capsys.readouterr().out


def test_every_verb_speaks_of_kernels(
    folder: Path, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, where = str(folder), ("--platform", "tile-cpu", "--op", "tile")
    document = json.loads(said(capsys, "query", db, str(file), *where, "-k", "10", "--json"))
    assert document["candidates"]
    page, whole = tmp_path / "answer.html", tmp_path / "report.html"
    told = [
        said(capsys, "query", db, str(file), *where, "-k", "10", "--why"),
        said(capsys, "explain", db, "last"),
        said(capsys, "eval", db, "--op", "tile", "--seeds", "1"),
        said(capsys, "report", db),
    ]
    said(capsys, "explain", db, "last", "--html", str(page))
    said(capsys, "report", db, "--html", str(whole))
    told += [_words(page.read_text()), _words(whole.read_text())]
    for text in told:
        assert "kernel" in text
        assert not OTHERS.search(_less_counts(text)), OTHERS.search(text)
    assert "136 x 64" in told[1] and "size" in told[1] and "cannot be drawn" not in told[4]


def _words(page: str) -> str:
    return re.sub(r"<style.*?</style>|<[^>]+>", " ", page, flags=re.S)


def _less_counts(text: str) -> str:
    """Without the counts of a database's tables, of which one is of nests; "turns out" is none."""
    return re.sub(r"\d+ nest\b|turns? out", "", text)
