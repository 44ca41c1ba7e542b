"""The numpy and the FAISS index: one contract, the same answers, and a file that is not trusted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_contract import IndexContract
from numpy.typing import NDArray

from embeddb.index.vectors import VectorIndex
from embeddb.index.vectors.faiss_index import FaissIndex
from embeddb.index.vectors.numpy_index import NumpyIndex


class TestNumpyIndex(IndexContract):
    def build(self, ids: Sequence[str], vectors: NDArray[np.float32]) -> VectorIndex:
        return NumpyIndex.build(ids, vectors)


class TestFaissIndex(IndexContract):
    def build(self, ids: Sequence[str], vectors: NDArray[np.float32]) -> VectorIndex:
        return FaissIndex.build(ids, vectors)


@pytest.fixture
def index(rng: np.random.Generator) -> FaissIndex:
    vectors = rng.normal(size=(40, 6)).astype(np.float32)
    return FaissIndex.build([f"p{i}" for i in range(40)], vectors)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(0, 400),
    dim=st.integers(1, 9),
    k=st.integers(1, 30),
    kind=st.sampled_from(["few values", "normal", "huge", "tiny", "denormal", "far off", "close"]),
    barred=st.sampled_from([0.0, 0.1, 0.9]),
)
def test_both_give_the_same_answers_to_the_bit(
    seed: int, count: int, dim: int, k: int, kind: str, barred: float
) -> None:
    rng = np.random.default_rng(seed)
    # "few values" repeats vectors, so that ties go through every cut; the others strain float32.
    make = {
        "few values": lambda shape: rng.integers(0, 2, shape),
        "normal": rng.normal,
        "huge": lambda shape: rng.normal(size=shape) * 1e37,
        "tiny": lambda shape: rng.normal(size=shape) * 1e-30,
        "denormal": lambda shape: rng.normal(size=shape) * 3e-23,
        "far off": lambda shape: 1e6 + rng.integers(0, 3, shape),
        "close": lambda shape: 1 + rng.integers(0, 3, shape) * 1.2e-7,
    }[kind]
    draw = (lambda shape: make(size=shape)) if kind == "normal" else make
    vectors = np.asarray(draw((count, dim))).astype(np.float32)
    queries = np.asarray(draw((3, dim))).astype(np.float32)
    ids = [f"{i:x}" for i in rng.permutation(count)]
    exclude = [i for i in ids if rng.random() < barred]
    names, far = NumpyIndex.build(ids, vectors).search(queries, k, exclude=exclude)
    fast_names, fast_far = FaissIndex.build(ids, vectors).search(queries, k, exclude=exclude)
    assert fast_names == names
    assert fast_far.tobytes() == far.tobytes()


def test_scores_beyond_float32_do_not_bring_a_neighbour_twice() -> None:
    vectors = np.full((200, 1), 1e30, np.float32)
    vectors[-3:, 0] = (1, 2, 3)
    index = FaissIndex.build([f"{i:03}" for i in range(200)], vectors)
    names, far = index.search(np.zeros((1, 1), np.float32), 4)
    assert names == [["197", "198", "199", "000"]]
    assert far[0, :3].tolist() == [1, 2, 3]


def test_the_reference_agrees_with_a_plain_sort(rng: np.random.Generator) -> None:
    vectors = rng.integers(0, 4, (80, 3)).astype(np.float32)
    ids = [f"{i}" for i in rng.permutation(80)]
    names, far = NumpyIndex.build(ids, vectors).search(vectors[:5], 9)
    for query, found, row in zip(vectors[:5], names, far, strict=True):
        pairs = sorted((float(np.linalg.norm(v - query)), i) for v, i in zip(vectors, ids))  # noqa: B905
        assert found == [i for _, i in pairs[:9]]
        assert row == pytest.approx([d for d, _ in pairs[:9]])


def test_faiss_is_imported_late_and_quietly() -> None:
    code = (
        "import sys, numpy as np, embeddb.index.vectors.faiss_index as f;"
        "assert 'faiss' not in sys.modules;"
        "f.FaissIndex.build(['a'], np.zeros((1, 2), 'f'))"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
