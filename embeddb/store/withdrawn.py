"""Withdrawal of runs: they stay stored but are not valid, until they are restored.

Table `withdrawn` has the key of every withdrawn run; readers of runs exclude them (`hidden_under`).
A workload without any other run in a table is no longer listed as a member of it.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from embeddb.core.config import Op
from embeddb.core.errors import StoreCorrupt, UsageError
from embeddb.core.records import Measurement
from embeddb.store import codec
from embeddb.store.engine import Engine, Txn, raise_generation
from embeddb.store.run_tables import foreign_tables
from embeddb.store.sources import source_number

_TABLE = "withdrawn"
#: Bytes of a run's key before the run's own id: table number and workload id.
_HEAD = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSelection:
    """Selection of runs; an empty field selects all.

    `platform` is an id, or a name for all its instances; `op` may be the text of one whose plug-in
    is not here; `campaign` the command that stored the runs, in full or up to a colon (`measure`,
    `calibrate`, `query`, the id of a campaign); `since` is in seconds since 1970, and excludes runs
    without a time; `source` is the contributor.
    """

    platform: str = ""
    op: Op | str | None = None
    statuses: frozenset[str] = frozenset()
    campaign: str = ""
    since: float = 0.0
    source: str = ""

    @property
    def all(self) -> bool:
        """Return true if every run is selected."""
        return self == RunSelection()

    def has_partition(self, platform: str, op: str) -> bool:
        """Return true if runs of an op on a platform may be selected."""
        named = self.platform in ("", platform, platform.partition("@")[0])
        return named and op == str(self.op or op)

    def has_run(self, campaign: str, m: Measurement) -> bool:
        """Return true if a run of a table that may be selected is."""
        stored_by = self.campaign in ("", campaign) or campaign.startswith(f"{self.campaign}:")
        status = not self.statuses or m.status in self.statuses
        return stored_by and status and (not self.since or m.when >= self.since)


class WithdrawnRuns(NamedTuple):
    """Number of selected runs of one platform, op and status."""

    platform: str
    op: str
    status: str
    runs: int


class WithdrawnTable:
    """The withdrawn runs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def named_op(self, text: str) -> Op | str | None:
        """An operation for a `RunSelection`; None for an empty text. Raises: UsageError unless it
        is one, or has runs of a kind of workload whose plug-in is not here."""
        with self._engine.read() as txn:
            foreign = {op for op, _, _ in foreign_tables(txn)}
        return text if text in foreign else Op.parse(text) if text else None

    def count(self) -> int:
        with self._engine.read() as txn:
            return txn.count(_TABLE)

    def chosen(self, selection: RunSelection, *, back: bool = False) -> list[WithdrawnRuns]:
        """Preview of `withdraw`, or with `back` of `restore`."""
        with self._engine.read() as txn:
            return _chosen(txn, selection, back=back)[1]

    def withdraw(self, selection: RunSelection) -> list[WithdrawnRuns]:
        """Withdraw the selected runs, in one transaction. Raises: UsageError for a selection of
        everything, and for an unknown source."""
        if selection.all:
            raise UsageError(
                "no runs are selected", hint="name platform, op, status, campaign, time or source"
            )
        mark = json.dumps({"when": round(time.time(), 3)}).encode()
        return self._engine.write(partial(_marked, selection=selection, mark=mark))

    def restore(self, selection: RunSelection) -> list[WithdrawnRuns]:
        """Restore the selected withdrawn runs, in one transaction."""
        return self._engine.write(partial(_marked, selection=selection, mark=None))


def hidden_under(txn: Txn, prefix: bytes = b"") -> frozenset[bytes]:
    """Keys of the withdrawn runs that start with a prefix."""
    if not txn.count(_TABLE):
        return frozenset()
    return frozenset(key for key, _ in txn.scan(_TABLE, prefix))


def among_withdrawn(txn: Txn, keys: Iterable[bytes]) -> frozenset[bytes]:
    """Select the keys of withdrawn runs among these."""
    return frozenset(txn.get_many(_TABLE, keys) if txn.count(_TABLE) else ())


def renamed_marks(txn: Txn, moved: Iterable[tuple[bytes, bytes]]) -> None:
    """Keep runs withdrawn that got new keys; `moved` are pairs (old, new)."""
    heads = set()
    for old, new in moved:
        mark = txn.get(_TABLE, old)
        if mark is not None:
            txn.delete(_TABLE, old)
            txn.put(_TABLE, new, mark)
            heads.add(new[:_HEAD])
    _listed(txn, heads)


def mark_faults(txn: Txn) -> Iterator[str]:
    """Faults of the table, one line each."""
    for key, raw in txn.scan(_TABLE):
        where = f"withdrawn run {key[_HEAD:].hex()}"
        if txn.get("run", key) is None:
            yield f"{where}: there is no such run"
        try:
            when = json.loads(raw)["when"]
        except (ValueError, KeyError, TypeError, RecursionError):
            when = None
        if type(when) not in (int, float):
            yield f"{where}: does not say when"


def _marked(txn: Txn, selection: RunSelection, mark: bytes | None) -> list[WithdrawnRuns]:
    """Withdraw the selected runs, or without a mark restore those that are withdrawn."""
    keys, counts = _chosen(txn, selection, back=mark is None)
    for key in keys:
        if mark is None:
            txn.delete(_TABLE, key)
        else:
            txn.put(_TABLE, key, mark)
    _listed(txn, {key[:_HEAD] for key in keys})
    return counts


def _chosen(
    txn: Txn, selection: RunSelection, *, back: bool
) -> tuple[list[bytes], list[WithdrawnRuns]]:
    """Keys and counts of the selected runs that are not withdrawn; with `back` of those that are.
    Raises: UsageError."""
    source = source_number(txn, selection.source) if selection.source else 0
    if selection.source and not source:
        raise UsageError(f"no source {selection.source!r}", hint="`embeddb db sources` lists them")
    keys: list[bytes] = []
    counts: Counter[tuple[str, str, str]] = Counter()
    for name, number in txn.scan("partition"):
        text, _, platform = name.decode().partition("\0")
        if not selection.has_partition(platform, text):
            continue
        hidden = hidden_under(txn, number)
        for key, raw in txn.scan("run", number):
            if (key in hidden) != back:
                continue
            try:
                row = codec.decode_row(raw)
            except StoreCorrupt as e:
                raise StoreCorrupt(f"run {key[_HEAD:].hex()}: {e}") from None
            if source in (0, row.source) and selection.has_run(row.campaign, row.measurement):
                keys.append(key)
                counts[platform, text, row.measurement.status] += 1
    return keys, [WithdrawnRuns(*kind, runs) for kind, runs in sorted(counts.items())]


def _listed(txn: Txn, heads: set[bytes]) -> None:
    """List as members those workloads that have a valid run, and count one write."""
    members = set()
    for head in heads:
        hidden = hidden_under(txn, head)
        if any(key not in hidden for key, _ in txn.scan("run", head)):
            members.add(head)
        else:
            txn.delete("member", head)
    if heads:
        raise_generation(txn, members)
