"""Partitions on disk: equal after reopening, current after writes, healed after damage."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import CONFIGS, OP, band, by_chance, fill, patterns, runs_of, tiny

from embeddb.core.config import Config, Op
from embeddb.core.errors import StoreCorrupt
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.core.sizes import Sizes
from embeddb.database import Database
from embeddb.index.answer_file import from_bytes, to_bytes
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.run_matrix import RunMatrix
from embeddb.index.scopes import run_matrix_of
from embeddb.index.vectors import VectorIndex
from indexer.embed import embed

#: Few patterns: every put of a database on disk costs an fsync.
SOME = patterns(3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Database.create(tmp_path / "db") as db:
        fill(db, tiny(), SOME)
    return tmp_path / "db"


@pytest.fixture
def index(folder: Path) -> Path:
    return folder / "index"


def _partition(db: Database, op: Op = OP) -> AnswerIndex:
    found = db.index.partition(op, db.platform("tiny"))
    assert found is not None
    return found


def _add(db: Database, pattern: Pattern, **options: Any) -> None:
    """One more measured pattern, as `record` writes it: the index is not refreshed."""
    db.index.record(runs_of(pattern, tiny(), **options), pattern, tiny())


def same_evidence(a: RunMatrix, b: RunMatrix) -> None:
    assert (a.op, a.rows, a.configs, a.winners) == (b.op, b.rows, b.configs, b.winners)
    for name in ("indptr", "column", "seconds", "conversion", "spread", "default_s"):
        one, other = getattr(a, name), getattr(b, name)
        assert one.dtype == other.dtype
        assert np.array_equal(one, other, equal_nan=True), name


def same(a: AnswerIndex, b: AnswerIndex) -> None:
    same_evidence(a.evidence, b.evidence)
    assert (a.scope, a.featurizer, a.ids, repr(a.policy)) == (
        b.scope, b.featurizer, b.ids, repr(b.policy),
    )  # fmt: skip
    assert np.array_equal(a.vectors, b.vectors) and np.array_equal(a.far, b.far)
    for name in ("center", "scale", "stretch"):
        assert np.array_equal(getattr(a.metric, name), getattr(b.metric, name))
    same_view(a, b)
    for vector in a.vectors:
        assert a.nearest(vector)[0] == b.nearest(vector)[0]
        assert np.array_equal(a.nearest(vector)[1], b.nearest(vector)[1])


def same_view(a: AnswerIndex, b: AnswerIndex) -> None:
    one, other = a.view(tiny()), b.view(tiny())
    for name in ("level", "prior", "mean", "cover"):
        assert np.array_equal(getattr(one.averages, name), getattr(other.averages, name))
    for name in ("gains", "trust", "shares", "effects", "failing"):
        assert np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True)


def heals(folder: Path, said: str) -> None:
    """Opens, says what was wrong, answers as before, and has repaired the files."""
    with Database.open(folder) as db:
        assert any(said in line for line in db.problems()), db.problems()
        answer = db.query(SOME[5], platform="tiny", op=OP)
        assert any(said in line for line in answer.warnings), answer.warnings
        assert any(said in line for line in db.index.repairs())
        assert answer.candidates[0].config == {"variant": "b"}
    with Database.open(folder) as db:
        assert db.problems() == []
        _partition(db)
        assert db.index.repairs() == []


def test_saved_and_loaded_equal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Database.open(folder) as db:
        built = db.index.refresh(OP, "tiny")
    assert built is not None and len(built.ids) == len(SOME)
    monkeypatch.setattr(AnswerIndex, "build", None)  # so that it can only be loaded
    with Database.open(folder) as db:
        found = _partition(db)
        assert found.generation == built.generation == db.store.generation
        same(found, built)
        assert _partition(db) is not None and db.index.repairs() == [] and db.problems() == []


def test_the_index_gives_what_plain_search_gives(folder: Path) -> None:
    with Database.open(folder) as db:
        found = _partition(db)
    plain = VectorIndex(found.ids, found.metric.apply(found.vectors))
    for vector in found.vectors:
        ids, distances = found.nearest(vector, exclude={found.ids[0]})
        want, far = plain.search(
            found.metric.apply(vector[None]), found.policy.k, exclude={found.ids[0]}
        )
        assert ids == want[0] and distances == pytest.approx(far[0])


def test_bytes_round_trip_and_no_pickle() -> None:
    db = fill(Database.in_memory(), tiny(), SOME, times=by_chance(1))
    built = db.index.refresh(OP, "tiny")
    assert built is not None
    same(from_bytes(to_bytes(built)), built)
    for raw in (b"", b"PK\x03\x04 and no more", to_bytes(built)[:-200], b"\x93NUMPY"):
        with pytest.raises(StoreCorrupt):
            from_bytes(raw)


def test_a_file_of_an_older_program_is_not_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every array and every head field is needed; none missing ends in another error."""
    db = fill(Database.in_memory(), tiny(), SOME)
    built = db.index.refresh(OP, "tiny")
    assert built is not None
    raw = to_bytes(built)
    with np.load(io.BytesIO(raw)) as z:
        arrays = {name: z[name] for name in z.files}
    head = json.loads(arrays["head"].tobytes())

    def packed(arrays: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        np.savez(out, **arrays)
        return bytes(out.getvalue())

    from_bytes(packed(arrays))
    cut = [packed({k: v for k, v in arrays.items() if k != name}) for name in arrays]
    for name in head:
        less = json.dumps({k: v for k, v in head.items() if k != name}).encode()
        cut.append(packed({**arrays, "head": np.frombuffer(less, np.uint8)}))
    odd = json.dumps({**head, "op": "fft:3"}).encode()
    cut.append(packed({**arrays, "head": np.frombuffer(odd, np.uint8)}))
    for broken in cut:
        with pytest.raises(StoreCorrupt):
            from_bytes(broken)


# -- currency ----------------------------------------------------------------------------------


def test_newer_runs_are_scanned_in(folder: Path) -> None:
    """A few patterns more: evidence and neighbours are those of a fresh build."""
    with Database.open(folder) as db:
        old = _partition(db)
    with Database.open(folder) as db:
        _add(db, band(170, 14, name="new", group="new"))
        again = Run(SOME[0].id, OP, "tiny", CONFIGS[3], Measurement(times_s=(7.0,)))
        db.store.append([again])
        patched = _partition(db)
        same_evidence(patched.evidence, run_matrix_of(db.store, OP, "tiny"))
        assert (
            repr(patched.policy) == repr(old.policy) and patched.generation == db.store.generation
        )
        fresh = db.index.refresh(OP, "tiny")
        assert fresh is not None
        same_evidence(patched.evidence, fresh.evidence)
        assert patched.ids == fresh.ids and np.array_equal(patched.vectors, fresh.vectors)
        same_view(patched, fresh)
        assert len(db.index._files.notes()) == 1 and fresh.generation > old.generation


def test_one_process_sees_what_another_wrote(folder: Path) -> None:
    new = band(170, 14, name="new", group="new")
    with Database.open(folder) as reader:
        assert new.id not in _partition(reader).ids
        context = multiprocessing.get_context("spawn")
        writer = context.Process(target=_write_one, args=(str(folder),))
        writer.start()
        writer.join(60)
        assert writer.exitcode == 0
        assert new.id in _partition(reader).ids
        assert reader.query(new, platform="tiny", op=OP).link == "measured"


def _write_one(folder: str) -> None:
    with Database.open(folder) as db:
        _add(db, band(170, 14, name="new", group="new"))


def test_many_newer_runs_rebuild_it(folder: Path) -> None:
    with Database.open(folder) as db:
        before = db.index._files.notes()
        for pattern in patterns(1, first=8):
            _add(db, pattern)
        assert len(_partition(db).ids) == len(SOME) + 4
        assert db.index._files.notes() != before


def test_writes_elsewhere_change_nothing(folder: Path) -> None:
    with Database.open(folder) as db:
        before = _partition(db)
        fill(db, tiny(), SOME[:2], op=Op("spmv"), indexed=False)
        after = _partition(db)
        assert after.generation == db.store.generation > before.generation
        same(after, before)


def test_a_stub_that_was_adopted_leaves_no_row(folder: Path) -> None:
    """Its runs move to the pattern, so its row must go though no run of it is newer."""
    stub = WorkloadInfo(id="ab" * 16, m=150, n=150, nnz=300, name="ghost", stub=True)
    real = band(150, 2, name="ghost", group="ghost")
    with Database.open(folder) as db:
        db.store.append(
            [Run(stub.id, OP, "tiny", c, Measurement(times_s=(1.0,))) for c in CONFIGS],
            patterns=[stub],
        )
        embed(db.index)
        assert stub.id in {row.pattern_id for row in _partition(db).evidence.rows}
        db.index.add_pattern(real)
        db.store.adopt(stub.id, WorkloadInfo.whole(real))
        found = _partition(db)
        same_evidence(found.evidence, run_matrix_of(db.store, OP, "tiny"))
        assert stub.id not in {row.pattern_id for row in found.evidence.rows}
        assert real.id in found.ids


def test_a_new_version_of_a_featurizer_rebuilds_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors of two versions are never compared."""
    from embeddb.featurizers import sizes, stats

    with Database.open(folder) as db:
        old = _partition(db)
    for plug in (stats.Stats, sizes.LogSizes):
        monkeypatch.setattr(plug, "version", "next")
    with Database.open(folder) as db:
        assert db.index.partition(OP, db.platform("tiny")) is None  # until `embed` has run
        assert any(f"featurizer {old.featurizer}" in line for line in db.index.repairs())
        embed(db.index)
        assert len(_partition(db).ids) == len(SOME)


# -- damage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [0.0, 0.5, 0.999])
def test_a_flipped_byte(folder: Path, index: Path, where: float) -> None:
    (file,) = index.glob("*.npz")
    raw = bytearray(file.read_bytes())
    raw[int(len(raw) * where)] ^= 0x10
    file.write_bytes(raw)
    heals(folder, "checksum")


def test_a_missing_or_truncated_file(folder: Path, index: Path) -> None:
    (file,) = index.glob("*.npz")
    file.write_bytes(file.read_bytes()[:-7])
    heals(folder, "checksum")
    (file,) = index.glob("*.npz")
    file.unlink()
    heals(folder, "rebuilt")


def test_no_folder_at_all(folder: Path, index: Path) -> None:
    for file in index.iterdir():
        file.unlink()
    index.rmdir()
    heals(folder, "rebuilt")


@pytest.mark.parametrize(
    "note", [b"{}", b"[]", b"not json", b'{"stem": "x", "generation": 1}', b'{"version": 0}']
)
def test_a_note_of_another_program(folder: Path, note: bytes) -> None:
    with Database.open(folder) as db:
        (name,) = db.index._files.notes()
        db.store.notes.put(name, note)
    heals(folder, "another version")


def test_files_of_another_generation_than_their_note(folder: Path, index: Path) -> None:
    """The old files under the new names: as if a copy tool had mixed two backups."""
    old = {file.suffix: file.read_bytes() for file in index.iterdir()}
    with Database.open(folder) as db:
        _add(db, band(170, 14, name="new", group="new"))
        db.index.refresh(OP, "tiny")
    for file in index.iterdir():
        file.write_bytes(old[file.suffix])
    heals(folder, "checksum")


def test_left_over_files_are_collected(folder: Path, index: Path) -> None:
    dead = "0123456789abcdef-999999999-7"
    old = [f"{dead}.npz.tmp", f".{dead}.faiss.999999999.tmp", f"{dead}.faiss"]
    gone = [*old, f".{dead}.npz.0a1b2c3d.part", f"0123456789abcdef-{os.getpid()}-3.npz"]
    other = f"0123456789abcdef-{os.getppid()}-3.npz"  # alive: it may be about to note it
    # Nobody's but the user's, whatever they are called.
    users = ["thesis.tex", "id_rsa", "a-1-2.npz", ".0123456789abcdef-1-2.npz", f"{dead}.npz.bak"]
    for name in (*gone, other, *users):
        (index / name).write_bytes(b"x")
    with Database.open(folder) as db:
        db.index.refresh(OP, "tiny")
        (note,) = db.index._files.notes().values()
    kept = {f"{note['stem']}.npz", other, *users}
    assert {file.name for file in index.iterdir()} == kept


def test_old_versions_are_collected(folder: Path, index: Path) -> None:
    with Database.open(folder) as db:
        for _ in range(3):
            db.store.append([Run(SOME[0].id, OP, "tiny", CONFIGS[0], Measurement("crash"))])
            db.index.refresh(OP, "tiny")
        assert len(list(index.iterdir())) == 1
        db.store.vectors.exchange({}, ())
        db.index.forget_partitions()
        assert list(index.iterdir()) == [] and db.index._files.notes() == {}
        embed(db.index, again=True)
        assert db.query(SOME[5], platform="tiny", op=OP).candidates[0].config == {"variant": "b"}


# -- at once -----------------------------------------------------------------------------------


def _refresh_often(folder: str, rounds: int) -> None:
    with Database.open(folder) as db:
        for _ in range(rounds):
            db.index.refresh(OP, "tiny")
            db.index.partition(OP, tiny())


def test_two_processes_refresh_at_once(folder: Path, index: Path) -> None:
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=_refresh_often, args=(str(folder), 8)) for _ in range(2)]
    for process in both:
        process.start()
    with Database.open(folder) as db:
        while any(process.is_alive() for process in both):
            found = replace(_partition(db))
            assert len(found.ids) == len(SOME)
    for process in both:
        process.join(60)
        assert process.exitcode == 0
    with Database.open(folder) as db:
        assert db.problems() == []
        db.index.refresh(OP, "tiny")
        assert len(list(index.iterdir())) == 1


def test_threads_refresh_and_ask_at_once(folder: Path) -> None:
    with Database.open(folder) as db:

        def work(at: int) -> list[str]:
            links = []
            for i in range(4):
                if at % 2:
                    db.index.refresh(OP, "tiny")
                links.append(db.query(SOME[(at + i) % len(SOME)], platform="tiny", op=OP).link)
            return links

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(work, range(4))) == [["measured"] * 4] * 4
        assert db.index.repairs() == []


def test_a_store_in_memory_has_no_files() -> None:
    db = fill(Database.in_memory(), tiny(), SOME)
    assert len(_partition(db).ids) == len(SOME)
    assert db.index._files.notes() == {} and db.problems() == []
    _add(db, band(170, 14, name="new", group="new"))
    assert len(_partition(db).ids) == len(SOME) + 1


def test_read_only_writes_nothing(folder: Path, index: Path) -> None:
    (file,) = index.glob("*.npz")
    file.unlink()
    before = sorted(index.iterdir())
    with Database.open(folder, readonly=True) as db:
        assert len(_partition(db).ids) == len(SOME)
        assert any("rebuilt" in line for line in db.index.repairs())
    assert sorted(index.iterdir()) == before


# -- contents ----------------------------------------------------------------------------------


def test_what_is_there_in_words() -> None:
    db = fill(Database.in_memory(), tiny(), SOME)
    twice = [(SOME[0], 10.0), (SOME[1], 1.01)]
    for pattern, factor in twice:
        (run,) = runs_of(pattern, tiny(), variants=(2,))
        slow = Measurement(times_s=(run.measurement.seconds * factor,))
        db.store.append([Run(pattern.id, OP, "tiny", CONFIGS[2], slow, "elsewhere")])
    odd = band(120, 5, name="odd")
    db.index.record(runs_of(odd, tiny(), variants=(1, 2)), odd, tiny())
    said = _partition(db).describe()
    assert said["patterns"] == said["indexed"] == 13
    assert said["configs"] == 4 and said["measured"] == 12 * 4 + 2
    assert said["disagreeing"] == 1 and said["without_default"] == 1
    assert said["noise"] > 0 and said["featurizer"] in db.index.featurizers()


def test_percentiles() -> None:
    db = fill(Database.in_memory(), tiny(), SOME)
    found = replace(_partition(db), far=np.array([1.0, 2.0, 2.0, 4.0]))
    assert [found.percentile(d) for d in (0.0, 1.0, 1.5, 2.0, 3.0, 9.0)] == [
        0.0, 0.0, 0.25, 0.25, 0.75, 1.0,
    ]  # fmt: skip
    assert np.isnan(replace(found, far=np.zeros(0)).percentile(1.0))


def test_instances_of_a_portable_platform_share_a_partition() -> None:
    db = Database.in_memory()
    pair = tiny("pair", portable=True)
    fill(db, pair.at("one"), SOME)
    fill(db, pair.at("two"), SOME[:4])
    found = db.index.partition(OP, pair.at("two"))
    assert found is not None and found.scope == "pair"
    assert len(found.ids) == len(SOME) and len(found.evidence.rows) == len(SOME) + 4
    for pattern in SOME:
        row = found.evidence.rows[found.row_of(pattern.id, "pair@two")]
        assert row.platform == ("pair@two" if pattern in SOME[:4] else "pair@one")
    alone = fill(Database.in_memory(), tiny().at("one"), SOME)
    fill(alone, tiny().at("two"), SOME[:4])
    other = alone.index.partition(OP, tiny().at("two"))
    assert other is not None and (other.scope, len(other.ids)) == ("tiny@two", 4)


def test_a_default_named_by_a_symbol_is_found_where_its_number_is_stored(
    tmp_path: Path,
) -> None:
    """On a matrix of 64 columns the choice `NUM_MATRIX_COLS` is stored as 64."""
    from builders import sized

    platform, db = sized(), Database.in_memory()
    db.store.put_platform(platform)
    for size in (64, 100):
        pattern = band(size, 3, name=f"n{size}")
        space = platform.space(OP, Sizes(size, size, pattern.nnz))
        db.store.put_structure(pattern, WorkloadInfo.whole(pattern))
        db.store.append(
            Run(pattern.id, OP, "sized", space.canonical(c), Measurement(times_s=(1.0 + i,)))
            for i, c in enumerate([platform.default(OP), Config({"rows": 16, "cols": 8})])
        )
    evidence = run_matrix_of(db.store, OP, "sized")
    assert evidence.default_s.tolist() == [1.0, 1.0]


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # for the processes started here
    yield
