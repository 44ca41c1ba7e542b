"""The contract of a vector index, as a test class to inherit.

from embeddb.testing.indexes import IndexContract

class TestMine(IndexContract):
    def build(self, ids, vectors):
        return MyIndex.build(ids, vectors)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from embeddb.core.errors import InputError, UsageError
from embeddb.index.vectors import VectorIndex

__all__ = ["IndexContract"]

_NAN_AND_INF = (np.nan, np.inf, -np.inf)


class IndexContract:
    """Inherit, name the class `Test...`, and give `build`."""

    def build(self, ids: Sequence[str], vectors: NDArray[np.float32]) -> VectorIndex:
        """A new index."""
        raise NotImplementedError

    def line(self, count: int) -> VectorIndex:
        """`count` points on a line, id "000" at 0, "001" at 1, ..."""
        places = np.arange(count, dtype=np.float32)[:, None]
        return self.build([f"{i:03}" for i in range(count)], places)

    def test_it_knows_its_size(self) -> None:
        index = self.build(["b", "a"], np.zeros((2, 3), np.float32))
        assert (index.dim, index.ids) == (3, ("b", "a"))

    def test_nearest_first_with_l2_distances(self) -> None:
        names, far = self.line(200).search(np.array([[70.2], [0.0]], np.float32), 3)
        assert names == [["070", "071", "069"], ["000", "001", "002"]]
        assert far.dtype == np.float32
        assert far == pytest.approx(np.array([[0.2, 0.8, 1.2], [0, 1, 2]]), abs=1e-5)

    def test_an_indexed_vector_is_at_distance_zero(self) -> None:
        vectors = np.random.default_rng(3).normal(size=(300, 50)).astype(np.float32) * 1e3
        index = self.build([str(i) for i in range(300)], vectors)
        names, far = index.search(vectors[7:8], 1)
        assert (names, far.tolist()) == ([["7"]], [[0.0]])

    def test_ties_come_by_id_also_at_the_cut(self) -> None:
        rng = np.random.default_rng(1)
        ids = [f"{i:03}" for i in rng.permutation(400)]
        vectors = np.repeat(np.eye(4, dtype=np.float32), 100, axis=0)
        names, far = self.build(ids, vectors).search(np.array([[2.0, 0, 0, 0]], np.float32), 7)
        assert names == [sorted(ids[:100])[:7]]
        assert far.tolist() == [[1.0] * 7]

    def test_never_padded(self) -> None:
        names, far = self.line(3).search(np.zeros((2, 1), np.float32), 10)
        assert names == [["000", "001", "002"]] * 2
        assert far.shape == (2, 3)

    def test_an_empty_index_answers_with_nothing(self) -> None:
        empty = self.build([], np.zeros((0, 4), np.float32))
        names, far = empty.search(np.zeros((2, 4), np.float32), 5)
        assert (names, far.shape) == ([[], []], (2, 0))

    def test_no_queries_no_answers(self) -> None:
        names, far = self.line(3).search(np.zeros((0, 1), np.float32), 2)
        assert (names, far.shape) == ([], (0, 2))

    def test_excluded_ids_never_appear(self) -> None:
        index = self.line(300)
        start = np.zeros((1, 1), np.float32)
        barred = {f"{i:03}" for i in range(0, 300, 2)} | {"unknown"}
        assert index.search(start, 3, exclude=barred)[0] == [["001", "003", "005"]]
        assert index.search(start, 2, exclude=["000"])[0] == [["001", "002"]]
        assert index.search(start, 2, exclude=set(index.ids))[0] == [[]]
        names, far = index.search(start, 10, exclude=set(index.ids[:-2]))
        assert (names, far.tolist()) == ([["298", "299"]], [[298.0, 299.0]])

    @pytest.mark.parametrize("value", _NAN_AND_INF)
    def test_values_that_are_not_finite_are_refused(self, value: float) -> None:
        with pytest.raises(InputError, match="query 1"):
            self.line(3).search(np.array([[0], [value]], np.float32), 1)
        with pytest.raises(InputError, match="'b'"):
            self.build(["a", "b"], np.array([[0], [value]], np.float32))

    def test_an_id_given_twice_is_refused(self) -> None:
        with pytest.raises(InputError, match="'b' is given twice"):
            self.build(["b", "a", "b"], np.zeros((3, 2), np.float32))

    def test_shapes_that_do_not_fit_are_refused(self) -> None:
        index = self.build(["a"], np.zeros((1, 3), np.float32))
        for queries in (np.zeros(3), np.zeros((1, 2))):
            with pytest.raises(UsageError, match="shape"):
                index.search(queries.astype(np.float32), 1)
        with pytest.raises(UsageError, match="0 neighbours"):
            index.search(np.zeros((1, 3), np.float32), 0)
        with pytest.raises(UsageError, match="2 ids"):
            self.build(["a", "b"], np.zeros((1, 3), np.float32))
        with pytest.raises(UsageError, match="shape"):
            self.build([], np.zeros((0, 0), np.float32))

    def test_later_changes_to_the_array_do_not_reach_the_index(self) -> None:
        vectors = np.zeros((2, 1), np.float32)
        index = self.build(["a", "b"], vectors)
        vectors[0] = 9
        assert index.search(np.zeros((1, 1), np.float32), 1)[0] == [["a"]]
