"""The curve of a training: JSON lines, one for each epoch. `embeddb plot training` draws it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec

from embeddb.core.errors import InputError
from embeddb.core.files.safe_read import read_bounded, reason_of
from embeddb.core.files.safe_write import whole_file

#: Figures of one epoch by name; `epoch` is one of them.
Line = dict[str, float]

#: Most bytes of a file.
_MOST_BYTES = 64 << 20


def write_curve(file: Path, lines: list[Line]) -> None:
    """Write a curve under a temporary name, then rename it."""
    with whole_file(file) as out:
        out.writelines((json.dumps(line) + "\n").encode() for line in lines)


def read_curve(file: Path) -> list[Line]:
    """The lines of a curve, in order.

    Raises: InputError, with the line, for an invalid curve.
    """
    where = str(file)
    try:
        texts = read_bounded(file, _MOST_BYTES).decode("utf-8").splitlines()
    except OSError as e:
        raise InputError(f"cannot be read: {reason_of(e)}", where=where) from None
    except UnicodeDecodeError:
        raise InputError("not a curve: not UTF-8", where=where) from None
    lines = [_line(text, where, number) for number, text in enumerate(texts, start=1)]
    if not lines:
        raise InputError("not a curve: it has no lines", where=where)
    return lines


def _line(text: str, where: str, number: int) -> Line:
    hint = "a curve is the curve.jsonl that `embeddb train` writes"
    line: Line = {}
    try:
        figures = msgspec.json.decode(text, type=dict[str, int | float])
        line = {name: n if name == "epoch" else float(n) for name, n in figures.items()}
        finite = all(map(math.isfinite, line.values()))
    except (msgspec.MsgspecError, OverflowError, RecursionError):
        finite = False
    if not finite:
        raise InputError("not a line of finite figures", where=where, line=number, hint=hint)
    if "epoch" not in line:
        raise InputError("a line without its epoch", where=where, line=number, hint=hint)
    return line
