"""Hook for the HTML of public objects in notebooks. Drawing is above the types that are drawn, so
the package `embeddb` registers the renderer here."""

from __future__ import annotations

from collections.abc import Callable

_renderers: list[Callable[[object], str]] = []


def set_html_renderer(draw: Callable[[object], str]) -> None:
    """Register the function that renders public objects as HTML."""
    _renderers[:] = [draw]


def html_of(thing: object) -> str:
    """Self-contained HTML of an object, for the `_repr_html_` of a public type."""
    return _renderers[0](thing)
