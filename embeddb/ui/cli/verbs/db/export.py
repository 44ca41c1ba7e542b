"""`db export`: a database as one file."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import click

from embeddb.core.config import Op
from embeddb.core.errors import UsageError
from embeddb.core.wording import plural
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.output import emit, json_option, note, say

__all__ = ["export_verb"]


@click.command("export")
@click.argument("db")
@click.argument("file")
@click.option("--format", default="", help="jsonl, csv, t4 or c-header; else by FILE's ending.")
@click.option("--platform", default="", help="Only this platform (a bare name: all instances).")
@click.option("--op", default="", help="Only this operation.")
@click.option("--brief", is_flag=True, help="JSONL: five quantiles instead of every repeat.")
@json_option
def export_verb(db: str, file: str, as_json: bool, **asked: Any) -> None:
    """Write DB to FILE; `-` is stdout. JSONL loses no run; structures and answers stay behind.
    CSV and T4 name loop nests; their code is written beside FILE, for `index --matrices FOLDER`.

    FILE ending in .jsonl, .csv, .json (T4) or .h tells the format; .gz packs it.

    \b
    Example:
      embeddb db export runs.db runs.jsonl.gz
      embeddb db export runs.db best.h --platform cpu --op spmm:128
    """
    from indexer.exchange.exchange import export, export_file

    if file == "-" and as_json:
        raise UsageError("stdout holds either the export or the document of --json")
    op = Op.parse(asked["op"]) if asked["op"] else None
    only: dict[str, Any] = {"platform": asked["platform"], "op": op, "brief": asked["brief"]}
    with open_database(db, readonly=True) as opened:
        if file == "-":
            out = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="\n")
            try:
                report = export(opened.index, out, format=asked["format"] or "jsonl", **only)
            finally:
                out.flush()
                out.detach()  # else stdout is closed with it
        else:
            report = export_file(opened.index, Path(file), format=asked["format"], **only)
    if report.nests_without_code:
        many = plural(report.nests_without_code, "nest")
        note(f"{many} by name only: `embeddb nest show {db} NAME --as json` writes their code")
    line = f"{plural(report.runs, 'run')} of {plural(report.patterns, 'pattern')} written to {file}"
    if file == "-":
        note(line)
    elif as_json:
        emit(report.document())
    else:
        say(line)
        for beside in report.nest_files:
            say(f"the code of its nests written to {beside}")
