"""Import of loop nests and tensors into a database, to be queried, measured, and used as
neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from embeddb.core.kinds import kind_of
from embeddb.core.reports import Progress, ignore_progress
from embeddb.core.workload import Workload
from embeddb.index.lookup import Lookup
from indexer.embed import adopted

T = TypeVar("T", bound=Workload)

#: Workloads per transaction: about a second of work is lost if the process is killed.
_TOGETHER = 64


@dataclass(slots=True)
class Added(Generic[T]):
    """Workloads that were new; those `stored` before, which keep their names and groups; and the
    number of runs that moved to them from stubs."""

    added: list[T] = field(default_factory=list)
    stored: list[T] = field(default_factory=list)
    adopted_runs: int = 0


def add_coded(
    db: Lookup,
    subjects: Sequence[T],
    *,
    progress: Progress = ignore_progress,
) -> Added[T]:
    """Store workloads, each once, with the vectors that can be computed here. A stub becomes the
    one workload of its name and kind: where several share a name, it stays a stub."""
    done = Added[T]()
    named: dict[tuple[str, str], set[str]] = {}
    for subject in subjects:
        named.setdefault((subject.kind, subject.name), set()).add(subject.id)
    whole = list({subject.id: subject for subject in reversed(subjects)}.values())[::-1]
    for start in range(0, len(whole), _TOGETHER):
        progress(f"embed {whole[start].kind}s", start, len(whole))
        _add(db, whole[start : start + _TOGETHER], done)
    for subject in whole:
        if len(named[subject.kind, subject.name]) == 1:
            stubs = [i for i in db.store.find(subject.name) if i.stub and i.kind == subject.kind]
            done.adopted_runs += sum(adopted(db, stub, subject) for stub in stubs)
    return done


def _add(db: Lookup, subjects: Sequence[T], done: Added[T]) -> None:
    new: list[T] = []
    for subject in subjects:
        stored = db.store.workload(subject.id)
        if stored is None:
            done.added.append(subject)
        else:
            done.stored.append(cast(T, stored))  # of the same id: of the same kind
        if stored is None or kind_of(subject.kind).holds_more(subject, stored):
            new.append(subject)
    if new:
        db.add_patterns(new)
