"""What a notebook shows of an object; what draws it is fetched when something is shown."""

from __future__ import annotations

from importlib import import_module

__all__ = ["html_of"]


def html_of(thing: object) -> str:
    """One piece of HTML that needs nothing else, for the `_repr_html_` of a public type."""
    # Drawing sits above everything that is drawn, so it is found by name; nowhere else is.
    return str(import_module("embeddb.ui.notebook").html_of(thing))
