"""Objects show themselves in a notebook: one small piece of HTML, whatever their names hold."""

from __future__ import annotations

import html.parser
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from builders import band, fill, patterns, tiny
from tensors import dot_add

from embeddb.core.records import WorkloadInfo
from embeddb.database import Database

BAD = '<script>alert(1)</script>"\u202e\x1b[31m&'


class Tags(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.seen.add(tag)
        assert not any(name.startswith("on") or name == "src" for name, _ in attrs)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_objects_show_themselves_in_a_notebook(tmp_path: Path) -> None:
    with fill(Database.create(tmp_path / "db"), tiny()) as db:
        new = band(137, 6, name=BAD)
        made = db.query(new, platform="tiny", op="spmm:32")
        long = WorkloadInfo(id="0" * 32, name="n" * 10_000, thumbnail=b"short")
        shown: list[Any] = [db, made, db.explain(made.id), new, next(db.store.patterns()), long]
        for one in shown:
            text = one._repr_html_()
            tags = Tags(text)
            assert not tags.open and "script" not in tags.seen
            assert len(text) < 20_000 and "http" not in text.replace("http://www.w3.org/", "")
            assert "\x1b" not in text and "\u202e" not in text
            assert len(repr(one)) < 11_000 and type(one).__name__ in repr(one)
        assert "<svg" in new._repr_html_() and "spmm:32" in db._repr_html_()
        assert "variant=b" in made._repr_html_() and "variant=b" in repr(made)
        assert made._repr_html_().count("variant=a") == 1  # the default has a row of its own
        assert "text-align:left'>variant=b" in made._repr_html_()
        assert "simulated" not in made._repr_html_()
        known = db.query(patterns()[0], platform="tiny", op="spmm:32")
        assert " µs" in known._repr_html_() and "?" not in known._repr_html_()
        modelled = msgspec.structs.replace(made, simulated=True, neighbours=[], candidates=[])
        assert "simulated" in modelled._repr_html_()
    assert "Database" in db._repr_html_()  # closed by now


def test_a_tensor_kernel_shows_its_operations() -> None:
    kernel = replace(dot_add(8, 16, 4), name=BAD, group=BAD)
    shown = kernel._repr_html_()
    assert {"svg", "path", "rect"} <= Tags(shown).seen
    assert "tensor kernel" in shown and "9 operations" in shown
    assert "<script" not in shown and "\u202e" not in shown
