"""Boxes and arrows: below what they take, apart from each other, bounded, escaped."""

from __future__ import annotations

from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest
from tensors import dot_add

from embeddb.ranking.kernel_view import MOST_SHOWN, kernel_view
from embeddb.tensors.check import computation
from embeddb.tensors.tensor_graph import Operation, Shape, TensorGraph
from embeddb.ui.draw import Node, graph
from embeddb.ui.draw.workload import MOST_NODES
from embeddb.ui.views import drawn_kernel, kernel_caption

BAD = "<script>alert(1)</script>\u202e"


def boxes_of(svg: ElementTree.Element) -> list[tuple[float, ...]]:
    found = [r for r in svg.iter() if r.tag.endswith("rect") and "draw-box" in r.get("class", "")]
    return [tuple(float(r.get(k, "nan")) for k in ("x", "y", "width", "height")) for r in found]


def arrows_of(text: str) -> int:
    return text.count("<path")


def chain(count: int) -> TensorGraph:
    shape = (Shape("f32", (4, 4)),)
    operations = [Operation("parameter", shape, (), {"number": 0})]
    operations += [Operation("negate", shape, (at,)) for at in range(count - 1)]
    return computation(operations, [count - 1], name="chain")


@pytest.mark.parametrize("seed", range(5))
def test_boxes_are_below_what_they_take_and_apart(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes = [
        Node(f"n{at}", sources=tuple(int(s) for s in rng.integers(0, at, min(at, 2))))
        for at in range(40)
    ]
    text = graph(nodes, title="t", width=500)
    svg = ElementTree.fromstring(text)
    found = boxes_of(svg)
    _, _, width, height = map(float, svg.get("viewBox", "").split())
    for x, y, w, h in found:
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height
    for (x, y, w, h), (other, below, _, _) in combinations(found, 2):
        assert abs(x - other) >= w or abs(y - below) >= h
    for at, node in enumerate(nodes):
        assert all(found[at][1] > found[s][1] for s in node.sources)
    assert arrows_of(text) == sum(len(set(node.sources)) for node in nodes)


def test_what_comes_later_or_is_not_there_is_no_source() -> None:
    text = graph([Node("a", sources=(0, 1, -1, 99)), Node("b", sources=(0,))], title="t")
    assert arrows_of(text) == 1
    assert ElementTree.fromstring(graph([], title="t")) is not None


def test_texts_of_strangers_are_escaped_and_cut() -> None:
    text = graph([Node(BAD, "n" * 10_000), Node("b", BAD, (0,), marked=True)], title=BAD)
    ElementTree.fromstring(text)
    assert "<script" not in text and "\u202e" not in text and len(text) < 5_000


def test_a_kernel_has_its_operations_and_its_result_a_thick_frame() -> None:
    view = kernel_view(dot_add(8, 16, 4))
    text = drawn_kernel(view, title="t", marked={2: "0.50×"})
    assert len(boxes_of(ElementTree.fromstring(text))) == view.count == 9
    assert text.count("draw-thick") == 1 and text.count("draw-chosen") == 1
    assert "0.50×, f32[8,4]" in text and "thick frame" in kernel_caption(view)


def test_what_is_too_large_is_counted() -> None:
    assert MOST_SHOWN <= MOST_NODES
    view = kernel_view(chain(100_000))
    assert view.operations == [] and view.opcodes == {"negate": 99_999, "parameter": 1}
    text = drawn_kernel(view, title="t")
    assert len(text) < 5_000 and "99,999" in text and "too many" in kernel_caption(view)
    assert "and 6 more" in graph([Node("x")] * (MOST_NODES + 6), title="t")
    assert len(kernel_view(chain(MOST_SHOWN)).operations) == MOST_SHOWN
