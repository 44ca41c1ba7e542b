"""A database folder that a stranger made: its index leads nowhere, and lies without effect."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from builders import OP, fill, patterns, tiny
from command_line import run_verb

from embeddb.core.errors import EmbeddbError, StoreError
from embeddb.database import Database
from embeddb.index.index_folder import PartitionNote
from indexer.embed import embed

SOME = patterns(3)
NOTE = f"partition/{OP}/tiny"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "db"
    with Database.create(folder) as db:
        fill(db, tiny(), SOME)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "db"))


def _npz(folder: Path) -> Path:
    (file,) = (folder / "index").glob("*.npz")
    return file


def _answers(folder: Path, *, said: str = "") -> None:
    """A query gives what it gives of the sound database, and names what was wrong."""
    with Database.open(folder) as db:
        problems = db.problems()
        made = db.query(SOME[5], platform="tiny", op=OP)
        assert made.candidates[0].config == {"variant": "b"}
        for lines in (problems, made.warnings):
            assert any(said in line for line in lines), lines
            assert all("\n" not in line for line in lines)


# -- links and pipes -------------------------------------------------------------------------------


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    for name in ("thesis.tex", "id_rsa", "0123456789abcdef-1-2.npz"):
        (home / name).write_text("years of work")
    return home


def test_a_linked_index_touches_nothing_and_a_query_answers(folder: Path, victim: Path) -> None:
    shutil.rmtree(folder / "index")
    (folder / "index").symlink_to(victim)
    before = {file.name: file.read_bytes() for file in victim.iterdir()}
    _answers(folder, said="remove it")
    with Database.open(folder) as db:
        for work in (lambda: embed(db.index), lambda: embed(db.index, again=True)):
            with pytest.raises(StoreError, match="a link or file where a folder of ours") as e:
                work()
            assert e.value.hint == "remove it: what it held is made anew from the store"
        db.store.vectors.exchange({}, ())
        db.index.forget_partitions()
    assert {file.name: file.read_bytes() for file in victim.iterdir()} == before
    assert (folder / "index").is_symlink()
    (folder / "index").unlink()
    with Database.open(folder) as db:
        embed(db.index)
        assert db.problems() == []


def test_a_linked_file_is_not_read_and_what_it_leads_to_stays(folder: Path, tmp_path: Path) -> None:
    """What the link leads to has the checksum of the note, and is not read all the same."""
    file = _npz(folder)
    other = tmp_path / "elsewhere.npz"
    raw = file.read_bytes()
    file.rename(other)
    file.symlink_to(other)
    _answers(folder, said="a link where a file of ours would be")
    assert other.read_bytes() == raw
    with Database.open(folder) as db:
        assert db.problems() == []


@pytest.mark.parametrize("put", [os.mkfifo, lambda file: file.symlink_to("/dev/zero"), os.mkdir])
def test_what_is_no_file_is_rebuilt_at_once(folder: Path, put: Callable[[Path], None]) -> None:
    file = _npz(folder)
    file.unlink()
    put(file)
    _answers(folder, said="rebuilt")


def test_a_huge_file_is_not_read(folder: Path) -> None:
    os.truncate(_npz(folder), 1 << 40)
    _answers(folder, said="larger than")


# -- forged files, whose checksum fits -------------------------------------------------------------


def _forge(folder: Path, raw: bytes, **noted: Any) -> None:
    """Put these bytes in place of the saved ones, with a note that vouches for them."""
    _npz(folder).write_bytes(raw)
    with Database.open(folder) as db:
        note = msgspec.to_builtins(PartitionNote.of(db.store.notes.get(NOTE) or b""))
        note |= {"npz": hashlib.blake2b(raw, digest_size=16).hexdigest()} | noted
        db.store.notes.put(NOTE, json.dumps(note).encode())


def _members(folder: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(_npz(folder)) as file:
        return {name: file.read(name) for name in file.namelist()}


def _zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        for name, raw in members.items():
            file.writestr(name, raw)
    return out.getvalue()


def _npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def _header(shape: str, dtype: str = "<f4") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def _array(raw: bytes) -> Any:
    return np.load(io.BytesIO(raw))


def _odd(raw: bytes, change: Callable[[Any], None]) -> bytes:
    array = _array(raw).copy()
    change(array)
    return _npy(array)


def _headed(raw: bytes, **changed: Any) -> bytes:
    head = json.loads(_array(raw).tobytes()) | changed
    return _npy(np.frombuffer(json.dumps(head).encode(), np.uint8))


def _fill(value: float) -> Callable[[Any], None]:
    return lambda array: array.__setitem__(0, value)


FORGED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "a header that is not closed": ("vectors", lambda _: _header("(3, 4")),
    "a header that is no dict": ("vectors", lambda _: b"\x93NUMPY\x01\x00\x02\x00[]"),
    "a huge shape": ("vectors", lambda _: _header("(1000000000, 1000000000)")),
    "a shape below zero": ("vectors", lambda _: _header("(-1, -9)")),
    "objects": ("vectors", lambda _: _header("(1,)", "|O")),
    "no vector is finite": ("vectors", lambda raw: _odd(raw, _fill(np.nan))),
    "vectors of another length": ("vectors", lambda raw: _npy(_array(raw)[:, :-1])),
    "too few vectors": ("vectors", lambda raw: _npy(_array(raw)[:-1])),
    "a column that is none": ("column", lambda raw: _odd(raw, _fill(99))),
    "a column below zero": ("column", lambda raw: _odd(raw, _fill(-1))),
    "rows that overlap": ("indptr", lambda raw: _odd(raw, _fill(7))),
    "a time of zero": ("seconds", lambda raw: _odd(raw, _fill(0.0))),
    "a time that is none": ("seconds", lambda raw: _odd(raw, _fill(np.nan))),
    "a neighbour that is none": ("near", lambda raw: _odd(raw, _fill(1 << 40))),
    "a distance that is none": ("near_distances", lambda raw: _odd(raw, _fill(np.nan))),
    "a scale of zero": ("metric_scale", lambda raw: _odd(raw, _fill(0.0))),
    "a scale of another type": ("metric_scale", lambda raw: _npy(_array(raw).astype("<c16"))),
    "deep JSON": ("head", lambda _: _npy(np.frombuffer(b"[" * 200_000, np.uint8))),
    "no head": ("head", lambda _: _npy(np.zeros(0, np.uint8))),
    "ids that are none": ("head", lambda raw: _headed(raw, ids=["x"] * 12)),
    "ids of another type": ("head", lambda raw: _headed(raw, ids=list(range(12)))),
    "rows of patterns that are none": ("head", lambda raw: _headed(raw, rows=[["x"] * 4] * 12)),
    "configurations that are none": ("head", lambda raw: _headed(raw, configs=["[]"] * 4)),
    "a policy that is none": ("head", lambda raw: _headed(raw, policy="[" * 100_000)),
    "a policy without neighbours": (
        "head",
        lambda raw: _headed(raw, policy=json.dumps(_policy(raw) | {"k": 0})),
    ),
    "a policy that promises too much": (
        "head",
        lambda raw: _headed(raw, policy=json.dumps(_policy(raw) | {"loss": "-1e9"})),
    ),
    "machines left out that are none": ("head", lambda raw: _headed(raw, left_out='["x", 5, 1]')),
    "another operation": ("head", lambda raw: _headed(raw, op="spmm:64")),
    "no operation": ("head", lambda raw: _headed(raw, op="fft:3")),
    "another scope": ("head", lambda raw: _headed(raw, scope="cpu")),
    "another featurizer": ("head", lambda raw: _headed(raw, featurizer="sizes")),
    "the future": ("head", lambda raw: _headed(raw, generation=1 << 62)),
}


def _policy(raw: bytes) -> dict[str, Any]:
    return dict(json.loads(json.loads(_array(raw).tobytes())["policy"]))


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_file_is_rebuilt(folder: Path, kind: str) -> None:
    name, forge = FORGED[kind]
    members = _members(folder)
    members[f"{name}.npy"] = forge(members[f"{name}.npy"])
    _forge(folder, _zipped(members))
    _answers(folder, said="rebuilt")


def test_a_packed_file_is_not_unpacked(folder: Path) -> None:
    """A thousandth of its size would be enough to fill the memory."""
    _forge(folder, _zipped(_members(folder), zipfile.ZIP_DEFLATED))
    _answers(folder, said="packed")


NOTES: dict[str, Any] = {
    "deep": None,
    "a path": {"stem": "../../../etc/passwd"},
    "a long name": {"stem": "x" * 100_000},
    "no name": {"stem": 5},
    "a generation that is none": {"generation": -1},
    "a huge generation": {"generation": 2**70},
    "versions that are none": {"chosen_among": []},
    "no versions": {"chosen_among": {}},
    "fitted in another way": {"fit": "1"},
}


@pytest.mark.parametrize("kind", NOTES)
def test_a_forged_note_is_rebuilt(folder: Path, kind: str) -> None:
    if NOTES[kind] is None:
        with Database.open(folder) as db:
            db.store.notes.put(NOTE, b"[" * 200_000)
    else:
        _forge(folder, _npz(folder).read_bytes(), **NOTES[kind])
    _answers(folder, said="rebuilt")


@pytest.mark.parametrize("raw", [b"[" * 200_000, b"{}", b'{"stamp": 1}', b"\xff"])
def test_other_notes_that_are_none_are_made_anew(folder: Path, raw: bytes) -> None:
    with Database.open(folder) as db:
        db.query(SOME[5], platform="tiny", op=OP)
        for key in db.store.notes.items():
            if not key.startswith(("partition/", "answer/")):
                db.store.notes.put(key, raw)
        for key in (f"atlas/{OP}/tiny", f"policy/{OP}/tiny/tiny", "embedded/stats"):
            db.store.notes.put(key, raw)
    with Database.open(folder) as db:
        embed(db.index)
        assert db.query(SOME[5], platform="tiny", op=OP).candidates[0].config == {"variant": "b"}
        assert db.atlas(OP, tiny()) is not None and db.problems() == []


@pytest.mark.parametrize("seed", range(3))
def test_random_damage_ends_in_an_answer(folder: Path, seed: int) -> None:
    """Bytes of one member anywhere, under a checksum that fits."""
    rng, members = random.Random(seed), _members(folder)
    for _ in range(8):
        name = rng.choice(list(members))
        raw = bytearray(members[name])
        for _ in range(rng.choice([1, 1, 4, 16])):
            at = rng.randrange(min(len(raw), rng.choice([128, 1 << 20])))
            raw[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        _forge(folder, _zipped({**members, name: bytes(raw)}))
        with Database.open(folder) as db:
            db.problems()
            assert db.query(SOME[5], platform="tiny", op=OP).candidates


# -- vectors and platforms that are none -----------------------------------------------------------


@pytest.mark.parametrize("raw", [b"abc", b"\0" * 8, np.full(40, np.nan, "<f4").tobytes()])
def test_a_vector_that_is_none_counts_as_missing(folder: Path, raw: bytes) -> None:
    with Database.open(folder) as db:
        stats = db.index.featurizers().named("stats")
        key = f"stats\0{stats.version}\0".encode() + bytes.fromhex(SOME[0].id)
        db.store._engine.write(lambda txn: txn.put("vector", key, raw))
        db.store.notes.delete(db.store.notes.items("partition/"))
        assert db.query(SOME[5], platform="tiny", op=OP).candidates
    with Database.open(folder) as db:
        embed(db.index)
        held = db.store.vectors.get("stats", stats.version, [SOME[0].id])
        assert np.array_equal(held[SOME[0].id], stats.embed(SOME[0]))


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 200_000,
        b'{"text": 1}',
        b"\xff",
        json.dumps({"text": "x = " + "1" * 5000, "environment": {}}).encode(),
    ],
)
def test_a_stored_platform_that_is_none(
    folder: Path, raw: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named, and whatever does not need it goes on."""
    with Database.open(folder) as db:
        fill(db, tiny("other"), SOME)
        db.store._engine.write(lambda txn: txn.put("platform", b"other", raw))
    with Database.open(folder) as db:
        assert any("platform other" in line for line in db.problems())
        assert db.query(SOME[5], platform="tiny", op=OP).candidates
        with pytest.raises(EmbeddbError, match="platform other") as e:
            db.query(SOME[5], platform="other", op=OP)
        assert "\n" not in str(e.value)
        assert db.index.scopes() == [(OP, "tiny")]
    for words in (["db", "stat"], ["report"], ["embed"], ["explain", "last"], ["db", "rebuild"]):
        verb = [*words[:1], str(folder), *words[1:]] if words[0] != "db" else [*words, str(folder)]
        assert run_verb(verb) == 0
    assert "platform other" in capsys.readouterr().err
    assert run_verb(["db", "check", str(folder)]) == 1
    assert "platform other" in capsys.readouterr().out
