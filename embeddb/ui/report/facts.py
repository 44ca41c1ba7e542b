"""Data of a database report: every run is read once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from embeddb.core import __version__
from embeddb.core.reports import Progress
from embeddb.core.server_url import redacted
from embeddb.index.scopes import scopes as scopes_of
from embeddb.platforms.machines import described
from embeddb.store import SCHEMA
from embeddb.ui.report.contributors import Contributor, contributors_of
from embeddb.ui.report.gaps import Gap, gaps_of
from embeddb.ui.report.scopes import ScopeFacts, scope_facts

if TYPE_CHECKING:
    from embeddb.core.records import WorkloadInfo
    from embeddb.database import Database

#: Lower bounds of the size classes of matrices.
NNZ_FROM = (0, 10_000, 100_000, 1_000_000, 10_000_000)
PER_ROW_FROM = (0, 4, 16, 64, 256)


class SizeMap(msgspec.Struct, frozen=True, kw_only=True):
    """Matrices by size: `counts[i][j]` have at least `nnz_from[i]` nonzeros and at least
    `per_row_from[j]` in a mean row, and fewer than the next bound; `unknown` have no sizes."""

    nnz_from: tuple[int, ...] = NNZ_FROM
    per_row_from: tuple[int, ...] = PER_ROW_FROM
    counts: list[list[int]]
    unknown: int


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `embeddb eval --json`, as docs/explanation/evaluation.md defines its figures."""

    platform: str
    op: str
    method: str
    matrices: int
    speedup: float | None = msgspec.field(name="speedup@1")
    median_speedup: float | None = msgspec.field(name="speedup_q50@1", default=None)
    most_speedup: float | None = msgspec.field(name="speedup_max@1", default=None)
    of_optimum: float | None = msgspec.field(name="of_optimum@1")
    of_optimum_5: float | None = msgspec.field(name="of_optimum@5")
    slower_than_default: float | None = None
    spread: float | None = None


class DatabaseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A database at one moment. `place` is the user's name of it, `counts` rows by table, `kinds`
    patterns by kind, `statuses` and `sources` count runs, `judged` are rows of an `eval`, if given.
    `machines` describes each instance; `contributors` are the sources, if any were pushed."""

    place: str
    made: float
    version: str
    schema: int
    generation: int
    bytes: int
    counts: dict[str, int]
    statuses: dict[str, int]
    sources: dict[str, int]
    sizes: SizeMap
    kinds: dict[str, int]
    scopes: list[ScopeFacts]
    judged: list[Judged]
    gaps: list[Gap]
    machines: dict[str, list[tuple[str, str]]] = {}
    contributors: list[Contributor] = []


def database_facts(
    db: Database,
    *,
    place: str = "",
    judged: Sequence[Judged] = (),
    progress: Progress | None = None,
) -> DatabaseFacts:
    """Read everything once and summarise it; `progress` reports runs read, of all.

    Raises: StoreCorrupt if something cannot be read.
    """
    counts = db.store.counts()
    infos = {info.id: info for info in db.store.patterns()}
    scopes: list[ScopeFacts] = []
    for scope in scopes_of(db.store):
        before = sum(s.runs for s in scopes)
        scopes.append(scope_facts(db, scope, infos, _part(progress, before, counts["run"])))
    name = redacted(place) or (db.store.path.name if db.store.path else "DB")
    return DatabaseFacts(
        place=name,
        made=time.time(),
        version=__version__,
        schema=SCHEMA,
        generation=db.store.generation,
        bytes=db.store.size_bytes(),
        counts=counts,
        statuses=_summed(s.statuses for s in scopes),
        sources=_summed(s.sources for s in scopes),
        sizes=_sizes(infos),
        kinds=dict(Counter(info.kind for info in infos.values()).most_common()),
        scopes=scopes,
        judged=list(judged),
        gaps=gaps_of(db, scopes, infos, name),
        machines=_machines(db, scopes),
        contributors=contributors_of(db, progress=progress),
    )


def _machines(db: Database, scopes: Sequence[ScopeFacts]) -> dict[str, list[tuple[str, str]]]:
    ids = sorted({i for scope in scopes for i in scope.instances})
    platforms = {i: platform for i in ids if (platform := db.store.sound_platform(i)) is not None}
    return {i: described(p.environment) for i, p in platforms.items() if p.environment}


def _part(progress: Progress | None, before: int, total: int) -> Callable[[int], None]:
    """Callback that reports the progress of one scope as part of all runs."""

    def report(read: int) -> None:
        if progress is not None:
            progress("read", before + read, total)

    return report


def _summed(parts: Any) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total.most_common())


def _sizes(infos: Mapping[str, WorkloadInfo]) -> SizeMap:
    counts = [[0] * len(PER_ROW_FROM) for _ in NNZ_FROM]
    unknown = 0
    for info in infos.values():
        if not info.workload.sparse:
            continue
        if info.m <= 0 or info.nnz < 0:
            unknown += 1
            continue
        counts[_class(info.nnz, NNZ_FROM)][_class(info.nnz / info.m, PER_ROW_FROM)] += 1
    return SizeMap(counts=counts, unknown=unknown)


def _class(value: float, bounds: Sequence[int]) -> int:
    return sum(value >= bound for bound in bounds) - 1
