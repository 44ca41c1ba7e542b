"""What every page reads from: the database, what is kept of it, and the answers of the server."""

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
    """What pages call the database."""
    if db.store.shared:
        return db.store.place
    return "a database in memory" if db.store.path is None else db.store.path.name


class Catalog(NamedTuple):
    """Every pattern without its thumbnail, and the text each is searched by."""

    infos: dict[str, WorkloadInfo]
    texts: list[tuple[str, str, str]]  # name, group, id; lower case


class AppState:
    """A database being shown. `max_upload` is in bytes; `scratch` is an empty store for what lives
    as long as the server, in memory if none is given. Safe for several threads."""

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
        #: As they were last read: a page that says that nothing can be read has a frame, too.
        self.kinds_seen: list[str] = []
        self._opened = self._file()
        self.name = _name(db)

    def version_token(self) -> Hashable:
        """Changes with every commit to the database.

        Raises: StoreError if another one, or none, is where it was: what is open still reads, but
        shows what is gone, and answers would be stored nowhere.
        """
        if self._file() != self._opened:
            raise StoreError(f"{self.name} was replaced by another database", hint=RESTART)
        return self.db.store.engine.version()

    def _file(self) -> tuple[int, int] | None:
        file = file_of(self.db.store)
        return None if file is None else (file.st_dev, file.st_ino)

    def answers_token(self) -> Hashable:
        """The same, and with every answer that the server keeps."""
        return self.version_token(), self.answers.version

    def scopes(self) -> list[Scope]:
        """Those with runs, the platform's name first."""
        return self.cache.get("scopes", lambda: scopes(self.db.store))

    def largest(self, among: Sequence[Scope]) -> Scope | None:
        """The one that most patterns were measured in; None of none."""
        held = self.members()

        def patterns(scope: Scope) -> int:
            return len({i for name in scope.instances for i in held.get((name, scope.op), ())})

        return max(among, key=patterns, default=None)

    def display_name(self, name: str) -> str:
        """A platform or instance by its machine, where its facts are stored; else its id."""

        def read() -> str:
            found = self.db.store.sound_platform(name)
            return name if found is None else found.display_name

        return self.cache.get(("display name", name), read)

    def members(self) -> dict[tuple[str, Op], dict[str, int]]:
        """By platform id and operation: the patterns that ran, with the generation of the last."""
        store = self.db.store

        def read() -> dict[tuple[str, Op], dict[str, int]]:
            return {(p.platform, p.op): store.members(p) for p in store.partitions()}

        return self.cache.get("members", read)

    def catalog(self) -> Catalog:
        def read() -> Catalog:
            found = [msgspec.structs.replace(i, thumbnail=b"") for i in self.db.store.patterns()]
            found.sort(key=lambda i: (i.name.lower(), i.id))
            texts = [(i.name.lower(), i.group.lower(), i.id) for i in found]
            return Catalog({i.id: i for i in found}, texts)

        return self.cache.get("catalog", read)

    def kinds(self) -> list[str]:
        """Of the patterns here (`embeddb.core.workload`)."""
        infos = self.catalog().infos
        found = self.cache.get("kinds", lambda: sorted({info.kind for info in infos.values()}))
        self.kinds_seen = found
        return found

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
        known = self.db.store.platforms()
        names = {p.partition("@")[0] for p in known} | set(builtin_platforms())
        plain = _PLATFORM.fullmatch(text) and not text.endswith(".toml")
        if text not in known and not (plain and text.partition("@")[0] in names):
            here = ", ".join(known[:8]) or "none"
            raise NothingFound(f"no platform {text[:80]!r}", hint=f"known here: {here}")
        return self.db.platform(text)

    def pattern(self, text: str) -> WorkloadInfo:
        """A pattern by id or by the name of just one, with its thumbnail.

        Raises: NothingFound.
        """
        store = self.db.store
        if re.fullmatch(r"[0-9a-f]{32}", text):
            found = store.pattern(store.resolve(text)) or self.answers.pattern(text)
            if found is not None:
                return found
        named = store.find(text) if 0 < len(text) <= 400 else []
        known = [info for info in named if not info.stub] or named
        if len(known) > 1:
            ids = ", ".join(i.id for i in known[:3])
            raise NothingFound(f"{len(known)} patterns are called {text[:80]}", hint=f"ids: {ids}")
        if not known:
            raise NothingFound(
                f"no {one_of(*self.kinds())} {text[:80]!r} here",
                hint="search for a part of its name",
            )
        return known[0]

    def recommendation(self, answer_id: str) -> Recommendation:
        """Raises: NothingFound."""
        held = self.answers.get(answer_id)
        if held is not None:
            return held.made
        if not re.fullmatch(r"r[0-9a-f]{12}", answer_id):
            raise NothingFound(f"{answer_id[:80]!r} is not the id of an answer")
        return recommendation(self.db.index, answer_id)


_NOT_STORED = "the database is read-only"


class AnswerCache:
    """Answers questions, and gives the same answer to the same question while nothing changed,
    whichever worker is asked."""

    def __init__(self, state: AppState) -> None:
        self._state = state

    def ask(
        self, pattern: Pattern | WorkloadInfo, platform: Platform, op: Op, thumbnail: bytes = b""
    ) -> str:
        """The id of the answer. `thumbnail` is the pattern's where it is known already.

        Raises: UsageError if the platform has no such op; NothingFound for a pattern known by name
        only where its structure is needed; StoreError if it cannot be kept, or the database is
        gone.
        """
        state = self._state
        state.version_token()  # raises where the database is gone
        generation = state.db.store.generation
        question = f"{generation}\0{pattern.id}\0{platform.id}\0{op}"
        known = state.answers.known(question)
        if known and self._is_there(known):
            return known
        made = state.db.query(pattern, platform=platform, op=op)
        if state.db.store.readonly:
            warnings = [w for w in made.warnings if _NOT_STORED not in w]  # its page says so
            made = msgspec.structs.replace(made, warnings=warnings)
            state.answers.keep(made, _info(state.db, pattern, thumbnail))
        elif not isinstance(pattern, WorkloadInfo):
            state.db.store.put_patterns([_info(state.db, pattern, thumbnail)])
        state.answers.remember(question, made.id)
        return made.id

    def _is_there(self, answer_id: str) -> bool:
        state = self._state
        return (
            state.answers.get(answer_id) is not None
            or state.db.store.recommendations.get(answer_id) is not None
        )


def _info(db: Database, pattern: Pattern | WorkloadInfo, thumbnail: bytes) -> WorkloadInfo:
    """What is known of the pattern, with its thumbnail."""
    if isinstance(pattern, WorkloadInfo):
        return pattern
    known = db.store.pattern(pattern.id)
    if known is not None and known.thumbnail:
        return known
    if thumbnail:
        return msgspec.structs.replace(WorkloadInfo.of(pattern), thumbnail=thumbnail)
    return WorkloadInfo.whole(pattern)


def answer(state: AppState, asked: Mapping[str, str]) -> dict[str, Any]:
    """Why an answer is what it is. Raises: NothingFound."""
    made = state.recommendation(asked["id"])
    known = state.db.store.pattern(state.db.store.resolve(made.pattern_id)) is not None
    stored = state.answers.get(made.id) is None
    return {"explanation": explain(made, state.db.store), "stored": stored, "known": known}


def answer_twin(found: dict[str, Any]) -> dict[str, Any]:
    """The same as JSON has it."""
    return {**found, "explanation": found["explanation"].document()}
