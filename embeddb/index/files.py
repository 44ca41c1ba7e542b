"""Partitions on disk: written whole, never trusted without generation and checksum.

Saving: the file is written under a temporary name, synced, renamed, the folder synced, and only
then one transaction notes {file, generation, checksum}. A kill at any point leaves either the old
note with the old file or the new one with the new; what no note names is collected later.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from threading import RLock
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.core.errors import StoreCorrupt, StoreError
from embeddb.core.files.safe_read import reason_of
from embeddb.core.wording import plural
from embeddb.featurizers import COSTLY, Featurizer, missing, reads
from embeddb.featurizers.base import counted_parts
from embeddb.index import answer_file
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.features import learned_by
from embeddb.index.fit import FitInput
from embeddb.index.fit_notes import FitNote, PolicyNote, noted
from embeddb.index.index_folder import IndexFolder, PartitionNote, Which
from embeddb.index.large import sampling
from embeddb.index.large.neighbourhood import wanted, widened
from embeddb.index.run_matrix import RunMatrix
from embeddb.index.scopes import facts_of, pooled_partitions, run_matrix_of
from embeddb.index.trial import MOST_ASKED
from embeddb.index.vote_fit import FIT_VERSION
from embeddb.platforms.platform import Platform
from embeddb.store import Store

#: The share of the measured patterns that a featurizer must know to be chosen among others.
READABLE = 0.9


#: Runs that are read, and that are fitted, in a second on an old CPU (AMD Zen 1): 2 to 4 s and
#: 5 to 9 s for each partition of the starter.
_READ_PER_S, _FITTED_PER_S = 30_000, 12_000
#: Workloads of a table, and most runs of each, by which its runs are estimated.
_DRAWN, _MOST_OF_EACH = 3, 1_000


class IndexFiles:
    """Opens, refreshes and saves the partitions of one store; a store in memory saves nothing.

    Beside the partition of an operation and scope there may be one with the same evidence for each
    platform instance that counted its nests (`counters`), whose featurizer was chosen among those
    that read these counters as well.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = None if store.path is None else IndexFolder(store, store.path)
        self._open: dict[Which, AnswerIndex] = {}
        self._lock = RLock()
        self.repairs: list[str] = []
        self.tell: Callable[[str], None] = lambda _: None  #: Of what takes seconds.

    def refresh(
        self,
        op: Op,
        scope: str,
        featurizers: Mapping[str, Featurizer],
        *,
        again: bool = False,
        counters: str = "",
    ) -> AnswerIndex | None:
        """Build a partition from the store and save it, unless the saved one is current (`again`:
        whether it is or not); None if no featurizer reads it, or none of `counters`.

        Raises: StoreError if it cannot be saved.
        """
        which = Which(op, scope, counters)
        with self._lock:
            saved = None if again else self._load(which, featurizers)
            if saved is None or not self._current(saved, featurizers):
                return self._built(which, featurizers, again)
            self._open[which] = saved
            if self._store.keeps_derived:
                self._collect()
            return saved

    def _built(
        self, which: Which, featurizers: Mapping[str, Featurizer], again: bool = False
    ) -> AnswerIndex | None:
        """Raises: StoreError if it cannot be saved; it is open all the same."""
        op, scope, counters = which
        generation = self._store.generation
        chosen = pooled_partitions(self._store, op, scope)
        members = [self._store.members(p) for p in chosen]
        ids = set[str]().union(*members)
        only = sampling.held_of(members)
        evidence = run_matrix_of(self._store, op, scope, only=only, partitions=chosen)
        readable = self.readable(evidence, featurizers)
        if not readable or (counters and not any(map(counted_parts, readable))):
            return None
        facts, tried = facts_of(self._store, op, scope), readable
        without = self._open.get(Which(op, scope)) if counters else None
        if without is not None and without.generation == generation:
            tried = {
                n: v for n, v in readable.items() if counted_parts(n) or n == without.featurizer
            }
        inputs = FitInput(evidence, tried, facts, learned_by(self._store, featurizers, tried))
        built = self._fitted(
            which, inputs, {name: featurizers[name].version for name in tried}, again
        )
        built = replace(built, generation=generation, counters=counters)
        if only is not None:
            known = self._vectors(featurizers[built.featurizer], ids)
            built = widened(self._store, built, known)
        self._open[which] = built
        self._save(built, {name: featurizers[name].version for name in readable})
        return built

    def _fitted(
        self, which: Which, inputs: FitInput, versions: Mapping[str, str], again: bool
    ) -> AnswerIndex:
        """Build an index by the note of an earlier fit to the same inputs, unless `again`."""
        earlier = noted(self._store.derived.get(which.fit), FitNote)
        if earlier is not None and not again and inputs.is_of(earlier, versions):
            return AnswerIndex.build(inputs, scope=which.scope, note=earlier)
        built = AnswerIndex.build(inputs, scope=which.scope)
        note = built.fit_note(inputs.stamp(built.featurizer), versions)
        if note != earlier and self._store.keeps_derived:
            with suppress(StoreError):  # busy or full: it can be found again
                self._store.derived.put(which.fit, msgspec.json.encode(note))
        return built

    def _answering(self, which: Which, featurizers: Mapping[str, Featurizer]) -> AnswerIndex | None:
        """Build a partition for a query, which does not need it saved."""
        self._open.pop(which, None)
        if (about_s := self._building_s(which)) >= 1.0:
            self.tell(f"preparing answers for {which} (about {about_s:.0f} s, first time only)")
        try:
            found = self._built(which, featurizers)
        except StoreError as e:
            if which not in self._open:
                raise
            self._repaired(f"{which}: answered from memory: {e}; {e.hint}".rstrip("; "))
            found = self._open[which]
        self._tell_unread(which, featurizers, found)
        return found

    def preparing_s(self, op: Op, scope: str) -> float:
        """About how many seconds it takes to build a partition; 0 where it was saved."""
        which = Which(op, scope)
        there = which.note in self._store.derived.items("partition/")
        return 0.0 if there else self._building_s(which)

    def _building_s(self, which: Which) -> float:
        """An estimate from a few workloads of each table: a table may hold millions of runs, of
        which only some are read."""
        tables = pooled_partitions(self._store, which.op, which.scope)
        members = [self._store.members(table) for table in tables]
        only, runs = sampling.held_of(members), 0.0
        for table, ids in zip(tables, members, strict=True):
            drawn = self._store.sample(table, patterns=_DRAWN, runs=_MOST_OF_EACH)
            each = len(drawn) / max(len({run.pattern_id for run in drawn}), 1)
            runs += each * len(ids if only is None else ids.keys() & only)
        fitted = self._store.derived.get(which.fit) is not None
        return runs / _READ_PER_S + (0.0 if fitted else runs / _FITTED_PER_S)

    def _repaired(self, line: str) -> None:
        if line not in self.repairs:
            self.repairs.append(line)

    def _tell_unread(
        self,
        which: Which,
        featurizers: Mapping[str, Featurizer],
        found: AnswerIndex | None,
    ) -> None:
        """Say so where patterns ran that have no vector though they could: a kill came before."""
        op, scope, counters = which
        # What was not counted there has none, and the answer says so; programs never have one.
        if counters or not any(reads(f, op.kind) for f in featurizers.values()):
            return
        if found is None:
            kinds = [(name, f.version) for name, f in featurizers.items()]
            partitions = pooled_partitions(self._store, op, scope)
            unread = {i for p in partitions for i in self._store.members(p)}
        else:
            kinds = [(found.featurizer, featurizers[found.featurizer].version)]
            unread = {row.pattern_id for row in found.evidence.rows} - set(found.ids)
        count = len(self._store.vectors.lacking(kinds, among=unread)) if unread else 0
        if count:
            self._repaired(
                f"{which}: {plural(count, 'measured pattern')} without a vector cannot be "
                "a neighbour; `embeddb embed` makes what is missing"
            )

    def readable(
        self, evidence: RunMatrix, featurizers: Mapping[str, Featurizer]
    ) -> dict[str, dict[str, NDArray[np.float32]]]:
        """Vectors of the featurizers that know nine of ten patterns, else of the one that knows
        most; in order of preference. One that cannot embed on this machine, where a new pattern
        could not be asked, is left out unless there is no other."""
        ids = evidence.telling
        found = {
            name: vectors
            for name, featurizer in featurizers.items()
            if (vectors := self._vectors(featurizer, ids))
        }
        here = {name: v for name, v in found.items() if not missing(featurizers[name])}
        found = here or found
        most = max((len(v) for v in found.values()), default=0)
        # A costly one must know every pattern: those it lacks could not be neighbours.
        enough = {
            name: v
            for name, v in found.items()
            if len(v) >= READABLE * len(ids) and (name not in COSTLY or len(v) == most)
        }
        fullest = max(found, key=lambda name: len(found[name]), default="")
        return enough or {name: v for name, v in found.items() if name == fullest}

    def _vectors(
        self, featurizer: Featurizer, ids: Collection[str]
    ) -> dict[str, NDArray[np.float32]]:
        version, dim = featurizer.version, featurizer.dim
        return self._store.vectors.get(featurizer.name, version, ids, dim=dim)

    def _current(self, saved: AnswerIndex, featurizers: Mapping[str, Featurizer]) -> bool:
        """Return True if nothing was added since: runs, vectors, or a featurizer to choose."""
        if self._changed_since(saved) != (set(), False):
            return False
        found = self.readable(saved.evidence, featurizers)
        raw = self._store.derived.get(Which.of(saved).note)
        chosen_among = {name: featurizers[name].version for name in found}
        return raw is not None and PartitionNote.described(raw).get("chosen_among") == chosen_among

    def _lacks(self, partition: AnswerIndex, featurizers: Mapping[str, Featurizer]) -> bool:
        """Return True, noted, if the partition's featurizer cannot embed here and another could."""
        lacks = missing(featurizers[partition.featurizer])
        if not lacks:
            return False
        others = self.readable(partition.evidence, featurizers)
        if not others or partition.featurizer in others:
            return False
        self._repaired(
            f"{partition.op} on {partition.scope}: features of {partition.featurizer} cannot be "
            f"computed here, others stand in: {lacks}"
        )
        return True

    def get(self, op: Op, scope: str, featurizers: Mapping[str, Featurizer]) -> AnswerIndex | None:
        """A partition as of now: opened, brought up to date, or built; None without evidence."""
        which = Which(op, scope)
        with self._lock:
            found = self._open.get(which) or self._load(which, featurizers)
            if found is None and not pooled_partitions(self._store, op, scope):
                return None
            return self._as_of_now(which, found, featurizers)

    def by_counters(
        self, without: AnswerIndex, counters: str, featurizers: Mapping[str, Featurizer]
    ) -> AnswerIndex | None:
        """The partition of the same operation and scope whose featurizer was chosen among those
        that read `counters` as well; None where none reads them of nine in ten patterns."""
        which = Which(without.op, without.scope, counters)
        with self._lock:
            found = self._open.get(which) or self._load(which, featurizers)
            readable = found or any(
                map(counted_parts, self.readable(without.evidence, featurizers))
            )
            return self._as_of_now(which, found, featurizers) if readable else None

    def _as_of_now(
        self, which: Which, found: AnswerIndex | None, featurizers: Mapping[str, Featurizer]
    ) -> AnswerIndex | None:
        """The one that was found brought up to date, else one that is built."""
        if found is None or self._lacks(found, featurizers):
            return self._answering(which, featurizers)
        now = self._store.generation
        if found.generation != now:
            changed, gone = self._changed_since(found)
            if gone or len(changed) > found.indexed // 4:
                return self._answering(which, featurizers)
            if changed:
                found = self._patched(found, changed, featurizers)
            found = found.at(now)
        self._open[which] = found
        return found

    def prime(self, partition: AnswerIndex, platform: Platform) -> None:
        """Have the view of a machine ready, with the policy that its own runs chose: found before
        and noted, or found now, which takes seconds."""
        key = f"policy{Which.of(partition).note.removeprefix('partition')}/{platform.id}"
        stamp = partition.stamp
        if platform.id not in partition.policies:
            known = noted(self._store.derived.get(key), PolicyNote)
            if known is not None and known.stamp == stamp:
                partition.policies[platform.id] = known.settings
        before = partition.policies.get(platform.id)
        found = partition.view(platform)
        if found.judged == "here" and before is None and self._store.keeps_derived:
            note = PolicyNote(stamp, found.policy.to_json())
            with suppress(StoreError):  # busy or full: it can be found again
                self._store.derived.put(key, msgspec.json.encode(note))

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
        featurizer = featurizers[partition.featurizer]
        facts = facts_of(self._store, op, scope)
        if partition.lists is not None:
            held = changed & (self._of_small_sources(op, scope) | set(partition.ids))
            vectors = self._vectors(featurizer, changed)
            new = {i: v for i, v in vectors.items() if i in held.difference(partition.ids)}
            return partition.grown(self._rows(partition, held), new, facts).listing(vectors)
        vectors = self._vectors(featurizer, changed - set(partition.ids))
        return partition.grown(self._rows(partition, changed), vectors, facts)

    def around(
        self,
        partition: AnswerIndex,
        vector: NDArray[np.float32],
        pattern_id: str,
        platform: Platform,
        featurizers: Mapping[str, Featurizer],
    ) -> AnswerIndex:
        """The partition as a question about raw features float32[d] needs it: of very many patterns
        with the runs of the nearest ones, and of the one asked about."""
        if partition.lists is None or partition.of is not None:
            return partition
        # Of a pattern that others ran more neighbours may be asked, which is found out later.
        new = self._store.pattern(pattern_id) is None
        count = partition.view(platform).policy.k if new else MOST_ASKED
        try:
            ids = wanted(partition, vector, pattern_id, count)
        except StoreCorrupt as e:
            which = Which.of(partition)
            self._repaired(f"{which}: rebuilt ({e})")
            with self._lock:
                anew = self._answering(which, featurizers)
            if anew is None or anew.featurizer != partition.featurizer:
                raise
            return self.around(anew, vector, pattern_id, platform, featurizers)
        known = self._vectors(featurizers[partition.featurizer], ids)
        return partition.beside(self._rows(partition, ids), known)

    def _of_small_sources(self, op: Op, scope: str) -> set[str]:
        """Patterns of sources all of whose are held, a machine's that was just calibrated, say."""
        chosen = pooled_partitions(self._store, op, scope)
        members = (self._store.members(p) for p in chosen)
        return {i for held in members if len(held) <= sampling.OF_EACH for i in held}

    def _rows(self, partition: AnswerIndex, ids: Collection[str]) -> RunMatrix:
        """What was measured on some patterns, as of now."""
        op, scope = partition.op, partition.scope
        chosen = pooled_partitions(self._store, op, scope)
        return run_matrix_of(self._store, op, scope, only=ids, partitions=chosen)

    # -- files -----------------------------------------------------------------------------

    def _save(self, partition: AnswerIndex, versions: dict[str, str]) -> None:
        """`versions` are those of all featurizers that the partition's was chosen among.

        Raises: StoreError.
        """
        if self._folder is None or not self._store.keeps_derived:
            return
        name = Which.of(partition).note
        # The file of another choice at the same generation keeps its name until it is noted.
        what = hashlib.blake2b(json.dumps([name, versions]).encode(), digest_size=8).hexdigest()
        stem = f"{what}-{os.getpid()}-{partition.generation}"
        lists = "" if partition.lists is None else self._folder.write_lists(stem, partition.lists)
        digest = self._folder.write(stem, answer_file.to_bytes(partition))
        at, rows = partition.generation, partition.indexed
        note = PartitionNote(stem, at, rows, versions, digest, lists, FIT_VERSION)
        self._store.derived.put(name, msgspec.json.encode(note))
        self._collect()

    def _load(self, which: Which, featurizers: Mapping[str, Featurizer]) -> AnswerIndex | None:
        raw = self._store.derived.get(which.note)
        while raw is not None and self._folder is not None:
            try:
                found = self._noted(self._folder, raw, which, featurizers)
            except StoreCorrupt as e:
                now = self._store.derived.get(which.note)
                if now == raw:
                    self._repaired(f"{which}: rebuilt ({e})")
                    return None
                raw = now  # another process refreshed it and collected the file we were to read
            else:
                self._tell_unread(which, featurizers, found)
                return found
        return None

    def _noted(
        self,
        folder: IndexFolder,
        raw: bytes,
        which: Which,
        featurizers: Mapping[str, Featurizer],
    ) -> AnswerIndex:
        """The partition of a note. Raises: StoreCorrupt for all that can be wrong with it."""
        note = PartitionNote.of(raw)
        try:
            found = answer_file.from_bytes(folder.read(note))
            if note.lists:
                found = replace(found, lists=folder.lists(note))
        except OSError as e:
            raise StoreCorrupt(f"{folder.path / note.stem}.npz: {reason_of(e)}") from e
        if (Which.of(found), found.generation) != (which, note.generation):
            raise StoreCorrupt("its file is of another partition")
        if found.generation > self._store.generation:
            raise StoreCorrupt("its file is of a generation that is yet to come")
        reader = featurizers.get(found.featurizer)
        made = note.chosen_among.get(found.featurizer)
        if reader is None or reader.version != made:
            here = "which is not here" if reader is None else f"here it is {reader.version}"
            raise StoreCorrupt(f"made with featurizer {found.featurizer} {made}, {here}")
        lists = found.lists
        if reader.dim != found.vectors.shape[1] or (lists and lists.dim != reader.dim):
            raise StoreCorrupt(f"its vectors are none of featurizer {found.featurizer}")
        return found

    def notes(self) -> dict[str, dict[str, Any]]:
        """By name; {} for one that this program cannot read."""
        found = self._store.derived.items("partition/")
        return {name: PartitionNote.described(raw) for name, raw in found.items()}

    def forget(self, *, but: Collection[tuple[Op, str]] = ()) -> None:
        """Drop every saved partition that is not among `but`; each is rebuilt when it is asked
        for."""
        self._open.clear()
        kept = tuple(Which(op, scope).note for op, scope in but)
        gone = [
            name
            for name in self._store.derived.items("partition/")
            if not any(name == one or name.startswith(f"{one}/") for one in kept)
        ]
        self._store.derived.delete(gone)
        self._collect()

    def _collect(self) -> None:
        """Remove files that no note names."""
        if self._folder is not None:
            live = {note["stem"] for note in self.notes().values() if note}
            with suppress(StoreError):  # they can be removed later
                self._folder.collect(live)

    def problems(self, featurizers: Mapping[str, Featurizer]) -> list[str]:
        """One line for every saved partition that does not match its note."""
        if self._folder is None:
            return []
        found = self._folder.problems()
        for name, raw in self._store.derived.items("partition/").items():
            try:
                which = Which.noted(name)
                saved = self._noted(self._folder, raw, which, featurizers)
                if saved.lists is not None:
                    saved.lists.check()
            except StoreCorrupt as e:
                what = name.removeprefix("partition/").replace("/", " on ", 1)
                found.append(f"{what}: rebuilt when it is asked for ({e})")
        return found
