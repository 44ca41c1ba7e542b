"""How far off a result may be, and which turns of a nest meet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from nest_forms import NESTS, at, ix, nest, op, rd

from embeddb.nests.nest import Nest
from embeddb.nests.parts import Array, Call, Loop, Statement
from indexer.runners.harness.worker import Libraries
from indexer.runners.nest_code.job import NestJob
from indexer.runners.nest_code.reference import fixed_loops, may_jump, tolerance_of

X, Y = ix(0, 1), ix(0, 0, 1)


def one_loop(value: Call, dtype: str = "f32") -> Nest:
    arrays = [Array(dtype, (99,), "zero"), *(Array("f32", (99,)) for _ in range(2))]
    return nest([Loop(ix(), ix(99))], arrays, [Statement(at(0, X), "=", value)])


def difference() -> Nest:
    """x y + 0.3 - x y: nearly all that it computes is lost."""
    product = op("*", rd(1, X), rd(2, X))
    return one_loop(op("-", op("+", product, 1000.0), op("+", product, 999.0)))


def test_what_cancels_may_be_off_by_what_was_there_before(tmp_path: Path) -> None:
    job = NestJob(difference(), 0)
    job.expect(tmp_path, "", Libraries())
    job.arrays[0][:] = 1.0 + 1e-4  # of numbers near 1000, in single precision
    assert job.wrong() == ""
    job.arrays[0][:] = 1.0 + 1e-1
    assert job.wrong().startswith("a0[0] is off by 0.1")


def test_a_single_wrong_element_is_found(tmp_path: Path) -> None:
    job = NestJob(NESTS["stencil"], 0)
    job.expect(tmp_path, "", Libraries())
    expected = np.load(tmp_path / "expected-0.npy")[0]
    job.arrays[0][:] = expected
    assert job.wrong() == ""
    job.arrays[0][100] *= 1 + 1e-9
    assert job.wrong().startswith("a0[2, 10] is off by")
    job.arrays[0][100] = np.nan
    assert job.wrong().startswith("a0[2, 10] is off by nan")


def test_the_tolerance_grows_with_the_length_of_a_sum() -> None:
    assert tolerance_of(NESTS["histogram"]) == 0
    assert tolerance_of(NESTS["stencil"]) < 1e-14 < 1e-7 < tolerance_of(NESTS["gather"])
    assert tolerance_of(NESTS["total"]) > 10 * tolerance_of(NESTS["gather"])


@pytest.mark.parametrize(
    ("made", "jumps"),
    [
        (one_loop(op("select", op("<", rd(1, X), 0.1), 1, 2)), False),
        (one_loop(op("select", op("<", op("*", rd(1, X), 3), 0.1), 1, 2)), True),
        (one_loop(op("+", rd(1, X), 1), "i32"), True),
        (one_loop(op("max", op("*", rd(1, X), rd(2, X)), 0.5)), False),
    ],
)
def test_decisions_that_rounding_can_turn(made: Nest, jumps: bool) -> None:
    assert may_jump(made) is jumps


def test_turns_that_meet() -> None:
    both = at(0, X, Y)
    assert fixed_loops(both, both) == {0, 1}
    sums = at(0, ix(0, 1, 1), Y)
    assert fixed_loops(sums, sums) == {0, 1}
    diagonal = at(0, ix(0, 1, 1))
    assert fixed_loops(diagonal, diagonal) == frozenset()
    assert fixed_loops(at(0, X, Y), at(0, X, ix(1, 0, 1))) == {0}
    scattered = at(0, ix(of=at(1, X)))
    assert fixed_loops(scattered, scattered) == frozenset()
