"""Nests, and what schedules make of their loops, as lines."""

from __future__ import annotations

import pytest
from nest_shapes import product, sparse_product

from embeddb.nests.examples import nest_of, sample_nests
from embeddb.nests.lines import PARALLEL, access_text, index_text, loop_lines, statement_line
from embeddb.nests.parts import Affine, Index
from embeddb.nests.schedule import Schedule


def test_loops_as_they_are_written() -> None:
    assert loop_lines(product(n=64)) == [f"for {at} from 0 to before 64" for at in "ijk"]
    assert loop_lines(sparse_product())[2] == "for k from row[i] to before row[i + 1]"
    steps = nest_of([[[1], [9], 2]], [["f32", [9]]], [["=", [0, [0, 1]], 1, None]])
    assert loop_lines(steps) == ["for i1 from 1 to before 9 in steps of 2"]


def test_the_loops_that_a_schedule_makes() -> None:
    schedule = Schedule((0, 2, 1), (0, 0, 8), "outer", "dynamic", 4, "simd")
    assert loop_lines(product(n=60), schedule) == [
        "k in blocks of 8: 8 turns, in parallel (dynamic, 4 at a time)",
        "i: 60 turns",
        "k: 8 turns",
        "j: 60 turns, vectorised",
    ]


def test_blocks_are_told_in_turns_of_the_loop_and_not_in_indices() -> None:
    loop = [[0], [4000], 2]
    nest = nest_of([loop], [["f32", [4000]]], [["=", [0, [0, 1]], 1, None]], names=(["t"], []))
    assert loop_lines(nest, Schedule((0,), (32,), "outer")) == [
        "t in blocks of 32: 63 turns, in parallel (static)",
        "t: 32 turns",
    ]
    assert loop_lines(nest, Schedule((0,), (0,)))[0] == "t: 2,000 turns"


@pytest.mark.parametrize(
    ("inner", "said"),
    [("plain", ""), ("unroll4", ", unrolled 4 times"), ("jam4", ", jammed with 4 turns")],
)
def test_the_innermost_loop(inner: str, said: str) -> None:
    lines = loop_lines(product(n=64), Schedule((0, 1, 2), (0, 0, 0), inner=inner))
    assert lines[2].startswith(f"k: 64 turns{said}") and not any(PARALLEL in x for x in lines)
    assert (lines[2] == "k: 64 turns") == (inner == "plain")


def test_statements() -> None:
    nests = sample_nests(8)
    assert statement_line(product(), product().body[0]) == "C[i][j] += A[i][k] * B[k][j]"
    spmv = nests["spmv"]
    assert statement_line(spmv, spmv.body[0]) == "a0[i1] += a1[i2] * a3[a2[i2]]"
    masked = nests["masked_max"]
    assert statement_line(masked, masked.body[0]) == "where a1[i1] < 0.5: a0[0] max= exp(a1[i1])"
    stencil = statement_line(nests["stencil"], nests["stencil"].body[0])
    assert stencil.startswith("a0[i1 + 1][i2 + 1] = 0.2 * ((((a1[i1][i2 + 1] + ")


def test_operators_that_are_no_infix() -> None:
    read = ["read", 1, [0, 1]]
    chosen = ["select", ["<", read, 0], ["neg", ["+", read, 2]], ["loop", 0]]
    nest = nest_of([8], [["f32", [8]], ["f32", [8]]], [["=", [0, [0, 1]], chosen, None]])
    line = statement_line(nest, nest.body[0])
    assert line == "a0[i1] = (a1[i1] < 0 ? -(a1[i1] + 2) : i1)"


@pytest.mark.parametrize(
    ("affine", "said"),
    [
        (Affine(0, ()), "0"),
        (Affine(-3, (0, 2)), "2*j - 3"),
        (Affine(1, (-1, 1)), "-i + j + 1"),
        (Affine(0, (0, -4)), "-4*j"),
    ],
)
def test_indices(affine: Affine, said: str) -> None:
    assert index_text(product(), Index(affine)) == said


def test_accesses_in_names_of_their_own() -> None:
    nest = product()
    assert [access_text(nest, a) for _, a, _ in nest.accesses()] == [
        "A[i][k]",
        "B[k][j]",
        "C[i][j]",
    ]
