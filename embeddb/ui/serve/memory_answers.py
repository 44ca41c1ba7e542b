"""Answers that are kept in memory: a read-only database has no place for them."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import NamedTuple

import msgspec

from embeddb.core.records import PatternInfo
from embeddb.query.recommendation import Candidate, Recommendation
from embeddb.store.tables import decoded

__all__ = ["AnswerHead", "MemoryAnswer", "MemoryAnswers", "stored_head"]


class AnswerHead(msgspec.Struct, frozen=True):
    """What a list of answers shows of one."""

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


class MemoryAnswer(NamedTuple):
    """An answer and the pattern it is about, which the database may not know."""

    made: Recommendation
    info: PatternInfo


class _Row(NamedTuple):
    raw: bytes
    head: AnswerHead
    info: PatternInfo


def stored_head(answer_id: str, raw: bytes) -> AnswerHead:
    """Raises: StoreCorrupt for what is no answer."""
    return decoded(raw, AnswerHead, f"answer {answer_id}")


class MemoryAnswers:
    """The last answers, within `most` of them and `most_bytes` of their encoded form."""

    def __init__(self, most: int = 500, most_bytes: int = 64 << 20) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._rows: OrderedDict[str, _Row] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()
        self.version = 0

    def keep(self, made: Recommendation, info: PatternInfo) -> None:
        raw = msgspec.json.encode(made)
        with self._lock:
            self._rows[made.id] = _Row(raw, stored_head(made.id, raw), info)
            self._bytes += len(raw)
            self.version += 1
            while len(self._rows) > 1 and (
                len(self._rows) > self._most or self._bytes > self._most_bytes
            ):
                _, gone = self._rows.popitem(last=False)
                self._bytes -= len(gone.raw)

    def get(self, answer_id: str) -> MemoryAnswer | None:
        with self._lock:
            found = self._rows.get(answer_id)
        if found is None:
            return None
        return MemoryAnswer(msgspec.json.decode(found.raw, type=Recommendation), found.info)

    def heads(self) -> list[AnswerHead]:
        with self._lock:
            return [row.head for row in self._rows.values()]

    def pattern(self, pattern_id: str) -> PatternInfo | None:
        """What is known of a pattern that was asked about."""
        with self._lock:
            infos = [row.info for row in self._rows.values() if row.info.id == pattern_id]
        return infos[-1] if infos else None
