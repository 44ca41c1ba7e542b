"""From what stands on the command line to a database, a pattern or a platform."""

from __future__ import annotations

import csv
import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

from embeddb.core.errors import InputError, MatrixError, StoreCorrupt, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import PatternInfo
from embeddb.database import Database
from embeddb.platforms.platform import (
    Platform,
    builtin_platforms,
    load_platform,
    platform_here,
    runner_for,
)

__all__ = [
    "STARTER",
    "families",
    "known_pattern",
    "open_database",
    "run_platform",
    "runner_here",
    "starter_folder",
    "starter_place",
]

#: The word for the database that ships with embeddb; a folder of that name is `./starter`.
STARTER = "starter"
STARTER_FILE = Path(__file__).parents[2] / "data" / "starter.jsonl.gz"
#: Names offered where none matches are looked for among at most so many patterns.
_MOST_NAMES = 20_000


def open_database(place: str, *, readonly: bool = False, create: bool = False) -> Database:
    """The database at a path, or the shipped one; with `create`, made if there is none.

    Raises: StoreError if there is none; InputError if the shipped data is absent.
    """
    if place == STARTER:
        return Database.open(starter_folder(), readonly=readonly)
    if create and not (Path(place) / "data.mdb").exists():
        return Database.create(place)
    return Database.open(place, readonly=readonly)


def starter_folder() -> Path:
    """The shipped database, imported on first use into `starter_place`.

    It is filled under another name and then renamed: a kill leaves no half of it.
    Raises: InputError if the data file is not there.
    """
    folder = starter_place()
    if not (folder / "data.mdb").is_file():
        _import_starter(folder)
    return folder


def starter_place() -> Path:
    """Where the shipped database is, or will be on first use: a folder among the user's data, named
    by the digest of runs and models, so that a newer release brings a database of its own.

    Raises: InputError if the data file is not there.
    """
    if not STARTER_FILE.is_file():
        raise InputError(
            "the starter database is not part of this installation",
            where=str(STARTER_FILE),
            hint="name a database folder of your own, made with `embeddb index`",
        )
    digest = hashlib.blake2b(digest_size=6)
    for file in (STARTER_FILE, *sorted(STARTER_FILE.parent.glob("costmodel-*.safetensors"))):
        digest.update(file.read_bytes())
    return _home() / f"{STARTER}-{digest.hexdigest()}"


def _home() -> Path:
    own = os.environ.get("EMBEDDB_HOME")
    if own:
        return Path(own)
    data = os.environ.get("XDG_DATA_HOME")
    try:
        return (Path(data) if data else Path.home() / ".local" / "share") / "embeddb"
    except RuntimeError:
        raise InputError(
            "this user has no home folder to keep the starter database in",
            hint="set EMBEDDB_HOME to a folder",
        ) from None


def _import_starter(folder: Path) -> None:
    from embeddb.ui.cli.output import Progress, note
    from indexer.embed import embed
    from indexer.exchange.exchange import adopt_models, import_file

    note(f"importing the starter database into {folder} (once)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    _collect_leftovers(folder.parent)
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        with Progress() as progress, Database.create(part) as db:
            report = import_file(
                db, STARTER_FILE, rejects=False, progress=lambda n: progress("read", n)
            )
            if report.rejected:
                raise StoreCorrupt(
                    f"{STARTER_FILE}: {report.rejected} damaged lines", hint="install embeddb anew"
                )
            embed(db, progress=progress)
            adopt_models(db, STARTER_FILE.parent)
        try:
            part.rename(folder)
        except OSError:
            if not (folder / "data.mdb").is_file():  # else another process was faster
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _collect_leftovers(home: Path) -> None:
    """Remove what a killed import left behind."""
    for part in home.glob(f".{STARTER}-*.part"):
        pid = part.name.split(".")[-2]
        if pid.isdigit() and not _alive(int(pid)):
            shutil.rmtree(part, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def known_pattern(db: Database, text: str) -> Pattern | PatternInfo:
    """The matrix a user means: a file, else the name or id of a pattern in the database.

    Raises: MatrixError for a file that cannot be read and for a name nobody has; UsageError for
    a name that several patterns have.
    """
    if Path(text).exists():
        from embeddb.matrix_files import read_pattern

        return read_pattern(text)
    named = db.store.find(text)
    known = [info for info in named if not info.stub] or named
    if len(known) > 1:
        ids = ", ".join(f"{i.id} ({i.m} x {i.n}, {i.nnz})" for i in known[:5])
        raise UsageError(f"{len(known)} patterns are called {text}", hint=f"give an id: {ids}")
    found = known[0] if known else _by_id(db, text)
    if found is None:
        raise MatrixError(
            "no such file, and no pattern of that name in the database",
            where=text,
            hint=_similar(db, text),
        )
    return found


def _by_id(db: Database, text: str) -> PatternInfo | None:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        return None
    return db.store.pattern(db.store.resolve(text.lower())) if len(key) == 16 else None


def _similar(db: Database, text: str) -> str:
    from difflib import get_close_matches
    from itertools import islice

    names = [info.name for info in islice(db.store.patterns(), _MOST_NAMES) if info.name]
    close = get_close_matches(Path(text).name, names, 3, 0.7)
    if close:
        return f"did you mean {', '.join(close)}?"
    nothing = "" if names else "the database is empty: `embeddb index` fills it; "
    return f"{nothing}give the path of a matrix file"


def run_platform(db: Database | None, text: str) -> Platform:
    """The platform that runs to be read belong to, without an instance unless one is named: the
    rows of a log say theirs. A TOML file, a built-in name, or a platform of the database.

    Raises: PlatformError if there is none.
    """
    bare = text.partition("@")[0]
    if text.endswith(".toml") or "/" in text or bare in builtin_platforms() or db is None:
        return load_platform(text)
    stored = [p for p in db.store.platforms() if text in (p, p.partition("@")[0])]
    platform = db.store.platform(stored[0]) if stored else None
    if platform is None:
        return load_platform(text)
    return platform if text in stored else platform.at("")


def runner_here(platform: Platform, threads: int) -> tuple[Any, Platform]:
    """The runner of a platform, and the platform as this machine is with so many threads (0: all),
    its facts measured.

    Raises: RunnerUnavailable if it cannot be measured here; UsageError if another machine's
    instance was named.
    """
    from embeddb.ui.cli.output import note

    runner = runner_for(platform)
    here = platform_here(runner, threads=threads)
    if platform.instance and platform.id != here.id:
        raise UsageError(
            f"{platform.id} is not this machine, which is {here.id}",
            hint=f"--platform {platform.name}",
        )
    if here.simulated:
        note(f"{here.id} is simulated: no time is of real hardware")
    return runner, here


def families(manifest: str) -> dict[str, str]:
    """Family by matrix name. Raises: InputError if the file is none or lacks a column."""
    if not manifest:
        return {}
    try:
        with Path(manifest).open(newline="", encoding="utf-8") as lines:
            rows = csv.DictReader(lines)
            if not {"name", "family"} <= set(rows.fieldnames or ()):
                raise InputError("no columns name and family", where=manifest)
            return {row["name"]: row["family"] for row in rows if row["name"] and row["family"]}
    except (UnicodeDecodeError, csv.Error) as e:
        raise InputError(f"not a CSV file in UTF-8: {e}", where=manifest) from None
