"""`platform draft`: a platform file from a run log."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from embeddb.core.errors import InputError
from embeddb.core.files.own_files import check_place, whole_file
from embeddb.core.wording import plural
from embeddb.ui.cli.logs.reading import read_options
from embeddb.ui.cli.output import emit, json_option, note, say

__all__ = ["draft_verb"]


@click.command("draft")
@click.argument("log")
@click.option("-o", "--out", "file", default="", metavar="FILE", help="Else it is printed.")
@click.option("--name", default="", help="Of the platform.  [default: that of FILE, else of LOG]")
@click.option("--op", default="", help="Operation, if the log does not say: spmm:128.")
@click.option("--unit", default="", help="Of times without one: s, ms, us, ns or cycles.")
@click.option("--map", "columns", multiple=True, metavar="ROLE=COLUMN", help="A role's column.")
@click.option("--matrix", default="", help="Matrix name, if the log lacks it.")
@click.option("--format", "reader", default="", help="csv or jsonl; recognised if left out.")
@json_option
def draft_verb(log: str, file: str, name: str, reader: str, as_json: bool, **asked: Any) -> None:
    """Write a platform file from a LOG of runs: CSV, or JSON lines.

    Columns that are neither matrix, time, status nor another role are parameters, with the values
    that the log has; a parameter that is empty in some rows gets the condition that says in which.
    What the log cannot say, such as the default, is a guess, marked in the file by the word GUESS.
    What is never guessed is asked for: the operation, and the unit of the times.

    \b
    Example:
      embeddb platform draft runs.csv --op spmm:32 -o my.toml
      embeddb platform check my.toml
      embeddb index my.db runs.csv --platform my.toml --matrices matrices/
    """
    from indexer.drafting.draft import draft_platform

    if file:
        _refuse_existing(Path(file))
    options = read_options({**asked, "features": "", "instance": ""})
    draft = draft_platform(Path(log), options, reader=reader, name=name or (file or log))
    if file:
        with whole_file(Path(file)) as out:
            out.write(draft.text.encode())
    if as_json:
        body = {"platform": draft.name, "file": file or None, "text": draft.text}
        counts = {"rows": draft.rows, "rejected": draft.rejected, "reason": draft.reason}
        emit({**body, **counts, "guesses": draft.guesses, "left_out": draft.left_out})
        return
    if not file:
        for line in draft.text.splitlines():
            say(line)
    for guess in draft.guesses:
        note(f"guess: {guess}")
    for column, reason in draft.left_out.items():
        note(f"no parameter: {column} ({reason})")
    if draft.rejected:
        note(f"{plural(draft.rejected, 'row')} left out, the first at {draft.reason}")
    if file:
        say(f"wrote {file}; next: embeddb platform check {shlex.quote(file)}")


def _refuse_existing(file: Path) -> None:
    """Raises: InputError where something is there: a platform file may have been edited."""
    check_place(file)
    if file.exists():
        raise InputError("is there already", where=str(file), hint="name another file")
