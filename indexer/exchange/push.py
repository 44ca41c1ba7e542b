"""Push of a contributor's own runs to a team's database: an import whose source is recorded."""

from __future__ import annotations

import getpass
import os
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from embeddb.core.errors import NothingFound
from embeddb.core.records import WorkloadInfo
from embeddb.core.reports import Progress
from embeddb.index.lookup import Lookup
from embeddb.store import RunTable
from embeddb.store.sources import Push, Pushing
from indexer.exchange.export_records import platform_docs, with_features
from indexer.exchange.importer import Importer, RecordReport
from indexer.readers.embeddb import Record

#: Environment variable with the default name of the contributor.
_VARIABLE = "EMBEDDB_SOURCE"


_COUNTS = (
    *("patterns", "runs", "added", "duplicates", "withdrawn", "contradicting", "rejected"),
    "seconds",
)


@dataclass(slots=True)
class PushReport(RecordReport):
    """Counts of a push by outcome: `duplicates` were stored before, `withdrawn` ones of them stay
    withdrawn, `contradicting` ones contradict stored records, which stay, `rejected` are unusable.
    `reasons` are the first of both."""

    source: str
    database: str
    platforms: list[str] = field(default_factory=list)
    patterns: int = 0
    runs: int = 0
    added: int = 0
    duplicates: int = 0
    withdrawn: int = 0
    contradicting: int = 0
    rejected: int = 0
    reasons: list[str] = field(default_factory=list)
    seconds: float = 0.0


def own_source() -> str:
    """Name of this contributor: `EMBEDDB_SOURCE`, else user and host, `ann@cluster7`."""
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
    """Add the runs measured or read here, of a platform (an id, or a name for all its instances) or
    of all, to another database, with their patterns. Runs that came by an import or a push are left
    out: their contributor pushes them.

    Pushing the same runs again adds nothing, so an interrupted push is simply repeated.

    Raises: NothingFound if there are no such runs; UsageError for an invalid source name;
    StoreReadOnly, StoreFull, StoreLocked as every write.
    """
    chosen = _own_partitions(db, platform)
    if not chosen:
        raise NothingFound(f"no runs measured or read here{f' on {platform}' if platform else ''}")
    platforms = tuple(sorted({p.platform for p in chosen}))
    record = Push(
        id=uuid.uuid4().hex[:16],
        when=round(time.time(), 3),
        user=_user(),
        host=socket.gethostname(),
        platforms=platforms,
    )
    pushing = Pushing(source or own_source(), record)
    importer = Importer(team.store, pushing.source, None, pushing)
    total = sum(db.store.count_runs(p) for p in chosen)
    count_rows = None if progress is None else lambda done: progress("push", done, total)
    done = importer.all_of(_records(db, chosen), count_rows)
    return PushReport(
        source=pushing.source,
        database=team.store.place,
        platforms=list(platforms),
        reasons=importer.reasons,
        **{name: getattr(done, name) for name in _COUNTS},
    )


def _own_partitions(db: Lookup, platform: str) -> list[RunTable]:
    named = (
        p
        for p in db.store.partitions()
        if platform in ("", p.platform, p.platform.partition("@")[0])
    )
    return [p for p in named if any(True for _ in db.store.runs(p.platform, p.op, own=True))]


def _records(db: Lookup, chosen: list[RunTable]) -> Iterator[Record]:
    """Records in the order of an export: platforms, then patterns and their code, then runs."""
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
        yield from store.runs(p.platform, p.op, own=True)
