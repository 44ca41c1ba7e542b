"""Models of a database on a server: their files are kept in it, so that colleagues answer by them.

In a folder the file of a model in use lies in `models/`. Beside a server that folder is a cache of
one user's: the file of a model that is registered is put into the database, and where another one
lies here than is in use, or none, the one in use is taken from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from embeddb.core.errors import ModelError
from embeddb.core.files.model_file import digest, version_of
from embeddb.core.files.own_files import OwnFolder
from embeddb.store.models.table import ModelEntry

if TYPE_CHECKING:
    from embeddb.store.store import Store

__all__ = ["fetch_files", "publish_files"]

#: Of one file: those of this program have one to three million bytes.
_MOST_BYTES = 256 << 20
_NOTE = "model-file/"


def publish_files(store: Store, folder: OwnFolder, entries: Iterable[ModelEntry]) -> None:
    """Put the files of registered models into the database that are not in it yet."""
    for entry in entries:
        if store.notes.get(_NOTE + entry.version) is None:
            with suppress(OSError):  # taken away since, or too large: it answers here alone
                store.notes.put(_NOTE + entry.version, folder.read(entry.file, _MOST_BYTES))


def fetch_files(store: Store, folder: OwnFolder, entries: Iterable[ModelEntry]) -> None:
    """Have the files of the models in use in the folder, where they are in the database."""
    for entry in entries:
        with suppress(ModelError, OSError):  # missing here, or a folder that cannot be written to
            if version_of(folder.path / entry.file) == entry.version:
                continue
        data = store.notes.get(_NOTE + entry.version)
        if data is not None and digest(data) == entry.version:
            with suppress(OSError):
                folder.write(entry.file, data)
