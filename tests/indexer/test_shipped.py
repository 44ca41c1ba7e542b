"""The file that ships: what comes out of it is what an import of the same runs leaves."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import CONFIGS, OP, by_chance, fill, patterns, runs_of, tiny
from engine_contract import contents
from hypothesis import given
from hypothesis import strategies as st
from measured_nests import make as make_nests

from embeddb.core.errors import StoreCorrupt, UsageError
from embeddb.core.files.model_file import read, save
from embeddb.core.records import Measurement, Run
from embeddb.database import Database
from embeddb.store.engine import MemoryEngine
from embeddb.ui.cli.verbs import plot
from indexer import starter
from indexer.exchange.exchange import export_file
from indexer.exchange.export_records import adopt_models
from indexer.shipped import __main__ as command
from indexer.shipped import file
from indexer.shipped import file as casting
from indexer.shipped.__main__ import fit_all, halve, import_all, ship
from indexer.shipped.file import NO_CODE, code_of, pack, packed, seconds_of, unpack, unpacked

LAB = tiny("lab")
Tables = dict[str, list[tuple[bytes, bytes]]]


def unpacked_of(data: Path) -> Tables:
    with Database.in_memory() as db:
        for _ in unpack(data, db.store.engine):
            pass
        return contents(db.store.engine)


def kinds_of_runs() -> list[Run]:
    """One after the other: what a brief export has, and what only a whole one has."""
    pattern, brief = patterns(1)[0], Measurement(times_s=(1.5e-5, 1.6e-5, 0.25), cpu_max_s=(1.0,))
    told = [
        brief,
        replace_m(brief, cpu_sum_s=(2e-5,), conversion_s=0.0, when=6e8, tolerance=1e-5),
        replace_m(brief, times_s=(3e-7, 4e-7), conversion_s=1.25e-3),
        Measurement("oom", error="8x8 blocks store 23 values per non-zero"),
        Measurement("crash", when=1.0),
        replace_m(brief, times_s=(1 / 3,)),
        replace_m(brief, times_s=tuple(k * 1e-5 for k in range(1, 9)), context={"load": 0.1}),
        replace_m(brief, cpu_max_s=(1.0, 2.0)),
        replace_m(brief, when=-60.0, source="simulator"),
        replace_m(brief, times_s=(1e-300, 1e25, 9.9996)),
    ]
    made = [Run(pattern.id, OP, LAB.id, CONFIGS[0], m, f"c{at % 3}") for at, m in enumerate(told)]
    return [*made, replace(made[0], measurement=brief, replaces=made[1].id)]


def replace_m(m: Measurement, **changes: object) -> Measurement:
    return Measurement(**{**{name: getattr(m, name) for name in m.__struct_fields__}, **changes})


@pytest.fixture
def exports(tmp_path: Path) -> list[Path]:
    """Of matrices with runs of every form, in brief, and of loop nests."""
    with Database.in_memory() as db:
        fill(db, LAB, patterns(2), times=by_chance(1))
        fill(db, tiny(), patterns(3), times=by_chance(2))
        db.store.append(kinds_of_runs())
        export_file(db.index, tmp_path / "matrices.jsonl.gz", brief=True)
        export_file(db.index, tmp_path / "whole.jsonl", platform="lab")
    with Database.open(make_nests(tmp_path / "nests")) as db:
        export_file(db.index, tmp_path / "nests.jsonl")
    return [tmp_path / name for name in ("matrices.jsonl.gz", "whole.jsonl", "nests.jsonl")]


def test_all_tables_are_those_of_an_import(exports: list[Path], tmp_path: Path) -> None:
    ship(exports, tmp_path / "starter.rows")
    with Database.in_memory() as db:
        import_all(db.index, exports)
        fit_all(db.index)
        assert unpacked_of(tmp_path / "starter.rows") == contents(db.store.engine)
    ship(exports, tmp_path / "again.rows")
    assert (tmp_path / "again.rows").read_bytes() == (tmp_path / "starter.rows").read_bytes()


def test_runs_come_in_pieces_of_whole_patterns(
    exports: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(exports, tmp_path / "starter.rows")
    whole = unpacked_of(tmp_path / "starter.rows")
    for size in (1, 7, 30):
        monkeypatch.setattr(casting, "_PIECE", size)
        assert unpacked_of(tmp_path / "starter.rows") == whole


def test_own_runs_and_an_empty_store_come_back(tmp_path: Path) -> None:
    with Database.in_memory() as db:
        pack(db.store.engine, tmp_path / "none.rows")
        assert unpacked_of(tmp_path / "none.rows") == contents(db.store.engine)
        fill(db, LAB, patterns(1))
        db.store.append([*kinds_of_runs(), *runs_of(patterns(1)[1], LAB, times=by_chance(3))])
        pack(db.store.engine, tmp_path / "own.rows")
        assert unpacked_of(tmp_path / "own.rows") == contents(db.store.engine)


def test_what_would_come_back_as_another_is_not_packed(tmp_path: Path) -> None:
    """A run under an id that its content does not have."""
    with Database.in_memory() as db:
        fill(db, LAB, patterns(1), times=lambda *_: 1e-3)
        engine = db.store.engine
        with engine.read() as txn:
            key, raw = next(iter(txn.scan("run")))
        engine.write(lambda txn: txn.put("run", key[:-1] + b"?", raw))
        with pytest.raises(UsageError, match="another"):
            pack(engine, tmp_path / "no.rows")
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_refused_before_anything_is_written(
    exports: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "starter.rows"
    ship(exports[:1], data)
    whole = data.read_bytes()
    for at in range(0, len(whole), 97):
        data.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(StoreCorrupt):
            next(unpack(data, MemoryEngine()))
    data.write_bytes(whole)
    monkeypatch.setattr(file, "SCHEMA", 2)
    with pytest.raises(StoreCorrupt, match="schema 1"):
        next(unpack(data, MemoryEngine()))


def test_the_command_makes_the_file(
    exports: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made.rows"
    assert command.main([*map(str, exports), str(made)]) == 0
    assert made.is_file()
    assert command.main([]) == 2
    exports[1].write_text(exports[1].read_text().replace('["run"', '["ran"', 1))
    assert command.main([*map(str, exports), str(made)]) == 1
    assert "damaged lines" in capsys.readouterr().err


def test_networks_ship_in_half_precision_and_trees_as_they_are(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    network, forest = (tmp_path / f"costmodel-{name}.safetensors" for name in ("a", "b"))
    card = {"kind": "costmodel"}
    save(
        network, {"member.0.mapper.0.weight": weights, "prior.ids": np.array([[1]], np.uint8)}, card
    )
    save(forest, {"member.0.threshold": weights}, card)
    whole, before = network.stat().st_size, forest.read_bytes()
    for _ in range(2):  # the second time changes nothing
        halve(tmp_path)
        stored = read(network).tensors
        assert stored["member.0.mapper.0.weight"].dtype == np.float32
        rounded = weights.astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(stored["member.0.mapper.0.weight"], rounded)
        assert stored["prior.ids"].tolist() == [[1]] and network.stat().st_size < whole
        assert forest.read_bytes() == before


def test_the_help_names_workloads_that_the_starter_has() -> None:
    named = re.compile(r"^ *embeddb .*\bstarter ([A-Za-z]\w*)(?= |$)", re.M)
    verbs = Path(plot.__file__).parent.glob("*.py")
    names = {n for verb in verbs for n in named.findall(verb.read_text(encoding="utf-8"))}
    names -= {"last"}  # the last answer
    assert names
    with Database.in_memory() as db:
        for _ in unpack(starter.STARTER_FILE, db.store.engine):
            if not (names := {name for name in names if not any(db.store.find(name))}):
                break
    assert not names


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_ships_is_what_an_import_of_its_runs_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # with the weights that ship
    monkeypatch.setenv("EMBEDDB_HOME", str(tmp_path / "home"))
    exports = [tmp_path / f"{name}.jsonl" for name in ("cpu", "nest-cpu", "tile-cpu", "cuda")]
    folder = starter.starter_folder()
    with Database.open(folder, readonly=True) as db:
        assert not db.problems()
        for out in exports:
            export_file(db.index, out, platform=out.stem)
    shutil.copy(starter.STARTER_FILE.with_name("towers.safetensors"), tmp_path)
    ship(exports, tmp_path / "starter.rows")
    made = unpacked_of(tmp_path / "starter.rows")
    with Database.create(tmp_path / "imported") as db:
        adopt_models(db.index, tmp_path)
        import_all(db.index, exports)
        fit_all(db.index)
        there = contents(db.store.engine)
    with Database.open(folder, readonly=True) as db:
        found = contents(db.store.engine)
    made["model"] = there["model"] = found["model"] = []  # registered when it was unpacked
    assert made == there
    # Another processor than the one that made the file rounds features, and so fits, otherwise.
    for tables in (found, there):
        tables["note"] = [
            (key, b"" if key.startswith(b"fit/") else raw)
            for key, raw in tables["note"]
            if key != b"starter/runs"
        ]
    ours, shipped = dict(there.pop("vector")), dict(found.pop("vector"))
    assert found == there
    assert ours.keys() == shipped.keys()
    for key, raw in ours.items():
        mine, theirs = np.frombuffer(raw, "<f4"), np.frombuffer(shipped[key], "<f4")
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4)


# -- numbers -----------------------------------------------------------------------------------


@given(st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=50))
def test_whole_numbers_come_back(numbers: list[int]) -> None:
    told = np.array(numbers, dtype=np.int64)
    assert unpacked(packed(told), len(numbers)).tolist() == numbers


@given(st.integers(1, 9999), st.integers(-19, 19))
def test_a_time_of_four_digits_has_a_code(digits: int, power: int) -> None:
    seconds = np.array([float(f"{digits}e{power}"), 0.0])
    code = code_of(seconds)
    assert (code >= 0).all()
    assert seconds_of(code).tobytes() == seconds.tobytes()


@given(st.floats())
def test_any_other_time_has_none(seconds: float) -> None:
    told = np.array([seconds])
    code = code_of(told)
    assert code[0] == NO_CODE or seconds_of(code).tobytes() == told.tobytes()


def test_codes_are_in_the_order_of_times() -> None:
    times = np.array([0.0, 1e-9, 9.999e-9, 1e-8, 1.001e-8, 0.5, 1.0, 2.0])
    assert (np.diff(code_of(times)) > 0).all()
    with pytest.raises(StoreCorrupt):
        seconds_of(np.array([1 << 40]))


def test_columns_of_another_length_are_refused() -> None:
    planes = packed(np.arange(1000))
    for count in (999, 1001):
        with pytest.raises(StoreCorrupt):
            unpacked(planes, count)
    with pytest.raises(StoreCorrupt):
        unpacked([b"nonsense"], 3)
    with pytest.raises(OverflowError):
        packed(np.array([1 << 40]))
