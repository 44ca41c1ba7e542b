"""What a notebook shows of an object. Drawing sits above everything that is drawn, so whoever draws
says so here; `embeddb` itself does."""

from __future__ import annotations

from collections.abc import Callable

_drawing: list[Callable[[object], str]] = []


def draw_with(draw: Callable[[object], str]) -> None:
    """Have the HTML of public objects made by this function from now on."""
    _drawing[:] = [draw]


def html_of(thing: object) -> str:
    """One piece of HTML that needs nothing else, for the `_repr_html_` of a public type."""
    return _drawing[0](thing)
