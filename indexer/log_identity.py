"""Identity of equal runs and of log files (docs/explanation/decisions.md)."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import ReaderError
from embeddb.core.files.safe_read import open_regular, refusing
from embeddb.core.records import REPEAT, Run, in_context
from embeddb.store import Store

_encode = msgspec.msgpack.Encoder().encode
_BLOCK = 1 << 20
#: Share and least number of rows that are equal in a copy, and workloads that are compared.
_COPIED, _LEAST_COPIED, _MOST_PLACES = 0.9, 5, 50


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


def copies_of(store: Store, runs: Sequence[Run]) -> dict[str, int]:
    """Number of the first `runs` of a new log that equal a stored one in workload, operation,
    instance, configuration and time, by its campaign; only where nine in ten do."""
    places = set(list(dict.fromkeys((r.platform, r.op, r.pattern_id) for r in runs))[:_MOST_PLACES])
    stored: dict[tuple[Any, ...], set[str]] = {}
    for place in places:
        for run in store.runs(*place):
            stored.setdefault((*place, run.config, _digits(run)), set()).add(run.campaign)
    compared = [r for r in runs if (r.platform, r.op, r.pattern_id) in places]
    there = Counter(
        campaign
        for r in compared
        for campaign in stored.get((r.platform, r.op, r.pattern_id, r.config, _digits(r)), ())
    )
    enough = max(_LEAST_COPIED, _COPIED * len(compared))
    return {campaign: count for campaign, count in there.items() if count >= enough}


def _digits(run: Run) -> str:
    """The time in nine digits: a conversion of units changes the last ones."""
    return f"{run.seconds:.9g}"


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

    It is the same log if it has the same path, or extends the content that was read before. It is
    `new` if the database has no such log, and `edited` if it was read with another content.
    """

    def __init__(self, store: Store, reader: str, path: Path, content: Content) -> None:
        folders = Path(content.path).parts[:-1]
        name = path.name
        self.edited = False
        while (entry := self._entry(store, f"{reader}:{name}")) is not None:
            goes_on = self._goes_on(path, entry, content)
            if entry.path == content.path or goes_on or not folders:
                self.edited = not goes_on
                break
            folders, name = folders[:-1], f"{folders[-1]}/{name}"
        self.new = entry is None
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
