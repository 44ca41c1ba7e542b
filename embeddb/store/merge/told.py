"""What an import tells, into the tables: it adds to what is known and changes none of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from embeddb.core.errors import UsageError
from embeddb.core.records import PatternInfo, Run
from embeddb.nests.nest import Nest
from embeddb.store import codec
from embeddb.store.engine import Txn
from embeddb.store.merge.contradiction import Contradiction
from embeddb.store.merge.patterns import complete_info
from embeddb.store.merge.runs import AppendResult, Keyed, add_runs

__all__ = ["Told"]


@dataclass(frozen=True, slots=True)
class Told:
    """What can be stored of it; `unfit` says why the rest cannot."""

    infos: tuple[PatternInfo, ...]
    nests: tuple[Nest, ...]
    runs: tuple[Keyed, ...]
    unfit: tuple[Contradiction, ...]

    @classmethod
    def of(
        cls, runs: Iterable[Run], patterns: Iterable[PatternInfo], nests: Iterable[Nest]
    ) -> Told:
        unfit: list[Contradiction] = []
        infos: list[PatternInfo] = []
        keyed: list[Keyed] = []
        for info in patterns:
            try:
                codec.pattern_key(info.id)
                codec.encode_info(info)
                infos.append(info)
            except UsageError as e:
                unfit.append(Contradiction(f"pattern {info.id[:40]}", str(e), refused=True))
        for run in runs:
            try:
                keyed.append((run, bytes.fromhex(run.id), True))
            except UsageError as e:
                what = f"run of pattern {run.pattern_id[:40]}"
                unfit.append(Contradiction(what, str(e), refused=True))
        return cls(tuple(infos), tuple(nests), tuple(keyed), tuple(unfit))

    def add(self, txn: Txn) -> tuple[AppendResult, tuple[Contradiction, ...]]:
        """What became of the runs, and what is against what is known, all of `unfit` too."""
        found = [complete_info(txn, info) for info in self.infos]
        found += [_complete_nest(txn, nest) for nest in self.nests]
        against = [*self.unfit, *(c for c in found if c is not None)]
        return add_runs(txn, self.runs, against), tuple(against)


def _complete_nest(txn: Txn, nest: Nest) -> Contradiction | None:
    """The code of a nest whose facts are known: it fits its id, so that it can only be missing."""
    key = codec.pattern_key(nest.id)
    raw = txn.get("pattern", key)
    if raw is None:
        return Contradiction(f"nest {nest.id}", "its pattern is not known", refused=True)
    known = codec.decode_info(raw)
    if (known.kind, known.named) != (nest.kind, dict(nest.sizes.named)):
        says = f"is {nest.sizes}, and known as {known.kind} of {known.sizes}"
        return Contradiction(f"nest {nest.id}", says, refused=True)
    if txn.get("nest", key) is None:
        txn.put("nest", key, codec.encode_nest(nest))
    return None
