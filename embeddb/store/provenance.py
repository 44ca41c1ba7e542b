"""Provenance of runs: of one workload on one platform, or of all workloads there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from embeddb.core.config import Op
from embeddb.core.records import Run
from embeddb.core.wording import plural
from embeddb.store import codec
from embeddb.store.run_tables import RunTable
from embeddb.store.sources import Source
from embeddb.store.store import Store

#: Description of runs without a contributor: measured, read or imported here.
HERE = "run or read in here"


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Runs from one `source` (empty: no contributor), measured on `machine`, a platform instance,
    between `first` and `last` (seconds since 1970, 0: unknown), and pushed by these users
    (`ann@cluster7`)."""

    source: str
    machine: str
    runs: int
    first: float = 0.0
    last: float = 0.0
    pushed_by: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Source, machine and number of runs as text; without the dates."""
        by = [who for who in self.pushed_by if who != self.source]
        pushed = f", pushed by {', '.join(by)}" if by else ""
        return f"{self.source or HERE}: {plural(self.runs, 'run')} on {self.machine}{pushed}"


class Provenances:
    """Provenance of runs in a database with contributors; empty for another."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sources = {source.number: source for source in store.sources.entries()}

    def of(
        self,
        platform: str,
        op: Op,
        pattern_id: str,
        meant: Callable[[codec.RunRow], bool] = lambda _: True,
    ) -> list[Provenance]:
        """Provenance of the valid runs that `meant` selects; largest number of runs first."""
        partition = self._store.partition(platform, op) if self._sources else None
        if partition is None:
            return []
        by_number: dict[int, list[codec.RunRow]] = {}
        for group in self._store.runs_with_rows(partition, [pattern_id]):
            for row, _ in group:
                if meant(row):
                    by_number.setdefault(row.source, []).append(row)
        entries = [_provenance(self._sources.get(n), platform, own) for n, own in by_number.items()]
        return sorted(entries, key=lambda entry: (-entry.runs, entry.source))


def _provenance(source: Source | None, platform: str, rows: Sequence[codec.RunRow]) -> Provenance:
    whens = [row.measurement.when for row in rows if row.measurement.when > 0.0]
    pushes = () if source is None else source.pushes
    return Provenance(
        source="" if source is None else source.name,
        machine=platform,
        runs=len(rows),
        first=min(whens, default=0.0),
        last=max(whens, default=0.0),
        pushed_by=tuple(sorted({f"{push.user}@{push.host}" for push in pushes if push.user})),
    )


def runs_by_source(store: Store, partition: RunTable) -> Iterator[dict[int, list[Run]]]:
    """Valid runs of every workload of a table, by the number of their contributor. Read in pieces,
    as `Store.runs_with_rows` does."""
    for group in store.runs_with_rows(partition, store.members(partition)):
        runs: dict[int, list[Run]] = {}
        for row, run in group:
            runs.setdefault(row.source, []).append(run)
        yield runs
