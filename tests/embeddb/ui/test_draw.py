"""Drawings: well-formed, bounded, escaped, the same twice, and readable whatever they are given."""

from __future__ import annotations

import math
import os
import re
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from embeddb.core.errors import MissingDependency, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.thumbnail import thumbnail
from embeddb.ui import draw
from embeddb.ui.draw import element as theme
from embeddb.ui.draw import files
from embeddb.ui.draw.axes import Scale
from embeddb.ui.draw.element import figure, shown, width_of, wrapped
from embeddb.ui.draw.points import MOST_DOTS
from embeddb.ui.draw.rows import MOST_BARS

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '<script>alert("x")</script>&\x1b[31m\u202egnp.\x00\ud800 ' + "A" * 10_000
NAN, INF = math.nan, math.inf


def parsed(svg: str) -> ElementTree.Element:
    """The drawing, checked for what all have in common."""
    root = ElementTree.fromstring(svg.encode())
    assert root.tag == f"{SVG}svg" and root.get("role") in ("img", "group")
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    assert len(ids) == len(set(ids)) and root.get("aria-labelledby") in ids
    assert not any(e.tag == f"{SVG}script" for e in root.iter())
    for e in root.iter():
        held = " ".join(e.get(name, "") for name in ("d", "x", "y", "width", "height", "cx", "r"))
        assert not re.search("nan|inf|None|e[+-]", held), held
    assert "\x1b" not in svg and "\u202e" not in svg
    return root


def texts(svg: str) -> list[str]:
    """Everything written, without titles."""
    return [e.text or e[0].tail or "" for e in parsed(svg).iter(f"{SVG}text")]


def line(y: list[float], name: str = "a", **marks: int) -> draw.Line:
    return draw.Line(name, range(len(y)), y, marks)


def curves(*lines: draw.Line, log_y: bool = False, size: tuple[int, int] = (640, 320)) -> str:
    return draw.curves(lines, title="t", x_label="x", y_label="y", log_y=log_y, size=size)


def gradient() -> bytes:
    return bytes(np.linspace(1, 255, 1024).astype(np.uint8))


DRAWINGS: dict[str, Callable[[str], str]] = {
    "spy": lambda text: draw.spy(gradient(), title=text, attention=[1.0] * 16, side=4, key=text),
    "curves": lambda text: draw.curves(
        [draw.Line(text, [1, 2, 3], [1, 4, 9], {text: 1}), line([3.0, 2.0, 1.0], text + "2")],
        title=text,
        x_label=text,
        y_label=text,
        key=text,
    ),
    "dots": lambda text: draw.dots(
        [draw.Dot(0, 0, text, text), draw.Dot(1, 1, "b", text)],
        title=text,
        key=text,
    ),
    "bars": lambda text: draw.bars(
        [draw.Bar(text, 1, 0.5, 2, text, True), draw.Bar("b", -1)], title=text, unit=text, key=text
    ),
    "stack": lambda text: draw.stack(
        [draw.bars([draw.Bar(text, 1)], title=text, key=text)], title=text
    ),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_well_formed_whatever_its_texts(name: str) -> None:
    make = DRAWINGS[name]
    for text in (HOSTILE, "", "plain", "a\nb", "日本語のとても長い名前" * 9, "שלום"):
        svg = make(text)
        parsed(svg)
        assert svg == make(text)
        assert len(svg) < 40_000, "long texts are bounded"
        standing = draw.standalone(svg)
        ElementTree.fromstring(standing.encode())
        assert standing.startswith("<?xml")


@given(st.text(max_size=60))
@settings(max_examples=40, deadline=None)
def test_any_text_is_safe(text: str) -> None:
    for make in DRAWINGS.values():
        parsed(make(text))


@given(st.lists(st.floats(), max_size=12), st.booleans())
@settings(max_examples=80, deadline=None)
def test_any_number_is_drawn_or_counted(values: list[float], log: bool) -> None:
    svg = curves(line(values, best=0) if values else line([]), log_y=log)
    parsed(svg)
    drawable = [v for v in values if abs(v) < 1e100 and (not log or v > 1e-100)]
    lost = len(values) - len(drawable)
    assert any(f"{lost} of the values" in t for t in texts(svg)) == (lost > 0)
    assert ("nothing to draw" in texts(svg)) == (not drawable)
    parsed(draw.bars([draw.Bar("r", v, v, v) for v in values], title="t", reference=1.0))
    parsed(draw.dots([draw.Dot(v, v, "k", "") for v in values], title="t"))
    parsed(draw.spy(gradient(), title="t", attention=[*values, 1.0][:1], side=1))


def test_what_cannot_be_drawn_is_said() -> None:
    assert texts(curves()) == ["nothing to draw"]
    assert "nothing to draw" in texts(curves(line([NAN, INF])))
    assert "nothing to draw" in texts(draw.dots([], title="t"))
    assert texts(draw.bars([], title="t")) == ["nothing to draw"]
    assert texts(draw.spy(b"", title="t")) == ["no picture"]
    assert texts(draw.spy(b"short", title="t")) == ["no picture"]
    assert "2 of the values cannot be drawn" in texts(curves(line([1, -1, 0, 5]), log_y=True))
    rows = texts(draw.bars([draw.Bar("a", NAN), draw.Bar("b", INF)], title="t", unit="x"))
    assert rows == ["a", "-", "b", "never"]
    placeless = [draw.Dot(0, 0, "k", ""), draw.Dot(NAN, 0, "k", "")]
    assert "1 of 2 are drawn; 1 without a place" in texts(draw.dots(placeless, title="t"))
    parsed(curves(line([5.0]))), parsed(draw.dots([draw.Dot(3, 3, "", "")], title="t"))


def test_a_line_breaks_where_it_has_no_value() -> None:
    (path,) = [e for e in parsed(curves(line([1, 2, NAN, 3, 4]))).iter() if e.get("stroke-linecap")]
    assert (path.get("d") or "").count("M") == 2


# -- sizes -----------------------------------------------------------------------------------------


def test_sizes_are_bounded(rng: np.random.Generator) -> None:
    noise = rng.integers(0, 256, 1024).astype(np.uint8)
    assert len(draw.spy(noise.tobytes(), title="t")) < 12_000
    assert len(draw.spy(gradient(), title="t")) < 4_000
    long = curves(line(list(rng.normal(size=100_000))))
    assert len(long) < 20_000
    many = [draw.Dot(x, y, str(i % 12), f"m{i}") for i, (x, y) in enumerate(rng.random((9_000, 2)))]
    svg = draw.dots(many, title="t")
    drawn = list(parsed(svg).iter(f"{SVG}title"))
    assert len(drawn) == MOST_DOTS + 1 and len(svg) < 700_000
    assert "5,000 of 9,000 are drawn; thinned evenly" in texts(svg)
    rows = texts(draw.bars([draw.Bar(f"r{i}", i) for i in range(500)], title="t"))
    assert f"and {500 - MOST_BARS} more" in rows


def test_a_long_line_keeps_its_extremes() -> None:
    y = np.zeros(50_000)
    y[31_415], y[27_182] = 7.0, -7.0
    svg = curves(line(list(y)))
    (path,) = [e for e in parsed(svg).iter() if e.get("stroke-linecap")]
    heights = {float(p.split()[1]) for p in re.findall(r"[\d.]+ [\d.]+", path.get("d") or "")}
    whole = curves(line([0.0, 7.0, -7.0, 0.0]))
    (short,) = [e for e in parsed(whole).iter() if e.get("stroke-linecap")]
    wanted = {float(p.split()[1]) for p in re.findall(r"[\d.]+ [\d.]+", short.get("d") or "")}
    assert heights == wanted


# -- spy -------------------------------------------------------------------------------------------


def test_spy_draws_every_cell_once_and_the_densest_strongest(rng: np.random.Generator) -> None:
    steps = rng.integers(0, 256, (32, 32)).astype(np.uint8) * (rng.random((32, 32)) < 0.4)
    ink = inked(steps.astype(np.uint8).tobytes())
    assert ((ink > 0) == (steps > 0)).all()
    assert ink[np.unravel_index(steps.argmax(), steps.shape)] == 1.0
    order = np.argsort(steps, axis=None)
    assert (np.diff(ink.ravel()[order]) >= 0).all()


def test_spy_of_many_entries_shows_where_they_are_dense(rng: np.random.Generator) -> None:
    """10^5 entries fill every cell; a block that is half as dense again stands out."""
    rows, cols = rng.integers(0, 1000, (2, 100_000))
    twice = (rows < 500) & (cols < 500)
    block = np.r_[rows, (rows[twice] + 7) % 500], np.r_[cols, (cols[twice] + 3) % 500]
    ink = inked(thumbnail(Pattern.from_coo((1000, 1000), *block)))
    assert ink.min() > 0 and (ink == 1).mean() < 0.3
    assert ink[:15, :15].mean() > 1.5 * ink[16:, 16:].mean()


def test_spy_of_entries_everywhere_alike_is_of_middle_strength(rng: np.random.Generator) -> None:
    rows, cols = rng.integers(0, 30_000, (2, 100_000))
    ink = inked(thumbnail(Pattern.from_coo((30_000, 30_000), rows, cols)))
    assert (ink == 1).mean() < 0.1 and 0.4 < ink.mean() < 0.8
    diagonal = inked(thumbnail(Pattern.from_coo((3200, 3200), range(3200), range(3200))))
    assert set(diagonal.ravel()) == {0.0, 0.62}
    assert not inked(bytes(1024)).any()


def inked(thumb: bytes) -> NDArray[np.float64]:
    """float64[32, 32]: the strength of each cell; 0 is empty."""
    ink = np.zeros((32, 32))
    for path in parsed(draw.spy(thumb, title="t")).iter(f"{SVG}path"):
        for row in (path.get("d") or "").split("M")[1:]:
            numbers = re.match(r"(\d+) (\d+)(.*)", row)
            assert numbers is not None
            x, y = int(numbers[1]), int(numbers[2])
            for move, run in re.findall(r"m(\d+) 0|h(\d+)", numbers[3]):
                if run:
                    assert not ink[y, x : x + int(run)].any()
                    ink[y, x : x + int(run)] = float(path.get("stroke-opacity") or 0)
                x += int(run or move)
    return ink


def test_attention_is_outlined_with_its_numbers() -> None:
    values = [0.0, 0.2, 0.5, NAN, 1.0, 0.3, 0.0, 0.0, 0.0]
    svg = draw.spy(gradient(), title="t", width=300, attention=values, side=3)
    titles = [e.text or "" for e in parsed(svg).iter(f"{SVG}title")]
    cells = [t for t in titles if "of 3" in t]
    assert "row 2, column 2 of 3: 1" in cells and "row 1, column 3 of 3: 0.5" in cells
    assert len(cells) == 3, "a cell below a quarter of the largest is left alone"
    assert {"1", "0.5", "0.3"} <= set(texts(svg))
    assert not texts(draw.spy(gradient(), title="t", attention=[0.0], side=1))
    with pytest.raises(UsageError, match="3 x 3"):
        draw.spy(gradient(), title="t", attention=[1.0], side=3)


# -- names, marks, kinds ---------------------------------------------------------------------------


def test_lines_are_named_at_their_ends_or_in_a_legend() -> None:
    far = [line([1, 2, 3], "up"), line([3, 2, 1], "down")]
    assert {"up", "down"} <= set(texts(curves(*far)))
    assert 'h26"' not in curves(*far), "no legend"
    same = [line([1, 2, 3], f"name {i}") for i in range(7)]
    svg = curves(*same)
    assert svg.count('h26"') == 7 and {f"name {i}" for i in range(7)} <= set(texts(svg))
    many = curves(*[line([1, 2, i], f"name {i}") for i in range(12)])
    assert "4 more" in texts(many)


def test_marks_differ_in_shape_and_label() -> None:
    svg = curves(line([1, 1.1, 2, 9], "", best=0, answer=1, default=2), log_y=True)
    assert {"best 1", "answer 1.1", "default 2"} <= set(texts(svg))
    shapes = [
        e.get("d") or "" for e in parsed(svg).iter(f"{SVG}path") if e.get("class") == "draw-mark"
    ]
    assert len({re.sub(r"^M[\d. ]+", "", d) for d in shapes}) == 3
    both = curves(line([1, 2, 3], "", best=0, answer=0))
    assert "best, answer 1" in texts(both)


def test_labels_of_marks_keep_apart() -> None:
    y = [1 + 0.01 * i for i in range(100)]
    svg = curves(line(y, "", best=0, answer=1, default=3), size=(300, 190))
    marks = [e for e in parsed(svg).iter(f"{SVG}text") if "draw-strong" in (e.get("class") or "")]
    places = [(float(e.get("x") or 0), float(e.get("y") or 0)) for e in marks]
    assert len(places) == 3
    for at, (x, y1) in enumerate(places):
        assert 0 <= x <= 300 and 0 <= y1 <= 190
        for other, (_, y2) in enumerate(places[:at]):
            apart = abs(y1 - y2) >= 11 or marks[at].get("text-anchor") != marks[other].get(
                "text-anchor"
            )
            assert apart


def test_kinds_beyond_eight_are_other() -> None:
    points = [draw.Dot(i, i, f"kind {i % 11:02}", "") for i in range(33)]
    svg = draw.dots(points, title="t")
    assert "other (3 kinds)" in texts(svg) and "9" in texts(svg)
    looks = {e.get("class") for e in parsed(svg).iter(f"{SVG}g")}
    assert looks == {f"draw-k{i} draw-dot" for i in range(8)} | {"draw-other draw-ring"}
    shapes = {theme.path_of(kind, 0, 0, 5) for kind in range(theme.KINDS)}
    assert len(shapes) == theme.KINDS


# -- numbers and ticks -----------------------------------------------------------------------------


@given(
    st.floats(-1e9, 1e9, allow_subnormal=False),
    st.floats(1e-3, 1e9),
    st.floats(100, 800),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_ticks_lie_within_and_tell_apart(low: float, span: float, pixels: float, log: bool) -> None:
    low = abs(low) + 1e-3 if log else low
    scale = Scale.over([low, low + span], 0, pixels, log=log, pad=True)
    ticks = scale.ticks(40)
    assert len(ticks) <= pixels / 40 + 2
    values = [value for value, _ in ticks]
    assert values == sorted(values)
    assert all(-1e-6 * pixels <= scale.at(v) <= pixels * (1 + 1e-6) for v in values)
    if span > 1e-6 * abs(low):
        assert ticks and len({label for _, label in ticks}) == len(ticks)


def test_ticks_are_what_one_would_write() -> None:
    def labels(low: float, high: float, log: bool = False) -> list[str]:
        return [text for _, text in Scale(low, high, 0, 300, log).ticks(60)]

    assert labels(0, 10) == ["0", "2", "4", "6", "8", "10"]
    assert labels(0, 1) == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert labels(0, 50_000) == ["0", "10,000", "20,000", "30,000", "40,000", "50,000"]
    assert labels(1, 20, log=True) == ["1", "2", "5", "10", "20"]
    assert labels(1e-3, 1e3, log=True) == ["0.01", "1", "100"]
    assert labels(1, 1.3, log=True) == ["1", "1.1", "1.2", "1.3"]
    assert figure(1234.5) == "1,234" and figure(0.12345) == "0.123" and figure(1e-9) == "1e-9"
    assert figure(NAN) == "-" and figure(INF) == "never" and figure(0) == "0"


def test_texts_are_bounded_and_broken() -> None:
    assert (
        shown(HOSTILE, 30).startswith('<script>alert("x")</script>&?')
        and len(shown(HOSTILE)) == 400
    )
    lines = wrapped("block=16,format=bcsr,order=ikj", 100, 3)
    assert "".join(lines) == "block=16,format=bcsr,order=ikj" and len(lines) == 3
    assert all(width_of(text) <= 100 for text in lines)
    assert wrapped("x" * 500, 100, 2)[0] and len(wrapped("x" * 500, 1, 3)) <= 3


# -- colours ---------------------------------------------------------------------------------------


def contrast(one: str, other: str) -> float:
    """WCAG 2 contrast ratio."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [theme.LIGHT, theme.DARK], ids=["light", "dark"])
def test_contrast(colours: dict[str, str]) -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    for text in ("ink", "quiet"):
        assert contrast(colours[text], colours["paper"]) >= 4.5
    for mark in ("axis", "bar", "accent", "alert", "other", *(f"k{at}" for at in range(8))):
        assert contrast(colours[mark], colours["paper"]) >= 3, mark
    assert contrast(colours["grid"], colours["paper"]) < 1.5, "the grid stays in the background"
    assert theme.LIGHT.keys() == theme.DARK.keys()


def test_styles_use_only_what_they_define() -> None:
    css = draw.style()
    assert set(re.findall(r"var\((--[\w-]+)\)", css)) <= set(re.findall(r"(--[\w-]+):", css))
    assert "$" not in css + theme.literal() and "var(" not in theme.literal()
    assert css.count("{") == css.count("}") and "@media" not in theme.literal(dark=False)
    looks = {c for make in DRAWINGS.values() for c in re.findall(r"draw-[a-z0-9]+", make("x"))}
    used = {c for c in looks if f'class="{c}' in "".join(make("x") for make in DRAWINGS.values())}
    assert used and all(f".{c}" in css for c in used)


# -- files -----------------------------------------------------------------------------------------


def pixels(data: bytes) -> tuple[int, int, bytes]:
    """Width, height and the raw rows of a PNG."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    at, packed = 8, b""
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            packed += data[at + 8 : at + 8 + length]
        at += 12 + length
    return width, height, zlib.decompress(packed)


def test_png_has_the_size_and_the_text() -> None:
    pytest.importorskip("resvg_py")
    svg = draw.bars([draw.Bar("a", 1), draw.Bar("b", 2)], title="title", width=300)
    (size,) = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', draw.standalone(svg))[:1]
    try:
        data = draw.png(svg)
    except MissingDependency as e:
        pytest.skip(str(e))
    width, height, raw = pixels(data)
    assert (width, height) == tuple(round(2 * float(x)) for x in size)
    blank = pixels(draw.png(re.sub(r"<text.*?</text>", "", svg)))[2]
    assert raw != blank and len(raw) >= width * height * 3


def test_without_resvg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    files._fonts.cache_clear()
    with pytest.raises(MissingDependency) as missing:
        draw.write(curves(line([1, 2])), tmp_path / "x.png")
    assert "`plot`" in missing.value.hint and not list(tmp_path.iterdir())
    draw.write(curves(line([1, 2])), tmp_path / "x.svg")


def test_without_a_font_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("resvg_py")
    monkeypatch.setattr(files, "_writes", lambda fonts: False)
    files._fonts.cache_clear()
    with pytest.raises(MissingDependency, match="font") as missing:
        draw.png(curves(line([1, 2])))
    assert "svg" in missing.value.hint
    files._fonts.cache_clear()


def test_files_are_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    svg, out = curves(line([1, 2])), tmp_path / "a.SVG"
    draw.write(svg, out)
    first = out.read_bytes()
    assert ElementTree.fromstring(first).tag == f"{SVG}svg"
    for wrong in (tmp_path / "a.pdf", tmp_path / "a", tmp_path / "no" / "a.svg"):
        with pytest.raises(UsageError):
            draw.write(svg, wrong)
    (tmp_path / "dir.svg").mkdir()
    with pytest.raises(UsageError, match="folder"):
        draw.write(svg, tmp_path / "dir.svg")

    def broken(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="disk"):
        draw.write(curves(line([3, 1])), out)
    assert out.read_bytes() == first
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.SVG", "dir.svg"]
    with pytest.raises(UsageError, match="viewBox"):
        draw.standalone("<svg></svg>")


def test_curves_that_start_at_one_point_have_one_label_there() -> None:
    """The fault: "best 1" as often as there were machines, all in one place."""
    lines = [
        draw.Line(f"m{at}", (1, 2, 3), (1.0, 1.5 + at, 3.0 + at), {"best": 0, "default": 2})
        for at in range(5)
    ]
    svg = draw.curves(lines, title="t", x_label="x", y_label="y", log_y=True)
    assert svg.count(">best 1<") == 1
    assert all(f"m{at}: best: 1 at 1" in svg for at in range(5))
    assert svg.count(">default ") == 5
