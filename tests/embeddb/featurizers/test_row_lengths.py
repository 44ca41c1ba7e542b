"""Histograms of row lengths: what they keep, how they are stored, travel and are estimated."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from builders import fill, patterns, tiny
from hypothesis import given
from hypothesis import strategies as st

from embeddb.core.pattern import Pattern
from embeddb.core.records import WorkloadInfo
from embeddb.core.row_lengths import (
    STORED_AS,
    as_vector,
    binned,
    estimated,
    from_vector,
)
from embeddb.core.sizes import Sizes
from embeddb.database import Database
from embeddb.featurizers.row_lengths import ROW_LENGTHS, estimate, histogram
from embeddb.featurizers.stats import Stats
from indexer.embed import embed
from indexer.exchange.exchange import export_file, import_file


def of(lengths: list[int], columns: int = 1 << 20) -> Pattern:
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = np.concatenate([np.arange(n) for n in lengths]) if lengths else []
    return Pattern.from_csr((len(lengths), columns), indptr, indices, name="m")


@given(st.lists(st.integers(0, 3000), max_size=200))
def test_rows_entries_and_the_longest_are_exact(lengths: list[int]) -> None:
    values, times = np.unique(np.array(lengths, dtype=np.int64), return_counts=True)
    made = binned(values, times)
    assert made.rows == len(lengths)
    assert made.entries == pytest.approx(sum(lengths))
    assert (made.times > 0).all() and (np.diff(made.values) > 0).all()
    assert made.values.max(initial=0.0) == max(lengths, default=0)
    short = [n for n in lengths if n <= 32]
    assert made.times[made.values <= 32].sum() == len(short)


@given(
    st.lists(st.integers(0, 1 << 20), min_size=1, max_size=300),
    st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128, 256]),
)
def test_sums_of_pieces_are_right_where_rows_are_not_much_longer(
    lengths: list[int], piece: int
) -> None:
    rows = np.array([n for n in lengths if n <= 8 * piece] or [1])
    values, times = np.unique(rows, return_counts=True)
    made = binned(values, times)
    assert np.ceil(made.values / piece) @ made.times == -(-rows // piece).sum()


@pytest.mark.parametrize("piece", [3, 7, 48, 100, 192, 1000])
@pytest.mark.parametrize("spread", [0.3, 1.0, 2.0])
def test_sums_of_pieces_are_right_to_about_a_percent(piece: int, spread: float) -> None:
    rng = np.random.default_rng(0)
    rows = np.minimum(np.exp(rng.normal(4, spread, 20_000)).astype(np.int64), 1 << 20)
    values, times = np.unique(rows, return_counts=True)
    made = binned(values, times)
    exact = np.maximum(-(-rows // piece), 1).sum()
    assert np.maximum(np.ceil(made.values / piece), 1) @ made.times == pytest.approx(
        exact, rel=0.025
    )
    assert len(made.values) < 150


def test_a_vector_is_read_back_and_checked() -> None:
    pattern = of([3, 0, 700, 3, 41, 43])
    info, vector = WorkloadInfo.of(pattern), ROW_LENGTHS.embed(pattern)
    assert vector.dtype == np.float32
    read = ROW_LENGTHS.lengths(vector, info)
    assert read is not None and read.rows == 6 and read.entries == 790
    wrong = [vector[:-1], vector[::-1].copy(), vector * np.float32(2), -vector]
    for one in [*wrong, np.zeros(0, np.float32)]:
        assert from_vector(one, info.m, info.nnz) is None
    assert from_vector(np.full(4, np.inf, np.float32), info.m, info.nnz) is None


def test_features_are_read_back() -> None:
    pattern = of([3, 0, 700, 3, 41, 43, 1234, 1235, 1301])
    vector = ROW_LENGTHS.embed(pattern)
    info = msgspec.structs.replace(
        WorkloadInfo.of(pattern), features=ROW_LENGTHS.as_features(vector)
    )
    read = ROW_LENGTHS.from_info(info)
    assert read is not None and read.tobytes() == vector.tobytes()
    for features in (
        {},
        {"row_lengths.x": 3.0},
        {"row_lengths.1e999": 9.0},
        {"row_lengths.nan": 9.0},
        {**info.features, "row_lengths.5": 1.0},
    ):
        assert ROW_LENGTHS.from_info(msgspec.structs.replace(info, features=features)) is None


def test_estimates_keep_rows_and_entries() -> None:
    pattern = of([1] * 60 + [5] * 30 + [200] * 10 + [0] * 20)
    info = WorkloadInfo.of(pattern)
    ours = estimate(info, Stats().embed(pattern))
    assert ours is not None and ours.rows == 120 and ours.entries == pytest.approx(2210)
    exact = histogram(pattern)
    pieces = [np.maximum(np.ceil(one.values / 8), 1) @ one.times for one in (ours, exact)]
    assert pieces[0] == pytest.approx(pieces[1], rel=0.25)
    by_sizes = estimate(info, None)
    assert by_sizes is not None and by_sizes.values.tolist() == [pytest.approx(2210 / 120)]
    quartiles = dict(
        zip(
            ("row_min", "row_q1", "row_median", "row_q3", "row_max"), (0, 1, 1, 5, 200), strict=True
        )
    )
    stub = msgspec.structs.replace(info, features=quartiles)
    of_stub = estimate(stub, None)
    assert of_stub is not None and len(of_stub.values) > 3
    assert estimate(WorkloadInfo(id="x"), None) is None
    empty = estimated(0, 0)
    assert empty is not None and empty.rows == empty.values.size == 0


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=48, max_size=48)
)
def test_estimates_of_any_statistics_are_bounded(numbers: list[float]) -> None:
    info = WorkloadInfo(id="x", m=1000, n=50, nnz=4000)
    made = estimate(info, np.array(numbers, dtype=np.float32))
    assert made is not None and np.isfinite(made.values).all() and made.rows == pytest.approx(1000)


# --- in a database -------------------------------------------------------------------------


def stored(db: Database, pattern: Pattern) -> bool:
    return bool(db.store.vectors.get(*STORED_AS, [pattern.id]))


def test_added_matrices_have_one_and_it_is_no_candidate(tmp_path: Path) -> None:
    with fill(Database.create(tmp_path / "db"), tiny(), patterns(2)) as db:
        assert all(stored(db, p) for p in patterns(2))
        assert STORED_AS[0] not in db.index.featurizers()
        assert not db.index.unfinished()


def test_lengths_come_from_what_is_there(tmp_path: Path) -> None:
    pattern = patterns(1)[0]
    exact = as_vector(histogram(pattern)).tolist()
    with fill(Database.in_memory(), tiny(), [pattern]) as db:
        info = db.store.pattern(pattern.id)
        assert info is not None

        def lengths(of: WorkloadInfo | Pattern) -> list[float]:
            found = db.index.lengths(of)
            assert found is not None
            return as_vector(found).tolist()

        assert lengths(pattern) == lengths(info) == exact
        db.store.vectors.put(*STORED_AS, {pattern.id: np.array([1.0, 2.0], np.float32)})
        assert lengths(info) == exact  # of the structure
        db.store.vectors.exchange({}, ())
        assert lengths(info) == exact
        unseen = WorkloadInfo(id="f" * 32, m=10, n=10, nnz=30)
        assert lengths(unseen) == [3.0, 10.0]
        assert db.index.lengths(WorkloadInfo(id="f" * 32)) is None
        assert db.index.lengths(WorkloadInfo(id="f" * 32, kind="nest")) is None


def test_an_old_database_gets_them_by_embed_and_exports_carry_them(tmp_path: Path) -> None:
    pattern = patterns(1)[0]
    with fill(Database.in_memory(), tiny(), [pattern]) as db:
        db.store.vectors.exchange({}, ())
        assert not stored(db, pattern)
        embed(db.index, build=False)
        assert stored(db, pattern)
        embed(db.index, again=True)
        assert stored(db, pattern)
        export_file(db.index, tmp_path / "out.jsonl")
    with Database.in_memory() as other:
        import_file(other.index, tmp_path / "out.jsonl")
        embed(other.index)
        assert stored(other, pattern)
        info = other.store.pattern(pattern.id)
        assert info is not None and other.store.workload(pattern.id) is None
        lengths = other.index.lengths(info)
        assert lengths is not None
        assert as_vector(lengths).tolist() == as_vector(histogram(pattern)).tolist()
        assert info.sizes == Sizes(*pattern.shape, pattern.nnz)
