"""Partitions on disk: written whole, never trusted without generation and checksum.

Saving: both files are written under a temporary name, synced, renamed, the folder synced, and only
then one transaction notes {files, generation, checksums}. A kill at any point leaves either the
old note with the old files or the new one with the new; what no note names is collected later.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.core.errors import StoreCorrupt, StoreError
from embeddb.featurizers import NEED_NETWORK, Featurizer, missing
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.run_matrix import RunMatrix
from embeddb.index.scopes import facts_of, pooled_partitions, run_matrix_of
from embeddb.index.vectors.faiss_index import FaissIndex
from embeddb.index.vote import VoteSettings
from embeddb.platforms.platform import Platform
from embeddb.store import Store

__all__ = ["IndexFiles"]

#: What every note says.
_NOTED = {"stem", "generation", "rows", "chosen_among", "faiss", "npz"}


class IndexFiles:
    """Opens, refreshes and saves the partitions of one store; a store in memory saves nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = None if store.path is None else store.path / "index"
        self._open: dict[tuple[str, str], AnswerIndex] = {}
        self._lock = RLock()
        self.repairs: list[str] = []

    def refresh(
        self, op: Op, scope: str, featurizers: Mapping[str, Featurizer]
    ) -> AnswerIndex | None:
        """Build a partition from the store and save it, unless the saved one is current; None if
        no featurizer reads it."""
        with self._lock:
            saved = self._load(op, scope, featurizers)
            if saved is not None and self._current(saved, featurizers):
                self._open[str(op), scope] = saved
                if not self._store.readonly:
                    self.collect()
                return saved
            return self._refresh(op, scope, featurizers)

    def _refresh(
        self, op: Op, scope: str, featurizers: Mapping[str, Featurizer]
    ) -> AnswerIndex | None:
        generation = self._store.generation
        chosen = pooled_partitions(self._store, op, scope)
        evidence = run_matrix_of(self._store, op, scope, partitions=chosen)
        readable = self.readable(evidence, featurizers)
        if not readable:
            return None
        facts = facts_of(self._store, op, scope)
        built = AnswerIndex.build(
            evidence, readable, scope=scope, generation=generation, facts=facts
        )
        self._save(built, {name: featurizers[name].version for name in readable})
        self._open[str(op), scope] = built
        return built

    def readable(
        self, evidence: RunMatrix, featurizers: Mapping[str, Featurizer]
    ) -> dict[str, dict[str, NDArray[np.float32]]]:
        """Vectors of the featurizers that know nine of ten patterns, else of the one that knows
        most; in order of preference. One that cannot embed on this machine, where a new pattern
        could not be asked, is left out unless there is no other."""
        ids = {row.pattern_id for row in evidence.rows}
        found = {
            name: vectors
            for name, featurizer in featurizers.items()
            if (vectors := self._store.vectors.get(name, featurizer.version, ids))
        }
        here = {name: v for name, v in found.items() if not missing(featurizers[name])}
        found = here or found
        most = max((len(v) for v in found.values()), default=0)
        # One that costs a network must know every pattern: those it lacks could not be neighbours.
        enough = {
            name: v
            for name, v in found.items()
            if len(v) >= 0.9 * len(ids) and (name not in NEED_NETWORK or len(v) == most)
        }
        fullest = max(found, key=lambda name: len(found[name]), default="")
        return enough or {name: v for name, v in found.items() if name == fullest}

    def _current(self, saved: AnswerIndex, featurizers: Mapping[str, Featurizer]) -> bool:
        """Whether nothing was added since, neither runs and vectors nor a featurizer to choose."""
        if self._changed_since(saved) != (set(), False):
            return False
        found = self.readable(saved.evidence, featurizers)
        raw = self._store.notes.get(_note_name(saved.op, saved.scope))
        chosen_among = {name: featurizers[name].version for name in found}
        return raw is not None and _read_note(raw).get("chosen_among") == chosen_among

    def _lacks(self, partition: AnswerIndex, featurizers: Mapping[str, Featurizer]) -> bool:
        """Whether the partition's featurizer cannot embed here and another one could; noted."""
        lacks = missing(featurizers[partition.featurizer])
        if not lacks:
            return False
        others = self.readable(partition.evidence, featurizers)
        if not others or partition.featurizer in others:
            return False
        self.repairs.append(
            f"{partition.op} on {partition.scope}: features of {partition.featurizer} cannot be "
            f"computed here, others stand in: {lacks}"
        )
        return True

    def get(self, op: Op, scope: str, featurizers: Mapping[str, Featurizer]) -> AnswerIndex | None:
        """A partition as of now: opened, brought up to date, or built; None without evidence."""
        with self._lock:
            found = self._open.get((str(op), scope)) or self._load(op, scope, featurizers)
            if found is None:
                if not pooled_partitions(self._store, op, scope):
                    return None
                return self._refresh(op, scope, featurizers)
            if self._lacks(found, featurizers):
                return self._refresh(op, scope, featurizers)
            now = self._store.generation
            if found.generation != now:
                changed, gone = self._changed_since(found)
                if gone or len(changed) > len(found.ids) // 4:
                    return self._refresh(op, scope, featurizers)
                if changed:
                    found = self._patched(found, changed, featurizers)
                found = found.at(now)
            self._open[str(op), scope] = found
            return found

    def prime(self, partition: AnswerIndex, platform: Platform) -> None:
        """Have the view of a machine ready, with the policy that its own runs chose: found before
        and noted, or found now, which takes seconds."""
        key = f"policy/{partition.op}/{partition.scope}/{platform.id}"
        stamp = partition.stamp
        if platform.id not in partition.policies:
            noted = _read_note(self._store.notes.get(key) or b"")
            if noted.get("stamp") == stamp:
                with suppress(KeyError, TypeError, ValueError):
                    partition.policies[platform.id] = VoteSettings.from_json(noted["policy"])
        before = partition.policies.get(platform.id)
        found = partition.view(platform)
        if found.judged == "here" and before is None and not self._store.readonly:
            body = {"stamp": stamp, "policy": found.policy.to_json()}
            with suppress(StoreError):  # busy or full: it can be found again
                self._store.notes.put(key, json.dumps(body).encode())

    def _changed_since(self, partition: AnswerIndex) -> tuple[set[str], bool]:
        """Patterns with newer runs or vectors, and whether a row has lost its runs: a stub's go
        to the pattern that adopts it."""
        changed: set[str] = set()
        held: set[tuple[str, str, str]] = set()
        for p in pooled_partitions(self._store, partition.op, partition.scope):
            members = self._store.members(p)
            changed |= {i for i, written in members.items() if written > partition.generation}
            op = "" if p.op == partition.op else str(p.op)
            held |= {(pattern_id, p.platform, op) for pattern_id in members}
        return changed, any(row.key not in held for row in partition.evidence.rows)

    def _patched(
        self, partition: AnswerIndex, changed: set[str], featurizers: Mapping[str, Featurizer]
    ) -> AnswerIndex:
        """The partition with newer runs scanned in; metric and policy stay until a refresh."""
        op, scope = partition.op, partition.scope
        chosen = pooled_partitions(self._store, op, scope)
        newer = run_matrix_of(self._store, op, scope, only=changed, partitions=chosen)
        featurizer = featurizers[partition.featurizer]
        fresh = changed - set(partition.ids)
        vectors = self._store.vectors.get(partition.featurizer, featurizer.version, fresh)
        return partition.grown(newer, vectors, facts_of(self._store, op, scope))

    # -- files -----------------------------------------------------------------------------

    def _save(self, partition: AnswerIndex, versions: dict[str, str]) -> None:
        """`versions` are those of all featurizers that the partition's was chosen among."""
        if self._folder is None or self._store.readonly:
            return
        self._folder.mkdir(exist_ok=True)
        note = _note_name(partition.op, partition.scope)
        # The files of another choice at the same generation keep their names until it is noted.
        what = hashlib.blake2b(json.dumps([note, versions]).encode(), digest_size=8).hexdigest()
        stem = f"{what}-{os.getpid()}-{partition.generation}"
        index = FaissIndex.build(partition.ids, partition.metric.apply(partition.vectors))
        index_sum = index.save(self._folder / f"{stem}.faiss")
        table_sum = _write_whole(self._folder / f"{stem}.npz", partition.to_bytes())
        body = {
            "stem": stem,
            "generation": partition.generation,
            "rows": len(partition.ids),
            "chosen_among": versions,
            "faiss": index_sum,
            "npz": table_sum,
        }
        self._store.notes.put(note, json.dumps(body).encode())
        self.collect()

    def _load(
        self, op: Op, scope: str, featurizers: Mapping[str, Featurizer]
    ) -> AnswerIndex | None:
        name = _note_name(op, scope)
        raw = self._store.notes.get(name)
        while raw is not None and self._folder is not None:
            before = len(self.repairs)
            note = _read_note(raw)
            found = self._load_noted(note, f"{op} on {scope}", featurizers)
            if found is not None and len(self.repairs) > before:
                self._save(found, note["chosen_among"])
                return found
            now = self._store.notes.get(name)
            if found is not None or now == raw:
                return found
            raw = now  # another process refreshed it and collected the files we were to read
        return None

    def _load_noted(
        self, note: dict[str, Any], what: str, featurizers: Mapping[str, Featurizer]
    ) -> AnswerIndex | None:
        assert self._folder is not None
        try:
            versions = note.get("chosen_among")
            if not (note.keys() >= _NOTED and isinstance(versions, dict)):
                raise StoreCorrupt("its note was written by another version of embeddb")
            table = self._folder / f"{note['stem']}.npz"
            data = table.read_bytes()
            if hashlib.blake2b(data, digest_size=16).hexdigest() != note["npz"]:
                raise StoreCorrupt(f"{table}: checksum differs")
            found = AnswerIndex.from_bytes(data, lambda ids, v: self._index(note, ids, v))
            reader = featurizers.get(found.featurizer)
            made = versions.get(found.featurizer)
            if reader is None or reader.version != made:
                here = "which is not here" if reader is None else f"here it is {reader.version}"
                raise StoreCorrupt(f"made with featurizer {found.featurizer} {made}, {here}")
            return found
        except (OSError, StoreCorrupt) as e:
            self.repairs.append(f"{what}: rebuilt ({e})")
            return None

    def _index(self, note: dict[str, Any], ids: tuple[str, ...], v: NDArray[np.float32]) -> Any:
        """The saved index, or one made from the vectors if the file is damaged or missing."""
        assert self._folder is not None
        try:
            return FaissIndex.load(self._folder / f"{note['stem']}.faiss", ids, note["faiss"])
        except (OSError, StoreCorrupt) as e:
            self.repairs.append(f"index rebuilt ({e})")
            return FaissIndex.build(ids, v)

    def notes(self) -> dict[str, dict[str, Any]]:
        return {k: _read_note(v) for k, v in self._store.notes.items("partition/").items()}

    def forget(self) -> None:
        """Drop every saved partition; each is rebuilt when it is asked for."""
        self._open.clear()
        self._store.notes.delete(self._store.notes.items("partition/"))
        self.collect()

    def collect(self) -> None:
        """Remove files that no note names: old versions, and what a kill left behind."""
        if self._folder is None or not self._folder.is_dir():
            return
        live = {note.get("stem") for note in self.notes().values()}
        for file in self._folder.iterdir():
            if file.name.rsplit(".", 1)[0] not in live and not _in_use(file):
                file.unlink(missing_ok=True)

    def problems(self, featurizers: Mapping[str, Featurizer]) -> list[str]:
        """One line for every saved partition whose files do not match their note."""
        found = []
        for name, note in self.notes().items():
            op, _, scope = name.removeprefix("partition/").partition("/")
            before = len(self.repairs)
            if self._folder is not None:
                self._load_noted(note, f"{op} on {scope}", featurizers)
            found += self.repairs[before:]
            del self.repairs[before:]
        return found


def _read_note(raw: bytes) -> dict[str, Any]:
    """A note, or {} for one that this program cannot read."""
    try:
        found = json.loads(raw)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _note_name(op: Op, scope: str) -> str:
    return f"partition/{op}/{scope}"


def _in_use(file: Path) -> bool:
    """Whether another live process wrote this file and may not have noted it yet."""
    parts = file.name.split("-")
    if len(parts) < 3 or not parts[1].isdigit() or int(parts[1]) == os.getpid():
        return False
    return Path(f"/proc/{parts[1]}").exists()


def _write_whole(path: Path, data: bytes) -> str:
    """Write under a temporary name, sync, rename, sync the folder; returns the checksum."""
    part = path.with_suffix(path.suffix + ".tmp")
    with part.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return hashlib.blake2b(data, digest_size=16).hexdigest()
