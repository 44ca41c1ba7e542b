"""Flat CSV: one run per row, for spreadsheets and for the `csv` reader."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from typing import TextIO

from embeddb.core.config import Value
from embeddb.core.records import PatternInfo, Run
from indexer.readers.csv import quoted

__all__ = ["write_csv"]

_COLUMNS = (
    "matrix",
    "m",
    "n",
    "nnz",
    "group",
    "op",
    "platform",
    "instance",
    "status",
    "time_s",
    "times_s",
    "conversion_s",
    "compile_s",
    "tolerance",
    "source",
    "when",
    "error",
    "campaign",
)


def write_csv(out: TextIO, runs: Iterable[Run], patterns: Iterable[PatternInfo]) -> None:
    """`time_s` is what the run tells (`Run.seconds`), `times_s` every repeat separated by `;`, a
    parameter P the column `config.P`. A text that a spreadsheet would compute (it begins with `=`,
    `+`, `-` or `@`) gets a quote before it, which the `csv` reader takes away. Not kept: contexts,
    CPU times, `replaces` and what only the pattern's record holds; use the JSONL export to lose
    nothing."""
    runs = list(runs)
    known = {info.id: info for info in patterns}
    params = sorted({name for run in runs for name in run.config})
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow([*_COLUMNS, *(f"config.{name}" for name in params)])
    for run in runs:
        info = known.get(run.pattern_id) or PatternInfo(id=run.pattern_id)
        platform, _, instance = run.platform.partition("@")
        rows.writerow(
            [
                *(_flat(info.name or info.id), info.m, info.n, info.nnz, _flat(info.group)),
                *(str(run.op), platform, instance, *_measured(run)),
                _flat(run.campaign),
                *(_cell(run.config[name]) if name in run.config else "" for name in params),
            ]
        )


def _measured(run: Run) -> list[str | float | None]:
    found = run.measurement
    return [
        found.status,
        run.seconds if found.ok else None,
        ";".join(repr(float(time)) for time in found.times_s),
        found.conversion_s,
        found.compile_s,
        found.tolerance,
        found.source,
        found.when,
        _flat(found.error),
    ]


def _cell(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return json.dumps(value)
    return _flat(value) if isinstance(value, str) else repr(value)


def _flat(text: str) -> str:
    """On one line, a row of the file is a run, and nothing that a spreadsheet would compute."""
    return quoted(" ".join(text.replace("\0", " ").splitlines()))
