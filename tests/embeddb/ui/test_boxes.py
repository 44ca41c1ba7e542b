"""Nested boxes: bounded, escaped, one in the other."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from embeddb.ui.draw import boxes

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*args: object, **more: object) -> ElementTree.Element:
    return ElementTree.fromstring(boxes(*args, **{"title": "t", **more}))  # type: ignore[arg-type]  # given on


def rectangles(svg: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    found = svg.findall(f".//{SVG}rect") or svg.findall(".//rect")
    return [tuple(float(r.get(k, "nan")) for k in ("x", "y", "width", "height")) for r in found]  # type: ignore[misc]  # four of them


def texts(svg: ElementTree.Element) -> str:
    return " | ".join("".join(e.itertext()) for e in svg.iter() if e.tag.endswith("text"))


def test_each_box_lies_in_the_one_around_it_and_all_in_the_picture() -> None:
    svg = drawn(["i", "j", "k"], ["C += A * B"], width=300)
    boxes_of = rectangles(svg)
    _, _, width, height = map(float, svg.get("viewBox", "").split())
    assert len(boxes_of) == 3 and width >= 300
    for (x, y, w, h), (inner_x, inner_y, inner_w, inner_h) in pairwise(boxes_of):
        assert x < inner_x and y < inner_y
        assert inner_x + inner_w < x + w and inner_y + inner_h < y + h
    x, y, w, h = boxes_of[0]
    assert x >= 0 and y >= 0 and x + w <= width and y + h <= height
    assert texts(svg) == "i | j | k | C += A * B"


def test_what_runs_in_parallel_has_a_thick_frame() -> None:
    svg = boxes(["i", "j"], [], title="t", strong=[1])
    thick = ["draw-thick" in r for r in re.findall(r"<rect[^>]*>", svg)]
    assert thick == [False, True]


def test_texts_of_strangers_are_escaped_and_cut() -> None:
    bad = "<script>alert(1)</script>"
    text = boxes([bad, "n" * 10_000], [bad, "m\u202e" * 5_000], title=bad)
    ElementTree.fromstring(text)
    assert "<script" not in text and "\u202e" not in text and len(text) < 4_000


@pytest.mark.parametrize(("loops", "lines"), [(0, 1), (40, 1_000)])
def test_what_is_too_much_is_counted(loops: int, lines: int) -> None:
    svg = drawn(["for"] * loops, ["x = 1"] * lines)
    assert len(rectangles(svg)) == min(loops, 16)
    assert texts(svg).count("x = 1") == min(lines, 12)
    assert ("and 988 more" in texts(svg)) == (lines == 1_000)
