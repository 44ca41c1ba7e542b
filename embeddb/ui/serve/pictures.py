"""What only a page shows and its JSON twin does not: drawings, and files that pages load."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from markupsafe import Markup

from embeddb.core.errors import NothingFound
from embeddb.core.wording import one_of, sentence, shown
from embeddb.ranking.kernels.view import KernelView
from embeddb.ui import draw
from embeddb.ui.kernel_drawing import drawn_kernel, kernel_caption
from embeddb.ui.report import explanation_body, page_style
from embeddb.ui.serve.app_state import AppState

_STATIC = Path(__file__).parent / "static"
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class File(NamedTuple):
    """`policy`: a Content-Security-Policy of its own; empty: that of every page."""

    body: bytes
    kind: str
    tag: str
    policy: str = ""


def _file(text: str, suffix: str, policy: str = "") -> File:
    body = text.encode()
    tag = hashlib.blake2b(body, digest_size=8).hexdigest()
    return File(body, _TYPES[suffix] + "; charset=utf-8", f'"{tag}"', policy)


@cache
def files() -> dict[str, File]:
    """Everything under /static, by name."""
    found = {
        path.name: _file(path.read_text(encoding="utf-8"), path.suffix)
        for path in sorted(_STATIC.iterdir())
        if path.suffix in _TYPES
    }
    return {**found, "report.css": _file(str(page_style()), ".css")}


def thumb(state: AppState, pattern_id: str) -> File:
    """The spy plot of a pattern as a picture of its own. Raises: NothingFound."""
    info = state.pattern(pattern_id)
    if not info.workload.sparse:
        raise NothingFound(f"{pattern_id}: a {one_of(info.kind)} has no non-zeros to draw")
    if not info.thumbnail:
        raise NothingFound(f"{pattern_id}: where its non-zeros lie is not known")
    title = f"non-zeros of {shown(info.name or info.id, 80)}"
    # A picture has no stylesheet to link to: its style stands inside and is allowed by its digest.
    style = draw.style()
    head, end, rest = draw.spy(info.thumbnail, title=title, key="thumb").partition(">")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'"
    return _file(f"{head}{end}<style>{style}</style>{rest}", ".svg", policy)


def pattern_page(found: dict[str, Any]) -> dict[str, Any]:
    """Of a nest its loops, each a box around what runs in it, and the same as lines; of a tensor
    kernel its operations."""
    if "kernel" in found:
        view = msgspec.convert(found["kernel"], KernelView)
        drawn = drawn_kernel(view, title=f"operations of {shown(found['name'] or found['id'], 80)}")
        # draw escapes what it holds
        return {**found, "graph": Markup(drawn), "graph_said": sentence(kernel_caption(view))}
    if "code" not in found:
        return found
    loops, body = found["code"]["loops"], found["code"]["body"]
    drawn = draw.boxes(loops, body, title=f"loops of {shown(found['name'] or found['id'], 80)}")
    lines = ["  " * min(at, len(loops)) + line for at, line in enumerate([*loops, *body])]
    return {**found, "boxes": Markup(drawn), "lines": lines}  # draw escapes what it holds


def answer_page(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "body": explanation_body(found["explanation"])}


def compare_page(found: dict[str, Any]) -> dict[str, Any]:
    """Both sides in one drawing, each over its own best."""
    lines = []
    for one in {one["platform"]: one for one in found["sides"]}.values():
        marks = {"default": one["default_at"], "best of the other": one["other_at"]}
        known = {name: at for name, at in marks.items() if at is not None}
        if len(one["ratios"]) > 1:
            x = [100 * share for share in one["shares"]]
            lines.append(draw.Line(shown(one["platform"], 60), x, one["ratios"], marks=known))
    if not lines:
        return {**found, "curves": None}
    drawn = draw.curves(
        lines,
        title="seconds of every configuration over the best of its platform",
        x_label="configurations, fastest first (%)",
        y_label="time / best",
        log_y=True,
        width=760,
        height=340,
        key="compare",
    )
    return {**found, "curves": Markup(drawn)}  # draw escapes what it holds
