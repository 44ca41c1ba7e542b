"""`plot spy`: where the non-zeros of a matrix lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from embeddb.core.errors import NothingFound, UsageError
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.drawing import finish, out_option
from embeddb.ui.cli.output import json_option

__all__ = ["spy_verb"]


@click.command("spy")
@click.argument("place")
@click.argument("matrix", required=False)
@out_option
@json_option
def spy_verb(place: str, matrix: str | None, out: Path, as_json: bool) -> None:
    """Draw where the non-zeros lie: of a matrix file PLACE, or of MATRIX in the database PLACE.

    32 x 32 cells, the stronger the denser, on a log scale.

    \b
    Example:
      embeddb plot spy A.mtx -o spy.svg
      embeddb plot spy starter raefsky3 -o spy.png
    """
    from embeddb.core.pattern import Pattern
    from embeddb.core.records import PatternInfo
    from embeddb.core.thumbnail import thumbnail
    from embeddb.matrix_files import read_pattern
    from embeddb.nests.nest import Nest
    from embeddb.ui.draw import spy

    if matrix is None:
        found: Any = read_pattern(place)
    else:
        with open_database(place, readonly=True) as opened:
            found = opened.find(matrix)
            if not isinstance(found, Pattern) and not found.thumbnail:
                found = opened.store.structure(found.id) or found
    if isinstance(found, Nest | PatternInfo) and found.kind != "matrix":
        raise UsageError(f"{found.name or found.id} is a nest: it has no non-zeros to draw")
    picture = thumbnail(found) if isinstance(found, Pattern) else found.thumbnail
    name = found.name or found.id
    if not picture:
        raise NothingFound(f"{name}: its structure was never seen", hint="give the matrix file")
    m, n = found.shape if isinstance(found, Pattern) else (found.m, found.n)
    title = f"{name}: {m:,} × {n:,}, {found.nnz:,} non-zeros"
    svg = spy(picture, title=title, width=384)
    document = {"title": title, "pattern": found.id, "m": m, "n": n, "nnz": found.nnz}
    finish(svg, out, document, as_json)
