"""The configuration to run: queried from a database, and cached.

The cache has a file per query in the user's cache folder. A damaged file, or one of another
version, is ignored; one that cannot be written is skipped.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.errors import StoreLocked, UsageError
from embeddb.core.files.safe_read import read_bounded
from embeddb.core.files.safe_write import whole_file
from embeddb.core.pattern import Pattern
from embeddb.kernels import build as cpu_build
from embeddb.platforms.platform import Platform, load_platform

if TYPE_CHECKING:
    from embeddb.database import Database

_FORMAT = "embeddb-choice-1"
#: Approximate seconds of importing the starter before its first use.
_STARTER_S = 3.0
_MAX_BYTES = 1 << 16
#: Number of cached answers, the last written ones.
_MOST_CACHED = 1000


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Configurations to run, best first, and their source as text.

    `gain` is the expected gain of the first over the default (None: unknown), `break_even` the
    calls that amortise its conversion against the default (None: unknown, or never), `others` are
    the next best. `default` is the platform's own.
    """

    config: dict[str, Any]
    default: dict[str, Any]
    source: str
    gain: float | None = None
    break_even: float | None = None
    sure: str = ""
    warnings: list[str] = []
    others: list[dict[str, Any]] = []
    answer: str = ""
    format: str = _FORMAT

    def why(self) -> list[str]:
        """The first configuration, its source and its gain, a line each."""
        lines = [f"chosen: {Config(self.config)} ({self.source})"]
        if self.gain is not None:
            origin = "measured" if "measured " in self.source else "expected"
            lines.append(f"{origin}: {self.gain:.2f} times the default, sure: {self.sure}")
        return lines


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Options of `embeddb.compile` besides matrix and operation."""

    calls: float | None = None
    seconds: float = 0.0
    reproducible: bool = False
    build: bool | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """The platform of a query, and its environment, which is part of the cache key: processor and
    compiler. `count`: number of configurations; `exact`: none that rounds operands to fewer
    bits."""

    platform: Platform
    environment: tuple[object, ...]
    count: int = 5
    exact: bool = False


class _Place(NamedTuple):
    """The database's folder and the cache file of an answer."""

    folder: Path
    file: Path


_warned: set[str] = set()


def warn_once(text: str) -> None:
    """Warn once per process, that a library computes instead."""
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def cpu_target() -> Target:
    """The target of this machine's processor."""
    compiler = cpu_build.cpu_model(), cpu_build.compiler()
    return Target(load_platform("cpu"), (*compiler, cpu_build.flags(), cpu_build.threads_used(0)))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Request for a product with a tensor's matrix, from the arguments of `compile`."""

    kernel: str
    k: int | None
    config: Mapping[str, Any] | str | None
    db: Database | str | Path
    options: CompileOptions

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the database by its path. Raises: UsageError if no other process can open it."""
        db = self.db
        if not isinstance(db, str | Path):
            if db.store.shared or db.store.path is None:
                raise UsageError(
                    f"{db!r} is needed to compile gradients, and cannot be pickled",
                    hint="compile with db=FOLDER",
                )
            db = str(db.store.path.resolve())
        return Wanted, (self.kernel, self.k, self.config, db, self.options)


def choice_of_config(config: Config, pattern: Pattern, op: Op) -> Choice:
    """The choice of a configuration that the caller names."""
    default = dict(load_platform("cpu").default(op, pattern.sizes))
    return Choice(config=dict(config), default=default, source="as given")


def query_choice(
    pattern: Pattern, op: Op, db: Database | str | Path, options: CompileOptions, target: Target
) -> Choice:
    """The choice by an open database, a folder or `starter`; the latter two are opened only if
    their answer is not cached.

    Raises: StoreError, InputError as `embeddb.open` and `Database.query` do.
    """
    if not isinstance(db, str | Path):
        return _queried(db, pattern, op, options, target)
    place = _place(db, pattern, op, options, target)
    if place is not None and (cached := _cached(place)) is not None:
        return cached
    with _opened(db) as opened:
        # The starter may have been imported just now. After the query, the key might be of evidence
        # that another process added meanwhile.
        place = place or _place(db, pattern, op, options, target)
        choice = _queried(opened, pattern, op, options, target)
    if place is not None:
        with suppress(OSError):
            _keep(place.file, choice)
    return choice


def preparing_s(
    pattern: Pattern, op: Op, db: Database | str | Path, options: CompileOptions, target: Target
) -> float:
    """Approximate seconds that an answer waits for the import of the starter and for the index of
    the operation; 0 if the answer is cached or its index exists."""
    if not isinstance(db, str | Path):
        return db.index.preparing_s(op, target.platform.name)
    place = _place(db, pattern, op, options, target)
    if place is None:
        from indexer.starter import STARTER

        return _STARTER_S if str(db) == STARTER else 0.0
    if _cached(place) is not None:
        return 0.0
    with _opened(db) as opened:
        return opened.index.preparing_s(op, target.platform.name)


def _queried(
    db: Database, pattern: Pattern, op: Op, options: CompileOptions, target: Target
) -> Choice:
    from embeddb.ranking.recommendation import NOT_STORED

    recommendation = db.query(
        pattern,
        platform=target.platform,
        op=op,
        k=target.count,
        exact=target.exact,
        calls=math.inf if options.calls is None else max(options.calls, 1),
        reproducible=options.reproducible,
    )
    first, warned = recommendation.first, recommendation.warnings
    lasting = [warning for warning in warned if NOT_STORED not in warning]
    return Choice(
        config=recommendation.best,
        default=recommendation.default,
        source=f"{recommendation.link} of {recommendation.platform}",
        gain=None if first is None else first.expected_gain,
        break_even=None if first is None else first.break_even_calls,
        sure=recommendation.confidence,
        warnings=lasting,
        others=[candidate.config for candidate in recommendation.candidates[1:]],
        answer=recommendation.id if len(lasting) == len(warned) else "",
    )


def _opened(db: str | Path) -> Database:
    from embeddb.database import open_database

    try:
        return open_database(db)
    except StoreLocked:
        return open_database(db, readonly=True)


def _place(
    db: str | Path, pattern: Pattern, op: Op, options: CompileOptions, target: Target
) -> _Place | None:
    """Place of an answer; its key includes the evidence, the machine and the code. None if the
    database does not exist yet."""
    from embeddb.index.evidence import evidence_key
    from embeddb.store import is_database
    from indexer.starter import STARTER, starter_place

    folder = starter_place() if str(db) == STARTER else Path(db)
    if not is_database(folder):
        return None
    folder = folder.resolve()
    parts = (
        *(_FORMAT, str(folder), evidence_key(_generation(folder) or 0, folder)),
        *(pattern.id, str(op), options.calls, options.reproducible, target.count, target.exact),
        *(target.platform.text, *target.environment),
    )
    name = hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
    return _Place(folder, cpu_build.cache_folder().parent / "choices" / f"{name}.json")


def _generation(folder: Path, answer: str = "") -> int | None:
    """Generation of a database; None if it does not have that answer. Read again only if its file
    has changed: opening one takes longer than a cached answer."""
    from embeddb.store.lmdb_files import DATA_FILE

    about = (folder / DATA_FILE).stat()
    return _stored_generation(folder, answer, (about.st_ino, about.st_size, about.st_mtime_ns))


@lru_cache(maxsize=64)
def _stored_generation(folder: Path, answer: str, _stamp: tuple[int, ...]) -> int | None:
    from embeddb.store import open_store

    with closing(open_store(folder, readonly=True)) as store:
        lost = answer and store.recommendations.get(answer) is None
        return None if lost else store.generation


def _cached(place: _Place) -> Choice | None:
    """The cached choice, if its database has the answer: another one may be in its place since."""
    try:
        choice = msgspec.json.decode(read_bounded(place.file, _MAX_BYTES), type=Choice)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None
    if choice.format != _FORMAT or _generation(place.folder, choice.answer) is None:
        return None
    return choice


def _keep(file: Path, choice: Choice) -> None:
    """Cache a choice and delete the oldest, as other processes may do. Raises: OSError."""
    folder = file.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with whole_file(file) as out:
        out.write(msgspec.json.encode(choice))
    cached = list(folder.iterdir())
    written: list[tuple[int, Path]] = []
    for one in cached if len(cached) > _MOST_CACHED else ():
        with suppress(FileNotFoundError):
            written.append((one.lstat().st_mtime_ns, one))
    for _, one in sorted(written)[:-_MOST_CACHED]:
        one.unlink(missing_ok=True)
