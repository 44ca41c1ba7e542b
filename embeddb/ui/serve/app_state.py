"""State behind every page: the database, its cache, and the answers of the server."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, TypeVar

import msgspec

from embeddb.core.config import Op
from embeddb.core.errors import NothingFound, StoreError
from embeddb.core.kinds import is_foreign
from embeddb.core.pattern import Pattern
from embeddb.core.records import WorkloadInfo
from embeddb.core.wording import one_of
from embeddb.database import Database
from embeddb.explain.explain import explain
from embeddb.index.evidence import evidence_key
from embeddb.index.scopes import Scope, scopes
from embeddb.platforms.platform import Platform, builtin_platforms
from embeddb.ranking.answers import in_order, recommendation
from embeddb.ranking.recommendation import NOT_STORED, Candidate, Recommendation
from embeddb.store import Store, Txn, memory_store
from embeddb.store.lmdb_files import DATA_FILE
from embeddb.store.tables import decoded
from embeddb.ui.serve.access import Address

T = TypeVar("T")
RESTART = "start the server again once it is back"


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
        row = msgspec.json.encode((stored_head(answer.id, raw), info, len(raw)))

        def body(txn: Txn) -> None:
            number = int.from_bytes(txn.get("meta", b"answers") or b"", "big") + 1
            txn.put("meta", b"answers", number.to_bytes(8, "big"))
            txn.put("note", number.to_bytes(8, "big"), row)
            txn.put("recommendation", answer.id.encode(), raw)
            # The oldest are deleted until the others are within bounds; never the last.
            rows = list(_rows(txn))
            total = sum(size for *_, size in rows)
            while len(rows) > 1 and (len(rows) > self._most or total > self._most_bytes):
                key, head, _, size = rows.pop(0)
                total -= size
                txn.delete("note", key)
                txn.delete("recommendation", head.id.encode())

        self._engine.write(body)

    def get(self, answer_id: str) -> Recommendation | None:
        key = answer_id.encode()
        if not 1 <= len(key) < 100:
            return None
        with self._engine.read() as txn:
            raw = txn.get("recommendation", key)
        return None if raw is None else msgspec.json.decode(raw, type=Recommendation)

    def heads(self) -> list[AnswerHead]:
        with self._engine.read() as txn:
            return [head for _, head, _, _ in _rows(txn)]

    def pattern(self, pattern_id: str) -> WorkloadInfo | None:
        """The record of a queried pattern."""
        with self._engine.read() as txn:
            infos = [info for _, _, info, _ in _rows(txn) if info.id == pattern_id]
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


def _rows(txn: Txn) -> Iterator[tuple[bytes, AnswerHead, WorkloadInfo, int]]:
    """Key, head, pattern and encoded size of each answer, in order of creation."""
    for key, raw in txn.scan("note"):
        yield key, *msgspec.json.decode(raw, type=tuple[AnswerHead, WorkloadInfo, int])


def _key(question: str) -> bytes:
    return hashlib.blake2b(question.encode("utf-8", "replace"), digest_size=16).digest()


# -- state of a database ---------------------------------------------------------------------------

_PLATFORM = re.compile(r"[a-z][a-z0-9-]{0,47}(@[A-Za-z0-9][A-Za-z0-9._+-]{0,63})?")


class AppState:
    """A served database. `max_upload` is in bytes; `scratch` is an empty store for answers that
    live as long as the server, in memory by default. Thread-safe."""

    def __init__(
        self,
        db: Database,
        *,
        writable: bool,
        max_upload: int,
        address: Address | None = None,
        scratch: Store | None = None,
    ) -> None:
        self.address = address or Address()
        self.db = db
        self.writable = writable and not db.store.readonly
        self.max_upload = max_upload
        self.answers = ServerAnswers(scratch or memory_store())
        self.cache = PageCache(self.version_token)
        #: The kinds of the last read: an error page has a frame, too.
        self.kinds_seen: list[str] = []
        self._opened = self._file()
        #: Name of the database on pages.
        self.name = db.store.place if db.store.shared else "a database in memory"
        if db.store.path is not None and not db.store.shared:
            self.name = db.store.path.name

    def version_token(self) -> Hashable:
        """Token that changes with every commit to the database.

        Raises: StoreError if the database was replaced or removed: the open one could still be
        read, but is outdated, and answers would be lost.
        """
        if self._file() != self._opened:
            raise StoreError(f"{self.name} was replaced by another database", hint=RESTART)
        return self.db.store.engine.version()

    def _file(self) -> tuple[int, int] | None:
        """Device and inode of the current data file; None in memory and on a server. Raises:
        StoreError if there is none."""
        store = self.db.store
        if store.path is None or store.shared:
            return None
        try:
            file = (store.path / DATA_FILE).stat()
        except OSError:
            raise StoreError(f"{store.path.name} was removed", hint=RESTART) from None
        return file.st_dev, file.st_ino

    def answers_token(self) -> Hashable:
        """Token that also changes with every answer of the server."""
        return self.version_token(), self.answers.version

    def scopes(self) -> list[Scope]:
        """Scopes with runs, ordered by platform."""
        return self.cache.get("scopes", lambda: scopes(self.db.store))

    def largest(self, among: Sequence[Scope]) -> Scope | None:
        """The scope with most measured patterns; None without scopes."""
        members = self.members()

        def patterns(scope: Scope) -> int:
            return len({i for name in scope.instances for i in members.get((name, scope.op), ())})

        return max(among, key=patterns, default=None)

    def display_name(self, name: str) -> str:
        """A platform or instance by its machine, if its facts are stored; else its id."""

        def read() -> str:
            platform = self.db.store.sound_platform(name)
            return name if platform is None else platform.display_name

        return self.cache.get(("display name", name), read)

    def members(self) -> dict[tuple[str, Op], dict[str, int]]:
        """Measured patterns with their last generation, by platform id and operation."""
        store = self.db.store
        return self.cache.get(
            "members", lambda: {(p.platform, p.op): store.members(p) for p in store.partitions()}
        )

    def catalog(self) -> dict[str, WorkloadInfo]:
        """Every pattern without its thumbnail, by id, ordered by name."""

        def read() -> dict[str, WorkloadInfo]:
            infos = [msgspec.structs.replace(i, thumbnail=b"") for i in self.db.store.patterns()]
            return {i.id: i for i in sorted(infos, key=lambda i: (i.name.lower(), i.id))}

        return self.cache.get("catalog", read)

    def info(self, pattern_id: str) -> WorkloadInfo:
        """The record of a pattern without its thumbnail, empty if there is none."""
        return self.catalog().get(pattern_id, WorkloadInfo(id=pattern_id))

    def kinds(self) -> list[str]:
        """Kinds of the patterns (`embeddb.core.workload`)."""
        infos = self.catalog().values()
        self.kinds_seen = self.cache.get("kinds", lambda: sorted({info.kind for info in infos}))
        return self.kinds_seen

    def heads(self) -> list[AnswerHead]:
        """Every answer, the latest first, without those about operations of a missing plug-in."""

        def read() -> list[AnswerHead]:
            heads = in_order(self.db.index, stored_head, lambda head: head.created)
            missing = {op for op in {head.op for head in heads} if is_foreign(op)}
            return [head for head in heads if head.op not in missing]

        return [*self.cache.get("heads", read), *self.answers.heads()][::-1]

    # -- one thing by its id ---------------------------------------------------------------

    def platform(self, text: str) -> Platform:
        """A platform by id or name. Never a file: the text comes from an address.

        Raises: NothingFound.
        """
        stored = self.db.store.platforms()
        names = {p.partition("@")[0] for p in stored} | set(builtin_platforms())
        plain = _PLATFORM.fullmatch(text) and not text.endswith(".toml")
        if text not in stored and not (plain and text.partition("@")[0] in names):
            here = ", ".join(stored[:8]) or "none"
            raise NothingFound(f"no platform {text[:80]!r}", hint=f"platforms here: {here}")
        return self.db.platform(text)

    def pattern(self, text: str) -> WorkloadInfo:
        """A pattern by id or unique name, with its thumbnail. Raises: NothingFound."""
        store = self.db.store
        if re.fullmatch(r"[0-9a-f]{32}", text):
            by_id = store.pattern(store.resolve(text)) or self.answers.pattern(text)
            if by_id is not None:
                return by_id
        named = store.find(text) if 0 < len(text) <= 400 else []
        candidates = [info for info in named if not info.stub] or named
        if len(candidates) > 1:
            ids = ", ".join(i.id for i in candidates[:3])
            raise NothingFound(
                f"{len(candidates)} patterns are called {text[:80]}", hint=f"ids: {ids}"
            )
        if not candidates:
            raise NothingFound(
                f"no {one_of(*self.kinds())} {text[:80]!r} here",
                hint="search for a part of its name",
            )
        return candidates[0]

    def recommendation(self, answer_id: str) -> Recommendation:
        """An answer by its id. Raises: NothingFound."""
        served = self.answers.get(answer_id)
        if served is not None:
            return served
        if not re.fullmatch(r"r[0-9a-f]{12}", answer_id):
            raise NothingFound(f"{answer_id[:80]!r} is not the id of an answer")
        return recommendation(self.db.index, answer_id)


def ask(
    state: AppState,
    pattern: Pattern | WorkloadInfo,
    platform: Platform,
    op: Op,
    thumbnail: bytes = b"",
) -> str:
    """Answer a query; return the id. A repeated query gets the same answer while the evidence is
    unchanged, from any worker. `thumbnail` is the pattern's, if already computed.

    Raises: UsageError if the platform has no such op; NothingFound for a pattern stored by name
    only if its structure is needed; StoreError if the answer cannot be stored, or the database was
    removed.
    """
    state.version_token()  # raises if the database was removed
    answers, store = state.answers, state.db.store
    facts = sorted(platform.environment.items())
    about = pattern.id, platform.id, platform.text, facts, str(op)
    question = f"{evidence_key(store.generation, store.path)}\0{about}"
    earlier = answers.answer_of(question)
    if earlier and (answers.get(earlier) or store.recommendations.get(earlier)) is not None:
        return earlier
    answer = state.db.query(pattern, platform=platform, op=op)
    lasting = [w for w in answer.warnings if NOT_STORED not in w]
    if len(lasting) < len(answer.warnings):
        if store.readonly:  # its page says so
            answer = msgspec.structs.replace(answer, warnings=lasting)
        answers.keep(answer, _info(state.db, pattern, thumbnail))
    elif not isinstance(pattern, WorkloadInfo):
        store.put_patterns([_info(state.db, pattern, thumbnail)])
    answers.remember(question, answer.id)
    return answer.id


def _info(db: Database, pattern: Pattern | WorkloadInfo, thumbnail: bytes) -> WorkloadInfo:
    """The record of a pattern, with its thumbnail."""
    if isinstance(pattern, WorkloadInfo):
        return pattern
    stored = db.store.pattern(pattern.id)
    if stored is not None and stored.thumbnail:
        return stored
    if thumbnail:
        return msgspec.structs.replace(WorkloadInfo.of(pattern), thumbnail=thumbnail)
    return WorkloadInfo.whole(pattern)


def answer(state: AppState, query: Mapping[str, str]) -> dict[str, Any]:
    """Facts of an answer's page: its explanation. Raises: NothingFound."""
    recommendation, store = state.recommendation(query["id"]), state.db.store
    return {
        "explanation": explain(recommendation, store),
        "stored": state.answers.get(recommendation.id) is None,
        "known": store.pattern(store.resolve(recommendation.pattern_id)) is not None,
    }


def answer_twin(facts: dict[str, Any]) -> dict[str, Any]:
    return {**facts, "explanation": facts["explanation"].document()}
