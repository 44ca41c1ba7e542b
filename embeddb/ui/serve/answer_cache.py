"""Asking: a matrix in, the address of its answer out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from embeddb.core.config import Op
from embeddb.core.pattern import Pattern
from embeddb.core.records import PatternInfo
from embeddb.database import Database
from embeddb.explain.explain import explain
from embeddb.platforms.platform import Platform
from embeddb.ui.serve.app_state import AppState

_NOT_STORED = "the database is read-only"


class AnswerCache:
    """Answers questions, and gives the same answer to the same question while nothing changed,
    whichever worker is asked."""

    def __init__(self, state: AppState) -> None:
        self._state = state

    def ask(
        self, pattern: Pattern | PatternInfo, platform: Platform, op: Op, thumbnail: bytes = b""
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
        elif not isinstance(pattern, PatternInfo):
            state.db.store.put_patterns([_info(state.db, pattern, thumbnail)])
        state.answers.remember(question, made.id)
        return made.id

    def _is_there(self, answer_id: str) -> bool:
        state = self._state
        return (
            state.answers.get(answer_id) is not None
            or state.db.store.recommendations.get(answer_id) is not None
        )


def _info(db: Database, pattern: Pattern | PatternInfo, thumbnail: bytes) -> PatternInfo:
    """What is known of the pattern, with its thumbnail."""
    if isinstance(pattern, PatternInfo):
        return pattern
    known = db.store.pattern(pattern.id)
    if known is not None and known.thumbnail:
        return known
    if thumbnail:
        return msgspec.structs.replace(PatternInfo.of(pattern), thumbnail=thumbnail)
    return PatternInfo.whole(pattern)


def answer(state: AppState, asked: Mapping[str, str]) -> dict[str, Any]:
    """Why an answer is what it is. Raises: NothingFound."""
    made = state.recommendation(asked["id"])
    known = state.db.store.pattern(state.db.store.resolve(made.pattern_id)) is not None
    stored = state.answers.get(made.id) is None
    return {"explanation": explain(made, state.db.store), "stored": stored, "known": known}


def answer_twin(found: dict[str, Any]) -> dict[str, Any]:
    """The same as JSON has it."""
    return {**found, "explanation": found["explanation"].document()}
