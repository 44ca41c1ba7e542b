"""Rendering of facts as pages: templates, escaping, links."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from markupsafe import Markup

from embeddb.core import __version__
from embeddb.core.config import Op
from embeddb.core.errors import NothingFound
from embeddb.core.records import WorkloadInfo
from embeddb.core.sizes import UNKNOWN
from embeddb.core.wording import many_of, one_of, sentence, shown
from embeddb.ranking.kernel_view import KernelView
from embeddb.ui import draw
from embeddb.ui.report import explanation_body, page_style
from embeddb.ui.report.page import environment
from embeddb.ui.views import drawn_kernel, kernel_caption

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2.runtime import Context


_FOLDER = Path(__file__).parent / "templates"


def render(template: str, *, root: str, **parts: Any) -> str:
    """Render a page; `root` is the prefix of every path in it. Every text is escaped, and its
    control and direction characters are made visible, even if the template does not ask."""
    return _environment().get_template(template).render(version=__version__, root=root, **parts)


def path_to(path: str, **query: object) -> str:
    """A path on this server; empty values are dropped from the query."""
    values = {k: str(v) for k, v in query.items() if v not in (None, "")}
    return quote(path, safe="/@+:") + (f"?{urlencode(values)}" if values else "")


def campaign_path(name: str) -> str:
    """A campaign's path. A name that is no valid path (empty, dots that a browser resolves, the
    ending of a twin) is put into the query."""
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or name.endswith(".json"):
        return f"/campaigns?{urlencode({'name': name})}"
    return "/campaigns/" + quote(name, safe=":@+")


def twin(address: str) -> str:
    """The JSON address of a page's address."""
    path, mark, query = address.partition("?")
    return ("/index" if path == "/" else path) + ".json" + mark + query


def sizes(row: dict[str, Any]) -> str:
    """Sizes as text: `1,000 × 1,000`, named sizes of other workloads, or a dash if unknown."""
    if "sizes" in row:
        return str(UNKNOWN.naming(row["sizes"])) if row["sizes"] else "–"
    if min(row["m"], row["n"]) < 0:
        return "–"
    return f"{row['m']:,} × {row['n']:,}"


def count(value: int | None) -> str:
    return "–" if value is None or value < 0 else f"{value:,}"


@cache
def _environment() -> Environment:
    from jinja2 import pass_context

    @pass_context
    def link(context: Context, path: str, **query: object) -> str:
        return str(context["root"]) + path_to(path, **query)

    @pass_context
    def campaign_link(context: Context, name: str) -> str:
        return str(context["root"]) + campaign_path(name)

    def kind_of(op: str) -> str:
        return Op.parse(op).kind

    templates = environment(_FOLDER, nothing="–")
    filters: list[Any] = [sizes, count, twin, kind_of]
    templates.filters |= {own.__name__: own for own in filters}
    calls: list[Any] = [link, campaign_link, one_of, many_of, kind_of]
    templates.globals |= {own.__name__: own for own in calls}
    return templates


_STATIC = Path(__file__).parent / "static"
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class File(NamedTuple):
    """A static file. `policy` is its own Content-Security-Policy; empty: that of every page."""

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
    """Files under /static, by name."""
    by_name = {
        path.name: _file(path.read_text(encoding="utf-8"), path.suffix)
        for path in sorted(_STATIC.iterdir())
        if path.suffix in _TYPES
    }
    return {**by_name, "report.css": _file(str(page_style()), ".css")}


def thumb(info: WorkloadInfo) -> File:
    """The spy plot of a pattern as a standalone image. Raises: NothingFound."""
    if not info.workload.sparse:
        raise NothingFound(f"{info.id}: a {one_of(info.kind)} has no non-zeros to draw")
    if not info.thumbnail:
        raise NothingFound(f"{info.id}: its structure is not stored")
    title = f"non-zeros of {shown(info.name or info.id, 80)}"
    # An image has no stylesheet: its style is inside and allowed by its digest.
    style = draw.style()
    head, end, rest = draw.spy(info.thumbnail, title=title, key="thumb").partition(">")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'"
    return _file(f"{head}{end}<style>{style}</style>{rest}", ".svg", policy)


def pattern_page(facts: dict[str, Any]) -> dict[str, Any]:
    """A pattern's facts with its drawing: boxes and lines for a nest, a graph for a kernel."""
    if "kernel" in facts:
        view = msgspec.convert(facts["kernel"], KernelView)
        drawn = drawn_kernel(view, title=f"operations of {shown(facts['name'] or facts['id'], 80)}")
        # draw escapes what it holds
        return {**facts, "graph": Markup(drawn), "graph_said": sentence(kernel_caption(view))}
    if "code" not in facts:
        return facts
    loops, body = facts["code"]["loops"], facts["code"]["body"]
    drawn = draw.boxes(loops, body, title=f"loops of {shown(facts['name'] or facts['id'], 80)}")
    lines = ["  " * min(at, len(loops)) + line for at, line in enumerate([*loops, *body])]
    return {**facts, "boxes": Markup(drawn), "lines": lines}  # draw escapes what it holds


def answer_page(facts: dict[str, Any]) -> dict[str, Any]:
    return {**facts, "body": explanation_body(facts["explanation"])}


def compare_page(facts: dict[str, Any]) -> dict[str, Any]:
    """A comparison's facts with the curves of both platforms, each over its own best."""
    lines = []
    for one in {one["platform"]: one for one in facts["sides"]}.values():
        marks = {"default": one["default_at"], "best of the other": one["other_at"]}
        known_marks = {name: at for name, at in marks.items() if at is not None}
        if len(one["ratios"]) > 1:
            x = [100 * share for share in one["shares"]]
            lines.append(draw.Line(shown(one["platform"], 60), x, one["ratios"], marks=known_marks))
    if not lines:
        return {**facts, "curves": None}
    drawn = draw.curves(
        lines,
        title="seconds of every configuration over the best of its platform",
        x_label="configurations, fastest first (%)",
        y_label="time / best",
        log_y=True,
        size=(760, 340),
        key="compare",
    )
    return {**facts, "curves": Markup(drawn)}  # draw escapes what it holds
