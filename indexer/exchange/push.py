"""A contributor's own runs into the database of a team: as an import, and it is kept whose."""

from __future__ import annotations

import getpass
import os
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from embeddb.core.errors import NothingFound
from embeddb.core.records import Run, WorkloadInfo
from embeddb.core.reports import Progress, Report
from embeddb.index.lookup import Lookup
from embeddb.store import RunTable
from embeddb.store.sources import Push, Pushing
from indexer.exchange.taking import Taking
from indexer.exchange.telling import platform_docs, with_features
from indexer.readers.embeddb import Record

#: The name a contributor goes by, where none is given.
_VARIABLE = "EMBEDDB_SOURCE"


@dataclass(slots=True)
class PushReport(Report):
    """What became of a push: `duplicates` were there already, `kept` say something else than is
    known there, which stays, `rejected` were not taken. `reasons` are the first of both."""

    source: str
    database: str
    platforms: list[str] = field(default_factory=list)
    patterns: int = 0
    runs: int = 0
    added: int = 0
    duplicates: int = 0
    kept: int = 0
    rejected: int = 0
    reasons: list[str] = field(default_factory=list)
    seconds: float = 0.0


def own_source() -> str:
    """`EMBEDDB_SOURCE`, else who runs this on which machine: `ann@cluster7`."""
    return os.environ.get(_VARIABLE) or f"{_user()}@{socket.gethostname()}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in a container
        return str(os.getuid())


def push(
    db: Lookup,
    team: Lookup,
    *,
    platform: str = "",
    source: str = "",
    progress: Progress | None = None,
) -> PushReport:
    """Add the runs that were made or read here, of a platform (an id, or a name for all its
    instances) or of all, to another database, with the patterns that they are on. What an import or
    a push told here is left out: it is not this contributor's to tell.

    The same runs pushed again are known; so an interrupted push is simply repeated.
    Raises: NothingFound if there are no such runs; UsageError for a name that no source can have;
    StoreReadOnly, StoreFull, StoreLocked as every write.
    """
    chosen = _own_partitions(db, platform)
    if not chosen:
        raise NothingFound(f"no runs of one's own{f' on {platform}' if platform else ''}")
    platforms = tuple(sorted({p.platform for p in chosen}))
    made = Push(
        id=uuid.uuid4().hex[:16],
        when=round(time.time(), 3),
        user=_user(),
        host=socket.gethostname(),
        platforms=platforms,
    )
    pushing = Pushing(source or own_source(), made)
    taking = Taking(team.store, pushing.source, None, pushing)
    total = sum(db.store.count_runs(p) for p in chosen)
    told = None if progress is None else lambda done: progress("push", done, total)
    done = taking.all_of(_records(db, chosen), told)
    return PushReport(
        source=pushing.source,
        database=team.store.place,
        platforms=list(platforms),
        patterns=done.patterns,
        runs=done.runs,
        added=done.added,
        duplicates=done.duplicates,
        kept=done.kept,
        rejected=done.rejected,
        reasons=taking.reasons,
        seconds=done.seconds,
    )


def _own_partitions(db: Lookup, platform: str) -> list[RunTable]:
    named = (
        p
        for p in db.store.partitions()
        if platform in ("", p.platform, p.platform.partition("@")[0])
    )
    return [p for p in named if any(True for _ in db.store.runs(p.platform, p.op, own=True))]


def _records(db: Lookup, chosen: list[RunTable]) -> Iterator[Record]:
    """As an export tells them: platforms, then patterns and their code, then runs."""
    store, wanted = db.store, {p.platform for p in chosen}
    yield from (doc for doc in platform_docs(store) if doc.id in wanted)
    ids = {pattern_id for p in chosen for pattern_id in store.members(p)}
    infos = [info for info in store.patterns() if info.id in ids]
    yield from with_features(db, infos)
    for info in infos:
        code = store.workload_or_info(info)
        if not isinstance(code, WorkloadInfo):
            yield code
    for p in chosen:
        yield from _own_runs(db, p)


def _own_runs(db: Lookup, partition: RunTable) -> Iterator[Run]:
    return db.store.runs(partition.platform, partition.op, own=True)
