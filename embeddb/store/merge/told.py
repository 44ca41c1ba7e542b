"""What an import tells, into the tables: it adds to what is known and changes none of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from embeddb.core.errors import UsageError
from embeddb.core.kinds import kind_of
from embeddb.core.records import PatternInfo, Run
from embeddb.core.subject import Subject
from embeddb.store import codec
from embeddb.store.engine import Txn
from embeddb.store.merge.contradiction import Contradiction
from embeddb.store.merge.patterns import complete_info, look_ahead
from embeddb.store.merge.runs import AppendResult, Word, add_runs
from embeddb.store.team.sources import Pushing

__all__ = ["Told"]


@dataclass(frozen=True, slots=True)
class Told:
    """What can be stored of it; `unfit` says why the rest cannot."""

    infos: tuple[PatternInfo, ...]
    coded: tuple[Subject, ...]
    runs: tuple[tuple[Run, bytes], ...]
    unfit: tuple[Contradiction, ...]

    @classmethod
    def of(
        cls, runs: Iterable[Run], patterns: Iterable[PatternInfo], coded: Iterable[Subject]
    ) -> Told:
        unfit: list[Contradiction] = []
        infos: list[PatternInfo] = []
        keyed: list[tuple[Run, bytes]] = []
        for info in patterns:
            try:
                codec.pattern_key(info.id)
                codec.encode_info(info)
                infos.append(info)
            except UsageError as e:
                unfit.append(Contradiction(f"pattern {info.id[:40]}", str(e), refused=True))
        for run in runs:
            try:
                keyed.append((run, bytes.fromhex(run.id)))
            except UsageError as e:
                what = f"run of pattern {run.pattern_id[:40]}"
                unfit.append(Contradiction(what, str(e), refused=True))
        return cls(tuple(infos), tuple(coded), tuple(keyed), tuple(unfit))

    def add(
        self, txn: Txn, pushing: Pushing | None = None
    ) -> tuple[AppendResult, tuple[Contradiction, ...]]:
        """What became of the runs, and what is against what is known, all of `unfit` too; with
        `pushing`, who told it is kept with each."""
        look_ahead(txn, self.infos)
        found = [complete_info(txn, info) for info in self.infos]
        found += [_complete_code(txn, one) for one in self.coded]
        against = [*self.unfit, *(c for c in found if c is not None)]
        word = Word(True, 0 if pushing is None else pushing.number(txn))
        done = add_runs(txn, ((*run, word) for run in self.runs), against)
        if pushing is not None:
            pushing.note(txn, done.added, done.duplicates, len(against))
        return done, tuple(against)


def _complete_code(txn: Txn, given: Subject) -> Contradiction | None:
    """The code of what facts are known of: it fits its id, so that it can only be missing."""
    key = codec.pattern_key(given.id)
    raw = txn.get("pattern", key)
    if raw is None:
        return Contradiction(f"{given.kind} {given.id}", "its pattern is not known", refused=True)
    known = codec.decode_info(raw)
    if (known.kind, known.named) != (given.kind, dict(given.sizes.named)):
        says = f"is {given.sizes}, and known as {known.kind} of {known.sizes}"
        return Contradiction(f"{given.kind} {given.id}", says, refused=True)
    kind = kind_of(given.kind)
    if txn.get(kind.table, key) is None:
        txn.put(kind.table, key, kind.encode(given))
    return None
