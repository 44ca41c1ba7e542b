"""`ingest`: one run log into a database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.logs.proposed import accepted
from embeddb.ui.cli.logs.reading import (
    read_options,
    reading_options,
    refuse_empty,
    refuse_foreign_folder,
    show_file,
    warn,
)
from embeddb.ui.cli.output import Progress, emit, json_option

__all__ = ["ingest_verb"]


@click.command()
@click.argument("db")
@click.argument("file")
@reading_options
@json_option
def ingest_verb(db: str, file: str, as_json: bool, **asked: Any) -> None:
    """Read one run log FILE into DB; `embed` or a query makes it answer.

    Rows that cannot be used go to FILE.rejects.jsonl with line and reason.

    \b
    Example:
      embeddb ingest runs.db runs.csv --platform my_platform.toml --op spmm:128 --unit us
      embeddb ingest runs.db log.jsonl --platform spade --map matrix=name --map time_ms=elapsed
    """
    from indexer.index_runs import platform_of_runs
    from indexer.ingest import ingest
    from indexer.library import Library

    with open_database(db) as opened, Progress() as progress:
        platform = platform_of_runs(opened.index, asked["platform"])
        options = accepted(
            [file], platform, read_options(asked), reader=asked["reader"], yes=asked["yes"]
        )
        library = Library(Path(asked["matrices"]) if asked["matrices"] else None)
        report = ingest(
            opened.store,
            Path(file),
            reader=asked["reader"],
            options=options,
            platform=platform,
            library=library,
            progress=lambda rows: progress(f"read {Path(file).name}", rows),
        )
    problems = list(dict.fromkeys(library.problems))
    if as_json:
        emit({**report.document(), "matrix_problems": problems})
    else:
        show_file(report)
        warn(problems)
    refuse_empty([report])
    refuse_foreign_folder([report])
