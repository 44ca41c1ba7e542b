"""Open choices: new values come with runs, are told, and are proposed only where they ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import OP, by_law, fill, patterns, tiny
from click.testing import CliRunner

from embeddb.core.config import Config
from embeddb.core.errors import PlatformError, SpaceError, StoreError
from embeddb.cost_model.encoders.nearest import nearest_configs
from embeddb.cost_model.encoders.own_parameters import Layout
from embeddb.database import Database
from embeddb.platforms.platform import Platform, load_platform, parse_platform
from embeddb.platforms.space.rules import Param
from embeddb.platforms.space.space import ConfigSpace
from embeddb.store import memory_store
from embeddb.ui.cli.main import cli
from indexer.embed import embed
from indexer.ingest import IngestReport, ingest
from indexer.readers.base.row import ReadOptions

FORMATS = Param("format", "choice", ("csr", "ell"), aliases=(("CSR", "csr"),), open=True)
SPACE = ConfigSpace([FORMATS, Param("chunk", "int", (1, 2, 4))])
NUMBERED = ConfigSpace([Param("kind", "choice", (1, 2), open=True)])
CLOSED = tiny()


def opened(platform: Platform = CLOSED) -> Platform:
    return parse_platform(platform.text.replace('"choice",', '"choice", open = true,'))


def log(path: Path, variants: tuple[str, ...]) -> Path:
    """By law the last of more variants than four is twice as fast as any other."""
    lines = ["matrix,rows,cols,nnz,variant,time_us"]
    for p in patterns(3):
        size = ",".join(map(str, (*p.shape, p.nnz)))
        for at, variant in enumerate(variants):
            time = by_law(p, at) if at < 4 else by_law(p, 0) / 50
            lines.append(f"{p.name},{size},{variant},{time * 1e6}")
    path.write_text("\n".join(lines) + "\n")
    return path


def read(store: Any, path: Path, platform: Platform) -> IngestReport:
    return ingest(store, path, platform=platform, options=ReadOptions(op=OP))


# -- the space ---------------------------------------------------------------------------------


def test_a_new_value_is_legal_and_told() -> None:
    for value in ("hyb", "hip_coo", "sell-32", "ell/8", "a" * 64):
        config = Config({"format": value, "chunk": 2})
        assert SPACE.reason(config) is None
        assert SPACE.new_values(config) == {"format": value}
    assert SPACE.new_values({"format": "CSR", "chunk": 2}) == {}
    assert NUMBERED.reason({"kind": 7}) is None and NUMBERED.new_values({"kind": 7}) == {"kind": 7}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("a" * 65, "at most 64 letters, digits"),
        ("no time", "cannot be a new value"),
        ("", "cannot be a new value"),
        ("\x1b[2J", "cannot be a new value"),
        ("WIDTH", "cannot be a new value"),
        ("ELL", "differs from ell in capitals only"),
        (3, "of another type than csr, ell"),
        (True, "of another type"),
        (("a", "b"), "of another type"),
    ],
)
def test_what_cannot_be_a_new_value(value: Any, why: str) -> None:
    reason = SPACE.reason({"format": value, "chunk": 2})
    assert reason is not None and why in reason and "\n" not in reason


def test_numbers_take_numbers() -> None:
    assert "another type" in str(NUMBERED.reason({"kind": "x"}))
    assert "too large" in str(NUMBERED.reason({"kind": 2**60}))


def test_only_listed_values_are_walked_drawn_and_searched() -> None:
    listed = {"csr", "ell"}
    assert {c["format"] for c in SPACE.enumerate()} == listed and SPACE.size() == 6
    drawn = SPACE.sample(6, rng=np.random.default_rng(0))
    assert {c["format"] for c in drawn} == listed
    ran = Config({"format": "hyb", "chunk": 2})
    around = SPACE.neighbours(ran)
    assert {c["format"] for c in around if c["chunk"] == 2} == listed
    assert {c["format"] for c in SPACE.neighbours(around[0])} <= listed
    near = SPACE.nearest(ran)
    assert near is not None and near["chunk"] == 2 and near["format"] in listed


def test_another_platforms_new_value_is_not_carried_over() -> None:
    here, there = opened(), opened(tiny("other"))
    ((found,),) = nearest_configs(here, there, OP, [Config({"variant": "z"})])
    assert found.config["variant"] in "abcd"


def test_a_layout_tells_new_values_from_listed_ones_only() -> None:
    layout = Layout(opened().kernel("spmm"))
    raw = layout.raw([Config({"variant": v}) for v in ("b", "z", "new")])
    assert raw[0].tolist() == [0, 1, 0, 0] and not raw[1:].any()
    with pytest.raises(SpaceError, match="z is not one of a, b, c, d"):
        Layout(CLOSED.kernel("spmm")).raw([Config({"variant": "z"})])


# -- the platform and the store ----------------------------------------------------------------


def test_only_a_choice_can_be_open() -> None:
    text = load_platform("lcm-tiles").text.replace('type = "int",', 'type = "int", open = true,', 1)
    with pytest.raises(PlatformError, match=r"open: only a choice can be open"):
        parse_platform(text)
    with pytest.raises(PlatformError, match=r"variant\.open: must be true or false"):
        parse_platform(CLOSED.text.replace('"choice",', '"choice", open = 1,'))


def test_opening_changes_no_digest() -> None:
    assert opened().digest == CLOSED.digest
    assert not CLOSED.open_choices
    assert opened().open_choices == {("spmm", "variant"), ("spmv", "variant")}
    shipped = load_platform("spmv-formats")
    assert shipped.open_choices == {("spmv", "format")}
    # As it was before it was opened: databases of then must open.
    assert shipped.digest == "c6dd62d0bef3fef3af0b9a5729e24b12"


def test_a_choice_stays_open_in_its_database() -> None:
    store = memory_store()
    for given, is_open in ((CLOSED, False), (opened(), True), (CLOSED, True)):
        store.put_platform(given)
        stored = store.platform("tiny")
        assert stored is not None and bool(stored.open_choices) == is_open
    more = parse_platform(opened().text.replace('"d"]', '"d", "z"]'))
    with pytest.raises(StoreError, match="differs"):
        store.put_platform(more)


# -- runs --------------------------------------------------------------------------------------


def test_new_values_are_taken_and_counted(tmp_path: Path) -> None:
    path = log(tmp_path / "a.csv", ("a", "b", "c", "d", "z", "y+2", "B"))
    store = memory_store()
    report = read(store, path, opened())
    assert (report.rows, report.added, report.rejected) == (84, 72, 12)
    assert report.new_values == {"variant": {"z": 12, "y+2": 12}}
    assert report.document()["new_values"] == {"variant": {"z": 12, "y+2": 12}}
    assert "differs from b in capitals only" in Path(report.rejects_file).read_text()
    again = read(store, path, opened())
    assert (again.added, again.new_values) == (0, report.new_values)


def test_a_log_read_again_once_the_choice_is_open(tmp_path: Path) -> None:
    path, store = log(tmp_path / "a.csv", ("a", "b", "c", "d", "z")), memory_store()
    before = read(store, path, CLOSED)
    assert (before.added, before.rejected, before.new_values) == (48, 12, {})
    after = read(store, path, opened())
    assert (after.added, after.duplicates, after.rejected) == (12, 48, 0)


def test_a_new_value_is_proposed_where_it_ran_and_not_before(tmp_path: Path) -> None:
    with Database.create(tmp_path / "db") as db:
        fill(db, opened())
        asked = patterns(1, first=9)[2]
        before = db.query(asked, platform="tiny", op=OP, k=5)
        assert all(c.config["variant"] in "abcd" for c in before.candidates)
        ingest(
            db.store,
            log(tmp_path / "a.csv", ("a", "b", "c", "d", "z")),
            platform=opened(),
            options=ReadOptions(op=OP),
        )
        embed(db.index)
        after = db.query(asked, platform="tiny", op=OP, k=5)
        assert after.candidates[0].config == {"variant": "z"}


def test_index_and_ingest_name_new_values(tmp_path: Path) -> None:
    toml = tmp_path / "open.toml"
    toml.write_text(opened().text)
    path = log(tmp_path / "a.csv", ("a", "b", "c", "d", "z"))
    told = ["--platform", str(toml), "--op", "spmm:32"]
    done = CliRunner().invoke(cli, ["index", str(tmp_path / "db"), str(path), *told])
    assert done.exit_code == 0, done.output
    assert "new values of variant, which the platform leaves open: z (12 rows)" in done.output
    shown = CliRunner().invoke(cli, ["platform", "show", str(toml)])
    assert "a b c d and new ones" in shown.output


def test_a_file_may_take_longer_values_where_it_says_so() -> None:
    longer = ConfigSpace([Param("cut", "choice", ("whole",), open=True, longest=100)])
    assert longer.reason(Config({"cut": "6:" + "a" * 98})) is None
    assert "at most 100 letters" in str(longer.reason(Config({"cut": "6:" + "a" * 99})))
    for param, says in (
        ({"open": True, "longest": 1025}, "from 1 to 1024"),
        ({"open": True, "longest": 0}, "from 1 to 1024"),
        ({"longest": 100}, "only an open choice"),
    ):
        with pytest.raises(SpaceError, match=says):
            Param("cut", "choice", ("whole",), **param)  # type: ignore[arg-type]
