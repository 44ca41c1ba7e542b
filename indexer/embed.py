"""Vectors of workloads and the indexes and maps built from them: the last step of the write
path."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.core.errors import MissingDependency, ModelError, PluginError
from embeddb.core.records import WorkloadInfo
from embeddb.core.reports import Progress, ignore_progress
from embeddb.core.wording import plural
from embeddb.core.workload import Workload
from embeddb.featurizers import WithCounters, reads
from embeddb.featurizers import missing as lacking
from embeddb.featurizers.base import Featurizer, Joint, checked, embedded
from embeddb.featurizers.row_lengths import ROW_LENGTHS, RowHistograms
from embeddb.index.lookup import Lookup
from embeddb.index.projection import projection_of
from embeddb.index.scopes import scope_of
from embeddb.store import Store
from embeddb.store.counters import counting_platforms
from indexer.library import Library

#: Sources of stored vectors.
_Plug = Featurizer | RowHistograms
#: Most vectors and seconds of work per transaction, lost at most if the process is killed.
_BATCH, _BATCH_S = 256, 1.0


@dataclass(slots=True)
class EmbedReport:
    """Number of vectors by featurizer, and the partitions built. `notes`: vectors and partitions
    replaced, and why; `problems`: those that could not be computed."""

    vectors: dict[str, int] = field(default_factory=dict)
    partitions: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def embed(
    db: Lookup,
    *,
    again: bool = False,
    also: Collection[str] = (),
    build: bool = True,
    progress: Progress = ignore_progress,
) -> EmbedReport:
    """Compute missing vectors of every featurizer, build the outdated partitions, and lay out their
    maps.

    With `again`, everything derived is rebuilt beside the present data, which answer until it is
    complete. A featurizer that cannot compute on this machine is a problem, not an error: the
    others go on. Those of `ON_REQUEST` are used from the first call that has them in `also`.
    Without `build` partitions are built by the first query that needs them.

    Raises: UsageError if `also` has an unknown name; StoreCorrupt for a damaged data file.
    """
    db.store.refuse_damage()
    report = EmbedReport()
    report.problems += db.featurizers().problems()
    infos = list(db.store.patterns())
    vectors = _Recomputed(db.store) if again else _Stored(db.store)
    counting = counting_platforms(db.store)
    counted = [plug for place in counting for plug in db.featurizers().counted(place)]
    featurizers = dict(db.featurizers()) | {name: db.featurizers().named(name) for name in also}
    # Joint featurizers come after those whose vectors they join.
    ordered = sorted((*featurizers.values(), *counted), key=lambda f: isinstance(f, Joint))
    for featurizer in ordered:
        name = featurizer.name
        readable = [info for info in infos if reads(featurizer, info.kind)]
        have = vectors.have(featurizer, [info.id for info in readable])
        missing = [info for info in readable if info.id not in have]
        if isinstance(featurizer, WithCounters):
            missing = [info for info in missing if featurizer.counters(info.id) is not None]
        computed, problems = _embed_all(db, vectors, featurizer, missing, progress)
        report.vectors[name] = len(have) + computed
        report.problems += problems
        any_vector = report.vectors[name] > 0
        report.notes += _of_other_weights(db, name, featurizer.version, any_vector, again=again)
    matrices = [info for info in infos if reads(ROW_LENGTHS, info.kind)]
    have = vectors.have(ROW_LENGTHS, [info.id for info in matrices])
    _embed_all(db, vectors, ROW_LENGTHS, [m for m in matrices if m.id not in have], progress)
    if isinstance(vectors, _Recomputed):
        db.store.vectors.exchange(vectors.vectors, [info.id for info in infos])
    if not build:
        return report
    _build_all(db, report, progress, again=again)
    for op, scope, place in _counted_scopes(db, counting):
        db.refresh(op, scope, again=again, counters=place)
    return report


def _counted_scopes(db: Lookup, counting: Collection[str]) -> Iterator[tuple[Op, str, str]]:
    """Scopes of nest runs, with each platform instance that counted some and can be queried
    there."""
    for op, scope in db.scopes():
        for place in counting if op.workload.counted else ():
            platform = db.store.sound_platform(place)
            if platform is not None and scope_of(platform) == scope:
                yield op, scope, place


def _build_all(
    db: Lookup,
    report: EmbedReport,
    progress: Progress,
    *,
    again: bool,
) -> None:
    scopes, built = db.scopes(), []
    for at, (op, scope) in enumerate(scopes):
        progress(f"index {op} on {scope}", at, len(scopes))
        partition = db.refresh(op, scope, again=again)
        if partition is None:
            report.problems.append(f"{op} on {scope}: no featurizer can read its patterns")
        else:
            projection_of(db.store, partition, again=again)
            report.partitions.append(partition.describe())
            built.append((op, scope))
    if again:
        db.forget_partitions(but=built)


def _of_other_weights(
    db: Lookup, name: str, version: str, any_vector: bool, *, again: bool
) -> list[str]:
    """A line if the store has vectors of another version; once there are vectors, this version is
    noted as the last."""
    key = f"embedded/{name}"
    last = (db.store.notes.get(key) or b"").decode(errors="replace")
    now = version if any_vector else ("" if again else last)
    if now != last:
        db.store.notes.put(key, now.encode())
    if again or last in ("", version):
        return []
    return [f"vectors of {name} {last} are of another version and not used"]


class _Stored:
    """Stored vectors, extended a batch at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def have(self, plug: _Plug, ids: Sequence[str]) -> Collection[str]:
        """Ids of workloads that have a vector."""
        return self.get(plug, ids).keys()

    def get(self, plug: _Plug, ids: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        return self._store.vectors.get(plug.name, plug.version, ids, dim=plug.dim)

    def put(self, plug: _Plug, batch: Mapping[str, NDArray[np.float32]]) -> None:
        self._store.vectors.put(plug.name, plug.version, batch)


class _Recomputed(_Stored):
    """Vectors computed anew, in memory until all are complete: some 100 MB for 100,000
    workloads."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.vectors: dict[tuple[str, str], dict[str, NDArray[np.float32]]] = {}

    def have(self, plug: _Plug, ids: Sequence[str]) -> Collection[str]:
        """Ids of workloads whose stored vectors are used since the featurizer cannot compute
        here."""
        vectors = self.vectors.setdefault((plug.name, plug.version), {})
        if lacking(plug):
            vectors |= super().get(plug, ids)
        return set(vectors)

    def get(self, plug: _Plug, ids: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        vectors = self.vectors.get((plug.name, plug.version), {})
        return {i: vectors[i] for i in ids if i in vectors}

    def put(self, plug: _Plug, batch: Mapping[str, NDArray[np.float32]]) -> None:
        self.vectors.setdefault((plug.name, plug.version), {}).update(batch)


def _embed_all(
    db: Lookup,
    vectors: _Stored,
    featurizer: _Plug,
    missing: Sequence[WorkloadInfo],
    progress: Progress,
) -> tuple[int, list[str]]:
    """Compute and store missing vectors; returns their number and the problems met."""
    name = featurizer.name
    batch: dict[str, NDArray[np.float32]] = {}
    computed = 0
    unable, lacks = 0, lacking(featurizer)
    faults, first_fault = 0, ""
    stored = time.monotonic()
    for at, info in enumerate(missing):
        vector = None
        try:
            compute = partial(_vector, db, vectors, featurizer, info, lacks)
            vector = checked(featurizer, info, compute)
        except (MissingDependency, ModelError) as e:
            lacks = f"{e} ({e.hint})" if e.hint else str(e)
            unable += 1
        except PluginError as e:
            # Not the error itself: its traceback holds the workload.
            faults, first_fault = faults + 1, first_fault or str(e)
        if vector is not None:
            batch[info.id] = vector
            computed += 1
        last = at == len(missing) - 1
        if batch and (last or len(batch) >= _BATCH or time.monotonic() - stored >= _BATCH_S):
            vectors.put(featurizer, batch)
            batch = {}
            stored = time.monotonic()
        progress(f"embed with {name}", at + 1, len(missing))
    problems = [f"{name}: {unable} patterns not embedded: {lacks}"] if unable else []
    if faults:
        problems.append(f"{first_fault}; {plural(faults, 'pattern')} not embedded by it")
    return computed, problems


def _vector(
    db: Lookup, vectors: _Stored, featurizer: _Plug, info: WorkloadInfo, lacks: str
) -> NDArray[np.float32] | None:
    """The vector of a workload; None where what is stored of it does not suffice. Raises:
    MissingDependency, ModelError where it cannot be computed."""
    vector = featurizer.from_info(info)
    if vector is not None and not np.isfinite(vector).all():
        vector = None  # imported features can be anything
    if vector is None:
        vector = _joined(vectors, featurizer, info)
    if vector is not None or info.stub or (structure := db.store.workload(info.id)) is None:
        return vector
    if lacks:
        raise MissingDependency(lacks)
    return embedded(featurizer, structure)


def _joined(vectors: _Stored, featurizer: _Plug, info: WorkloadInfo) -> NDArray[np.float32] | None:
    """The vector of a joint featurizer, from its parts' vectors."""
    if not isinstance(featurizer, Joint):
        return None
    stored = [vectors.get(part, [info.id]).get(info.id) for part in featurizer.parts]
    present = [vector for vector in stored if vector is not None]
    return featurizer.join(present) if len(present) == len(stored) else None


def adopt_stubs(db: Lookup, library: Library) -> int:
    """Give stubs their structure where the library has a matrix of that name and size, or a nest of
    that name.

    Returns the number of runs that moved from a stub to its pattern.
    """
    moved = 0
    for info in [info for info in db.store.patterns() if info.stub]:
        pattern = library.subject(info.kind, info.name, info.sizes)
        if pattern is not None:
            moved += adopted(db, info, pattern)
    return moved


def adopted(db: Lookup, stub: WorkloadInfo, pattern: Workload) -> int:
    """Give a stub its structure; returns the number of runs that moved to its pattern."""
    info = WorkloadInfo.whole(pattern)
    if stub.group not in ("", stub.name):  # the run log knew the family
        info = msgspec.structs.replace(info, group=stub.group)
    db.store.put_structure(pattern, info)
    return db.store.adopt(stub.id, info)
