"""`nest import`: the loop nests of programs into a database."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from embeddb.core.errors import NestError, UsageError
from embeddb.core.wording import plural
from embeddb.ui.cli.arguments import database_to_fill, defined, matrices_held, program_options
from embeddb.ui.cli.output import Progress, emit, json_option, note, say, table

if TYPE_CHECKING:
    from embeddb.nests.nest import Nest

__all__ = ["import_verb"]


@click.command("import")
@click.argument("db")
@click.argument("files", nargs=-1)
@click.option(
    "--dace", "dace", multiple=True, metavar="PROGRAM.py", help="Run it, and read what DaCe makes."
)
@program_options(several=True)
@json_option
def import_verb(
    db: str,
    files: tuple[str, ...],
    defines: tuple[str, ...],
    dace: tuple[str, ...],
    held: tuple[str, ...],
    as_json: bool,
) -> None:
    """Keep the loop nests of FILES in DB, made if there is none.

    A file is C with #pragma scop (.c), a graph of DaCe (.sdfg) or nests as embeddb writes them
    (.json). With --matrix there is one of each matrix, which its index arrays hold. Runs of nests
    that DB knows by their names only move to them. A program that --dace names is run by the
    interpreter in EMBEDDB_DACE_PYTHON, so name only what you trust.

    \b
    Example:
      embeddb nest import nests.db gemm.c stencil.sdfg
      embeddb nest import nests.db gemm.c -D N=512 -D M=64
      embeddb nest import nests.db spmm.c -D K=512 --matrix A.mtx
    """
    from indexer.add import add_coded

    nests, notes, lines = _read(files, dace, defines, held)
    with database_to_fill(db) as opened, Progress() as progress:
        done = add_coded(opened.index, nests, progress=progress)
    for line in notes:
        note(line)
    if as_json:
        emit(
            {
                "database": db,
                "added": [_document(nest, lines) for nest in done.added],
                "known": [_document(nest, lines) for nest in done.known],
                "adopted_runs": done.adopted_runs,
                "notes": notes,
            }
        )
        return
    told = [(nest, "added") for nest in done.added] + [(nest, "known") for nest in done.known]
    rows = [
        (nest.name, _range(lines.get(nest.id)), str(nest.sizes), len(nest.body), nest.id, word)
        for nest, word in told
    ]
    table(("nest", "lines", "sizes", "statements", "id", ""), rows)
    say(f"{db}: {plural(len(done.added), 'nest')} added, {len(done.known):,} known already")
    if done.adopted_runs:
        say(f"{plural(done.adopted_runs, 'run')} of stubs moved to their nest")


def _read(
    files: tuple[str, ...], dace: tuple[str, ...], defines: tuple[str, ...], held: tuple[str, ...]
) -> tuple[list[Nest], list[str], dict[str, tuple[int, int]]]:
    """The nests of all files, what was left out of them, by file, and the first and last line of
    those of texts, by id.

    Raises: UsageError without a file; NestError for one that cannot be read or has no nest.
    """
    from indexer.frontends import extract

    if not files and not dace:
        raise UsageError("which program?", hint="name files, or a Python program with --dace")
    given, matrices = defined(defines), matrices_held(held)
    nests: list[Nest] = []
    notes: list[str] = []
    lines: dict[str, tuple[int, int]] = {}
    for file in (*files, *dace):
        if not Path(file).is_file():
            raise NestError("no such file", where=file)
        if file not in dace and file.endswith(".py"):
            raise NestError("is not read without being run", where=file, hint=f"--dace {file}")
        for matrix in matrices:
            found = extract(file, defines=given, matrix=matrix)
            if not found.nests:
                raise NestError("has no loop nest", where=file, hint="; ".join(found.notes))
            nests += found.nests
            lines |= {n.id: at for n, at in zip(found.nests, found.lines, strict=False)}
            notes += [f"{file}: {line}" for line in found.notes]
    return nests, notes, lines


def _range(lines: tuple[int, int] | None) -> str:
    return "-" if lines is None else f"{lines[0]}-{lines[1]}"


def _document(nest: Nest, lines: Mapping[str, tuple[int, int]]) -> dict[str, object]:
    known = {"lines": list(lines[nest.id])} if nest.id in lines else {}
    sizes = dict(nest.sizes.named)
    return {"id": nest.id, "name": nest.name, "group": nest.group, "sizes": sizes, **known}
