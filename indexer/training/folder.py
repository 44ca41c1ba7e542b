"""The files of a training, its curve among them, and the origin in its card; without torch.

A curve is JSON lines, one for each epoch. `embeddb plot training` draws it.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from embeddb.core import __version__
from embeddb.core.errors import InputError
from embeddb.core.files.safe_read import read_bounded, reason_of
from embeddb.core.files.safe_write import OwnFolder, whole_file

#: Figures of one epoch by name; `epoch` is one of them.
Line = dict[str, float]

#: Most bytes of a curve.
_MOST_BYTES = 64 << 20


def folder_of(out: Path) -> Path:
    """Folder of the checkpoint and curve of a training, beside its model file `out`."""
    return out.with_name(f"{out.stem}.training")


def checkpoint_of(folder: Path) -> Path:
    """The file that exists as long as a training is unfinished."""
    return folder / "checkpoint.safetensors"


def curve_of(folder: Path) -> Path:
    """The curve: JSON lines of each epoch's figures, `train_loss` and `seconds`."""
    return folder / "curve.jsonl"


def forget(folder: Path) -> None:
    """Remove the checkpoint of a finished training; the curve stays."""
    with suppress(FileNotFoundError):
        OwnFolder(folder.parent, folder.name).remove(checkpoint_of(folder).name)


def origin_card(seed: int) -> dict[str, Any]:
    """Entries of a card about the time and code of a training."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return {"seed": seed, "code": __version__, "created": created}


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
