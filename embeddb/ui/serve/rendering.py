"""Pages from facts: templates, escaping, links."""

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
from embeddb.core.wording import line, many_of, one_of, sentence, shown
from embeddb.ranking.kernels.view import KernelView
from embeddb.ui import draw
from embeddb.ui.kernel_drawing import drawn_kernel, kernel_caption
from embeddb.ui.report import explanation_body, page_style
from embeddb.ui.report.page import MOST_SHOWN, environment

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2.runtime import Context


_FOLDER = Path(__file__).parent / "templates"


def render(template: str, *, root: str, **parts: Any) -> str:
    """A whole page; `root` comes before every path that it leads to. Every text in it is escaped,
    and its control and direction characters are made visible, whatever the template forgets."""
    return _environment().get_template(template).render(version=__version__, root=root, **parts)


def path_to(path: str, **asked: object) -> str:
    """A path on this server; what is empty is left out of the question."""
    given = {k: str(v) for k, v in asked.items() if v not in (None, "")}
    return quote(path, safe="/@+:") + (f"?{urlencode(given)}" if given else "")


def campaign_path(name: str) -> str:
    """A campaign's path. A name that a path cannot carry (empty, dots that a browser resolves,
    the ending of a twin) goes into the question."""
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or name.endswith(".json"):
        return f"/campaigns?{urlencode({'name': name})}"
    return "/campaigns/" + quote(name, safe=":@+")


def twin(address: str) -> str:
    """The JSON address of a page's address."""
    path, mark, asked = address.partition("?")
    return ("/index" if path == "/" else path) + ".json" + mark + asked


def config(values: dict[str, Any]) -> str:
    return line(values) if values else "–"


def breakable(text: str) -> Markup:
    """A configuration that breaks into lines after its commas."""
    from markupsafe import Markup, escape

    return Markup(",<wbr>").join(escape(part) for part in shown(text, MOST_SHOWN).split(","))


def sizes(row: dict[str, Any]) -> str:
    """`1,000 × 1,000`, of a nest its turns, or nothing where unknown."""
    if "sizes" in row:
        return str(UNKNOWN.naming(row["sizes"])) if row["sizes"] else "–"
    if min(row["m"], row["n"]) < 0:
        return "–"
    return f"{row['m']:,} × {row['n']:,}"


def count(value: int | None) -> str:
    return "–" if value is None or value < 0 else f"{value:,}"


def kind_of(op: str) -> str:
    """What an operation, as text, runs on."""
    return Op.parse(op).kind


def _link(context: Context, path: str, **asked: object) -> str:
    """The same as others see it: behind what comes before every path of ours."""
    return str(context["root"]) + path_to(path, **asked)


def _campaign_link(context: Context, name: str) -> str:
    return str(context["root"]) + campaign_path(name)


@cache
def _environment() -> Environment:
    from jinja2 import pass_context

    made = environment(_FOLDER, nothing="–")
    made.filters |= {
        "config": config,
        "breakable": breakable,
        "sizes": sizes,
        "count": count,
        "twin": twin,
        "kind_of": kind_of,
    }
    made.globals |= {"link": pass_context(_link), "campaign_link": pass_context(_campaign_link)}
    made.globals |= {"one_of": one_of, "many_of": many_of, "kind_of": kind_of}
    return made


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


def thumb(info: WorkloadInfo) -> File:
    """The spy plot of a pattern as a picture of its own. Raises: NothingFound."""
    if not info.workload.sparse:
        raise NothingFound(f"{info.id}: a {one_of(info.kind)} has no non-zeros to draw")
    if not info.thumbnail:
        raise NothingFound(f"{info.id}: where its non-zeros lie is not known")
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
        size=(760, 340),
        key="compare",
    )
    return {**found, "curves": Markup(drawn)}  # draw escapes what it holds
