"""Flops, transcendental calls and bytes, against XLA's own numbers and against counting."""

from __future__ import annotations

import itertools

import pytest
from hlo_texts import COSTS, FOLDER, NAMES, OPAQUE
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import conv, dot_add, op, row_sum

from embeddb.core.errors import TensorError
from embeddb.tensors.analysis import (
    Region,
    Work,
    combine_of,
    operation_work,
    region_of,
    region_text,
    work_of,
)
from embeddb.tensors.check import computation
from embeddb.tensors.edges import meeting
from embeddb.tensors.tensor_graph import Operation, Shape
from indexer.frontends.hlo.files import read_tensors


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OPAQUE])
def test_flops_and_calls_are_those_of_xla(name: str) -> None:
    for when in ("before", "after"):
        made = read_tensors(FOLDER / f"{name}.{when}.txt").tensors
        works, costs = [work_of(one) for one in made], COSTS[name][when]
        assert sum(work.flops for work in works) == costs["flops"]
        assert sum(work.transcendentals for work in works) == costs["transcendentals"]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OPAQUE])
def test_bytes_are_those_of_xla_but_for_tuples_and_gathers(name: str) -> None:
    """XLA counts the pointers of a tuple and the whole table of a gather."""
    kernels = read_tensors(FOLDER / f"{name}.after.txt").tensors
    moved = sum(work_of(kernel).bytes for kernel in kernels)
    told = COSTS[name]["after"]["bytes accessed"]
    assert moved <= told
    assert told - moved <= (0.07 * told if name == "embedding" else 40)


def test_one_multiplication_by_hand() -> None:
    work = work_of(dot_add(4, 8, 2))
    assert work == Work(2 * 4 * 2 * 8 + 2 * 4 * 2, 0, 4 * (4 * 8 + 8 * 2 + 2), 4 * 4 * 2)
    assert work_of(row_sum(3, 10)) == Work(3 * 9, 30, 4 * 30, 4 * 3)


def test_padding_is_not_multiplied() -> None:
    # 3 x 3 on 16 x 16 with a border of one: 46 of 48 pairs meet along each dimension.
    assert work_of(conv(2, 16, 8, 4)).flops == 2 * 46 * 46 * 2 * 8 * 4


def test_slices_read_what_they_take() -> None:
    made = computation(
        [
            op("parameter", (100, 8), number=0),
            op("slice", (5, 8), 0, start=(0, 0), limit=(5, 8), stride=(1, 1)),
            op("tanh", (5, 8), 1),
        ],
        [2],
    )
    assert work_of(made) == Work(0, 40, 160, 160)
    assert operation_work(made.operations[1], [made.operations[0].shape]) == Work(0, 0, 160, 160)


def test_labels_that_are_none_do_not_raise() -> None:
    made = conv()
    odd = op("convolution", (2, 16, 16, 4), 0, 1, size=(3, 3), labels="xx")
    shapes = [made.operations[0].shape, made.operations[1].shape]
    assert operation_work(odd, shapes).flops > 0


SMALL = st.integers(1, 7)


@settings(max_examples=300, deadline=None)
@given(SMALL, SMALL, SMALL, st.integers(1, 3), st.integers(-3, 4), SMALL, st.integers(1, 3))
def test_pairs_that_meet_are_counted(
    size: int, out: int, window: int, stride: int, low: int, lhs: int, rhs: int
) -> None:
    places = [o * stride + k * rhs - low for o, k in itertools.product(range(out), range(window))]
    slow = sum(place % lhs == 0 and 0 <= place // lhs < size for place in places)
    assert meeting(size, out, window, stride, low, lhs, rhs) == slow


def test_a_region_is_read_as_it_was_written() -> None:
    text = "parameter.f32()0 parameter.f32()1 compare.pred(0,1)GT constant.f32()-1.5e-06 => 2"
    region = region_of(text)
    assert region_text(region) == text and combine_of(region) is None
    swapped = region_of("parameter.f32()0 parameter.f32()1 add.f32(1,0) => 2")
    assert combine_of(swapped) == "add"
    assert combine_of(Region(swapped.operations, (0,))) is None


@pytest.mark.parametrize(
    ("given", "result", "raw", "flops"),
    [
        (Shape("c64", (4, 12)), Shape("c64", (4, 12)), "fft_length={12}, fft_type=FFT", 1152),
        (Shape("f32", (4, 8)), Shape("c64", (4, 5)), "fft_length={8}, fft_type=RFFT", 768),
        (Shape("c64", (4, 5)), Shape("f32", (4, 8)), "fft_length={8}, fft_type=IRFFT", 480),
        (Shape("c64", (4, 8, 16)), Shape("c64", (4, 8, 16)), "fft_length={8,16}", 49152),
    ],
)
def test_a_transform_counts_its_own_length(
    given: Shape, result: Shape, raw: str, flops: int
) -> None:
    """The numbers are XLA's."""
    assert operation_work(Operation("fft", (result,), (0,), {"raw": raw}), [given]).flops == flops


def test_a_triangular_solve_multiplies_and_adds() -> None:
    solve = Operation("triangular-solve", (Shape("f32", (2, 5, 3)),), (0, 1))
    shapes = [Shape("f32", (2, 5, 5)), Shape("f32", (2, 5, 3))]
    assert operation_work(solve, shapes).flops == 300


@pytest.mark.parametrize("text", ["", "x", "add.f32(0,1) => 0", "parameter.f32()0", "a(b) => 0"])
def test_what_is_no_region(text: str) -> None:
    with pytest.raises(TensorError):
        region_of(text)
