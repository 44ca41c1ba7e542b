"""`init`, `index`, `ingest`, `embed`: from run logs to a database that answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from embeddb.core.config import Op
from embeddb.core.errors import MatrixError, ReaderError, UsageError
from embeddb.database import Database
from embeddb.platforms.platform import Platform
from embeddb.ui.cli.arguments import STARTER, open_database, run_platform
from embeddb.ui.cli.output import (
    Progress,
    duration,
    emit,
    json_option,
    note,
    plural,
    say,
    table,
)
from indexer.coverage import example_query, scope_states, show_states

__all__ = ["embed_verb", "index_verb", "ingest_verb", "init_verb"]

F = TypeVar("F", bound=Callable[..., Any])

_READING = (
    click.option("--platform", default="", help="Name, name@instance or TOML file."),
    click.option("--format", "reader", default="", help="Reader; recognised if left out."),
    click.option("--matrices", default="", help="Folder of the matrix files the runs name."),
    click.option("--features", default="", help="File of matrix features that goes with the runs."),
    click.option("--op", default="", help="Operation, if the file does not say: spmm:128."),
    click.option("--unit", default="", help="Unit of times without one: s, ms, us or ns."),
    click.option("--map", "columns", multiple=True, metavar="ROLE=COLUMN", help="A role's column."),
    click.option("--matrix", default="", help="Matrix name, if the file lacks it."),
    click.option("--instance", default="", help="Device label, if the file lacks it."),
)


def _reading(command: F) -> F:
    """The options that say how a run log is to be read."""
    for option in reversed(_READING):
        command = option(command)
    return command


@click.command()
@click.argument("db")
@json_option
def init_verb(db: str, as_json: bool) -> None:
    """Make an empty database folder DB.

    \b
    Example:
      embeddb init runs.db
    """
    if db == STARTER:
        raise UsageError(f"{STARTER!r} is the shipped database", hint=f"for a folder: ./{STARTER}")
    with Database.create(db) as made:
        document = {"database": str(made.store.path), "generation": made.store.generation}
    if as_json:
        emit(document)
    else:
        say(f"made {db}; fill it with `embeddb index {db} RUNS --platform P`")


@click.command()
@click.argument("db")
@click.argument("runs", nargs=-1, required=True)
@_reading
@json_option
def index_verb(db: str, runs: tuple[str, ...], as_json: bool, **asked: Any) -> None:
    """Run logs RUNS to a database DB that answers, in one go.

    Checks the platform file, makes DB if there is none, reads every file, gives stubs the
    structure of the matrices in --matrices, embeds, and says what can be answered now and what is
    missing. Reading a file twice adds nothing; an interrupted one goes on where it stopped.

    \b
    Example:
      embeddb index fpga.db runs.csv --platform my_platform.toml --matrices matrices/
      embeddb index spmv.db spmv_times.csv --format ginkgo --features matrix_features.csv
    """
    missing = [path for path in runs if not Path(path).exists()]
    if missing:
        raise ReaderError("no such file", where=missing[0])
    checked = _checked(asked["platform"])
    with open_database(db, create=True) as opened, Progress() as progress:
        library = _library(asked["matrices"])
        reports = [_ingest(opened, path, asked, library, progress) for path in runs]
        moved = _adopt(opened, library)
        embedded = _embed(opened, progress)
        states = scope_states(opened)
        example = example_query(opened, db, states, _any_file(asked["matrices"]))
    problems = list(dict.fromkeys(library.problems))
    document = {
        "database": db,
        "platform_problems": checked,
        "files": [report.document() for report in reports],
        "adopted_runs": moved,
        "matrix_problems": problems,
        "embedded": embedded["vectors"],
        "embed_problems": embedded["problems"],
        "answers": states,
        "example": example,
    }
    if as_json:
        emit(document)
        return
    for report in reports:
        _show_report(report)
    if moved:
        say(f"{plural(moved, 'run')} of stubs moved to their matrix")
    _warn([*checked, *problems, *embedded["problems"]])
    say()
    show_states(states)
    if example:
        say()
        say(f"ask: {example}")


@click.command()
@click.argument("db")
@click.argument("file")
@_reading
@json_option
def ingest_verb(db: str, file: str, as_json: bool, **asked: Any) -> None:
    """Read one run log FILE into DB; `embed` or a query makes it answer.

    Rows that cannot be used go to FILE.rejects.jsonl with line and reason.

    \b
    Example:
      embeddb ingest runs.db runs.csv --platform my_platform.toml --op spmm:128 --unit us
      embeddb ingest runs.db log.jsonl --platform spade --map matrix=name --map time_ms=elapsed
    """
    with open_database(db) as opened, Progress() as progress:
        library = _library(asked["matrices"])
        report = _ingest(opened, file, asked, library, progress)
    if as_json:
        emit({**report.document(), "matrix_problems": list(dict.fromkeys(library.problems))})
        return
    _show_report(report)
    _warn(list(dict.fromkeys(library.problems)))


@click.command()
@click.argument("db")
@click.option("--again", is_flag=True, help="Forget everything derived first.")
@click.option("--weights", default="", metavar="FILE", help="Weights of `scnn` for DB from now on.")
@json_option
def embed_verb(db: str, again: bool, weights: str, as_json: bool) -> None:
    """Compute missing vectors of DB and refresh its indexes.

    With --weights, a model file made by `embeddb train featurizer` is checked and copied into DB;
    `scnn` then embeds everything anew. Vectors of other weights are never compared with its own.

    \b
    Example:
      embeddb embed runs.db
      embeddb embed runs.db --weights scnn.safetensors
    """
    with open_database(db) as opened, Progress() as progress:
        version = opened.use_weights(weights) if weights else None
        document = {**_embed(opened, progress, again=again), "weights": version}
    if as_json:
        emit(document)
        return
    if version is not None:
        say(f"weights {version} of scnn are those of {db} now")
    table(("featurizer", "vectors"), document["vectors"].items())
    say(plural(len(document["partitions"]), "index", "indexes") + " up to date")
    for line in document["notes"]:
        note(line)
    _warn(document["problems"])


def _checked(platform: str) -> list[str]:
    """Problems of a platform file; built-in platforms are known to have none."""
    from embeddb.platforms.check import check_platform

    return check_platform(run_platform(None, platform)) if platform.endswith(".toml") else []


def _library(folder: str) -> Any:
    from indexer.library import Library

    return Library(Path(folder) if folder else None)


def _any_file(folder: str) -> str:
    """A matrix file that can be asked about, if a folder was given."""
    from embeddb.matrix_files import matrix_files, read_pattern

    for path in matrix_files(folder)[:5] if folder else ():
        try:
            read_pattern(path)
        except MatrixError:
            continue
        return str(path)
    return ""


def _ingest(
    db: Database, path: str, asked: dict[str, Any], library: Any, progress: Progress
) -> Any:
    from indexer.ingest import ingest
    from indexer.readers.base.row import ReadOptions

    options = ReadOptions(
        op=Op.parse(asked["op"]) if asked["op"] else None,
        unit=asked["unit"],
        columns=_columns(asked["columns"]),
        features=Path(asked["features"]) if asked["features"] else None,
        matrix=asked["matrix"],
        instance=asked["instance"],
    )
    return ingest(
        db.store,
        Path(path),
        reader=asked["reader"],
        platform=_platform(db, asked["platform"]),
        options=options,
        library=library,
        progress=lambda rows: progress(f"read {Path(path).name}", rows),
    )


def _platform(db: Database, text: str) -> Platform | None:
    return run_platform(db, text) if text else None


def _columns(pairs: tuple[str, ...]) -> dict[str, str]:
    columns = {}
    for pair in pairs:
        role, sep, column = pair.partition("=")
        if not (sep and role and column):
            raise UsageError(f"--map {pair}: not ROLE=COLUMN", hint="--map time_ms=elapsed")
        columns[role] = column
    return columns


def _adopt(db: Database, library: Any) -> int:
    from indexer.embed import adopt_stubs

    return adopt_stubs(db, library) if len(library) else 0


def _embed(db: Database, progress: Progress, *, again: bool = False) -> dict[str, Any]:
    from indexer.embed import embed

    report = embed(db, again=again, progress=progress)
    return {
        "vectors": report.vectors,
        "partitions": report.partitions,
        "problems": report.problems,
        "notes": report.notes,
    }


def _show_report(report: Any) -> None:
    new = f"{plural(report.added, 'run')} added"
    known = f", {report.duplicates:,} known already" if report.duplicates else ""
    say(
        f"{report.file}: {plural(report.rows, 'row')} read as {report.reader} in "
        f"{duration(report.seconds)}: {new}{known}, {report.rejected:,} rejected"
    )
    if report.resumed_at:
        say(f"  taken up at row {report.resumed_at:,}: what lies before was read earlier")
    for name, rows in report.new_values.items():
        named = ", ".join(f"{value} ({plural(n, 'row')})" for value, n in rows.items())
        say(f"  new values of {name}, which the platform leaves open: {named}")
    if report.rejected:
        say(f"  rejected rows with their reasons: {report.rejects_file}")


def _warn(lines: list[str]) -> None:
    for line in lines[:20]:
        note(f"warning: {line}")
    if len(lines) > 20:
        note(f"warning: and {len(lines) - 20} more like these")
