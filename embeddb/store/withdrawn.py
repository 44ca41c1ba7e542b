"""Taking runs back: they stay where they are and count nowhere, until they are brought back.

Table `withdrawn` holds a key for every run that was taken back, the run's own; whatever reads runs
leaves these out (`hidden_under`). A pattern without any other run in a partition is no longer
listed as a member of it.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from embeddb.core.config import Op
from embeddb.core.errors import StoreCorrupt, UsageError
from embeddb.core.records import Measurement
from embeddb.store import codec
from embeddb.store.engine import Engine, Txn, raise_generation
from embeddb.store.sources import source_number

_TABLE = "withdrawn"
#: Bytes of a run's key before the run's own id: its partition and pattern.
_HEAD = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSelection:
    """Runs by what is known of them; what is empty selects all.

    `platform` is an id, or a name for all its instances; `campaign` what the runs were stored by,
    in full or up to a colon (`measure`, `calibrate`, `query`, the id of a campaign); `since` is in
    seconds since 1970, and leaves out runs that do not tell their time; `source` is who pushed
    them.
    """

    platform: str = ""
    op: Op | None = None
    statuses: frozenset[str] = frozenset()
    campaign: str = ""
    since: float = 0.0
    source: str = ""

    @property
    def all(self) -> bool:
        """Whether nothing is left out."""
        return self == RunSelection()

    def has_partition(self, platform: str, op: Op) -> bool:
        """Whether runs of an op on a platform may be meant."""
        named = self.platform in ("", platform, platform.partition("@")[0])
        return named and self.op in (None, op)

    def has_run(self, campaign: str, m: Measurement) -> bool:
        """Whether a run of a partition that may be meant is."""
        stored_by = self.campaign in ("", campaign) or campaign.startswith(f"{self.campaign}:")
        status = not self.statuses or m.status in self.statuses
        return stored_by and status and (not self.since or m.when >= self.since)


class WithdrawnRuns(NamedTuple):
    """So many runs of one platform, op and status."""

    platform: str
    op: str
    status: str
    runs: int


class _Chosen(NamedTuple):
    keys: list[bytes]
    counts: Counter[tuple[str, str, str]]

    def told(self) -> list[WithdrawnRuns]:
        return [WithdrawnRuns(*kind, runs) for kind, runs in sorted(self.counts.items())]


class WithdrawnTable:
    """The runs that were taken back."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def count(self) -> int:
        with self._engine.read() as txn:
            return txn.count(_TABLE)

    def chosen(self, selection: RunSelection, *, back: bool = False) -> list[WithdrawnRuns]:
        """What `withdraw`, or with `back` `restore`, would do."""
        with self._engine.read() as txn:
            return _chosen(txn, selection, back=back).told()

    def withdraw(self, selection: RunSelection) -> list[WithdrawnRuns]:
        """Have the selected runs count no longer, in one transaction.

        Raises: UsageError for a selection of everything, and for an unknown source.
        """
        if selection.all:
            raise UsageError(
                "which runs?", hint="name platform, op, status, campaign, time or source"
            )
        mark = json.dumps({"when": round(time.time(), 3)}).encode()

        def body(txn: Txn) -> list[WithdrawnRuns]:
            found = _chosen(txn, selection, back=False)
            for key in found.keys:
                txn.put(_TABLE, key, mark)
            _listed(txn, {key[:_HEAD] for key in found.keys})
            return found.told()

        return self._engine.write(body)

    def restore(self, selection: RunSelection) -> list[WithdrawnRuns]:
        """Have the selected ones of the withdrawn runs count again, in one transaction."""

        def body(txn: Txn) -> list[WithdrawnRuns]:
            found = _chosen(txn, selection, back=True)
            for key in found.keys:
                txn.delete(_TABLE, key)
            _listed(txn, {key[:_HEAD] for key in found.keys})
            return found.told()

        return self._engine.write(body)


def hidden_under(txn: Txn, prefix: bytes = b"") -> frozenset[bytes]:
    """Keys of the withdrawn runs that start with a prefix."""
    if not txn.count(_TABLE):
        return frozenset()
    return frozenset(key for key, _ in txn.scan(_TABLE, prefix))


def renamed_marks(txn: Txn, moved: Iterable[tuple[bytes, bytes]]) -> None:
    """Have runs that got other keys, old and new, stay withdrawn where they were."""
    heads = set()
    for old, new in moved:
        mark = txn.get(_TABLE, old)
        if mark is not None:
            txn.delete(_TABLE, old)
            txn.put(_TABLE, new, mark)
            heads.add(new[:_HEAD])
    _listed(txn, heads)


def mark_faults(txn: Txn) -> Iterator[str]:
    """What is wrong with the table, a line for each."""
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


def _chosen(txn: Txn, selection: RunSelection, *, back: bool) -> _Chosen:
    """The selected runs that are not withdrawn; with `back` those that are. Raises: UsageError."""
    found = _Chosen([], Counter())
    source = source_number(txn, selection.source) if selection.source else 0
    if selection.source and not source:
        raise UsageError(f"no source {selection.source!r}", hint="`embeddb db sources` lists them")
    for name, number in txn.scan("partition"):
        text, _, platform = name.decode().partition("\0")
        if not selection.has_partition(platform, Op.parse(text)):
            continue
        hidden = hidden_under(txn, number)
        for key, row in _rows(txn, number, hidden.__contains__ if back else _not_in(hidden)):
            if source and row.source != source:
                continue
            if selection.has_run(row.campaign, row.measurement):
                found.keys.append(key)
                found.counts[platform, text, row.measurement.status] += 1
    return found


def _not_in(hidden: frozenset[bytes]) -> Callable[[bytes], bool]:
    return lambda key: key not in hidden


def _rows(
    txn: Txn, prefix: bytes, wanted: Callable[[bytes], bool]
) -> Iterator[tuple[bytes, codec.RunRow]]:
    for key, raw in txn.scan("run", prefix):
        if wanted(key):
            try:
                yield key, codec.decode_row(raw)
            except StoreCorrupt as e:
                raise StoreCorrupt(f"run {key[_HEAD:].hex()}: {e}") from None


def _listed(txn: Txn, heads: set[bytes]) -> None:
    """Have those patterns be members that have a run that counts, and count one write."""
    kept = set()
    for head in heads:
        hidden = hidden_under(txn, head)
        if any(key not in hidden for key, _ in txn.scan("run", head)):
            kept.add(head)
        else:
            txn.delete("member", head)
    if heads:
        raise_generation(txn, kept)
