"""`index`: from run logs to a database that answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.wording import plural
from embeddb.ui.cli.arguments import database_to_fill
from embeddb.ui.cli.coverage_text import show_states
from embeddb.ui.cli.logs.proposed import accepted, platform_asked
from embeddb.ui.cli.logs.reading import (
    read_options,
    reading_options,
    refuse_empty,
    refuse_foreign_folder,
    show_file,
    warn,
)
from embeddb.ui.cli.output import Progress, emit, json_option, say

if TYPE_CHECKING:
    from indexer.index_runs import IndexReport

__all__ = ["index_verb"]


@click.command()
@click.argument("db")
@click.argument("runs", nargs=-1, required=True)
@reading_options
@json_option
def index_verb(db: str, runs: tuple[str, ...], as_json: bool, **asked: Any) -> None:
    """Run logs RUNS to a database DB that answers, in one go.

    Checks the platform file, makes DB if there is none, reads every file, gives stubs the
    structure of the matrices in --matrices, embeds, and says what can be answered now and what is
    missing. Matrices go by their names without folders and endings; if --matrices has none of
    them, it fails, and so does a log of which no row can be used. Columns and words that are not
    named as the platform names them are proposed: --yes takes that, [log] of the platform file
    keeps it. Reading a file twice adds nothing; an interrupted one goes on where it stopped.

    \b
    Example:
      embeddb index fpga.db runs.csv --platform my_platform.toml --matrices matrices/
      embeddb index spmv.db spmv_times.csv --format ginkgo --features matrix_features.csv
    """
    from indexer.index_runs import check_inputs, index_runs

    check_inputs(runs, asked["platform"])
    platform = platform_asked(db, asked["platform"])
    options = accepted(
        runs, platform, read_options(asked), reader=asked["reader"], yes=asked["yes"]
    )
    with database_to_fill(db) as opened:
        with Progress() as progress:
            report = index_runs(
                opened.index,
                runs,
                platform=asked["platform"],
                reader=asked["reader"],
                matrices=asked["matrices"],
                options=options,
                progress=progress,
            )
        report = replace(report, database=db)
        if as_json:
            emit(report.document())
        else:
            _show(report)
        refuse_empty(report.files)
        if not report.adopted_runs:
            refuse_foreign_folder(report.files)


def _show(report: IndexReport) -> None:
    for file in report.files:
        show_file(file)
    if report.adopted_runs:
        say(f"{plural(report.adopted_runs, 'run')} of stubs moved to their matrix")
    warn(report.problems)
    say()
    show_states(report.answers)
    if report.example:
        say()
        say(f"ask: {report.example}")
