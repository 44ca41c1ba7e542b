"""Weights that belong to a database."""

from __future__ import annotations

from pathlib import Path

from embeddb.core.errors import ModelError
from embeddb.core.files.model_file import MAX_BYTES, digest
from embeddb.core.files.safe_read import read_bounded, refusing
from embeddb.core.files.safe_write import OwnFolder


def adopt(weights: Path, folder: Path, own: Path, *, version: str) -> None:
    """Copy weights of that version to `own`, below a database's folder; old ones are replaced
    whole. Raises: ModelError if they cannot be copied, or are no longer of that version."""
    with refusing(ModelError, where=str(weights)):
        data = read_bounded(weights, MAX_BYTES)
    if digest(data) != version:
        raise ModelError("it changed while it was copied", where=str(weights), hint="try again")
    with refusing(ModelError, where=str(folder / own)):
        OwnFolder(folder, own.parent.name).write(own.name, data)
