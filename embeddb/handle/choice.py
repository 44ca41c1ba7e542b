"""Which configuration to run: asked of a database, and kept, so that it is asked once.

What is kept is a file per question among the user's caches. A damaged one, or one of another
version, is asked again; one that cannot be written is not kept.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
#: About what importing the starter takes before its first use.
_STARTER_S = 3.0
_MAX_BYTES = 1 << 16


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Configurations to run, best first, and what they rest on in words.

    `gain` is what is expected of the first over the default (None: unknown), `break_even` the calls
    from which its conversion has paid off beside the default (None: unknown, or never),
    `others` are the next best. `default` is the platform's own.
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


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a caller wants beside matrix and operation, as `embeddb.compile` takes it."""

    calls: float | None = None
    seconds: float = 0.0
    reproducible: bool = False
    build: bool | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """The platform that answers are for, and all that they depend on besides: another processor or
    compiler is another question. `count`: configurations to answer with; `exact`: none that rounds
    operands to fewer bits."""

    platform: Platform
    environment: tuple[object, ...]
    count: int = 5
    exact: bool = False


def cpu_target() -> Target:
    """This machine's processor."""
    compiler = cpu_build.cpu_model(), cpu_build.compiler()
    return Target(load_platform("cpu"), (*compiler, cpu_build.flags(), cpu_build.threads_used(0)))


@dataclass(frozen=True, slots=True)
class Wanted:
    """A product with a tensor's matrix, as the caller of `compile` wants it."""

    kernel: str
    k: int | None
    config: Mapping[str, Any] | str | None
    db: Database | str | Path
    wishes: Wishes

    def __reduce__(self) -> tuple[Any, ...]:
        """Raises: UsageError for an open database that no other process can open."""
        db = self.db
        if not isinstance(db, str | Path):
            if db.store.shared or db.store.path is None:
                raise UsageError(
                    f"{db!r} compiles this handle's gradients, and cannot be sent along",
                    hint="compile with db= a folder",
                )
            db = str(db.store.path.resolve())
        return Wanted, (self.kernel, self.k, self.config, db, self.wishes)

    def named(self, config: Config | None) -> Wanted:
        """The same with this configuration."""
        return replace(self, config=config)


def default_of(pattern: Pattern, op: Op) -> Config:
    """The CPU's default for a matrix."""
    return load_platform("cpu").default(op, pattern.sizes)


def given(config: Config, pattern: Pattern, op: Op) -> Choice:
    """A configuration that the caller names."""
    default = dict(default_of(pattern, op))
    return Choice(config=dict(config), default=default, source="as given")


def asked(
    pattern: Pattern, op: Op, db: Database | str | Path, wishes: Wishes, target: Target
) -> Choice:
    """The answer of a database, which may be given open; a folder, or the word `starter`, is opened
    only if its answer is not kept.

    Raises: StoreError, InputError as `embeddb.open` and `Database.query` do.
    """
    if not isinstance(db, str | Path):
        return _queried(db, pattern, op, wishes, target)
    place = _place(db, pattern, op, wishes, target)
    if place is not None and (found := _kept(place)) is not None:
        return found
    with _opened(db) as opened:
        made = _queried(opened, pattern, op, wishes, target)
    # The starter may have been imported just now.
    place = _place(db, pattern, op, wishes, target)
    if place is not None:
        with suppress(OSError):
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with whole_file(place) as file:
                file.write(msgspec.json.encode(made))
    return made


def preparing_s(
    pattern: Pattern, op: Op, db: Database | str | Path, wishes: Wishes, target: Target
) -> float:
    """About how many seconds an answer waits for what it is taken from to be made: the starter, and
    the index of an operation; 0 where the answer is kept or its index is there."""
    if not isinstance(db, str | Path):
        return db.index.preparing_s(op, target.platform.name)
    place = _place(db, pattern, op, wishes, target)
    if place is None:
        from indexer.starter import STARTER

        return _STARTER_S if str(db) == STARTER else 0.0
    if _kept(place) is not None:
        return 0.0
    with _opened(db) as opened:
        return opened.index.preparing_s(op, target.platform.name)


def _queried(db: Database, pattern: Pattern, op: Op, wishes: Wishes, target: Target) -> Choice:
    made = db.query(
        pattern,
        platform=target.platform,
        op=op,
        k=target.count,
        exact=target.exact,
        calls=math.inf if wishes.calls is None else wishes.calls,
        reproducible=wishes.reproducible,
    )
    first = made.first
    return Choice(
        config=made.best,
        default=made.default,
        source=f"{made.link} of {made.platform}",
        gain=None if first is None else first.expected_gain,
        break_even=None if first is None else first.break_even_calls,
        sure=made.confidence,
        warnings=made.warnings,
        others=[candidate.config for candidate in made.candidates[1:]],
        answer=made.id,
    )


def _opened(db: str | Path) -> Database:
    from embeddb.database import open_database

    try:
        return open_database(db)
    except StoreLocked:
        return open_database(db, readonly=True)


def _place(db: str | Path, pattern: Pattern, op: Op, wishes: Wishes, target: Target) -> Path | None:
    """Where the answer to a question is kept: it is another one with other evidence, on another
    machine, and for other code. None where there is no database yet."""
    from embeddb.store import is_database, open_store
    from indexer.starter import STARTER, starter_place

    folder = starter_place() if str(db) == STARTER else Path(db)
    if not is_database(folder):
        return None
    with closing(open_store(folder, readonly=True)) as store:
        generation = store.generation
    parts = (
        *(_FORMAT, str(folder.resolve()), generation, pattern.id, str(op)),
        *(wishes.calls, wishes.reproducible),
        *(target.platform.digest, *target.environment),
    )
    name = hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
    return cpu_build.cache_folder().parent / "choices" / f"{name}.json"


def _kept(place: Path) -> Choice | None:
    try:
        found = msgspec.json.decode(read_bounded(place, _MAX_BYTES), type=Choice)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None
    return found if found.format == _FORMAT else None
