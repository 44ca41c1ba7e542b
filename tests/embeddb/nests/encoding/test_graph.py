"""The graph of a nest: its nodes, edges and numbers, by hand, and what must not change them."""

from __future__ import annotations

from dataclasses import replace
from math import log2

import numpy as np
import pytest

from embeddb.nests.encoding import graph as nest_graph
from embeddb.nests.encoding.features import FEATURES, operations
from embeddb.nests.encoding.graph import NestGraph, Node, graph_of, rows_of
from embeddb.nests.examples import nest_of, sample_nests
from embeddb.nests.nest import Nest
from embeddb.nests.schedule import Schedule


def plain(nest: Nest) -> Schedule:
    return Schedule(tuple(range(nest.depth)), (0,) * nest.depth, parallel="outer")


def tiled(nest: Nest) -> Schedule:
    """Inside out, in blocks of 4."""
    depth = nest.depth
    return Schedule(
        tuple(range(depth))[::-1], (4,) * depth, "second", "dynamic", 8, "simd", "read1"
    )


def told(graph: NestGraph, node: int) -> dict[str, float]:
    """The coordinates of a node that are not 0, without those of its kind."""
    row = graph.features[node].tolist()
    kind = graph.nodes[node].kind
    return {
        name.removeprefix(f"{kind}."): round(value, 4)
        for name, value in zip(FEATURES, row, strict=True)
        if value and name != f"is.{kind}"
    }


def log(size: float) -> float:
    return round(log2(1 + size), 4)


def test_nodes_of_a_transposition() -> None:
    nest = sample_nests(16)["transpose"]
    graph = graph_of(nest, plain(nest))
    assert graph.nodes == (
        Node("array", array=1),
        Node("entry", 0),
        Node("entry", 1),
        Node("exit", 0),
        Node("exit", 1),
        Node("body"),
        Node("array", array=0, written=True),
        *(Node("memlet", array=1),) * 2,
        Node("memlet", array=1, statement=0),
        *(Node("memlet", array=0, written=True),) * 2,
        Node("memlet", array=0, statement=0, written=True),
    )
    flow = {(0, 7), (7, 1), (1, 8), (8, 2), (2, 9), (9, 5)}
    flow |= {(5, 12), (12, 4), (4, 11), (11, 3), (3, 10), (10, 6)}
    flow |= {(1, 2), (2, 5), (5, 4), (4, 3), (1, 3), (2, 4)}
    assert {tuple(e) for e in graph.edges.T.tolist()} == flow | {(b, a) for a, b in flow}


def test_numbers_of_a_transposition() -> None:
    nest = sample_nests(16)["transpose"]
    graph = graph_of(nest, plain(nest))
    assert told(graph, 0) == {
        "f32": 1,
        "element": log(4),
        "dimensions": 2,
        "elements": log(512),
        "bytes": log(2048),
        "shape.d-1": log(16),
        "shape.d-2": log(32),
        "stride.d-1": log(1),
        "stride.d-2": log(16),
        "fill.uniform": 1,
    }
    outer = {"inside": 1, "trip": log(16), "turns": log(16), "step": 1, "parallel": 1}
    assert told(graph, 1) == outer | {"policy.static": 1}
    assert told(graph, 2) == {"level": 1, "trip": log(32), "turns": log(512), "step": 1}
    assert told(graph, 3) == {}
    assert told(graph, 5) == {"statements": 1, "reads": 1}
    # Once the outer loop stands still, a column of 32 elements, 64 bytes apart.
    column = {
        "level": 1,
        "inside": 1,
        "accesses": 1,
        "start.d-1.l-2": 1,
        "stop.d-1.l-2": 1,
        "stop.d-2.constant": log(31),
        "step.d-2": 1,
        "extent.d-1": 1,
        "extent.d-2": log(32),
        "stride.l-1": log(64),
        "stride.l-2": log(4),
        "footprint": log(128),
    }
    assert told(graph, 8) == column


def test_a_memlet_between_blocks_is_a_block() -> None:
    nest = sample_nests(16)["matmul"]
    schedule = Schedule((0, 2, 1), (0, 8, 0))
    graph = graph_of(nest, schedule)
    assert [(n.loop, n.block) for n in graph.nodes if n.kind == "entry"] == [
        (1, True),
        (0, False),
        (2, False),
        (1, False),
    ]
    # B[k][j], seen from the entry of j's blocks: all k, and 8 of j from the block's first.
    at = rows_of(graph.nodes, kind="memlet", array=2)[1]
    found = told(graph, at)
    assert found["level"] == 1
    assert found["stop.d-1.l-1"] == found["start.d-1.l-1"] == 1
    assert found["extent.d-1"] == log(8) and found["stop.d-1.constant"] == log(7)
    assert found["extent.d-2"] == log(16) and found["stop.d-2.constant"] == log(15)
    assert found["footprint"] == log(8 * 16 * 4)


def test_an_index_out_of_an_array_is_indirect() -> None:
    nest = sample_nests(16)["spmv"]
    graph = graph_of(nest, plain(nest))
    (vector,) = rows_of(graph.nodes, kind="memlet", array=3, statement=0)
    found = told(graph, vector)
    assert found["indirect"] == found["dynamic"] == found["random.l-1"] == 1
    assert not [name for name in found if name.startswith(("start", "stop", "extent", "stride"))]
    (entry,) = rows_of(graph.nodes, kind="entry", loop=1)
    assert told(graph, entry)["dynamic"] == 1
    dynamic = graph_of(nest, replace(plain(nest), policy="dynamic", chunk=8))
    assert "dynamic" not in told(dynamic, rows_of(dynamic.nodes, kind="entry", loop=0)[0])
    bounds = [
        at for at in rows_of(graph.nodes, kind="memlet", array=4) if told(graph, at)["of_bound"]
    ]
    joined = {tuple(edge) for edge in graph.edges.T.tolist()}
    assert len(bounds) == 3 and sum((at, entry) in joined for at in bounds) == 2


def test_triangles_masks_and_reductions_are_marked() -> None:
    nests = sample_nests(16)
    triangle = graph_of(nests["triangular"], plain(nests["triangular"]))
    (inner,) = rows_of(triangle.nodes, kind="entry", loop=1)
    assert told(triangle, inner)["triangular"] == 1
    row = told(triangle, rows_of(triangle.nodes, kind="memlet", array=1)[1])
    assert row["stop.d-1.l-2"] == row["stop.d-2.l-2"] == 1 and row["extent.d-1"] == log(16)
    masked = graph_of(nests["masked_max"], plain(nests["masked_max"]))
    (target,) = rows_of(masked.nodes, kind="memlet", statement=0, written=True)
    assert told(masked, target)["reduction.max="] == told(masked, target)["dynamic"] == 1
    counted = operations(nests["masked_max"].body)
    assert {k: v for k, v in counted.items() if v} == {"compare": 1, "extreme": 1, "exp": 1}


def test_reads_of_a_stencil_share_what_is_outside() -> None:
    nest = sample_nests(16)["stencil"]
    graph = graph_of(nest, plain(nest))
    reads = rows_of(graph.nodes, kind="memlet", array=1, written=False)
    assert len(reads) == 2 + 5
    whole = told(graph, reads[0])
    assert whole["accesses"] == log(5)
    assert whole["extent.d-1"] == whole["extent.d-2"] == log(18)


def test_every_feature_has_a_name_of_its_own() -> None:
    assert len(set(FEATURES)) == len(FEATURES)


@pytest.mark.parametrize("schedule", [plain, tiled])
def test_names_do_not_enter(schedule: type) -> None:
    for nest in sample_nests().values():
        letters = tuple("zyxwvu"[: nest.depth])
        other = replace(
            nest,
            name="else",
            group="elsewhere",
            loop_names=letters,
            array_names=tuple(f"data{at}" for at in range(len(nest.arrays))),
        )
        one, two = graph_of(nest, schedule(nest)), graph_of(other, schedule(other))
        assert one.nodes == two.nodes
        assert np.array_equal(one.features, two.features) and np.array_equal(one.edges, two.edges)


@pytest.mark.parametrize("schedule", [plain, tiled])
def test_every_graph_is_sound(schedule: type) -> None:
    for name, nest in sample_nests().items():
        graph = graph_of(nest, schedule(nest))
        n = len(graph.nodes)
        assert graph.features.shape == (n, len(FEATURES)) and graph.features.dtype == np.float32
        assert np.isfinite(graph.features).all(), name
        assert np.array_equal(np.unique(graph.edges[1]), np.arange(n)), name
        assert len({tuple(edge) for edge in graph.edges.T.tolist()}) == graph.edges.shape[1], name
        kinds = graph.features[:, : len(("array", "entry", "exit", "body", "memlet"))]
        assert (kinds.sum(axis=1) == 1).all(), name


def test_a_schedule_changes_its_nodes_alone() -> None:
    nest = sample_nests()["matmul"]
    one = graph_of(nest, plain(nest))
    two = graph_of(nest, replace(plain(nest), policy="dynamic", chunk=8, inner="simd"))
    changed = np.flatnonzero((one.features != two.features).any(axis=1))
    assert {two.nodes[at] for at in changed.tolist()} == {Node("entry", 0), Node("entry", 2)}
    packed = graph_of(nest, replace(plain(nest), pack="read2"))
    changed = np.flatnonzero((one.features != packed.features).any(axis=1))
    assert [packed.nodes[at] for at in changed.tolist()] == [Node("array", array=2)]


def test_places_beyond_the_features_are_left_out() -> None:
    """Five dimensions, of which the matrices show the last four; bytes are those of all."""
    at = [[0, 1]] * 4 + [[0, 0, 1]]
    nest = nest_of([3, 4], [["i64", [3, 3, 3, 3, 4], "zero"]], [["=", [0, *at], ["loop", 1], None]])
    graph = graph_of(nest, plain(nest))
    (last,) = rows_of(graph.nodes, kind="array")
    assert told(graph, last)["dimensions"] == 5
    assert told(graph, last)["bytes"] == log(3**4 * 4 * 8)
    assert told(graph, rows_of(graph.nodes, kind="body")[0])["loop_index"] == 1
    assert told(graph, rows_of(graph.nodes, kind="memlet")[0])["stride.l-2"] == log(
        8 * (4 + 12 + 36 + 108)
    )


@pytest.mark.parametrize("nest", sample_nests(16).values(), ids=repr)
def test_what_schedules_share_is_as_if_made_for_each(nest: Nest) -> None:
    """Schedules that differ in how loops run, one after the other, against graphs made whole."""
    whole = nest_graph._still.__wrapped__
    for schedule in (plain(nest), tiled(nest)):
        for inner in ("plain", "simd", "jam4"):
            for policy in ("static", "dynamic"):
                asked = replace(schedule, inner=inner, policy=policy)
                made, alone = graph_of(nest, asked), whole(nest, asked)
                assert np.array_equal(made.features, alone.features)
                assert np.array_equal(made.edges, alone.edges)
                assert made.nodes == alone.nodes
