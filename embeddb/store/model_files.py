"""The model files of a database: in its folder, or kept on the server for colleagues."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from embeddb.core.errors import ModelError, StoreCorrupt
from embeddb.core.files import model_file
from embeddb.core.files.model_file import digest, version_of
from embeddb.core.files.own_files import OwnFolder
from embeddb.store.models import ModelEntry, checked, in_use

if TYPE_CHECKING:
    from embeddb.store.store import Store

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


#: The folder of models, below the database's own.
MODELS = "models"
#: What is wrong in words.
_SAID = {
    "file missing": "its file is missing",
    "file differs": "the file is of another version",
    "file damaged": "the file cannot be read",
}
#: Kind of model by the names that a database looks for.
_KINDS = {
    "costmodel-*.safetensors": "costmodel",
    "scnn.safetensors": "featurizer",
    "scnn@*.safetensors": "featurizer",
    "towers.safetensors": "towers",
    "nests.safetensors": "nests",
    "kernels-*.safetensors": "kernels",
}


def entry_of(path: Path) -> ModelEntry:
    """What there is to register of a model file. Raises: ModelError if it cannot be read."""
    kind = next((kind for names, kind in _KINDS.items() if path.match(names)), "")
    file = model_file.read(path, kind=kind)
    return checked(ModelEntry(file.version, file.card, path.name))


def register_files(store: Store, replaced: Iterable[ModelEntry] = ()) -> list[str]:
    """Bring the registry to what lies in the database's folder, in one transaction; one line for
    each file that cannot be registered. `replaced` are models whose files were in use until now.
    Of a database on a server the folder is this user's alone: what it lacks others may have.

    Raises: StoreLocked, StoreReadOnly, StoreFull as every write does.
    """
    paths = _files(store)
    found, bad = _read(paths)
    known = store.models.entries()
    gone = {entry.file for entry in known if entry.used} - {path.name for path in paths}
    store.models.register([*replaced, *found], gone=frozenset() if store.shared else gone)
    publish_models(store)
    return list(bad.values())


def publish_models(store: Store) -> None:
    """On a server: keep the files of registered models that lie here in the database."""
    if store.shared and store.path is not None:
        there = {entry.version for entry in model_entries(store)}
        known = [entry for entry in store.models.entries() if entry.version in there]
        publish_files(store, OwnFolder(store.path, MODELS), known)


def fetch_models(store: Store) -> None:
    """Beside a server: have the files of the models in use, as colleagues registered them."""
    if store.shared and store.path is not None:
        used = [e for e in in_use(store.models.entries()).values() if _is_model(e.file)]
        fetch_files(store, OwnFolder(store.path, MODELS), used)


def model_entries(store: Store) -> list[ModelEntry]:
    """What there is to register of the model files in the database's folder."""
    return _read(_files(store))[0]


def model_states(store: Store, entries: Iterable[ModelEntry]) -> dict[str, str]:
    """Of each version `in use`, `replaced`, `file missing`, `file differs`, `file damaged`, or `no
    file here` (it came with an export, or its file was taken away)."""
    listed = list(entries)
    found, bad = _read(_files(store))
    there = {entry.file: entry.version for entry in found}
    last = in_use(listed)
    states = {}
    for entry in listed:
        state = "replaced" if entry.used else "no file here"
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
    except StoreCorrupt:  # the store's own check names the damage
        return []
    states = model_states(store, entries)
    return [
        f"model {entry.file}: version {entry.version} is registered as in use, but {_SAID[state]}; "
        "`embeddb db rebuild` registers what is there"
        for entry in entries
        if (state := states[entry.version]) in _SAID
    ]


def unregistered(store: Store) -> list[str]:
    """One line for each model file that is not registered: it answers, but nothing will be known of
    it once it is replaced."""
    found, bad = _read(_files(store))
    known = {entry.version for entry in store.models.entries()}
    names = [entry.file for entry in found if entry.version not in known]
    said = "not registered; the first answer that rests on it, or `embeddb db rebuild`, does that"
    return [*(f"model {name}: {said}" for name in names), *bad.values()]


def _files(store: Store) -> list[Path]:
    if store.path is None:
        return []
    folder = OwnFolder(store.path, MODELS)
    return [folder.path / name for name in folder.files() if _is_model(name)]


def _is_model(name: str) -> bool:
    return any(fnmatchcase(name, kind) for kind in _KINDS) and "/" not in name


def _read(paths: Iterable[Path]) -> tuple[list[ModelEntry], dict[str, str]]:
    """The entries, and by name what is wrong with those files that cannot be read."""
    found, bad = [], {}
    for path in paths:
        try:
            found.append(entry_of(path))
        except ModelError as e:
            bad[path.name] = str(e)
    return found, bad
