"""State behind every page: the database, its cache, and the answers of the server."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from embeddb.core.config import Op
from embeddb.core.errors import NothingFound, StoreError
from embeddb.core.pattern import Pattern
from embeddb.core.records import WorkloadInfo
from embeddb.core.wording import one_of
from embeddb.database import Database
from embeddb.explain.explain import explain
from embeddb.index.scopes import Scope, scopes
from embeddb.platforms.platform import Platform, builtin_platforms
from embeddb.ranking.answers import in_order, recommendation
from embeddb.ranking.recommendation import Recommendation
from embeddb.store import Store, memory_store
from embeddb.ui.serve.access import Address
from embeddb.ui.serve.answers import (
    RESTART,
    AnswerHead,
    PageCache,
    ServerAnswers,
    file_of,
    stored_head,
)

_PLATFORM = re.compile(r"[a-z][a-z0-9-]{0,47}(@[A-Za-z0-9][A-Za-z0-9._+-]{0,63})?")


def _name(db: Database) -> str:
    """Name of the database on pages."""
    if db.store.shared:
        return db.store.place
    return "a database in memory" if db.store.path is None else db.store.path.name


class Catalog(NamedTuple):
    """Every pattern without its thumbnail, and its searchable text."""

    infos: dict[str, WorkloadInfo]
    texts: list[tuple[str, str, str]]  # name, group, id; lower case


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
        address = address or Address()
        self.root, self.others_see_it = address.root, address.others_see_it
        self.db = db
        self.writable = writable and not db.store.readonly
        self.max_upload = max_upload
        self.answers = ServerAnswers(scratch or memory_store())
        self.cache = PageCache(self.version_token)
        #: The kinds of the last read: an error page has a frame, too.
        self.kinds_seen: list[str] = []
        self._opened = self._file()
        self.name = _name(db)

    def version_token(self) -> Hashable:
        """Token that changes with every commit to the database.

        Raises: StoreError if the database was replaced or removed: the open one could still be
        read, but is outdated, and answers would be lost.
        """
        if self._file() != self._opened:
            raise StoreError(f"{self.name} was replaced by another database", hint=RESTART)
        return self.db.store.engine.version()

    def _file(self) -> tuple[int, int] | None:
        file = file_of(self.db.store)
        return None if file is None else (file.st_dev, file.st_ino)

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

        def read() -> dict[tuple[str, Op], dict[str, int]]:
            return {(p.platform, p.op): store.members(p) for p in store.partitions()}

        return self.cache.get("members", read)

    def catalog(self) -> Catalog:
        def read() -> Catalog:
            infos = [msgspec.structs.replace(i, thumbnail=b"") for i in self.db.store.patterns()]
            infos.sort(key=lambda i: (i.name.lower(), i.id))
            texts = [(i.name.lower(), i.group.lower(), i.id) for i in infos]
            return Catalog({i.id: i for i in infos}, texts)

        return self.cache.get("catalog", read)

    def kinds(self) -> list[str]:
        """Kinds of the patterns (`embeddb.core.workload`)."""
        infos = self.catalog().infos
        present = self.cache.get("kinds", lambda: sorted({info.kind for info in infos.values()}))
        self.kinds_seen = present
        return present

    def heads(self) -> list[AnswerHead]:
        """Every answer, the latest first."""

        def read() -> list[AnswerHead]:
            return in_order(self.db.index, stored_head, lambda head: head.created)

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
        """A pattern by id or unique name, with its thumbnail.

        Raises: NothingFound.
        """
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
            return served.recommendation
        if not re.fullmatch(r"r[0-9a-f]{12}", answer_id):
            raise NothingFound(f"{answer_id[:80]!r} is not the id of an answer")
        return recommendation(self.db.index, answer_id)


_NOT_STORED = "the database is read-only"


class AnswerCache:
    """Answers queries; a repeated query gets the same answer while the database is unchanged,
    from any worker."""

    def __init__(self, state: AppState) -> None:
        self._state = state

    def ask(
        self, pattern: Pattern | WorkloadInfo, platform: Platform, op: Op, thumbnail: bytes = b""
    ) -> str:
        """Answer a query; return the id. `thumbnail` is the pattern's, if already computed.

        Raises: UsageError if the platform has no such op; NothingFound for a pattern stored by name
        only if its structure is needed; StoreError if the answer cannot be stored, or the database
        was removed.
        """
        state = self._state
        state.version_token()  # raises if the database was removed
        generation = state.db.store.generation
        question = f"{generation}\0{pattern.id}\0{platform.id}\0{op}"
        earlier = state.answers.answer_of(question)
        if earlier and self._is_there(earlier):
            return earlier
        answer = state.db.query(pattern, platform=platform, op=op)
        if state.db.store.readonly:
            warnings = [w for w in answer.warnings if _NOT_STORED not in w]  # its page says so
            answer = msgspec.structs.replace(answer, warnings=warnings)
            state.answers.keep(answer, _info(state.db, pattern, thumbnail))
        elif not isinstance(pattern, WorkloadInfo):
            state.db.store.put_patterns([_info(state.db, pattern, thumbnail)])
        state.answers.remember(question, answer.id)
        return answer.id

    def _is_there(self, answer_id: str) -> bool:
        state = self._state
        return (
            state.answers.get(answer_id) is not None
            or state.db.store.recommendations.get(answer_id) is not None
        )


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
    recommendation = state.recommendation(query["id"])
    has_pattern = (
        state.db.store.pattern(state.db.store.resolve(recommendation.pattern_id)) is not None
    )
    stored = state.answers.get(recommendation.id) is None
    return {
        "explanation": explain(recommendation, state.db.store),
        "stored": stored,
        "known": has_pattern,
    }


def answer_twin(facts: dict[str, Any]) -> dict[str, Any]:
    """The JSON document of an answer's facts."""
    return {**facts, "explanation": facts["explanation"].document()}
