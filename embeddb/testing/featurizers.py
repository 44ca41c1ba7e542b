"""Contract tests of featurizers, as a base class.

    from embeddb.testing.featurizers import FeaturizerContract

    class TestMine(FeaturizerContract):
        def make(self):
            return Mine()

pytest then runs every test below on it. The required protocol is `Featurizer` of
`embeddb.featurizers.base`; the optional ones (`MayLack`, `Travelling`) are tested if implemented. A
featurizer of loop nests inherits `NestFeaturizerContract`, one of tensor kernels
`KernelFeaturizerContract`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from embeddb.core.pattern import Pattern
from embeddb.core.records import WorkloadInfo
from embeddb.featurizers import reads
from embeddb.featurizers.base import Featurizer, MayLack, Travelling
from embeddb.nests.examples import sample_nests
from embeddb.nests.nest_text import nest_text
from embeddb.tensors.check import computation
from embeddb.tensors.tensor_graph import Operation, Shape, TensorGraph
from embeddb.tensors.tensor_text import tensor_text
from embeddb.testing.common import has_own_name, leaves_all_alone


def extreme_patterns() -> dict[str, Pattern]:
    """Small edge-case patterns, by description."""
    everything = np.arange(48)
    return {
        "no rows, no columns": _coo((0, 0), [], []),
        "no rows": _coo((0, 5), [], []),
        "no columns": _coo((5, 0), [], []),
        "no nonzeros": _coo((7, 9), [], []),
        "one entry": _coo((1, 1), [0], [0]),
        "one corner of a wide matrix": _coo((3, 2**31 - 1), [2], [2**31 - 2]),
        "one row": _coo((1, 50), [0] * 20, range(0, 40, 2)),
        "one column": _coo((50, 1), range(0, 40, 2), [0] * 20),
        "one full row, one full column": _coo(
            (48, 48), [*[0] * 48, *everything], [*everything, *[0] * 48]
        ),
        "dense": _coo((48, 48), np.repeat(everything, 48), np.tile(everything, 48)),
        "diagonal": _coo((48, 48), everything, everything),
        "last row only": _coo((100, 100), [99] * 48, everything),
    }


def _coo(shape: tuple[int, int], rows: Any, cols: Any) -> Pattern:
    return Pattern.from_coo(shape, np.array(list(rows), int), np.array(list(cols), int))


class FeaturizerContract:
    """Contract of a featurizer: inherit, name the class `Test...`, and define `make`."""

    kind = "matrix"

    def make(self) -> Featurizer:
        """A new featurizer."""
        raise NotImplementedError

    def patterns(self) -> dict[str, Any]:
        """Test cases; override to add patterns of your own."""
        return extreme_patterns()

    def sized(self) -> WorkloadInfo:
        """A stub with known sizes."""
        return WorkloadInfo(id="0", m=5, n=4, nnz=9, stub=True)

    def test_name_version_and_coordinates_are_valid(self) -> None:
        featurizer = self.make()
        assert reads(featurizer, self.kind), f"its `kinds` lack {self.kind}"
        has_own_name("featurizer", featurizer)
        assert isinstance(featurizer.version, str) and featurizer.version
        assert len(featurizer.names) == len(set(featurizer.names)) == featurizer.dim > 0

    def test_every_pattern_gives_finite_float32(self) -> None:
        featurizer = self.make()
        for what, pattern in self.patterns().items():
            with leaves_all_alone():
                vector = featurizer.embed(pattern)
            assert isinstance(vector, np.ndarray), f"{what}: a {type(vector).__name__}"
            assert vector.dtype == np.float32, what
            assert vector.shape == (featurizer.dim,), what
            bad = [n for n, v in zip(featurizer.names, vector, strict=True) if not np.isfinite(v)]
            assert not bad, f"{what}: {bad}"

    def test_only_the_structure_counts(self) -> None:
        """Nor which workloads came before: a vector stays as it was returned."""
        featurizer = self.make()
        vectors = {what: featurizer.embed(pattern) for what, pattern in self.patterns().items()}
        others = {
            what: np.copy(self.make().embed(replace(pattern, name="another", group="elsewhere")))
            for what, pattern in self.patterns().items()
        }
        for what, vector in vectors.items():
            assert np.array_equal(vector, others[what]), what

    def test_the_pattern_is_left_alone(self) -> None:
        for what, pattern in self.patterns().items():
            frozen = replace(pattern, indptr=pattern.indptr.copy(), indices=pattern.indices.copy())
            frozen.indptr.flags.writeable = frozen.indices.flags.writeable = False
            self.make().embed(frozen)
            assert np.array_equal(frozen.indices, pattern.indices), what

    def test_a_stub_gives_a_vector_or_none(self) -> None:
        featurizer = self.make()
        assert featurizer.from_info(WorkloadInfo(id="0", stub=True, kind=self.kind)) is None
        sized = featurizer.from_info(self.sized())
        assert sized is None or (sized.shape == (featurizer.dim,) and np.isfinite(sized).all())

    def test_information_gives_the_same_vector_or_none(self) -> None:
        featurizer = self.make()
        for what, pattern in self.patterns().items():
            vector = featurizer.from_info(WorkloadInfo.whole(pattern))
            if vector is not None:
                assert vector.dtype == np.float32, what
                assert np.array_equal(vector, featurizer.embed(pattern)), what

    def test_missing_is_one_line(self) -> None:
        featurizer = self.make()
        if isinstance(featurizer, MayLack):
            missing = featurizer.missing()
            assert isinstance(missing, str) and "\n" not in missing

    def test_features_by_name_round_trip(self) -> None:
        featurizer = self.make()
        if not isinstance(featurizer, Travelling):
            return
        for what, pattern in self.patterns().items():
            vector = featurizer.embed(pattern)
            named = featurizer.as_features(vector)
            assert list(named) == [f"{featurizer.name}.{n}" for n in featurizer.names]
            back = featurizer.from_info(WorkloadInfo(id="0", features=named | {"else": 1.0}))
            assert back is not None and np.array_equal(back, vector), what
            named.popitem()
            assert featurizer.from_info(WorkloadInfo(id="0", features=named)) is None


class NestFeaturizerContract(FeaturizerContract):
    """Contract of a featurizer whose `kinds` has `nest`."""

    kind = "nest"

    def patterns(self) -> dict[str, Any]:
        """Test cases; override to add nests of your own."""
        return {f"{n} {size}": nest for size in (1, 40) for n, nest in sample_nests(size).items()}

    def sized(self) -> WorkloadInfo:
        trips = {"DEPTH": 2, "TRIP_1": 8, "TRIP_2": 5}
        return WorkloadInfo(id="0", kind="nest", named=trips, stub=True)

    def test_the_pattern_is_left_alone(self) -> None:
        for what, nest in self.patterns().items():
            before = nest_text(nest)
            self.make().embed(nest)
            assert nest_text(nest) == before, what

    def test_names_of_loops_and_arrays_do_not_count(self) -> None:
        for what, nest in self.patterns().items():
            loops = tuple(f"loop{at}" for at in range(nest.depth))
            arrays = tuple(f"data{at}" for at in range(len(nest.arrays)))
            other = replace(nest, loop_names=loops, array_names=arrays)
            assert np.array_equal(self.make().embed(nest), self.make().embed(other)), what

    def test_sizes_count(self) -> None:
        featurizer = self.make()
        for small, large in zip(sample_nests(8).values(), sample_nests(512).values(), strict=True):
            assert not np.array_equal(featurizer.embed(small), featurizer.embed(large)), small.group


class KernelFeaturizerContract(FeaturizerContract):
    """Contract of a featurizer whose `kinds` has `kernel`."""

    kind = "kernel"

    def patterns(self) -> dict[str, Any]:
        """Test cases; override to add kernels of your own."""
        dims = ((), (1,), (7, 3), (2, 3, 4, 5), (2,) * 16, (1 << 20, 1 << 11))
        return {str(d): _twice(d) for d in dims} | {"16 bits": _twice((9, 9), "bf16")}

    def sized(self) -> WorkloadInfo:
        dims = {"RANK": 2, "DIM_1": 8, "DIM_2": 5, "REDUCED": 1}
        return WorkloadInfo(id="0", kind="kernel", named=dims, stub=True)

    def test_the_pattern_is_left_alone(self) -> None:
        for what, kernel in self.patterns().items():
            before = tensor_text(kernel)
            self.make().embed(kernel)
            assert tensor_text(kernel) == before, what

    def test_names_of_operations_do_not_count(self) -> None:
        for what, kernel in self.patterns().items():
            names = tuple(f"op{at}" for at in range(len(kernel.operations)))
            other = replace(kernel, names=names)
            assert np.array_equal(self.make().embed(kernel), self.make().embed(other)), what

    def test_sizes_count(self) -> None:
        featurizer = self.make()
        assert not np.array_equal(
            featurizer.embed(_twice((8, 8))), featurizer.embed(_twice((9, 8)))
        )


def _twice(dims: tuple[int, ...], dtype: str = "f32") -> TensorGraph:
    """x + x"""
    shape = (Shape(dtype, dims),)
    parameter = Operation("parameter", shape, attributes={"number": 0})
    return computation([parameter, Operation("add", shape, (0, 0))], [1], name="twice")
