"""Identity of equal runs and of log files (docs/explanation/decisions.md)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import ReaderError
from embeddb.core.files.safe_read import open_regular, refusing
from embeddb.core.records import REPEAT, Measurement, Run, in_context
from embeddb.store import Store
from embeddb.store.codec import RunRow, decode_row, pattern_key
from embeddb.store.merge_runs import counting
from embeddb.store.withdrawn import hidden_under

_encode = msgspec.msgpack.Encoder().encode
_BLOCK = 1 << 20
#: Share of the points in two logs whose times must be equal for the later log to be a copy: by a
#: coarse clock, times of different measurements may be equal too.
_COPIED = 0.9
#: Bits of a time that are compared: other units and other spellings change the last ones.
_BITS = 30
#: A run as it is compared: the number of its campaign, whether it has a time, and hashes of where
#: it ran (workload, op, platform, configuration) and of that with the outcome.
_COMPARED = np.dtype(
    [("campaign", np.int32), ("timed", np.bool_), ("point", np.int64), ("outcome", np.int64)]
)
_MIX = 0x1E3779B97F4A7C15


class Repeats:
    """Number equal runs of one log.

    The second of them and those after it get their number in their context, which makes them
    distinct runs, the same ones each time the log is read. Runs are remembered by 64 bits, in
    sorted arrays of which each is twice as long as the next.
    """

    def __init__(self) -> None:
        self._levels: list[NDArray[np.int64]] = []
        self._counts: dict[int, int] = {}

    def numbered(self, runs: Sequence[Run]) -> tuple[list[Run], list[int]]:
        """Number the next runs of the log; also returns the indices of those that repeat an earlier
        one."""
        keys = np.fromiter(map(_key, runs), np.int64, len(runs))
        fresh, counts = np.unique(keys, return_counts=True)
        seen = self._seen(fresh)
        again = set(fresh[(counts > 1) | seen].tolist())
        earlier = set(fresh[seen].tolist())
        self._remember(fresh[~seen])
        numbered, places = list(runs), []
        for at, key in enumerate(keys.tolist() if again else ()):
            if key not in again:
                continue
            before = self._counts.get(key, int(key in earlier))
            self._counts[key] = before + 1
            if before:
                context = in_context(runs[at].measurement, {REPEAT: float(before + 1)})
                numbered[at] = replace(runs[at], measurement=context)
                places.append(at)
        return numbered, places

    def _seen(self, keys: NDArray[np.int64]) -> NDArray[np.bool_]:
        seen = np.zeros(len(keys), bool)
        for level in self._levels:
            at = np.searchsorted(level, keys)
            seen |= level[np.minimum(at, len(level) - 1)] == keys
        return seen

    def _remember(self, keys: NDArray[np.int64]) -> None:
        if len(keys):
            self._levels.append(keys)
        while len(self._levels) > 1 and len(self._levels[-2]) < 2 * len(self._levels[-1]):
            last, before = self._levels.pop(), self._levels.pop()
            self._levels.append(np.sort(np.concatenate((before, last))))


def _key(run: Run) -> int:
    """Hash that is equal for equal runs, within this process."""
    parts = (run.pattern_id, run.platform, run.campaign, run.config.json, _encode(run.measurement))
    return hash((*parts, run.op.name, run.op.width, run.op.dtype))


@dataclass(slots=True)
class Compared:
    """Rows of a log beside the stored runs: `new` ones, the number of those `stored` before, of
    `copies` of runs of other logs by campaign, and of new ones that correct a stored run."""

    new: list[Run]
    stored: int = 0
    copies: dict[str, int] = field(default_factory=dict)
    corrected: int = 0


class StoredRuns:
    """The stored runs on the workloads of a log, which its rows are compared with.

    Equal outcomes are equal status, times (up to rounding), costs, time of day and number among the
    repeats. Left out are imported runs, over which those of a log take precedence, replaced ones,
    and withdrawn ones of other logs. 21 bytes are remembered of each run.
    """

    def __init__(self, store: Store, campaign: str) -> None:
        self._store, self._campaign = store, campaign
        self._numbers = {campaign: 0}
        self._tables: dict[tuple[str, str, str], NDArray[Any]] = {}
        self._in_log: NDArray[np.int64] | None = None
        self._stale: dict[int, list[str]] = {}

    def correct(self, batches: Iterable[Sequence[Run]]) -> None:
        """Set all rows of an edited log, repeats numbered: from now on, new rows replace stored
        runs of the log that it no longer has, each one of the same point."""
        outcomes = [self._table(runs)["outcome"] for runs in batches]
        self._in_log = np.unique(np.concatenate(outcomes)) if outcomes else np.empty(0, np.int64)

    def compare(self, runs: Sequence[Run]) -> Compared:
        """Compare the next rows of the log, repeats numbered."""
        first = {_place(run): run for run in runs}
        parts = [table for place, run in first.items() if len(table := self._of(place, run))]
        if not parts:
            return Compared([*runs])
        stored, rows = np.concatenate(parts), self._table(runs)
        again = np.isin(_mixed(rows), _mixed(stored))
        compared, new = Compared([*runs], int(again.sum())), ~again
        other = new.copy()
        changed = np.flatnonzero(new & (rows["campaign"] == 0)).tolist() if self._stale else ()
        for at in changed:
            if stale := self._stale.get(int(rows["point"][at])):
                compared.new[at] = replace(runs[at], replaces=stale.pop())
                compared.corrected += 1
                other[at] = False
        names = list(self._numbers)
        equal = np.isin(stored["outcome"], rows["outcome"][other])
        for number in np.unique(stored["campaign"][equal]):
            log, elsewhere = stored[stored["campaign"] == number], rows["campaign"] != number
            copies = other & elsewhere & np.isin(rows["outcome"], log["outcome"])
            if copies.any() and _is_copy(rows[elsewhere], log):
                compared.copies[names[number]] = int(copies.sum())
                new &= ~copies
                other &= ~copies
        compared.new = [run for run, is_new in zip(compared.new, new, strict=True) if is_new]
        return compared

    def _of(self, place: tuple[str, str, str], run: Run) -> NDArray[Any]:
        """The stored runs of a place, as they were before the log added some."""
        if place not in self._tables:
            rows = dict(self._rows(run))
            parts = ((place, row.config_id, row.campaign, row.measurement) for row in rows.values())
            table = self._tables[place] = self._compared(parts)
            if self._in_log is not None:
                stale = (table["campaign"] == 0) & ~np.isin(table["outcome"], self._in_log)
                keys = list(rows)
                for at in np.flatnonzero(stale):
                    ids = self._stale.setdefault(int(table["point"][at]), [])
                    ids.append(keys[at][-16:].hex())
        return self._tables[place]

    def _rows(self, run: Run) -> Iterator[tuple[bytes, RunRow]]:
        """The stored runs of the workload, op and platform of a run, by their keys."""
        partition = self._store.partition(run.platform, run.op)
        if partition is None:
            return
        head = partition.prefix + pattern_key(self._store.resolve(run.pattern_id))
        with self._store.engine.read() as txn:
            rows = {key: decode_row(raw) for key, raw in txn.scan("run", head)}
            withdrawn = hidden_under(txn, head)
        for key, row in counting(rows).items():
            if not row.imported and (key not in withdrawn or row.campaign == self._campaign):
                yield key, row

    def _table(self, runs: Sequence[Run]) -> NDArray[Any]:
        """Runs as they are compared."""
        return self._compared(
            (_place(r), bytes.fromhex(r.config.id), r.campaign, r.measurement) for r in runs
        )

    def _compared(self, parts: Iterable[tuple[Any, bytes, str, Measurement]]) -> NDArray[Any]:
        rows = []
        for place, config_id, campaign, m in parts:
            number = self._numbers.setdefault(campaign, len(self._numbers))
            point = hash((place, config_id))
            times = tuple(map(_rounded, m.times_s))
            costs = _rounded(m.conversion_s), _rounded(m.compile_s)
            outcome = hash((point, m.status, times, costs, m.when, m.context.get(REPEAT)))
            rows.append((number, bool(times) and m.ok, point, outcome))
        return np.array(rows, _COMPARED)


def _place(run: Run) -> tuple[str, str, str]:
    return run.pattern_id, run.platform, str(run.op)


def _rounded(time: float | None) -> float | None:
    """A time without its last bits."""
    if not time or not math.isfinite(time):
        return time
    mantissa, exponent = math.frexp(time)
    return math.ldexp(round(math.ldexp(mantissa, _BITS)), min(exponent, 1000) - _BITS)


def _mixed(table: NDArray[Any]) -> NDArray[np.int64]:
    """Hashes of campaign and outcome."""
    mixed: NDArray[np.int64] = table["outcome"] + table["campaign"].astype(np.int64) * _MIX
    return mixed


def _is_copy(rows: NDArray[Any], log: NDArray[Any]) -> bool:
    """True if the times of rows are those of a stored log at nearly all points that both have."""
    rows, log = rows[rows["timed"]], log[log["timed"]]
    (points, counts), (stored, stored_counts) = (
        np.unique(table["point"], return_counts=True) for table in (rows, log)
    )
    _, here, there = np.intersect1d(points, stored, assume_unique=True, return_indices=True)
    shared = np.minimum(counts[here], stored_counts[there]).sum()
    equal = np.intersect1d(rows["outcome"], log["outcome"]).size
    return bool(equal and equal >= _COPIED * shared)


class Content(msgspec.Struct, frozen=True):
    """Path, size in bytes, and digest of a file."""

    path: str
    size: int
    digest: str


def content_of(path: Path, size: int | None = None) -> tuple[Content, Any]:
    """A file, or its first `size` bytes, and the hash of them, which callers may extend.

    Raises: ReaderError if it cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    count = 0
    with refusing(ReaderError, where=str(path)), open_regular(path) as file:
        while block := file.read(_BLOCK if size is None else min(_BLOCK, size - count)):
            digest.update(block)
            count += len(block)
    return Content(str(path.resolve()), count, digest.hexdigest()), digest


class LogName:
    """The campaign of a log's runs: its reader and name, with as many of its folders as distinguish
    it from other logs of that name in the database.

    It is the same log if it has the same path, or extends the content that was read before; it is
    `edited` if it has another content there, and `whole` if that content is all that it has.
    """

    def __init__(self, store: Store, reader: str, path: Path, content: Content) -> None:
        folders = Path(content.path).parts[:-1]
        name = path.name
        self.edited = self.whole = False
        while (entry := self._entry(store, f"{reader}:{name}")) is not None:
            if self._goes_on(path, entry, content):
                self.whole = entry.size == content.size
                break
            if entry.path == content.path or not folders:
                self.edited = True
                break
            folders, name = folders[:-1], f"{folders[-1]}/{name}"
        self.campaign = f"{reader}:{name}"
        self.journal = {_journal(self.campaign): msgspec.json.encode(content)}

    @staticmethod
    def _entry(store: Store, campaign: str) -> Content | None:
        raw = store.journal.get(_journal(campaign))
        return None if raw is None else msgspec.json.decode(raw, type=Content)

    @staticmethod
    def _goes_on(path: Path, before: Content, now: Content) -> bool:
        return before.size <= now.size and content_of(path, before.size)[0].digest == before.digest


def _journal(campaign: str) -> str:
    return f"log/{campaign}"
