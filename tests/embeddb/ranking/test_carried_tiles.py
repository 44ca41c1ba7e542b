"""Tiles of neighbours of another rank as votes, and how that is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import measured_kernels as law
import pytest
from command_line import run_verb
from tensors import dot_add, row_sum

from embeddb.core.config import Config
from embeddb.database import Database
from embeddb.platforms.platform import space_of
from embeddb.ranking.build import build_query
from embeddb.tensors.tensor_text import tensor_text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Products alone: whatever is asked of rank one has only them."""
    kernels = [dot_add(m, k, 64) for m in range(48, 208, 16) for k in (96, 128, 256, 512, 640)]
    kernels = [replace(one, group=f"{one.group}{at}") for at, one in enumerate(kernels)]
    yield law.make(tmp_path_factory.mktemp("carried") / "products.db", kernels=kernels)


def test_neighbours_of_another_rank_vote_behind_the_default(folder: Path) -> None:
    asked = row_sum(3000, 100)
    space = space_of(law.here(), law.OP, asked)
    with Database.open(folder, readonly=True) as db:
        query = build_query(db.index, asked, law.here(), law.OP)
        made = db.query(asked, platform=law.here(), op=law.OP, k=10)
    assert query.vote.transfers
    for one in query.vote.transfers:
        assert space.reason(Config(one.config)) is None and set(one.source) == {"t1", "t2", "tr"}
        assert set(one.config) == {"t1", "tr"} and one.gain > 1
        assert one.config["t1"] in (0, one.source["t2"])  # columns
    carried = {Config(one.config) for one in query.vote.transfers}
    assert made.best == dict(query.default) and query.default not in carried
    assert carried & {Config(c.config) for c in made.candidates}
    assert {t.name.partition("_")[0] for t in made.transfers} == {"dot"}
    assert made.document()["transfers"]


def test_of_as_many_dimensions_tiles_vote_as_they_are(folder: Path) -> None:
    with Database.open(folder, readonly=True) as db:
        assert not build_query(db.index, law.asked(), law.here(), law.OP).vote.transfers


def test_it_is_told(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, page = tmp_path / "asked.json", tmp_path / "page.html"
    file.write_bytes(tensor_text(row_sum(3000, 100)))
    words = ["--platform", "tile-cpu@somewhere", "--op", "tile", "-k", "10"]
    assert run_verb(["query", str(folder), str(file), *words]) == 0
    assert run_verb(["explain", str(folder), "last"]) == 0
    assert run_verb(["explain", str(folder), "last", "--html", str(page)]) == 0
    capsys.readouterr()
    text = page.read_text()
    assert "reduce" in text and "operations of row_sum" in text
