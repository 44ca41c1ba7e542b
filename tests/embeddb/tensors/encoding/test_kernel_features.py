"""What a network is told of kernels and tiles."""

import math

import numpy as np
from tensors import conv, dot_add, op, row_sum

from embeddb.tensors.check import computation
from embeddb.tensors.encoding.features import (
    MOST_NEIGHBOURS,
    NODE,
    TILE,
    graph_of,
    node_row,
    tile_rows,
)
from embeddb.tensors.encoding.operation_rows import OPCODES, opcode_number


def told(kernel, at: int, *names: str) -> list[float]:
    row = node_row(kernel, at)
    assert len(row) == len(NODE)
    return [row[NODE.index(name)] for name in names]


def log(value: float) -> float:
    return math.copysign(math.log2(1 + abs(value)), value)


def test_dimensions_come_from_the_minor_one_with_sum_and_product():
    names = [f"shape_{part}" for part in (1, 2, 3, "sum", "product")]
    at = next(n for n, o in enumerate(dot_add().operations) if o.opcode == "dot")
    assert told(dot_add(), at, *names) == [log(v) for v in (32, 64, 0, 96, 2048)]
    places = told(dot_add(), at, "lhs_contracting_1", "rhs_contracting_1", "reduced")
    assert places == [log(1), log(2), log(128)]


def test_windows_labels_and_what_is_given_out():
    at = len(conv().operations) - 1
    names = ("size_1", "size_product", "low_2", "output", "floating", "feature_groups")
    assert told(conv(), at, *names) == [log(v) for v in (3, 9, 1, 1, 1, 1)]
    reduce = len(row_sum().operations) - 1
    assert told(row_sum(), reduce, "dimensions_1", "reduced") == [log(1), log(1000)]


def test_more_than_six_dimensions_are_cut_but_multiplied():
    wide = computation([op("iota", (2,) * 8, dimension=0)], [0])
    names = ("shape_6", "shape_sum", "shape_product", "dimensions_1")
    assert told(wide, 0, *names) == [log(v) for v in (2, 16, 256, 8)]


def test_a_tile_of_nothing_is_the_whole():
    whole, same, part = tile_rows(dot_add(), [{}, {"t1": 64, "t2": 0, "tr": 999}, {"t2": 8}])
    assert np.array_equal(whole, same)
    assert whole[TILE.index("tile_1")] == np.float32(log(32))
    assert part[TILE.index("tile_1")] == np.float32(log(8))
    assert part[TILE.index("tile_product")] == np.float32(log(512))
    assert whole[TILE.index("terms")] == np.float32(log(128))
    scalar = computation([op("constant", (), value="1")], [0])
    assert tile_rows(scalar, [{}]).shape == (1, len(TILE))


def test_unknown_opcodes_are_one_and_known_ones_apart():
    assert len(set(OPCODES)) == len(OPCODES)
    assert opcode_number("dot") != opcode_number("add") != 0
    assert opcode_number("never-heard-of") == 0


def test_edges_in_both_directions_are_bounded():
    count = MOST_NEIGHBOURS + 5
    parameters = [op("parameter", (4,), number=n) for n in range(count)]
    users = [op("negate", (4,), 0) for _ in range(count)]
    joined = op("tuple", (4,), *range(count), *range(count, 2 * count))
    graph = graph_of(computation([*parameters, *users, joined], [2 * count]))
    for edges in (graph.operands, graph.users):
        assert np.bincount(edges[1]).max() == MOST_NEIGHBOURS
    assert np.all(graph.operands[0] < graph.operands[1])
    assert np.all(graph.users[0] > graph.users[1])
