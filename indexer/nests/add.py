"""Loop nests into a database, whole: they can be asked about, measured and be neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from embeddb.index.lookup import Lookup
from embeddb.nests.nest import Nest
from indexer.embed import adopted

__all__ = ["AddedNests", "add_nests"]


@dataclass(slots=True)
class AddedNests:
    """Nests that were new, those whose code was known already, and the runs of stubs, which were
    known by their names only, that moved to them."""

    added: list[Nest] = field(default_factory=list)
    known: list[Nest] = field(default_factory=list)
    adopted_runs: int = 0


def add_nests(
    db: Lookup,
    nests: Sequence[Nest],
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> AddedNests:
    """Keep nests with the vectors that can be computed here. A stub is taken for the one nest of
    its name: where several of `nests` share a name, it stays a stub."""
    done = AddedNests()
    named: dict[str, set[str]] = {}
    for at, nest in enumerate(nests):
        named.setdefault(nest.name, set()).add(nest.id)
        known = db.store.nest(nest.id)
        (done.added if known is None else done.known).append(nest)
        if known is None or len(known.matrices) < len(nest.matrices):
            db.add_pattern(nest)
        if progress is not None:
            progress("embed nests", at + 1, len(nests))
    for nest in {nest.id: nest for nest in nests if len(named[nest.name]) == 1}.values():
        stubs = [i for i in db.store.find(nest.name) if i.stub and i.kind == nest.kind]
        done.adopted_runs += sum(adopted(db, stub, nest) for stub in stubs)
    return done
