"""Whose runs: of one pattern on one platform, and of all patterns there, one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.records import Run
from embeddb.core.wording import plural
from embeddb.store import codec
from embeddb.store.engine import Txn
from embeddb.store.merge_runs import counting
from embeddb.store.sources import Source
from embeddb.store.store import RunTable, Store
from embeddb.store.withdrawn import hidden_under

#: What the runs are called that nobody pushed: made, read in or imported here.
HERE = "run or read in here"
#: Runs read in one transaction, about.
_PIECE = 8192


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that one `source` brought (empty: nobody pushed them), measured on `machine`, a platform
    instance, between `first` and `last` (seconds since 1970, 0: not told), and pushed by these
    users (`ann@cluster7`)."""

    source: str
    machine: str
    runs: int
    first: float = 0.0
    last: float = 0.0
    pushed_by: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Who, where, how many; without the days."""
        by = [who for who in self.pushed_by if who != self.source]
        pushed = f", pushed by {', '.join(by)}" if by else ""
        return f"{self.source or HERE}: {plural(self.runs, 'run')} on {self.machine}{pushed}"


class Provenances:
    """Tells whose runs are, of a database into which somebody pushed; nothing of another."""

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
        """Of the runs that count, those that are `meant`; who brought most comes first."""
        partition = self._store.partition(platform, op) if self._sources else None
        if partition is None:
            return []
        with self._store.engine.read() as txn:
            rows = list(filter(meant, _rows(txn, partition, pattern_id)))
        by_number: dict[int, list[codec.RunRow]] = {}
        for row in rows:
            by_number.setdefault(row.source, []).append(row)
        found = [_provenance(self._sources.get(n), platform, own) for n, own in by_number.items()]
        return sorted(found, key=lambda one: (-one.runs, one.source))


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
    """The runs that count of every pattern of a partition, by the number of who brought them. Read
    in pieces, as `Store.runs` does."""
    ids = deque(store.members(partition))
    configs: dict[bytes, Config] = {}
    while ids:
        held: list[dict[int, list[Run]]] = []
        read = 0
        with store.engine.read() as txn:
            while ids and read < _PIECE:
                pattern_id = ids.popleft()
                rows = _rows(txn, partition, pattern_id)
                read += len(rows)
                _know(txn, configs, rows)
                held.append(_by_source(rows, partition, pattern_id, configs))
        yield from held


def _by_source(
    rows: Sequence[codec.RunRow], where: RunTable, pattern_id: str, configs: dict[bytes, Config]
) -> dict[int, list[Run]]:
    found: dict[int, list[Run]] = {}
    for row in rows:
        run = row.run(pattern_id, where.op, where.platform, configs[row.config_id])
        found.setdefault(row.source, []).append(run)
    return found


def _know(txn: Txn, configs: dict[bytes, Config], rows: Sequence[codec.RunRow]) -> None:
    new = {row.config_id for row in rows}.difference(configs)
    if new:
        found = txn.get_many("config", new)
        configs |= {key: codec.decode_config(raw) for key, raw in found.items()}


def _rows(txn: Txn, partition: RunTable, pattern_id: str) -> list[codec.RunRow]:
    head = partition.number.to_bytes(4, "big") + codec.pattern_key(pattern_id)
    hidden = hidden_under(txn, head)
    rows = {k: codec.decode_row(raw) for k, raw in txn.scan("run", head) if k not in hidden}
    return list(counting(rows).values())
