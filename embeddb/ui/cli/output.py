"""Output of the verbs: data on stdout, progress and remarks on stderr, one JSON document."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from embeddb.core.files.safe_write import check_place, whole_file
from embeddb.core.server_url import redacted
from embeddb.core.wording import clean, duration

#: Set by a shell that requests completions; click reads it.
COMPLETING = "_EMBEDDB_COMPLETE"

T = TypeVar("T")


def say(text: object = "") -> None:
    """Print one line of data on stdout."""
    click.echo(_encodable(clean(text)))


def note(text: object) -> None:
    """Print one line on stderr."""
    click.echo(clean(text), err=True)


def note_some(lines: Sequence[str], most: int, more: str) -> None:
    """Print at most `most` lines on stderr, and `more` with the number of the others."""
    for line in lines[:most]:
        note(line)
    if len(lines) > most:
        note(more.format(len(lines) - most))


def warn(lines: Sequence[str], most: int = 20) -> None:
    """Each line as a warning, at most `most`."""
    note_some([f"warning: {line}" for line in lines], most, "warning: and {} more like these")


def figure(value: float | None) -> str:
    """A number with three decimals; a dash for None."""
    return "-" if value is None else f"{value:.3f}"


def emit(document: object) -> None:
    """Print the document of `--json`; numbers that are not finite become null. ASCII only, so that
    it reads the same on any terminal and with any encoding."""
    click.echo(json.dumps(_plain(document), indent=2))


def result(document: T, show: str | Callable[[T], None], as_json: bool) -> None:
    """Print a document for `--json`, else as text: a line, or what `show` prints of it."""
    if as_json:
        emit(document)
    elif isinstance(show, str):
        say(show)
    else:
        show(document)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, (bool, int)) or value is None:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(v) for v in value)
    return _plain(value.item()) if hasattr(value, "item") else str(value)


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, indent: str = "") -> None:
    """Print columns on stdout, numbers to the right. A terminal gets a drawn table whose long
    columns are wrapped; elsewhere, or if the terminal is too narrow, the last column has any width.
    Nothing is cut off."""
    cells = [list(head), *(["-" if x in (None, "") else clean(x) for x in row] for row in rows)]
    right = [all(row[i][:1] in "-+.0123456789" for row in cells[1:]) for i in range(len(head))]
    if sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown"):
        from embeddb.ui.cli.terminal import draw

        if draw([[_encodable(x) for x in row] for row in cells], right, indent=len(indent)):
            return
    width = [max(len(row[i]) for row in cells) for i in range(len(head))]
    for row in cells:
        parts = [x.rjust(w) if r else x.ljust(w) for x, w, r in zip(row, width, right, strict=True)]
        say(indent + "  ".join(parts).rstrip())


def _encodable(text: str) -> str:
    """Text with characters that stdout's encoding lacks replaced."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def write_page(text: str, file: Path) -> None:
    """Write a page atomically. Raises: as `check_place`."""
    check_place(file)
    with whole_file(file) as out:
        out.write(text.encode())
    note(f"wrote {file}: {len(text.encode()) / 1000:,.0f} kB")


class Progress:
    """Progress of a long task, with the time left, on stderr.

    Nothing for the first two seconds; then on a terminal one line that is rewritten, elsewhere a
    line every 15 s. A context manager: leaving clears the line.
    """

    _QUIET_S = 2.0
    _TERMINAL_EVERY_S = 0.2
    _PLAIN_EVERY_S = 15.0

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._every = self._TERMINAL_EVERY_S if self._terminal else self._PLAIN_EVERY_S
        self._began = time.monotonic()
        self._next = self._began + self._QUIET_S
        self._task = ("", self._began, 0)
        self._shown = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            click.echo("\r" + " " * self._shown + "\r", err=True, nl=False)
            self._shown = 0

    def __call__(self, what: str, done: int, total: int = 0) -> None:
        """`done` of `total` (0: unknown) of the task named `what`."""
        now = time.monotonic()
        if what != self._task[0]:
            self._task = (what, now, done)
        if now < self._next:
            return
        self._next = now + self._every
        line = f"{what}: {done:,}"
        if total:
            line += f" of {total:,} ({100 * done // total} %)"
            _, began, first = self._task
            if first < done < total:
                left = (now - began) / (done - first) * (total - done)
                line += f", {duration(max(left, 1.0))} left"
        line = clean(line)
        if self._terminal:
            click.echo("\r" + line.ljust(self._shown), err=True, nl=False)
            self._shown = len(line)
        else:
            click.echo(line, err=True)
