"""The frame that every report shares: templates, escaping, style."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embeddb.core import __version__
from embeddb.core.wording import PAGE_FILTERS, shown
from embeddb.ui import draw
from embeddb.ui.feature_words import feature_value, feature_words

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_FOLDER = Path(__file__).parent / "templates"
#: Longest text that no filter has cut before.
MOST_SHOWN = 2000


def render(template: str, **parts: Any) -> Markup:
    """A template of this package with its values. Every text in it is escaped, and its control and
    direction characters are made visible, whatever the template forgets."""
    from markupsafe import Markup

    found = _environment().get_template(template).render(version=__version__, **parts)
    return Markup(found)  # escaped by the template


@cache
def page_style() -> Markup:
    """The CSS that a page with a report body needs: the body's own and that of its drawings."""
    own = (_FOLDER / "report.css").read_text(encoding="utf-8")
    return markup(own + draw.style())


def markup(safe: str) -> Markup:
    """For drawings and style, which escape what they hold themselves."""
    from markupsafe import Markup

    return Markup(safe)


def environment(folder: Path, nothing: str = "") -> Environment:
    """The templates of a folder, with `PAGE_FILTERS`; None shows as `nothing`. Whatever a template
    forgets, its texts are escaped, cut and made visible."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    def final(value: Any) -> Any:
        """What an expression of a template shows. `__html__` marks what is escaped already."""
        if isinstance(value, str) and not hasattr(value, "__html__"):
            return shown(value, MOST_SHOWN)
        return nothing if value is None else value

    made = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        finalize=final,
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    made.filters |= PAGE_FILTERS
    return made


@cache
def _environment() -> Environment:
    made = environment(_FOLDER)
    made.filters |= {"feature_words": feature_words, "feature_value": _feature_value}
    made.globals["page_style"] = page_style
    return made


def _feature_value(value: float, feature: str) -> str:
    return feature_value(feature, value)
