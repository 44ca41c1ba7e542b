"""From patterns to vectors to partitions that answer, and their maps: the last step of the write
path."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import MissingDependency, ModelError
from embeddb.core.records import PatternInfo
from embeddb.featurizers import missing as lacking
from embeddb.featurizers.base import Featurizer, Joint
from embeddb.index.lookup import Lookup
from embeddb.index.projection import projection_of
from indexer.library import Library, info_of

__all__ = ["EmbedReport", "adopt_stubs", "embed"]

#: Most vectors and seconds of work per transaction: what a kill can cost.
_BATCH, _BATCH_S = 256, 1.0


@dataclass(slots=True)
class EmbedReport:
    """How many patterns each featurizer could read, and the partitions built. `notes` says what
    was made anew and why, `problems` what could not be done."""

    vectors: dict[str, int] = field(default_factory=dict)
    partitions: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def embed(
    db: Lookup,
    *,
    again: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> EmbedReport:
    """Compute missing vectors of every featurizer, build the partitions that are not current, and
    lay out their maps.

    With `again`, everything derived is forgotten first and made anew. A featurizer that cannot
    compute on this machine is a problem, not an error: the others go on.
    """
    if again:
        db.forget_derived()
    report = EmbedReport()
    report.problems += db.featurizers().problems()
    infos = list(db.store.patterns())
    for name, featurizer in db.featurizers().items():
        have = db.store.vectors.get(name, featurizer.version, [i.id for i in infos])
        missing = [info for info in infos if info.id not in have]
        made, problems = _embed_all(db, name, featurizer, missing, progress)
        report.vectors[name] = len(have) + made
        report.problems += problems
        any_made = report.vectors[name] > 0
        report.notes += _of_other_weights(db, name, featurizer.version, any_made, again=again)
    scopes = db.scopes()
    for at, (op, scope) in enumerate(scopes):
        if progress is not None:
            progress(f"index {op} on {scope}", at, len(scopes))
        partition = db.refresh(op, scope)
        if partition is None:
            report.problems.append(f"{op} on {scope}: no featurizer can read its patterns")
        else:
            projection_of(db.store, partition)
            report.partitions.append(partition.describe())
    return report


def _of_other_weights(
    db: Lookup, name: str, version: str, any_made: bool, *, again: bool
) -> list[str]:
    """A line if the store keeps vectors of another version; with vectors, this is the last now."""
    key = f"embedded/{name}"
    last = (db.store.notes.get(key) or b"").decode()
    now = version if any_made else ("" if again else last)
    if now != last:
        db.store.notes.put(key, now.encode())
    if again or last in ("", version):
        return []
    return [f"vectors of {name} {last} are of another version and not used"]


def _embed_all(
    db: Lookup,
    name: str,
    featurizer: Featurizer,
    missing: Sequence[PatternInfo],
    progress: Callable[[str, int, int], None] | None,
) -> tuple[int, list[str]]:
    """How many vectors were made and stored, and what kept it from making the others."""
    batch: dict[str, NDArray[np.float32]] = {}
    made = 0
    unable, lacks = 0, lacking(featurizer)
    stored = time.monotonic()
    for at, info in enumerate(missing):
        vector = featurizer.from_info(info)
        if vector is None:
            vector = _joined(db, featurizer, info)
        structure = None if vector is not None or info.stub else db.store.structure(info.id)
        if structure is not None and not lacks:
            try:
                vector = featurizer.embed(structure)
            except (MissingDependency, ModelError) as e:
                lacks = f"{e} ({e.hint})" if e.hint else str(e)
        unable += structure is not None and vector is None
        if vector is not None:
            batch[info.id] = vector
            made += 1
        last = at == len(missing) - 1
        if batch and (last or len(batch) >= _BATCH or time.monotonic() - stored >= _BATCH_S):
            db.store.vectors.put(name, featurizer.version, batch)
            batch = {}
            stored = time.monotonic()
        if progress is not None:
            progress(f"embed with {name}", at + 1, len(missing))
    return made, [f"{name}: {unable} patterns not embedded: {lacks}"] if unable else []


def _joined(db: Lookup, featurizer: Featurizer, info: PatternInfo) -> NDArray[np.float32] | None:
    """The vector of a featurizer that only joins others', from what these left in the store."""
    parts = featurizer.parts if isinstance(featurizer, Joint) else ()
    stored = [db.store.vectors.get(p.name, p.version, [info.id]).get(info.id) for p in parts]
    found = [vector for vector in stored if vector is not None]
    return np.concatenate(found) if parts and len(found) == len(parts) else None


def adopt_stubs(db: Lookup, library: Library) -> int:
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
