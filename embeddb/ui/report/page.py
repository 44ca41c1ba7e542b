"""Shared frame of reports: templates, escaping, style."""

from __future__ import annotations

from collections.abc import Sequence
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
#: Width of charts.
WIDTH = 540
#: Longest text that is shown without a filter.
MOST_SHOWN = 2000


def render(template: str, **parts: Any) -> Markup:
    """Render a template of this package. Every text in it is escaped, and its control and direction
    characters are made visible, even if the template does not ask for it."""
    from markupsafe import Markup

    page = _environment().get_template(template).render(version=__version__, **parts)
    return Markup(page)  # escaped by the template


@cache
def page_style() -> Markup:
    """The CSS of a page with a report body, including that of its charts."""
    own = (_FOLDER / "report.css").read_text(encoding="utf-8")
    return markup(own + draw.style())


def markup(safe: str) -> Markup:
    """Mark a chart or style as safe; they escape their texts themselves."""
    from markupsafe import Markup

    return Markup(safe)


def bars(
    rows: Sequence[draw.Bar], *, title: str, key: str, unit: str = "×", least: int = 1
) -> Markup | None:
    """A bar chart that is readable on a small screen; gains have a line at 1. None for fewer than
    `least` rows."""
    if len(rows) < least:
        return None
    reference = 1.0 if unit == "×" else None
    drawn = draw.bars(rows, title=title, unit=unit, reference=reference, width=WIDTH, key=key)
    return markup(drawn)


def environment(folder: Path, nothing: str = "") -> Environment:
    """Jinja environment of a folder, with `PAGE_FILTERS`; None is rendered as `nothing`. All texts
    are escaped, truncated and made visible."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    def final(value: Any) -> Any:
        """The rendered value of an expression; one with `__html__` is escaped already."""
        if isinstance(value, str) and not hasattr(value, "__html__"):
            return shown(value, MOST_SHOWN)
        return nothing if value is None else value

    templates = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        finalize=final,
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    templates.filters |= PAGE_FILTERS
    return templates


@cache
def _environment() -> Environment:
    templates = environment(_FOLDER)
    templates.filters["feature_words"] = feature_words
    templates.filters["feature_value"] = lambda value, feature: feature_value(feature, value)
    templates.globals["page_style"] = page_style
    return templates
