"""The database that ships with embeddb, unpacked on first use."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import uuid
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from embeddb.core.config import Op
from embeddb.core.errors import InputError
from embeddb.core.files.user_folders import user_folder
from embeddb.core.reports import Progress, ignore_progress

#: The word for the shipped database; a folder of that name is `./starter`.
STARTER = "starter"
#: Name of the note with the number of shipped runs.
_SHIPPED_RUNS = "starter/runs"
STARTER_FILE = Path(__file__).parents[1] / "embeddb" / "data" / "starter.rows"
_unpacking = threading.Lock()


def is_shipped() -> bool:
    """True if its data are part of this installation."""
    return STARTER_FILE.is_file()


def starter_folder(
    *,
    note: Callable[[str], None] | None = None,
    progress: Progress = ignore_progress,
) -> Path:
    """The folder of the shipped database, unpacked on first use into `starter_place`.

    It is filled under another name and then renamed, so that a killed process leaves no partial
    folder. `note` gets a line when unpacking begins, `progress` (task, done, total), a total of 0
    unknown.

    Raises: InputError if the data file is missing; StoreCorrupt if it is damaged.
    """
    folder = starter_place()
    if not (folder / "data.mdb").is_file():
        with _unpacking:  # other threads wait for the first
            if not (folder / "data.mdb").is_file():
                if note is not None:
                    note(f"unpacking the starter database into {folder} (once, some seconds)")
                _unpack_into(folder, progress)
    return folder


def copy_starter(to: Path, *, note: Callable[[str], None] | None = None) -> None:
    """Make `to` a copy of the shipped database without runs measured since. It is unpacked first if
    needed, and again if runs were added.

    Raises: as `starter_folder`; StoreLocked while another process writes.
    """
    from embeddb.index.lookup import Lookup
    from embeddb.store.lmdb_files import WRITER_FILE
    from embeddb.store.locks import locked_file

    folder = starter_folder(note=note)
    with Lookup.open(folder, readonly=True) as db:
        as_shipped = db.store.notes.get(_SHIPPED_RUNS) == str(db.store.count_runs()).encode()
    if not as_shipped:
        if note is not None:
            note("the starter database has added runs: unpacking the shipped data again")
        to.mkdir(parents=True)
        _fill(to, ignore_progress)
        return
    with locked_file(folder / WRITER_FILE, wait_s=10.0):
        shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*lock*"))


def starter_place() -> Path:
    """Folder of the shipped database, existing or to be: among the user's data, named by its
    version, so that each release has its own.

    Raises: InputError if the data file is missing.
    """
    return _home() / f"{STARTER}-{starter_version()}"


def starter_version() -> str:
    """Twelve hex digits of the digest of the shipped runs and models.

    Raises: InputError if the data file is missing.
    """
    if not is_shipped():
        raise InputError(
            "the starter database is not part of this installation",
            where=str(STARTER_FILE),
            hint="name a database folder created by `embeddb index`",
        )
    files = (STARTER_FILE, *sorted(STARTER_FILE.parent.glob("*.safetensors")))
    stats = [file.stat() for file in files]
    return _version(tuple((f, s.st_size, s.st_mtime_ns) for f, s in zip(files, stats, strict=True)))


@lru_cache(maxsize=4)
def _version(files: tuple[tuple[Path, int, int], ...]) -> str:
    """Digest of files, given with sizes and modification times; read once in a process."""
    digest = hashlib.blake2b(digest_size=6)
    for file, _, _ in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def source_model(text: str, op: Op) -> str:
    """File of the model to start from: for `starter` the shipped network of the operation's kernel,
    which is of one CPU, else the file `text`, empty for none.

    Raises: InputError if none ships for it.
    """
    if text != STARTER:
        return text
    files = sorted(STARTER_FILE.parent.glob(f"costmodel-cpu@*-{op.name}.safetensors"))
    if not files:
        where = str(STARTER_FILE.parent)
        raise InputError(f"no model ships for {op.name}", where=where, hint="--from MODEL")
    return str(files[0])


def _home() -> Path:
    own = os.environ.get("EMBEDDB_HOME")
    if own:
        return Path(own)
    try:
        return user_folder("XDG_DATA_HOME", ".local/share")
    except RuntimeError:
        raise InputError(
            "this user has no home folder to keep the starter database in",
            hint="set EMBEDDB_HOME to a folder",
        ) from None


def _unpack_into(folder: Path, progress: Progress) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    _collect_leftovers(folder.parent)
    # A unique name: in a container a killed process may have had the same process id.
    part = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.{os.getpid()}.part")
    part.mkdir()
    try:
        _fill(part, progress)
        try:
            part.rename(folder)
        except OSError:
            if not (folder / "data.mdb").is_file():  # else another process was faster
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _fill(folder: Path, progress: Progress) -> None:
    # A caller that only needs the path (a shell's completion) must not wait for these imports.
    from embeddb.index.lookup import Lookup
    from indexer.embed import embed
    from indexer.exchange.export_records import adopt_models
    from indexer.shipped.file import unpack

    with Lookup.create(folder) as db:
        for runs in unpack(STARTER_FILE, db.store.engine):
            progress("unpack", runs, 0)
        # Shipped runs have their vectors; a user's own featurizer, or a newer one, has none yet.
        embed(db, build=False, progress=progress)
        adopt_models(db, STARTER_FILE.parent)
        db.store.notes.put(_SHIPPED_RUNS, str(db.store.count_runs()).encode())


def _collect_leftovers(home: Path) -> None:
    """Remove the partial folders of killed processes."""
    for part in home.glob(f".{STARTER}-*.part"):
        pid = part.name.split(".")[-2]
        if pid.isdigit() and not _alive(int(pid)):
            shutil.rmtree(part, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True
