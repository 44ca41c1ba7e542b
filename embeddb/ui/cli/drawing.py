"""What every verb of `plot` shares: the file to write, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from embeddb.ui.cli.output import emit, say

__all__ = ["finish", "out_option"]

F = TypeVar("F", bound=Callable[..., Any])


def _target(_: click.Context, __: click.Parameter, value: str) -> Path:
    """Before minutes are spent on a drawing that cannot be written."""
    from embeddb.ui.draw import check_target

    out = Path(value)
    check_target(out)
    return out


def out_option(command: F) -> F:
    """The -o of every drawing; arrives as the path `out`."""
    help_text = "The .svg or .png to write."
    add = click.option("-o", "out", required=True, metavar="FILE", callback=_target, help=help_text)
    return add(command)


def finish(svg: str, out: Path, document: Mapping[str, Any], as_json: bool) -> None:
    """Write the drawing, and say so."""
    from embeddb.ui.draw import write

    write(svg, out)
    if as_json:
        emit({"file": str(out), **document})
        return
    say(f"{out}: {document['title']}")
