"""The featurizers for stubs: `sizes`, `rows` and `given`."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddb.core import plugins
from embeddb.core.pattern import Pattern
from embeddb.core.records import WorkloadInfo
from embeddb.featurizers.sizes import Given, LogSizes, Rows, statistics
from embeddb.testing.featurizers import FeaturizerContract

ALL = (LogSizes, Rows, Given)


class TestSizes(FeaturizerContract):
    def make(self) -> LogSizes:
        return LogSizes()


class TestRows(FeaturizerContract):
    def make(self) -> Rows:
        return Rows()


class TestGiven(FeaturizerContract):
    def make(self) -> Given:
        return Given()


def stub(pattern: Pattern, features: dict[str, float]) -> WorkloadInfo:
    m, n = pattern.shape
    return WorkloadInfo(id="s", m=m, n=n, nnz=pattern.nnz, stub=True, features=features)


@pytest.fixture
def pattern(rng: np.random.Generator) -> Pattern:
    return Pattern.from_coo((40, 60), rng.integers(0, 40, 300), rng.integers(0, 30, 300))


@pytest.mark.parametrize("kind", ALL)
def test_they_are_plugins(kind: type[LogSizes]) -> None:
    assert plugins.load("featurizer", kind.name) is kind


@pytest.mark.parametrize("kind", ALL)
def test_a_stub_with_the_same_statistics_has_the_same_vector(
    kind: type[LogSizes], pattern: Pattern
) -> None:
    known = stub(pattern, statistics(pattern))
    assert np.array_equal(kind().from_info(known), kind().embed(pattern))


def test_each_needs_what_it_names(pattern: Pattern) -> None:
    every = statistics(pattern)
    assert LogSizes().from_info(stub(pattern, {})) is not None
    assert Rows().from_info(stub(pattern, {})) is None
    some = {"row_max": every["row_max"], "row_variance": every["row_variance"]}
    assert Rows().from_info(stub(pattern, some)) is not None
    assert Given().from_info(stub(pattern, some)) is None
    for missing in every:
        if missing.endswith(("hyperflatness", "median", "max")) or missing == "psym":
            less = {k: v for k, v in every.items() if k != missing}
            assert Given().from_info(stub(pattern, less)) is None, missing


@pytest.mark.parametrize("field", ["m", "n", "nnz"])
def test_an_unknown_size_gives_none(pattern: Pattern, field: str) -> None:
    known = {"id": "s", "m": 40, "n": 60, "nnz": 300} | {field: -1}
    assert LogSizes().from_info(WorkloadInfo(**known)) is None


def test_a_statistic_that_is_not_finite_gives_none(pattern: Pattern) -> None:
    assert Rows().from_info(stub(pattern, {"row_max": np.nan, "row_cv": 1.0})) is None


def test_spread_in_three_forms_is_one(pattern: Pattern) -> None:
    lengths = np.diff(pattern.indptr)
    forms = {"row_variance": lengths.var(), "row_std": lengths.std()}
    forms["row_cv"] = lengths.std() / lengths.mean()
    top = float(lengths.max())
    vectors = [
        Rows().from_info(stub(pattern, {"row_max": top, k: float(v)})) for k, v in forms.items()
    ]
    for vector in vectors:
        assert vector == pytest.approx(Rows().embed(pattern), rel=1e-6)


def test_the_spellings_of_run_logs_are_understood(pattern: Pattern) -> None:
    lengths = np.diff(pattern.indptr)
    logs = [
        {"avg_nnz_per_row": 7.0, "cv_d": lengths.std() / lengths.mean()},
        {"min_nnz_per_row": 1.0, "std_dev_nnz_per_row": lengths.std()},
    ]
    for features in logs:
        features["max_nnz_per_row"] = float(lengths.max())
        vector = Rows().from_info(stub(pattern, features))
        assert vector == pytest.approx(Rows().embed(pattern), rel=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_statistics_are_the_textbook_ones(lengths: list[int]) -> None:
    indices = [c for length in lengths for c in range(length)]
    pattern = Pattern.from_csr((len(lengths), 9), [0, *np.cumsum(lengths)], indices)
    found, x = statistics(pattern), np.array(lengths, dtype=float)
    quarters = np.quantile(x, [0, 0.25, 0.5, 0.75, 1])
    names = ("row_min", "row_q1", "row_median", "row_q3", "row_max")
    assert [found[n] for n in names] == pytest.approx(quarters.tolist())
    assert found["row_variance"] == pytest.approx(x.var())
    z = (x - x.mean()) / x.std() if x.std() > 1e-9 else x * 0
    powers = ("skewness", "kurtosis", "hyperskewness", "hyperflatness")
    for power, name in enumerate(powers, start=3):
        assert found[f"row_{name}"] == pytest.approx((z**power).mean(), abs=1e-6)


def ginkgo(shared: Path) -> dict[str, WorkloadInfo]:
    file = shared / "runs" / "ginkgo" / "matrix_features.csv.gz"
    out = {}
    with gzip.open(file, "rt", newline="") as lines:
        for row in csv.DictReader(lines):
            features = {
                k: float(v) for k, v in row.items() if k.startswith(("row_", "col_")) or k == "psym"
            }
            m, n, nnz = (int(row[k]) for k in ("rows", "cols", "nnz"))
            out[row["name"]] = WorkloadInfo(
                id=row["name"], m=m, n=n, nnz=nnz, stub=True, features=features
            )
    return out


@pytest.mark.shared
def test_every_ginkgo_matrix_has_a_vector_that_agrees_with_its_structure(shared: Path) -> None:
    from scipy.sparse import load_npz

    infos = ginkgo(shared)
    vectors = [Given().from_info(info) for info in infos.values()]
    assert len(vectors) > 2800
    assert all(v is not None and np.isfinite(v).all() for v in vectors)
    compared = 0
    for file in sorted((shared / "matrices").glob("*.npz")):
        info = infos.get(file.stem)
        if info is None or file.stat().st_size > 100_000:
            continue
        a = load_npz(file)
        if (a.shape, a.nnz) != ((info.m, info.n), info.nnz):
            continue  # another version of the matrix, with or without explicit zeros
        real = Given().embed(Pattern.from_csr(a.shape, a.indptr, a.indices))
        away = np.abs(real - Given().from_info(info))
        # Their quartiles follow another interpolation rule; everything else is the same.
        exact = [not name.endswith(("q1", "q3")) for name in Given.names]
        assert away[exact].max() < 5e-3, file.stem
        assert away.max() < 0.2, file.stem
        compared += 1
    assert compared > 30
