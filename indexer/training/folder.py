"""The files of a training, and the origin in its card; without torch."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from embeddb.core import __version__
from embeddb.core.files.safe_write import OwnFolder


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
