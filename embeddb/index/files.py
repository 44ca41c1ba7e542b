"""Partitions on disk: written atomically, and loaded only with the right generation and checksum.

Saving: the file is written under a temporary name, synced, renamed, the folder synced, and only
then one transaction notes {file, generation, checksum}. A kill at any point leaves either the old
note with the old file or the new note with the new file; files without a note are collected later.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from threading import RLock
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.core.errors import StoreCorrupt, StoreError, UsageError
from embeddb.core.files.safe_read import reason_of
from embeddb.core.reports import Announce, ignore_message
from embeddb.core.wording import plural
from embeddb.featurizers import COSTLY, Featurizers, missing, reads
from embeddb.featurizers.base import counted_parts
from embeddb.index import answer_file
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.features import learned_by
from embeddb.index.fit import FitInput, FitNote, OwnNote, read_note
from embeddb.index.index_folder import SAVED_VERSION, IndexFolder, PartitionKey, PartitionNote
from embeddb.index.large import fit_sample, fully_sampled, missing_neighbours, widened
from embeddb.index.run_matrix import RunMatrix
from embeddb.index.scopes import facts_of, pooled_partitions, run_matrix_of, winners_only
from embeddb.index.trial import MOST_NEIGHBOURS
from embeddb.platforms.platform import Platform
from embeddb.store import Store

#: The share of the measured patterns whose vectors a featurizer must have to be a candidate.
READABLE = 0.9

#: Runs that are read, and that are fitted, in a second on an old CPU (AMD Zen 1): 2 to 4 s and
#: 5 to 9 s for each partition of the starter.
_READ_PER_S, _FITTED_PER_S = 30_000, 12_000
#: Workloads of a table, and most runs of each, that are sampled to estimate its runs.
_DRAWN, _MOST_OF_EACH = 3, 1_000


class IndexFiles:
    """Opens, refreshes and saves the partitions of one store; a store in memory saves nothing.

    Beside the partition of an operation and scope there may be one with the same evidence for each
    platform instance that counted its nests (`counters`), whose candidate featurizers include those
    that read these counters, and, in memory, one for each featurizer that a user named.
    """

    def __init__(self, store: Store, featurizers: Featurizers) -> None:
        self._store = store
        self._featurizers = featurizers
        self._folder = None if store.path is None else IndexFolder(store, store.path)
        self._open: dict[PartitionKey, AnswerIndex] = {}
        self._by_featurizer: dict[tuple[PartitionKey, str], AnswerIndex] = {}
        self._lock = RLock()
        self.repairs: list[str] = []

    def refresh(
        self, op: Op, scope: str, *, again: bool = False, counters: str = ""
    ) -> AnswerIndex | None:
        """Build a partition from the store and save it, unless the saved one is current (`again`:
        whether it is or not); None if no featurizer reads it, or none of `counters`.

        Raises: StoreError if it cannot be saved.
        """
        key = PartitionKey(op, scope, counters)
        with self._lock:
            saved = None if again else self._load(key)
            if saved is None or not self._current(saved):
                return self._built(key, again)
            self._open[key] = saved
            if self._store.keeps_derived:
                self._collect()
            return saved

    def _built(self, key: PartitionKey, again: bool = False) -> AnswerIndex | None:
        """Build a partition. Raises: StoreError if it cannot be saved; it is open nevertheless."""
        op, scope, counters = key
        generation = self._store.generation
        chosen = pooled_partitions(self._store, op, scope)
        members = [self._store.members(p) for p in chosen]
        ids = set[str]().union(*members)
        only = fit_sample(members)
        evidence = run_matrix_of(self._store, op, scope, only=only, partitions=chosen)
        featurizers, readable = self._featurizers, self.readable(evidence, counters=counters)
        if not readable or (counters and not any(map(counted_parts, readable))):
            return None
        facts, tried = facts_of(self._store, op, scope), readable
        without = self._open.get(PartitionKey(op, scope)) if counters else None
        if without is not None and without.generation == generation:
            tried = {
                n: v for n, v in readable.items() if counted_parts(n) or n == without.featurizer
            }
        inputs = FitInput(evidence, tried, facts, learned_by(self._store, featurizers, tried))
        built = self._fitted(
            key, inputs, {name: featurizers[name].version for name in tried}, again
        )
        built = replace(built, generation=generation, counters=counters)
        if only is not None and built.ids:
            built = widened(self._store, built, self._vectors(built.featurizer, ids))
        self._open[key] = built
        self._save(built, {name: featurizers[name].version for name in readable})
        return built

    def _fitted(
        self, key: PartitionKey, inputs: FitInput, versions: Mapping[str, str], again: bool
    ) -> AnswerIndex:
        """Build an index by the note of an earlier fit to the same inputs, unless `again`."""
        earlier = read_note(self._store.derived.get(key.fit), FitNote)
        if earlier is not None and not again and inputs.is_of(earlier, versions):
            return AnswerIndex.build(inputs, scope=key.scope, note=earlier)
        built = AnswerIndex.build(inputs, scope=key.scope)
        note = built.fit_note(inputs.stamp(built.featurizer), versions)
        if note != earlier and self._store.keeps_derived:
            with suppress(StoreError):  # busy or full: it can be fitted again
                self._store.derived.put(key.fit, msgspec.json.encode(note))
        return built

    def _answering(self, key: PartitionKey, announce: Announce) -> AnswerIndex | None:
        """Build a partition for a query, also if it cannot be saved."""
        self._open.pop(key, None)
        if (about_s := self._building_s(key)) >= 1.0:
            once = ", first time only" if self._store.keeps_derived else ""
            announce(f"preparing answers for {key} (about {about_s:.0f} s{once})")
        try:
            partition = self._built(key)
        except StoreError as e:
            if key not in self._open:
                raise
            self._repaired(f"{key}: answered from memory: {e}; {e.hint}".rstrip("; "))
            partition = self._open[key]
        self._report_unread(key, partition)
        return partition

    def preparing_s(self, op: Op, scope: str) -> float:
        """Estimated seconds to build a partition; 0 where one is saved."""
        key = PartitionKey(op, scope)
        there = key.note in self._store.derived.items("partition/")
        return 0.0 if there else self._building_s(key)

    def _building_s(self, key: PartitionKey) -> float:
        """An estimate from a few workloads of each table, which may have millions of runs."""
        tables = pooled_partitions(self._store, key.op, key.scope)
        members = [self._store.members(table) for table in tables]
        only, runs = fit_sample(members), 0.0
        for table, ids in zip(tables, members, strict=True):
            drawn = self._store.sample(table, patterns=_DRAWN, runs=_MOST_OF_EACH)
            each = len(drawn) / max(len({run.pattern_id for run in drawn}), 1)
            runs += each * len(ids if only is None else ids.keys() & only)
        fitted = self._store.derived.get(key.fit) is not None
        return runs / _READ_PER_S + (0.0 if fitted else runs / _FITTED_PER_S)

    def _repaired(self, line: str) -> None:
        if line not in self.repairs:
            self.repairs.append(line)

    def _report_unread(self, key: PartitionKey, partition: AnswerIndex | None) -> None:
        """Report measured patterns without a vector that could have one, after an interruption."""
        (op, scope, counters), featurizers = key, self._featurizers
        # Nests without counters have none, which answers report; programs never have one.
        if counters or not any(reads(f, op.kind) for f in featurizers.values()):
            return
        if partition is None or not partition.ids:
            kinds = [(name, f.version) for name, f in featurizers.items()]
            tables = pooled_partitions(self._store, op, scope)
            unread = {i for table in tables for i in self._store.members(table)}
        else:
            kinds = [(partition.featurizer, featurizers[partition.featurizer].version)]
            unread = {row.pattern_id for row in partition.evidence.rows} - set(partition.ids)
        count = len(self._store.vectors.lacking(kinds, among=unread)) if unread else 0
        if count:
            self._repaired(
                f"{key}: {plural(count, 'measured pattern')} without a vector cannot be "
                "a neighbour; `embeddb embed` makes what is missing"
            )

    def readable(
        self, evidence: RunMatrix, *, counters: str = "", only: str = ""
    ) -> dict[str, dict[str, NDArray[np.float32]]]:
        """Vectors of the featurizers that have those of nine in ten patterns, else of the one that
        has most; in order of preference. Those that cannot embed on this machine are left out
        unless there is no other. With `counters` also of those that read the counters of that
        platform instance, or `only` those of one featurizer. Without any vector those of one
        featurizer, none: averages answer."""
        ids = evidence.neighbour_ids
        names = [only] if only else self._featurizers.counting(counters)
        stored = {name: of for name in names if (of := self._vectors(name, ids))}
        here = {name: of for name, of in stored.items() if not missing(self._featurizers[name])}
        stored = here or stored
        most = max((len(of) for of in stored.values()), default=0)
        # A costly one must have all vectors: other patterns could not be neighbours.
        enough = {
            name: of
            for name, of in stored.items()
            if len(of) >= READABLE * len(ids) and (name not in COSTLY or len(of) == most)
        }
        fullest = max(stored, key=lambda name: len(stored[name]), default="")
        if not stored and evidence.rows and not only and not counters:
            able = (n for n in names if reads(self._featurizers[n], evidence.op.kind))
            return {name: {} for name in list(able)[:1]}
        return enough or {name: of for name, of in stored.items() if name == fullest}

    def _vectors(self, featurizer: str, ids: Collection[str]) -> dict[str, NDArray[np.float32]]:
        plug = self._featurizers[featurizer]
        return self._store.vectors.get(plug.name, plug.version, ids, dim=plug.dim)

    def _current(self, saved: AnswerIndex) -> bool:
        """Return true if nothing of the fit's input changed since: runs and facts of workloads and
        machines, vectors, or the candidate featurizers."""
        op, scope = saved.op, saved.scope
        winners = winners_only(self._store, pooled_partitions(self._store, op, scope))
        input_of_fit = facts_of(self._store, op, scope), winners
        if (saved.facts, saved.evidence.winners) != input_of_fit:
            return False
        if self._changed_since(saved) != (set(), False):
            return False
        candidates = self.readable(saved.evidence, counters=saved.counters)
        raw = self._store.derived.get(PartitionKey.of(saved).note)
        chosen_among = {name: self._featurizers[name].version for name in candidates}
        return raw is not None and PartitionNote.described(raw).get("chosen_among") == chosen_among

    def _lacks(self, partition: AnswerIndex) -> bool:
        """Return true, and report it, if the featurizer cannot embed here and another could."""
        lacks = missing(self._featurizers[partition.featurizer])
        if not lacks:
            return False
        others = self.readable(partition.evidence, counters=partition.counters)
        if not others or partition.featurizer in others:
            return False
        self._repaired(
            f"{partition.op} on {partition.scope}: features of {partition.featurizer} cannot be "
            f"computed here, others stand in: {lacks}"
        )
        return True

    def get(self, op: Op, scope: str, *, announce: Announce = ignore_message) -> AnswerIndex | None:
        """A partition as of now: opened, brought up to date, or built; None without evidence.
        `announce` is called before work that takes seconds."""
        key = PartitionKey(op, scope)
        with self._lock:
            saved = self._open.get(key) or self._load(key)
            if saved is None and not pooled_partitions(self._store, op, scope):
                return None
            return self._as_of_now(key, saved, announce)

    def by_counters(
        self, without: AnswerIndex, counters: str, *, announce: Announce = ignore_message
    ) -> AnswerIndex | None:
        """The partition of the same operation and scope whose candidate featurizers include those
        that read `counters`; None where none has them for nine in ten patterns."""
        key = PartitionKey(without.op, without.scope, counters)
        with self._lock:
            saved = self._open.get(key) or self._load(key)
            readable = saved or any(
                map(counted_parts, self.readable(without.evidence, counters=counters))
            )
            return self._as_of_now(key, saved, announce) if readable else None

    def by_featurizer(self, chosen: AnswerIndex, name: str) -> AnswerIndex:
        """The evidence of a partition with neighbours by the featurizer `name`, in memory. Raises:
        UsageError where no measured workload has a vector of it."""
        if chosen.featurizer == name:
            return chosen
        key = PartitionKey.of(chosen), name
        with self._lock:
            partition = self._by_featurizer.get(key)
            if partition is None or partition.generation != chosen.generation:
                partition = self._built_by(chosen, name)
                self._by_featurizer[key] = partition
            return partition

    def _built_by(self, chosen: AnswerIndex, name: str) -> AnswerIndex:
        op, scope = chosen.op, chosen.scope
        vectors = {name: self._vectors(name, chosen.evidence.neighbour_ids)}
        if not vectors[name]:
            raise UsageError(
                f"{op} on {scope}: no measured {op.kind} has a vector of {name}",
                hint=f"neighbours are found by {chosen.featurizer}; `embeddb embed` computes "
                "the vectors of others",
            )
        learned = learned_by(self._store, self._featurizers, vectors)
        inputs = FitInput(chosen.evidence, vectors, facts_of(self._store, op, scope), learned)
        built = replace(AnswerIndex.build(inputs, scope=scope), generation=chosen.generation)
        if chosen.lists is None:
            return built
        members = (self._store.members(p) for p in pooled_partitions(self._store, op, scope))
        return widened(self._store, built, self._vectors(name, set[str]().union(*members)))

    def _as_of_now(
        self, key: PartitionKey, saved: AnswerIndex | None, announce: Announce
    ) -> AnswerIndex | None:
        """A saved partition brought up to date, or a new one."""
        if saved is None or self._lacks(saved):
            return self._answering(key, announce)
        now, partition = self._store.generation, saved
        if partition.generation != now:
            changed, gone = self._changed_since(partition)
            if gone or len(changed) > partition.indexed // 4:
                return self._answering(key, announce)
            if changed or facts_of(self._store, key.op, key.scope) != partition.facts:
                partition = self._patched(partition, changed)
            partition = partition.at(now)
        self._open[key] = partition
        return partition

    def prime(self, partition: AnswerIndex, platform: Platform) -> None:
        """Prepare the view of a machine, with the policies by its own runs from a note, or fitted
        now, which takes seconds, and noted."""
        key = f"policy{PartitionKey.of(partition).note.removeprefix('partition')}/{platform.id}"
        stamp = partition.stamp
        if platform.id not in partition.policies:
            note = read_note(self._store.derived.get(key), OwnNote)
            if note is not None and note.stamp == stamp:
                partition.policies[platform.id] = note.parsed()
        before = partition.policies.get(platform.id)
        partition.view(platform)
        fitted = partition.policies.get(platform.id)
        if fitted is not None and before is None and self._store.keeps_derived:
            with suppress(StoreError):  # busy or full: it can be fitted again
                self._store.derived.put(key, msgspec.json.encode(OwnNote.of(stamp, fitted)))

    def _changed_since(self, partition: AnswerIndex) -> tuple[set[str], bool]:
        """Patterns with newer runs or vectors, and true if a row has lost its runs: those of a stub
        go to the pattern that adopts it."""
        changed: set[str] = set()
        current: set[tuple[str, str, str]] = set()
        for p in pooled_partitions(self._store, partition.op, partition.scope):
            members = self._store.members(p)
            changed |= {i for i, written in members.items() if written > partition.generation}
            op = "" if p.op == partition.op else str(p.op)
            current |= {(pattern_id, p.platform, op) for pattern_id in members}
        return changed, any(row.key not in current for row in partition.evidence.rows)

    def _patched(self, partition: AnswerIndex, changed: set[str]) -> AnswerIndex:
        """The partition with newer runs; metric and policy stay until a refresh."""
        op, scope, name = partition.op, partition.scope, partition.featurizer
        facts = facts_of(self._store, op, scope)
        if partition.lists is not None:
            members = [self._store.members(p) for p in pooled_partitions(self._store, op, scope)]
            sampled = changed & (fully_sampled(members) | set(partition.ids))
            vectors = self._vectors(name, changed)
            new = {i: v for i, v in vectors.items() if i in sampled.difference(partition.ids)}
            return partition.grown(self._rows(partition, sampled), new, facts).listing(vectors)
        vectors = self._vectors(name, changed - set(partition.ids))
        return partition.grown(self._rows(partition, changed), vectors, facts)

    def around(
        self,
        partition: AnswerIndex,
        vector: NDArray[np.float32],
        pattern_id: str,
        platform: Platform,
        *,
        announce: Announce = ignore_message,
    ) -> AnswerIndex:
        """The partition for a query by raw features float32[d]: with very many patterns extended by
        the runs of the nearest ones and of the queried pattern."""
        if partition.lists is None or partition.of is not None:
            return partition
        # For a pattern that others ran, another policy may take more neighbours.
        new = self._store.pattern(pattern_id) is None
        count = partition.view(platform).policy.k if new else MOST_NEIGHBOURS
        try:
            ids = missing_neighbours(partition, vector, pattern_id, count)
        except StoreCorrupt as e:
            key = PartitionKey.of(partition)
            self._repaired(f"{key}: rebuilt ({e})")
            with self._lock:
                anew = self._answering(key, announce)
            if anew is None or anew.featurizer != partition.featurizer:
                raise
            return self.around(anew, vector, pattern_id, platform, announce=announce)
        vectors = self._vectors(partition.featurizer, ids)
        return partition.beside(self._rows(partition, ids), vectors)

    def _rows(self, partition: AnswerIndex, ids: Collection[str]) -> RunMatrix:
        """Current evidence on some patterns."""
        op, scope = partition.op, partition.scope
        chosen = pooled_partitions(self._store, op, scope)
        beside = partition.evidence.configs
        return run_matrix_of(self._store, op, scope, only=ids, partitions=chosen, beside=beside)

    # -- files -----------------------------------------------------------------------------

    def _save(self, partition: AnswerIndex, versions: dict[str, str]) -> None:
        """Save a partition with the versions of all candidate featurizers. Raises: StoreError."""
        if self._folder is None or not self._store.keeps_derived:
            return
        name = PartitionKey.of(partition).note
        # The file of another choice at the same generation keeps its name until it is noted.
        what = hashlib.blake2b(json.dumps([name, versions]).encode(), digest_size=8).hexdigest()
        stem = f"{what}-{os.getpid()}-{partition.generation}"
        lists = "" if partition.lists is None else self._folder.write_lists(stem, partition.lists)
        digest = self._folder.write(stem, answer_file.to_bytes(partition))
        at, rows = partition.generation, partition.indexed
        note = PartitionNote(stem, at, rows, versions, digest, lists, SAVED_VERSION)
        self._store.derived.put(name, msgspec.json.encode(note))
        self._collect()

    def _load(self, key: PartitionKey) -> AnswerIndex | None:
        raw = self._store.derived.get(key.note)
        while raw is not None and self._folder is not None:
            try:
                partition = self._noted(self._folder, raw, key)
            except StoreCorrupt as e:
                now = self._store.derived.get(key.note)
                if now == raw:
                    self._repaired(f"{key}: rebuilt ({e})")
                    return None
                raw = now  # another process refreshed it and collected the file to be read
            else:
                self._report_unread(key, partition)
                return partition
        return None

    def _noted(self, folder: IndexFolder, raw: bytes, key: PartitionKey) -> AnswerIndex:
        """The partition of a note. Raises: StoreCorrupt for any fault."""
        note = PartitionNote.of(raw)
        try:
            saved = answer_file.from_bytes(folder.read(note))
            if note.lists:
                saved = replace(saved, lists=folder.lists(note))
        except OSError as e:
            raise StoreCorrupt(f"{folder.path / note.stem}.npz: {reason_of(e)}") from e
        if (PartitionKey.of(saved), saved.generation) != (key, note.generation):
            raise StoreCorrupt("its file is of another partition")
        if saved.generation > self._store.generation:
            raise StoreCorrupt("its file is of a generation that is yet to come")
        name, lists = saved.featurizer, saved.lists
        reader, version = self._featurizers.get(name), note.chosen_among.get(name)
        if reader is None or reader.version != version:
            here = "which is not here" if reader is None else f"here it is {reader.version}"
            raise StoreCorrupt(f"made with featurizer {name} {version}, {here}")
        dims = [saved.vectors.shape[1]] if saved.ids else []
        if any(dim != reader.dim for dim in (*dims, *([lists.dim] if lists else []))):
            raise StoreCorrupt(f"its vectors are none of featurizer {name}")
        return saved

    def notes(self) -> dict[str, dict[str, Any]]:
        """Notes of saved partitions by name; {} for one that this program cannot read."""
        notes = self._store.derived.items("partition/")
        return {name: PartitionNote.described(raw) for name, raw in notes.items()}

    def forget(self, *, but: Collection[tuple[Op, str]] = ()) -> None:
        """Drop every saved partition that is not among `but`; each is rebuilt on demand."""
        self._open.clear()
        stay = tuple(PartitionKey(op, scope).note for op, scope in but)
        gone = [
            name
            for name in self._store.derived.items("partition/")
            if not any(name == one or name.startswith(f"{one}/") for one in stay)
        ]
        self._store.derived.delete(gone)
        self._collect()

    def _collect(self) -> None:
        """Remove files without a note."""
        if self._folder is not None:
            live = {note["stem"] for note in self.notes().values() if note}
            with suppress(StoreError):  # they can be removed later
                self._folder.collect(live)

    def problems(self) -> list[str]:
        """One line for every saved partition that does not match its note."""
        if self._folder is None:
            return []
        problems = self._folder.problems()
        for name, raw in self._store.derived.items("partition/").items():
            try:
                key = PartitionKey.parse(name)
                saved = self._noted(self._folder, raw, key)
                if saved.lists is not None:
                    saved.lists.check()
            except StoreCorrupt as e:
                problems += PartitionKey.problem(name, e)
        return problems
