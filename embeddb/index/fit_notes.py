"""Notes in a database of what fitting has found, so that the same runs are not fitted again."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

import msgspec

from embeddb.core.errors import StoreCorrupt
from embeddb.index.vote import VoteSettings
from embeddb.index.vote_fit import LeftOut
from embeddb.store.tables import decoded, reading


class PolicyNote(msgspec.Struct, frozen=True):
    """The policy that a machine's own runs chose, and the stamp of what it was found from."""

    stamp: str
    policy: str

    def __post_init__(self) -> None:
        VoteSettings.from_json(self.policy)

    @property
    def settings(self) -> VoteSettings:
        return VoteSettings.from_json(self.policy)


class FitNote(PolicyNote, frozen=True):
    """The fit of a partition: featurizer, a `learned` metric or the plain one, policy, and results
    of leaving machines out. `among` has the versions of the featurizers that its own was chosen
    among: it stays the choice where some of the others cannot be computed. The starter ships one
    for each of its partitions: fitting one takes 5 to 9 seconds."""

    featurizer: str
    learned: bool
    left_out: str
    among: dict[str, str]

    def __post_init__(self) -> None:
        VoteSettings.from_json(self.policy)
        if self.left_out:
            LeftOut.from_json(self.left_out)

    @property
    def across(self) -> LeftOut | None:
        return LeftOut.from_json(self.left_out) if self.left_out else None


Note = TypeVar("Note", bound=PolicyNote)


def noted(raw: bytes | None, kind: type[Note]) -> Note | None:
    """The stored note, if it is sound."""
    with suppress(StoreCorrupt), reading("a noted fit"):
        return None if raw is None else decoded(raw, kind, "its note")
    return None
