"""Model files of a database: in its folder, or on the server for the team."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from embeddb.core.errors import ModelError, StoreCorrupt
from embeddb.core.files import model_file
from embeddb.core.files.model_file import digest, version_of
from embeddb.core.files.safe_write import OwnFolder
from embeddb.store.models import ModelEntry, checked, in_use

if TYPE_CHECKING:
    from embeddb.store.store import Store

#: Largest size in bytes of a file on a server: those of this program have one to three million.
MOST_SHARED = 256 << 20
#: Before the version of a model, the name of the note with its file on a server.
NOTE = "model-file/"


#: Name of the folder of models in the database's folder.
MODELS = "models"
#: Descriptions of faulty states.
_FAULTS = {
    "file missing": "its file is missing",
    "file differs": "the file is of another version",
    "file damaged": "the file cannot be read",
}
#: Kind of model by the pattern of its file name.
_KINDS = {
    "costmodel-*.safetensors": "costmodel",
    "scnn.safetensors": "featurizer",
    "scnn@*.safetensors": "featurizer",
    "towers.safetensors": "towers",
    "nests.safetensors": "nests",
    "kernels-*.safetensors": "kernels",
}


def entry_of(path: Path) -> ModelEntry:
    """Registry entry of a model file. Raises: ModelError if it cannot be read."""
    kind = next((kind for names, kind in _KINDS.items() if path.match(names)), "")
    file = model_file.read(path, kind=kind)
    return checked(ModelEntry(file.version, file.card, path.name))


def register_files(store: Store, replaced: Iterable[ModelEntry] = ()) -> list[str]:
    """Register the files in the database's folder, in one transaction; returns one line for each
    file that cannot be registered. `replaced` are models whose files were in use until now. For a
    database on a server the folder is this user's alone: files missing in it may belong to others.

    Raises: StoreLocked, StoreReadOnly, StoreFull as every write does.
    """
    entries, bad = _read(store)
    there = {*bad, *(entry.file for entry in entries)}
    gone = {entry.file for entry in store.models.entries() if entry.used} - there
    store.models.register([*replaced, *entries], gone=frozenset() if store.shared else gone)
    publish_models(store)
    return list(bad.values())


def publish_models(store: Store) -> None:
    """For a server: upload the files of registered models in the local folder."""
    if store.shared and store.path is not None:
        there = {entry.version for entry in model_entries(store)}
        folder = OwnFolder(store.path, MODELS)
        for entry in store.models.entries():
            if entry.version in there and store.notes.get(NOTE + entry.version) is None:
                with suppress(OSError):  # removed since, or too large: used on this machine only
                    data = folder.read(entry.file, MOST_SHARED)
                    store.notes.put(NOTE + entry.version, data)


def fetch_models(store: Store) -> None:
    """For a server: download the files of the models in use, as the team registered them."""
    if store.shared and store.path is not None:
        folder = OwnFolder(store.path, MODELS)
        used = in_use(store.models.entries()).values()
        for entry in (e for e in used if _is_model(e.file)):
            with suppress(ModelError, OSError):  # missing, or a folder that cannot be written to
                if version_of(folder.path / entry.file) == entry.version:
                    continue
            data = store.notes.get(NOTE + entry.version)
            if data is not None and digest(data) == entry.version:
                with suppress(OSError):
                    folder.write(entry.file, data)


def model_entries(store: Store) -> list[ModelEntry]:
    """Registry entries of the model files in the database's folder."""
    return _read(store)[0]


def model_states(store: Store, entries: Iterable[ModelEntry]) -> dict[str, str]:
    """State of each version: `in use`, `replaced`, `file missing`, `file differs`, `file damaged`,
    `by a query` (learned from few samples), or `no file here` (it came with an export, or its file
    was removed)."""
    listed = list(entries)
    present, bad = _read(store)
    there = {entry.file: entry.version for entry in present}
    last = in_use(listed)
    states = {}
    for entry in listed:
        state = "replaced" if entry.used else "no file here"
        if not entry.used and "stamp" in entry.card:
            state = "by a query"
        if entry.used and last[entry.file] is entry:
            state = "file damaged" if entry.file in bad else "file missing"
            if entry.file in there:
                state = "in use" if there[entry.file] == entry.version else "file differs"
        states[entry.version] = state
    return states


def registry_problems(store: Store) -> list[str]:
    """One line for each model in use whose file is not the one that was registered."""
    try:
        entries = store.models.entries()
    except StoreCorrupt:  # the store's own check lists the damage
        return []
    states = model_states(store, entries)
    return [
        f"model {entry.file}: version {entry.version} is in use, but {_FAULTS[state]}; "
        "`embeddb db rebuild` registers what is there"
        for entry in entries
        if (state := states[entry.version]) in _FAULTS
    ]


def unregistered(store: Store) -> list[str]:
    """One line for each model file that is not registered: it is used, but no record of it will
    remain once it is replaced."""
    entries, bad = _read(store)
    registered = {entry.version for entry in store.models.entries()}
    names = [entry.file for entry in entries if entry.version not in registered]
    hint = "not registered; the first answer that uses it, or `embeddb db rebuild`, registers it"
    return [*(f"model {name}: {hint}" for name in names), *bad.values()]


def _is_model(name: str) -> bool:
    return any(fnmatchcase(name, kind) for kind in _KINDS) and "/" not in name


def _read(store: Store) -> tuple[list[ModelEntry], dict[str, str]]:
    """Entries of the files in the database's folder, and by name the error of each file that cannot
    be read."""
    entries: list[ModelEntry] = []
    bad: dict[str, str] = {}
    if store.path is not None:
        folder = OwnFolder(store.path, MODELS)
        for name in filter(_is_model, folder.files()):
            try:
                entries.append(entry_of(folder.path / name))
            except ModelError as e:
                bad[name] = str(e)
    return entries, bad
