"""From patterns to vectors to partitions that answer: the last step of the write path."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.db import Database
from embeddb.pattern import Pattern
from embeddb.records import PatternInfo
from indexer.library import Library, info_of

__all__ = ["EmbedReport", "adopt_stubs", "embed"]

#: Vectors per transaction.
_BATCH = 256


@dataclass(slots=True)
class EmbedReport:
    """How many patterns each featurizer could read, and the partitions built."""

    vectors: dict[str, int] = field(default_factory=dict)
    partitions: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def embed(
    db: Database,
    *,
    again: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> EmbedReport:
    """Compute missing vectors of every featurizer and build the partitions that are not current.

    With `again`, everything derived is forgotten first and made anew.
    """
    if again:
        db.forget_derived()
    report = EmbedReport()
    infos = list(db.store.patterns())
    for name, featurizer in db.featurizers().items():
        have = db.store.vectors.get(name, featurizer.version, [i.id for i in infos])
        missing = [info for info in infos if info.id not in have]
        made = _embed_all(db, name, featurizer, missing, progress)
        report.vectors[name] = len(have) + made
    scopes = db.scopes()
    for at, (op, scope) in enumerate(scopes):
        if progress is not None:
            progress(f"index {op} on {scope}", at, len(scopes))
        partition = db.refresh(op, scope)
        if partition is None:
            report.problems.append(f"{op} on {scope}: no featurizer can read its patterns")
        else:
            report.partitions.append(partition.describe())
    return report


def _embed_all(
    db: Database,
    name: str,
    featurizer: Any,
    infos: Iterable[PatternInfo],
    progress: Callable[[str, int, int], None] | None,
) -> int:
    batch: dict[str, NDArray[np.float32]] = {}
    made = 0
    missing = list(infos)
    for at, info in enumerate(missing):
        vector = _vector(db, featurizer, info)
        if vector is not None:
            batch[info.id] = vector
            made += 1
        if len(batch) >= _BATCH or (batch and at == len(missing) - 1):
            db.store.vectors.put(name, featurizer.version, batch)
            batch = {}
        if progress is not None:
            progress(f"embed with {name}", at + 1, len(missing))
    if batch:
        db.store.vectors.put(name, featurizer.version, batch)
    return made


def _vector(db: Database, featurizer: Any, info: PatternInfo) -> NDArray[np.float32] | None:
    vector: NDArray[np.float32] | None = featurizer.from_info(info)
    if vector is None and not info.stub:
        pattern: Pattern | None = db.store.structure(info.id)
        vector = None if pattern is None else featurizer.embed(pattern)
    return vector


def adopt_stubs(db: Database, library: Library) -> int:
    """Give stubs their structure where the library has a matrix of that name and size.

    Returns the number of runs that moved from a stub to its pattern.
    """
    moved = 0
    for info in [info for info in db.store.patterns() if info.stub]:
        pattern = library.find(info.name, m=info.m, n=info.n, nnz=info.nnz)
        if pattern is not None:
            found = info_of(pattern)
            if info.group not in ("", info.name):  # the run log knew the family
                found = msgspec.structs.replace(found, group=info.group)
            db.store.put_structure(pattern, found)
            moved += db.store.adopt(info.id, found)
    return moved
