"""Derived quantities of an answer beside the default's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders import OP, fill, patterns, tiny
from command_line import run_verb

from embeddb.core.row_lengths import STORED_AS, as_vector
from embeddb.core.sizes import UNKNOWN, Sizes
from embeddb.database import Database
from embeddb.explain.explain import explain
from embeddb.explain.quantities import quantity_views, stored_lengths
from embeddb.featurizers.row_lengths import histogram
from embeddb.platforms.platform import load_platform, parse_platform
from embeddb.store import memory_store

SPADE = load_platform("spade")
DEFAULT = SPADE.kernel("spmm").default
ANSWER = DEFAULT.replace(column_panels=1024, split=256)
SIZES = Sizes(1000, 5000, 8000)


def test_an_answer_beside_the_default() -> None:
    views = {v.name: v for v in quantity_views(SPADE, OP, (ANSWER, DEFAULT), SIZES, None)}
    assert (views["column_tiles"].answer, views["column_tiles"].default) == (5, 1)
    assert views["column_tiles"].meaning == SPADE.meaning["column_tiles"]
    assert (views["tile_entries"].answer_text, views["tile_entries"].default_text) == (
        "400",
        "2,000",
    )
    assert "row_visits" not in views  # needs the lengths of the rows
    lengths = histogram(patterns(1)[0])
    more = {v.name for v in quantity_views(SPADE, OP, (ANSWER, DEFAULT), SIZES, lengths)}
    assert more == {*SPADE.quantities(OP).names}


def test_what_applies_to_one_alone_and_to_neither() -> None:
    text = SPADE.text.replace("[space.derived]", '[space.derived]\nonly = "1 / (split - 32)"', 1)
    changed = parse_platform(text)
    views = {v.name: v for v in quantity_views(changed, OP, (ANSWER, DEFAULT), UNKNOWN, None)}
    assert (views["only"].default, views["only"].default_text) == (None, "-")
    assert views["only"].answer_text == "0.00446"
    assert "column_tiles" not in views


def test_a_platform_without_any_has_none() -> None:
    waco = load_platform("waco-cpu")
    default = waco.default(OP, SIZES)
    assert quantity_views(waco, OP, (default, default), SIZES, None) == []


def test_stored_lengths_are_read_and_damaged_ones_ignored() -> None:
    store, pattern = memory_store(), patterns(1)[0]
    sizes = Sizes(*pattern.shape, pattern.nnz)
    assert stored_lengths(store, pattern.id, sizes) is None
    store.vectors.put(*STORED_AS, {pattern.id: as_vector(histogram(pattern))})
    found = stored_lengths(store, pattern.id, sizes)
    assert found is not None and found.rows == pattern.shape[0]
    assert stored_lengths(store, pattern.id, Sizes(1, 1, 1)) is None
    store.vectors.put(*STORED_AS, {pattern.id: np.zeros(3, dtype=np.float32)})
    assert stored_lengths(store, pattern.id, sizes) is None


def test_an_explanation_has_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        tiny().text
        + "\n[space.derived]\nvisits = \"sum_rows(LENGTH) * (1 if variant == 'a' else 2)\"\n"
    )
    with fill(Database.create(tmp_path / "db"), parse_platform(text), patterns(3)) as db:
        asked = patterns(1)[1]
        made = explain(db.query(asked, platform="tiny", op=OP), db.store)
        (view,) = made.quantities
        assert (view.answer, view.default) == (2 * asked.nnz, asked.nnz)
        assert made.document()["quantities"][0]["name"] == "visits"
    assert not run_verb(["explain", str(tmp_path / "db"), "last"])
    assert f"visits {2 * asked.nnz:,} {asked.nnz:,}" in " ".join(capsys.readouterr().out.split())
    page = tmp_path / "page.html"
    assert not run_verb(["explain", str(tmp_path / "db"), "last", "--html", str(page)])
    assert "visits" in page.read_text()
