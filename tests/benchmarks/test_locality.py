"""Bytes that have to be moved, by hand."""

from __future__ import annotations

import math

import pytest
from counted_nests import access, at, copy, flat, masked, matmul, spmv, stencil, triangle, upto

from benchmarks.locality import compulsory_bytes, data_locality, least_bytes
from embeddb.nests.check import check
from embeddb.nests.nest import Nest
from embeddb.nests.parts import Access, Affine, Array, Call, Const, Index, Loop, Read, Statement


def test_each_byte_once() -> None:
    assert compulsory_bytes(copy(100)) == 2 * 100 * 8
    assert compulsory_bytes(copy(100, "permutation")) == 3 * 100 * 8
    # C is read and written, A and B are read.
    assert compulsory_bytes(matmul(10)) == 4 * 10 * 10 * 4
    # The corners are within the box around the neighbours.
    assert compulsory_bytes(stencil(10)) == (8 * 8 + 10 * 10) * 4
    assert compulsory_bytes(masked(50, 0.5)) == 3 * 50 * 4


def test_half_of_a_matrix_that_is_walked_as_a_triangle() -> None:
    nest = triangle(100)
    assert compulsory_bytes(nest) == 2 * 100 * 8 + 100 * nest.trips[1] * 8
    assert nest.trips[1] == 51


def test_rows_by_offsets() -> None:
    # y twice, offsets once, columns and values once, of x as much as there is.
    assert compulsory_bytes(spmv(40, 4000)) == (40 + 40 + 41 + 8000 + 40) * 4


def test_every_third_element() -> None:
    strided = Access(1, (Index(Affine(1, (3,))),))
    body = (Statement(access(0, 0), "=", Read(strided)),)
    nest = check(Nest((upto(20),), (Array("f32", (20,)), Array("f32", (60,))), body))
    assert compulsory_bytes(nest) == (20 + 20) * 4
    stepped = check(Nest((Loop(flat(0), flat(60), 3),), (Array("f32", (60,)),) * 2,
                         (Statement(access(0, 0), "=", Read(access(1, 0))),)))  # fmt: skip
    assert compulsory_bytes(stepped) == (20 + 20) * 4


def test_a_contraction_has_to_move_more() -> None:
    fast = 1024 * 4
    assert least_bytes(matmul(512), fast) == pytest.approx(2 * 512**3 / 32 * 4)
    assert least_bytes(matmul(8), fast) == compulsory_bytes(matmul(8))
    assert least_bytes(stencil(512), fast) == compulsory_bytes(stencil(512))


def test_what_is_no_contraction() -> None:
    n, square = 512, Array("f32", (512, 512))
    row = Array("f32", (512,))
    fast = 64
    # A matrix times a vector: the loop over columns indexes two arrays, but there are two loops.
    product = Call("*", (Read(access(1, 0, 1)), Read(access(2, 1))))
    gemv = check(
        Nest((upto(n),) * 2, (row, square, row), (Statement(access(0, 0), "+=", product),))
    )
    assert least_bytes(gemv, fast) == compulsory_bytes(gemv)
    # A matrix times itself.
    own = Call("*", (Read(access(1, 0, 2)), Read(access(1, 2, 1))))
    twice = check(Nest((upto(n),) * 3, (square,) * 2, (Statement(access(0, 0, 1), "+=", own),)))
    assert least_bytes(twice, fast) == compulsory_bytes(twice)
    # A convolution indexes by sums of loops.
    shifted = Read(Access(1, (Index(Affine(0, (1, 1))),)))
    taps = Call("*", (shifted, Read(access(2, 1))))
    arrays = (row, Array("f32", (520,)), Array("f32", (8,)))
    convolved = check(Nest((upto(n), upto(8)), arrays, (Statement(access(0, 0), "+=", taps),)))
    assert least_bytes(convolved, fast) == compulsory_bytes(convolved) == (2 * 512 + 519 + 8) * 4
    below = Loop(flat(0), at(0, 1))
    product = Call("*", (Read(access(1, 0, 2)), Read(access(2, 2, 1))))
    loops = (upto(n), below, upto(n))
    half = check(Nest(loops, (square,) * 3, (Statement(access(0, 0, 1), "+=", product),)))
    assert least_bytes(half, fast) == compulsory_bytes(half)


def test_a_constant_is_written() -> None:
    body = (Statement(access(0, 0), "=", Const(1)),)
    assert compulsory_bytes(check(Nest((upto(9),), (Array("f64", (9,)),), body))) == 72


def test_locality_is_a_share() -> None:
    nest = copy(1000)
    assert data_locality(nest, 500 * 64, 1 << 20) == pytest.approx(16_000 / (500 * 64))
    assert data_locality(nest, 0, 1 << 20) == 1.0
    assert math.isnan(data_locality(nest, math.nan, 1 << 20))
