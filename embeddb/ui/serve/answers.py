"""Answers of the server, and the cache of a database between requests."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from threading import Lock
from typing import NamedTuple, TypeVar

import msgspec

from embeddb.core.errors import StoreError
from embeddb.core.records import WorkloadInfo
from embeddb.ranking.recommendation import Candidate, Recommendation
from embeddb.store import Store, Txn
from embeddb.store.lmdb_engine import DATA_FILE
from embeddb.store.tables import decoded

T = TypeVar("T")
RESTART = "start the server again once it is back"


def file_of(store: Store) -> os.stat_result | None:
    """Status of the current data file; None in memory and on a server.

    Raises: StoreError if there is none.
    """
    if store.path is None or store.shared:
        return None
    try:
        return (store.path / DATA_FILE).stat()
    except OSError:
        raise StoreError(f"{store.path.name} was removed", hint=RESTART) from None


class PageCache:
    """Cache of values by key, cleared when the version token changes.

    Has at most `most` values, the last used ones. A value is computed outside the lock: two threads
    may compute the same one, neither waits for the other.
    """

    def __init__(self, token: Callable[[], Hashable], most: int = 512) -> None:
        self._token = token
        self._most = most
        self._now: Hashable = None
        self._values: OrderedDict[Hashable, object] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The current value of a key."""
        now = self._token()
        with self._lock:
            if now != self._now:
                self._values.clear()
                self._now = now
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]  # type: ignore[return-value]  # a key has one maker
        value = make()
        with self._lock:
            if now == self._now:
                self._values[key] = value
                while len(self._values) > self._most:
                    self._values.popitem(last=False)
        return value


#: Queries whose answers are remembered.
_MOST_QUESTIONS = 1000


class AnswerHead(msgspec.Struct, frozen=True):
    """An answer in a list."""

    id: str
    pattern_id: str
    pattern_name: str
    platform: str
    op: str
    link: str
    confidence: str
    created: float
    candidates: list[Candidate]
    simulated: bool


class ServerAnswer(NamedTuple):
    """An answer and its pattern, which the database may not have."""

    recommendation: Recommendation
    info: WorkloadInfo


class _Row(msgspec.Struct):
    """Stored row of an answer, in order of creation; `size` is that of the encoded answer."""

    head: AnswerHead
    info: WorkloadInfo
    size: int


def stored_head(answer_id: str, raw: bytes) -> AnswerHead:
    """The head of an encoded answer. Raises: StoreCorrupt for a malformed one."""
    return decoded(raw, AnswerHead, f"answer {answer_id}")


class ServerAnswers:
    """The last answers, within `most` of them and `most_bytes` of their encoded form."""

    def __init__(self, store: Store, most: int = 500, most_bytes: int = 64 << 20) -> None:
        self._engine = store.engine
        self._most, self._most_bytes = most, most_bytes

    @property
    def version(self) -> object:
        return self._engine.version()

    def keep(self, answer: Recommendation, info: WorkloadInfo) -> None:
        raw = msgspec.json.encode(answer)
        row = msgspec.json.encode(_Row(stored_head(answer.id, raw), info, len(raw)))

        def body(txn: Txn) -> None:
            number = int.from_bytes(txn.get("meta", b"answers") or b"", "big") + 1
            txn.put("meta", b"answers", number.to_bytes(8, "big"))
            txn.put("note", number.to_bytes(8, "big"), row)
            txn.put("recommendation", answer.id.encode(), raw)
            self._forget(txn)

        self._engine.write(body)

    def _forget(self, txn: Txn) -> None:
        """Delete the oldest answers until the others are within bounds; never the last."""
        rows = [(key, row) for key, row in _rows(txn)]
        size = sum(row.size for _, row in rows)
        while len(rows) > 1 and (len(rows) > self._most or size > self._most_bytes):
            key, row = rows.pop(0)
            size -= row.size
            txn.delete("note", key)
            txn.delete("recommendation", row.head.id.encode())

    def get(self, answer_id: str) -> ServerAnswer | None:
        key = answer_id.encode()
        if not 1 <= len(key) < 100:
            return None
        with self._engine.read() as txn:
            raw = txn.get("recommendation", key)
            infos = [row.info for _, row in _rows(txn) if row.head.id == answer_id] if raw else []
        if raw is None or not infos:
            return None
        return ServerAnswer(msgspec.json.decode(raw, type=Recommendation), infos[-1])

    def heads(self) -> list[AnswerHead]:
        with self._engine.read() as txn:
            return [row.head for _, row in _rows(txn)]

    def pattern(self, pattern_id: str) -> WorkloadInfo | None:
        """The record of a queried pattern."""
        with self._engine.read() as txn:
            infos = [row.info for _, row in _rows(txn) if row.info.id == pattern_id]
        return infos[-1] if infos else None

    # -- questions -------------------------------------------------------------------------

    def answer_of(self, question: str) -> str:
        """The id of the answer to an earlier query; empty if there is none."""
        with self._engine.read() as txn:
            return (txn.get("journal", _key(question)) or b"").decode()

    def remember(self, question: str, answer_id: str) -> None:
        def body(txn: Txn) -> None:
            if txn.count("journal") >= _MOST_QUESTIONS:
                for key, _ in list(txn.scan("journal")):
                    txn.delete("journal", key)
            txn.put("journal", _key(question), answer_id.encode())

        self._engine.write(body)


def _rows(txn: Txn) -> Iterator[tuple[bytes, _Row]]:
    for key, raw in txn.scan("note"):
        yield key, msgspec.json.decode(raw, type=_Row)


def _key(question: str) -> bytes:
    return hashlib.blake2b(question.encode("utf-8", "replace"), digest_size=16).digest()
