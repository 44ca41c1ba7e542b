"""The common loop nest and the paper's worked example."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddb.core.config import Config, Op
from embeddb.core.errors import SpaceError
from embeddb.core.sizes import Sizes
from embeddb.platforms.loopnest import LOOPS, LoopNest, complete_order
from embeddb.platforms.platform import load_platform

SPMM = Op("spmm", 32)


@pytest.mark.parametrize(
    ("barrier", "order"), [(0, (6, 7, 2, 4, 1, 3, 5)), (1, (6, 7, 4, 2, 1, 3, 5))]
)
@pytest.mark.parametrize("kernel", ["spmm", "sddmm"])
def test_worked_example_of_cognate_appendix_e(
    barrier: int, order: tuple[int, ...], kernel: str
) -> None:
    """row_panels, column_panels, split, barrier, bypass, reorder = 4, 1024, 1, 0, 0, 0."""
    spade = load_platform("spade")
    op = Op(kernel, 32)
    row = {"row_panels": 4, "column_panels": 1024, "split": 1}
    row |= {"barrier": barrier, "bypass": 0, "reorder": 0}
    config = spade.space(op).canonical(row)
    assert config["split"] == 32
    nest = spade.loopnest(op, config)
    assert nest == LoopNest((4, 1024, 32, 1), order)
    assert nest is not None
    vector = nest.vector()
    assert vector.shape == (53,)
    assert vector.dtype == np.float32
    assert vector[:4].tolist() == [2, 10, 5, 0]
    table = vector[4:].reshape(7, 7)
    assert (table.argmax(axis=1) + 1).tolist() == list(order)
    assert table.sum() == 7
    assert (table.sum(axis=0) == 1).all()


def test_symbols_are_numbers_in_the_loop_nest() -> None:
    spade = load_platform("spade")
    nest = spade.loopnest(SPMM, spade.default(SPMM), Sizes(9, 4000))
    assert nest is not None
    assert nest.splits == (256, 4000, 32, 1)
    with pytest.raises(SpaceError, match="'column_panels': no value for NUM_MATRIX_COLS"):
        spade.loopnest(SPMM, spade.default(SPMM))


@pytest.mark.parametrize(
    ("order", "extra", "splits", "names"),
    [
        ("ijk", {}, (1, 1, 1, 1), "i2 i1 j2 j1 k2 k3 k1"),
        ("ik1jk0", {"ktile": 16}, (1, 1, 16, 1), "i2 i1 k2 k3 j2 j1 k1"),
        ("i1k1i0jk0", {"ktile": 8, "itile": 256}, (256, 1, 8, 1), "i2 k2 k3 i1 j2 j1 k1"),
        ("k1ijk0", {"ktile": 16}, (1, 1, 16, 1), "k2 k3 i2 i1 j2 j1 k1"),
        ("j1ik1j0k0", {"ktile": 8, "jtile": 512}, (1, 512, 8, 1), "j2 i2 i1 k2 k3 j1 k1"),
        ("jk1ik0", {"ktile": 8}, (1, 1, 8, 1), "j2 j1 k2 k3 i2 i1 k1"),
        ("pk1k0", {"ktile": 8}, (1, 1, 8, 1), "i2 i1 k2 k3 j2 j1 k1"),
    ],
)
def test_cpu_orders(order: str, extra: dict[str, int], splits: tuple[int, ...], names: str) -> None:
    cpu = load_platform("cpu")
    space = cpu.space(SPMM, Sizes(9000, 9000, 90_000))
    config = space.nearest({"threads": "all", "order": order, **extra})
    assert config is not None and config["order"] == order
    nest = cpu.loopnest(SPMM, config)
    assert nest is not None
    assert nest.splits == splits
    assert " ".join(nest.names) == names


def test_waco_loops_change_letters_for_spmm_only() -> None:
    waco = load_platform("waco-cpu")
    order = ("k1", "i1", "j1", "i0", "k0", "j0")
    config = waco.default(SPMM).replace(isplit=2, ksplit=4, jsplit=8, order=order)
    nest = waco.loopnest(SPMM, config)
    assert nest is not None
    assert nest.splits == (2, 4, 8, 1)
    assert " ".join(nest.names) == "j2 i2 k2 k3 i1 j1 k1"
    op = Op("sddmm", 32)
    config = waco.default(op).replace(isplit=2, jsplit=4, ksplit=8)
    nest = waco.loopnest(op, config)
    assert nest is not None
    assert nest.splits == (2, 4, 8, 1)
    assert " ".join(nest.names) == "i2 i1 j2 j1 k2 k3 k1"
    nest = waco.loopnest(Op("spmv"), waco.default(Op("spmv")))
    assert nest is not None
    assert nest.splits == (1, 1, 1, 1)


def test_gpu_j_has_a_second_part_right_after_it() -> None:
    gpu = load_platform("gpu-sparsetir")
    nest = gpu.loopnest(SPMM, gpu.default(SPMM))
    assert nest is not None
    assert nest.splits == (8, 1, 32, 1)
    assert nest.names.index("j2") == nest.names.index("j1") + 1


def test_platforms_without_loops_have_none() -> None:
    kernels = load_platform("gpu-kernels")
    assert kernels.loopnest(SPMM, Config({"kernel": "CUSPARSE"})) is None


@given(st.permutations(LOOPS), st.integers(0, 7))
def test_completed_orders_are_permutations_that_keep_what_is_given(
    loops: list[str], count: int
) -> None:
    order = complete_order(loops[:count])
    assert sorted(order) == [1, 2, 3, 4, 5, 6, 7]
    names = [LOOPS[n - 1] for n in order]
    assert [n for n in names if n in loops[:count]] == loops[:count]


@given(st.tuples(*[st.integers(1, 2**31)] * 4), st.permutations(range(1, 8)).map(tuple))
def test_vectors_tell_nests_apart(
    splits: tuple[int, int, int, int], order: tuple[int, ...]
) -> None:
    vector = LoopNest(splits, order).vector()
    assert np.isfinite(vector).all()
    assert tuple(vector[4:].reshape(7, 7).argmax(axis=1) + 1) == order
    assert np.allclose(2 ** vector[:4].astype(np.float64), splits, rtol=1e-4)


@pytest.mark.parametrize(
    ("splits", "order", "message"),
    [
        ((1, 1, 1), (1, 2, 3, 4, 5, 6, 7), "4 split sizes, not 3"),
        ((0, 1, 1, 1), (1, 2, 3, 4, 5, 6, 7), "split I is 0"),
        ((1, 1.5, 1, 1), (1, 2, 3, 4, 5, 6, 7), "split J is 1.5"),
        ((1, 1, 1, 1), (1, 2, 3, 4, 5, 6, 6), "is not an order"),
        ((1, 1, 1, 1), (1, 2), "is not an order"),
    ],
)
def test_impossible_nests_are_refused(splits: object, order: object, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        LoopNest(splits, order)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(("loops", "message"), [(["i3"], "not a loop"), (["i1", "i1"], "twice")])
def test_impossible_orders_are_refused(loops: list[str], message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        complete_order(loops)
