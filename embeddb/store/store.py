"""The store: patterns, platforms, runs and what is derived from them, over any engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import cast

import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.errors import StoreCorrupt
from embeddb.core.pattern import Pattern
from embeddb.core.records import Run, WorkloadInfo
from embeddb.core.workload import Workload
from embeddb.nests.nest import Nest
from embeddb.platforms.platform import Platform, parse_platform
from embeddb.store import codec
from embeddb.store.check import inconsistencies
from embeddb.store.engine import (
    COUNTED,
    SCHEMA,
    Engine,
    Txn,
    generation_of,
    refuse_other_schema,
    refuse_unfinished,
    text_of,
)
from embeddb.store.merge_facts import (
    Contradiction,
    changed_meaning,
    merge_info,
    merge_infos,
    name_key,
    refuse_other_space,
    resolved,
    told_otherwise,
)
from embeddb.store.merge_runs import OWN, AppendResult, Told, add_runs, adopt, counting
from embeddb.store.models import ModelTable
from embeddb.store.postgres.local_folder import LocalNotes
from embeddb.store.sources import Pushing, SourceTable
from embeddb.store.tables import AnswerTable, BlobTable, Notes, VectorTable, decoded, reading
from embeddb.store.withdrawn import WithdrawnTable, hidden_under
from embeddb.tensors.tensor_graph import TensorGraph

#: Runs read in one transaction, about.
_PIECE = 8192


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of what an import told: `added` and `duplicates` as of own runs, and where it
    says something against what is known."""

    added: int = 0
    duplicates: int = 0
    against: tuple[Contradiction, ...] = ()


@dataclass(frozen=True, slots=True)
class RunTable:
    """All runs of one op on one platform; `number` is its key prefix."""

    number: int
    op: Op
    platform: str


class _StoredPlatform(msgspec.Struct, frozen=True):
    text: str
    environment: dict[str, str]


class Store:
    """Every run ever told to it, by pattern, op and platform.

    Readers never block; each writing method is one transaction: after it returns its data is on
    the disk, if it raises nothing of it is. `generation` rises with every write of evidence, so
    that derived files can tell whether they are current.

    Raises: StoreVersion if the data was written with another schema.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.path: Path | None = engine.path
        self.place, self.shared = engine.place, engine.shared
        self._configs: dict[bytes, Config] = {}
        self._partitions: dict[tuple[str, Op], RunTable] = {}
        self.vectors = VectorTable(engine)
        self.recommendations = AnswerTable(engine, "recommendation")
        self.notes = BlobTable(engine, "note")
        #: Notes of files that lie in `path`, which of a server's database is this user's alone.
        self.derived: Notes = LocalNotes(self.path) if self.shared and self.path else self.notes
        self.journal = BlobTable(engine, "journal")
        self.models = ModelTable(engine)
        self.withdrawn = WithdrawnTable(engine)
        self.sources = SourceTable(engine)
        self._check_schema()

    @property
    def engine(self) -> Engine:
        """What keeps the bytes: for whoever copies them as they are."""
        return self._engine

    @property
    def readonly(self) -> bool:
        return self._engine.readonly

    @property
    def keeps_derived(self) -> bool:
        """Whether what is derived can be noted."""
        return not self.readonly or self.derived is not self.notes

    def _check_schema(self) -> None:
        with self._engine.read() as txn:
            raw = txn.get("meta", b"schema")
            refuse_unfinished(txn, self.place)
        if raw is None and not self.readonly:
            self._engine.write(_stamp_schema)
        refuse_other_schema(raw, self.place)

    @property
    def generation(self) -> int:
        with self._engine.read() as txn:
            return generation_of(txn)

    # -- runs ------------------------------------------------------------------------------

    def append(
        self,
        runs: Iterable[Run],
        *,
        patterns: Iterable[WorkloadInfo] = (),
        journal: Mapping[str, bytes] | None = None,
    ) -> AppendResult:
        """Add own runs, the patterns they are on, and how far the reading of a file has come.

        One transaction; runs that are there already are counted, not added again. These are the
        user's own words: facts of patterns are newer than those known, and a run that `replaces`
        another retires it. What came from somebody else's database goes through `take`.
        """
        infos, marks = list(patterns), dict(journal or {})
        keyed = [(run, bytes.fromhex(run.id), OWN) for run in runs]

        def body(txn: Txn) -> AppendResult:
            merge_infos(txn, infos)
            for mark, value in marks.items():
                txn.put("journal", mark.encode(), value)
            return add_runs(txn, keyed)

        return self._engine.write(body)

    def take(
        self,
        runs: Iterable[Run],
        patterns: Iterable[WorkloadInfo],
        coded: Iterable[Workload] = (),
        *,
        pushing: Pushing | None = None,
    ) -> Taken:
        """Add what an import tells, in one transaction: it adds to what is known and changes none
        of it. Facts of patterns fill what is empty, and no run is retired. What cannot be stored is
        refused alone; so is a nest of which no facts are known, or others. `pushing` says whose
        it is, where that is to be kept."""
        told = Told.of(runs, patterns, coded)
        done, against = self._engine.write(partial(told.add, pushing=pushing))
        return Taken(done.added, done.duplicates, against)

    def runs(
        self, platform: str, op: Op, pattern_id: str | None = None, *, own: bool = False
    ) -> Iterator[Run]:
        """Runs of one partition, those of one pattern after the other; replaced and withdrawn ones
        are left out, and with `own` those that an import or a push told.

        Read in pieces, each of whole patterns, so that no transaction stays open in between: a
        pattern's runs are of one moment, and the caller may write meanwhile.
        """
        partition = self.partition(platform, op)
        if partition is None:
            return
        ids = deque(self.members(partition) if pattern_id is None else [pattern_id])
        while ids:
            held: list[Run] = []
            with self._engine.read() as txn:
                while ids and len(held) < _PIECE:
                    held += self._pattern_runs(txn, partition, ids.popleft(), own=own).values()
            yield from held

    def _pattern_runs(
        self,
        txn: Txn,
        partition: RunTable,
        pattern_id: str,
        *,
        replaced: bool = False,
        own: bool = False,
    ) -> dict[bytes, Run]:
        """By key, in the order of keys; with or without the replaced and withdrawn ones."""
        op, platform = partition.op, partition.platform
        head = _prefix(partition) + codec.pattern_key(pattern_id)
        hidden = frozenset[bytes]() if replaced else hidden_under(txn, head)
        # What a withdrawn run replaced counts again.
        rows = {k: codec.decode_row(raw) for k, raw in txn.scan("run", head) if k not in hidden}
        self._read_configs(txn, rows.values())
        return {
            key: row.run(pattern_id, op, platform, self._configs[row.config_id])
            for key, row in (rows if replaced else counting(rows)).items()
            if not (own and row.told)
        }

    def _read_configs(self, txn: Txn, rows: Iterable[codec.RunRow]) -> None:
        """Those that are not known yet, at once. Raises: StoreCorrupt."""
        new = {row.config_id for row in rows}.difference(self._configs)
        found = txn.get_many("config", new) if new else {}
        if lost := new - found.keys():
            raise StoreCorrupt(f"configuration {min(lost).hex()} is missing")
        self._configs |= {key: codec.decode_config(raw) for key, raw in found.items()}

    def partition(self, platform: str, op: Op) -> RunTable | None:
        found = self._partitions.get((platform, op))
        if found is None:
            with self._engine.read() as txn:
                raw = txn.get("partition", f"{op}\0{platform}".encode())
            if raw is None:
                return None
            found = RunTable(int.from_bytes(raw, "big"), op, platform)
            self._partitions[platform, op] = found
        return found

    def partitions(self) -> list[RunTable]:
        """Those with runs that count."""
        with self._engine.read() as txn:
            rows = list(txn.scan("partition"))
            if txn.count("withdrawn"):
                rows = [row for row in rows if any(txn.scan("member", row[1]))]
            found = [_partition(key, raw) for key, raw in rows]
        return sorted(found, key=lambda p: (p.platform, p.op))

    def sample(self, partition: RunTable, *, patterns: int, runs: int) -> list[Run]:
        """At most `runs` runs, replaced ones too, of each of at most `patterns` patterns that lie
        evenly among the members: quick, however many runs there are."""
        ids = list(self.members(partition))
        found: list[Run] = []
        with self._engine.read() as txn:
            for pattern_id in ids[:: max(1, -(-len(ids) // patterns))]:
                head = _prefix(partition) + codec.pattern_key(pattern_id)
                hidden = hidden_under(txn, head)
                raws = (raw for key, raw in txn.scan("run", head) if key not in hidden)
                rows = list(map(codec.decode_row, islice(raws, runs)))
                self._read_configs(txn, rows)
                op, platform, configs = partition.op, partition.platform, self._configs
                found += [r.run(pattern_id, op, platform, configs[r.config_id]) for r in rows]
        return found

    def first_members(self, partition: RunTable, count: int) -> list[str]:
        """The first pattern ids with runs in a partition, at most `count`."""
        with self._engine.read() as txn:
            return [
                key[4:].hex() for key, _ in islice(txn.scan("member", _prefix(partition)), count)
            ]

    def members(self, partition: RunTable) -> dict[str, int]:
        """Pattern ids with runs in a partition, and the generation that last added a run or a
        vector."""
        with self._engine.read() as txn:
            rows = txn.scan("member", _prefix(partition))
            return {key[4:].hex(): int.from_bytes(raw, "big") for key, raw in rows}

    def count_runs(self, partition: RunTable | None = None) -> int:
        """Without those that were withdrawn."""
        with self._engine.read() as txn:
            if partition is None:
                return txn.count("run") - txn.count("withdrawn")
            prefix = _prefix(partition)
            return txn.count_under("run", prefix) - len(hidden_under(txn, prefix))

    # -- patterns --------------------------------------------------------------------------

    def put_patterns(self, infos: Iterable[WorkloadInfo]) -> None:
        """Add or complete what is known of patterns; known fields are never emptied."""
        batch = list(infos)
        self._engine.write(lambda txn: merge_infos(txn, batch))

    def put_structure(self, pattern: Workload, info: WorkloadInfo) -> None:
        """Keep a pattern's structure, or its code, (deflated) with what is known of it."""
        self.put_structures([(pattern, info)])

    def put_structures(self, told: Iterable[tuple[Workload, WorkloadInfo]]) -> None:
        """The same of several patterns, in one transaction."""
        rows = [(info, *codec.encode_workload(one, info)) for one, info in told]

        def body(txn: Txn) -> None:
            for info, table, raw in rows:
                # The id of a structure is nobody's stub, whatever an earlier import said.
                txn.delete("alias", codec.pattern_key(info.id))
                merge_info(txn, info)
                txn.put(table, codec.pattern_key(info.id), raw)

        self._engine.write(body)

    def pattern(self, pattern_id: str) -> WorkloadInfo | None:
        with self._engine.read() as txn:
            raw = txn.get("pattern", codec.pattern_key(pattern_id))
        return None if raw is None else codec.decode_info(raw)

    def patterns(self) -> Iterator[WorkloadInfo]:
        with self._engine.read() as txn:
            raws = [raw for _, raw in txn.scan("pattern")]
        return map(codec.decode_info, raws)

    def structure(self, pattern_id: str) -> Pattern | None:
        """The matrix itself, if its structure is kept. Raises: StoreCorrupt."""
        return cast("Pattern | None", self.subject(pattern_id, table="structure"))

    def nest(self, pattern_id: str) -> Nest | None:
        """The nest of that id, with those of its matrices that are kept. Raises: StoreCorrupt."""
        return cast("Nest | None", self.subject(pattern_id, table="nest"))

    def tensor(self, pattern_id: str) -> TensorGraph | None:
        """The tensor kernel or program of that id, if there is one. Raises: StoreCorrupt."""
        found = self.subject(pattern_id, table="tensor")
        return found if isinstance(found, TensorGraph) else None  # other kinds are kept there too

    def subject(self, pattern_id: str, *, table: str = "") -> Workload | None:
        """The workload kept under that id, or kept there in this table. Raises: StoreCorrupt."""
        key = codec.pattern_key(pattern_id)
        with self._engine.read() as txn:
            about = txn.get("pattern", key)
            if about is None:
                return None
            info = codec.decode_info(about)
            kind = info.workload
            raw = txn.get(kind.table, key) if table in ("", kind.table) else None
        if raw is None:
            return None
        found = kind.decode(raw, pattern_id=pattern_id, name=info.name, group=info.group)
        whole: Workload = kind.complete(found, self.structure)
        return whole

    def known(self, info: WorkloadInfo) -> Workload | WorkloadInfo:
        """The workload that facts are about, where its own rules count; else the facts."""
        return info if info.workload.sparse else (self.subject(info.id) or info)

    def find(self, name: str) -> list[WorkloadInfo]:
        """Every pattern that was called `name`, complete ones before stubs."""
        with self._engine.read() as txn:
            prefix = name_key(name)
            keys = [key[len(prefix) :] for key, _ in txn.scan("name", prefix)]
            raws = [txn.get("pattern", key) for key in keys if len(key) == 16]
        infos = [codec.decode_info(raw) for raw in raws if raw is not None]
        return sorted(infos, key=lambda info: (info.stub, info.id))

    def resolve(self, pattern_id: str) -> str:
        """The id a stub's runs are kept under now (its own until it was adopted)."""
        with self._engine.read() as txn:
            return resolved(txn, codec.pattern_key(pattern_id)).hex()

    def adopt(self, stub: str, info: WorkloadInfo) -> int:
        """Move every run of a stub to the real pattern; later runs of the stub follow.

        Returns the number of runs moved. Raises: NothingFound if there is no such stub.
        """
        return self._engine.write(lambda txn: adopt(txn, stub, info, self._moving))

    def _moving(self, txn: Txn, pattern_id: str) -> dict[bytes, Run]:
        """All runs of a pattern, in every partition."""
        found: dict[bytes, Run] = {}
        for row in list(txn.scan("partition")):
            found |= self._pattern_runs(txn, _partition(*row), pattern_id, replaced=True)
        return found

    # -- platforms -------------------------------------------------------------------------

    def put_platform(self, platform: Platform) -> list[str]:
        """Keep a platform's file, and what is known of the environment: each fact as it was told
        last, for a later writer may know fewer. A choice that was opened stays open, for its new
        values may be stored, and the order of the parameters stays, in which models read them.

        Returns a line for each change of the file that gives runs stored before another meaning:
        `simulated`, `portable`. Raises: StoreError if the same id stands for another configuration
        space already.
        """
        known = self.platform(platform.id)
        refuse_other_space(known, platform)
        stays = known is not None and (
            known.is_reordered(platform) or not known.open_choices <= platform.open_choices
        )
        text = known.text if known is not None and stays else platform.text
        self._write_platform(platform.id, text, platform.environment)
        return [] if stays else changed_meaning(known, platform)

    def take_platform(self, platform: Platform) -> Contradiction | None:
        """Keep a platform that an import describes, if it is not known yet. Of a known one the file
        stays, and so does every fact of the environment; others are added."""
        known = self.platform(platform.id)
        if known is None:
            self._write_platform(platform.id, platform.text, platform.environment)
            return None
        against = told_otherwise(known, platform)
        new = {k: v for k, v in platform.environment.items() if k not in known.environment}
        if new and not (against and against.refused):
            self._write_platform(platform.id, known.text, new)
        return against

    def _write_platform(self, platform_id: str, text: str, facts: Mapping[str, str]) -> None:
        key = platform_id.encode()

        def body(txn: Txn) -> None:
            raw = txn.get("platform", key)
            told = {} if raw is None else _stored_platform(platform_id, raw).environment
            value = _StoredPlatform(text, {**told, **facts})
            txn.put("platform", key, msgspec.json.encode(value))

        self._engine.write(body)

    def platform(self, platform_id: str) -> Platform | None:
        """Raises: StoreCorrupt, naming it, for one that is none."""
        with self._engine.read() as txn:
            raw = txn.get("platform", platform_id.encode())
        return None if raw is None else _read_platform(platform_id, raw)

    def sound_platform(self, platform_id: str) -> Platform | None:
        """For lists: None also for one that is none, which `problems` names."""
        try:
            return self.platform(platform_id)
        except StoreCorrupt:
            return None

    def platforms(self) -> list[str]:
        with self._engine.read() as txn:
            return [text_of("platform", key) for key, _ in txn.scan("platform")]

    # -- the whole -------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Of what counts; `withdrawn.count()` tells the other runs."""
        with self._engine.read() as txn:
            found = {table: txn.count(table) for table in COUNTED}
            return {**found, "run": found["run"] - txn.count("withdrawn")}

    def size_bytes(self) -> int:
        return self._engine.size_bytes()

    def compact(self) -> None:
        self._engine.compact()

    def refuse_damage(self) -> None:
        """Before all of it is read for somebody else. Raises: StoreCorrupt."""
        self._engine.refuse_damage()

    def problems(self) -> list[str]:
        """Damage found by reading everything, and what contradicts itself."""
        return self._engine.problems() or inconsistencies(
            self._engine, {"platform": _read_platform}
        )

    def close(self) -> None:
        self._engine.close()


@lru_cache(maxsize=64)
def _read_platform(platform_id: str, raw: bytes) -> Platform:
    """Parsing a platform's file costs more than everything else a query does."""
    stored = _stored_platform(platform_id, raw)
    with reading(f"platform {platform_id}"):
        platform = _parsed(stored.text)
        _, _, instance = platform_id.partition("@")
        return platform.at(instance, stored.environment) if instance else platform


@lru_cache(maxsize=64)
def _parsed(text: str) -> Platform:
    """Instances of a platform have one text."""
    return parse_platform(text)


def _stored_platform(platform_id: str, raw: bytes) -> _StoredPlatform:
    return decoded(raw, _StoredPlatform, f"platform {platform_id}")


def _stamp_schema(txn: Txn) -> None:
    if txn.get("meta", b"schema") is None:
        txn.put("meta", b"schema", str(SCHEMA).encode())


def _partition(key: bytes, raw: bytes) -> RunTable:
    op, platform = codec.decode_partition(key, raw)
    return RunTable(int.from_bytes(raw, "big"), op, platform)


def _prefix(partition: RunTable) -> bytes:
    return partition.number.to_bytes(4, "big")
