"""Pages from facts: templates, escaping, links."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from embeddb.core import __version__
from embeddb.core.config import Op
from embeddb.core.sizes import UNKNOWN
from embeddb.core.wording import line, many_of, one_of, shown
from embeddb.ui.report.page import MOST_SHOWN, environment

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2.runtime import Context
    from markupsafe import Markup

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
