"""The store: workloads, platforms, runs and derived data, over any engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import cast

from embeddb.core.config import Config, Op
from embeddb.core.errors import StoreCorrupt, StoreError
from embeddb.core.kinds import kind_exists
from embeddb.core.pattern import Pattern
from embeddb.core.records import Run, WorkloadInfo
from embeddb.core.timing import State, median_state, state_of
from embeddb.core.workload import Workload
from embeddb.nests.nest import Nest
from embeddb.platforms.platform import Platform
from embeddb.store import codec, tables
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
    extends,
    is_builtin,
    merge_infos,
    name_key,
    platform_conflict,
    refuse_other_space,
    resolved,
    stays,
)
from embeddb.store.merge_runs import LOCAL, AppendResult, add_runs, adopt, counting, importing
from embeddb.store.models import ModelTable
from embeddb.store.platform_rows import platform_in, write_platform
from embeddb.store.run_tables import RunTable, RunTables, foreign_tables, tables_with
from embeddb.store.sources import Pushing, SourceTable
from embeddb.store.withdrawn import WithdrawnTable, hidden_under
from embeddb.tensors.tensor_graph import TensorGraph

#: Approximate number of runs read in one transaction.
_PIECE = 8192
#: Number of workloads of each operation, and of runs of each, that the usual state is based on.
_PATTERNS, _RUNS = 64, 8


class Store:
    """All stored runs, by workload, op and platform.

    Readers never block. Each writing method is one transaction: after it returns its data is on the
    disk; if it raises, nothing of it is. `generation` rises with every write of evidence, so that
    derived files can be checked to be current.

    Raises: StoreVersion if the data was written with another schema.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.path: Path | None = engine.path
        self.place, self.shared = engine.place, engine.shared
        self._configs: dict[bytes, Config] = {}
        self._partitions: dict[tuple[str, Op], RunTable] = {}
        self._tables = RunTables()
        self.vectors = tables.VectorTable(engine)
        self.recommendations = tables.AnswerTable(engine, "recommendation")
        self.notes = tables.BlobTable(engine, "note")
        #: Notes about files in `path`, which for a server's database is this user's alone.
        self.derived: tables.BlobTable | tables.LocalNotes = (
            tables.LocalNotes(self.path) if self.shared and self.path else self.notes
        )
        self.journal = tables.BlobTable(engine, "journal")
        self.models = ModelTable(engine)
        self.withdrawn = WithdrawnTable(engine)
        self.sources = SourceTable(engine)
        self._check_schema()

    @property
    def engine(self) -> Engine:
        """The storage engine, for byte-wise copies."""
        return self._engine

    @property
    def readonly(self) -> bool:
        return self._engine.readonly

    @property
    def keeps_derived(self) -> bool:
        """Return true if notes about derived files can be stored."""
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
        """Add own runs, facts about their workloads, and the position reached in a log.

        One transaction; runs that exist already are counted, not added again. Facts about workloads
        replace stored ones, and a run that `replaces` another retires it. Runs from other databases
        go through `take`.
        """
        infos, marks = list(patterns), dict(journal or {})
        keyed = [(run, bytes.fromhex(run.id), LOCAL) for run in runs]

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
    ) -> AppendResult:
        """Add an import, in one transaction: it adds to the stored data and changes none of it.
        Facts about workloads fill empty fields, and no run is retired. Parts that cannot be stored
        are refused one by one, as is a nest whose facts are missing or differ. `pushing` names the
        contributor, where that is to be stored."""
        return self._engine.write(importing(runs, patterns, coded, pushing))

    def runs(
        self, platform: str, op: Op, pattern_id: str | None = None, *, own: bool = False
    ) -> Iterator[Run]:
        """Valid runs of one table, grouped by workload; without replaced and withdrawn ones, and
        with `own` without imported and pushed ones."""
        partition = self.partition(platform, op)
        if partition is not None:
            ids = self.members(partition) if pattern_id is None else [pattern_id]
            for group in self.runs_with_rows(partition, ids):
                yield from (run for row, run in group if not (own and row.imported))

    def runs_with_rows(
        self, partition: RunTable, pattern_ids: Iterable[str]
    ) -> Iterator[list[tuple[codec.RunRow, Run]]]:
        """Valid runs of each of these workloads, with their rows.

        Read in pieces, each of whole workloads, so that no transaction stays open in between: the
        runs of one workload are of one snapshot, and the caller may write meanwhile.
        """
        ids = deque(pattern_ids)
        while ids:
            groups: list[list[tuple[codec.RunRow, Run]]] = []
            count = 0
            with self._engine.read() as txn:
                while ids and count < _PIECE:
                    groups.append([*self._pattern_runs(txn, partition, ids.popleft()).values()])
                    count += len(groups[-1])
            yield from groups

    def _pattern_runs(
        self, txn: Txn, partition: RunTable, pattern_id: str, *, replaced: bool = False
    ) -> dict[bytes, tuple[codec.RunRow, Run]]:
        """Rows and runs by ascending key, with or without the replaced and withdrawn ones."""
        op, platform = partition.op, partition.platform
        head = partition.prefix + codec.pattern_key(pattern_id)
        hidden = frozenset[bytes]() if replaced else hidden_under(txn, head)
        # A run that a withdrawn one replaced is valid again.
        rows = {k: codec.decode_row(raw) for k, raw in txn.scan("run", head) if k not in hidden}
        self._read_configs(txn, rows.values())
        return {
            key: (row, row.run(pattern_id, op, platform, self._configs[row.config_id]))
            for key, row in (rows if replaced else counting(rows)).items()
        }

    def _read_configs(self, txn: Txn, rows: Iterable[codec.RunRow]) -> None:
        """Read the configurations that are not cached, in one request. Raises: StoreCorrupt."""
        new = {row.config_id for row in rows}.difference(self._configs)
        raws = txn.get_many("config", new) if new else {}
        if lost := new - raws.keys():
            raise StoreCorrupt(f"configuration {min(lost).hex()} is missing")
        self._configs |= {key: codec.decode_config(raw) for key, raw in raws.items()}

    def partition(self, platform: str, op: Op) -> RunTable | None:
        table = self._partitions.get((platform, op))
        if table is None:
            with self._engine.read() as txn:
                raw = txn.get("partition", f"{op}\0{platform}".encode())
            if raw is None:
                return None
            table = RunTable(int.from_bytes(raw, "big"), op, platform)
            self._partitions[platform, op] = table
        return table

    def partitions(self) -> list[RunTable]:
        """Tables with valid runs, without those of operations that only a missing plug-in has, of
        which it warns once."""
        with self._engine.read() as txn:
            tables = self._tables.read(txn)
        return sorted(tables, key=lambda p: (p.platform, p.op))

    def sample(self, partition: RunTable, *, patterns: int, runs: int) -> list[Run]:
        """At most `runs` runs, replaced ones included, of each of at most `patterns` workloads
        spread evenly over the members: fast for any number of runs."""
        ids = list(self.members(partition))
        drawn: list[Run] = []
        with self._engine.read() as txn:
            for pattern_id in ids[:: max(1, -(-len(ids) // patterns))]:
                head = partition.prefix + codec.pattern_key(pattern_id)
                hidden = hidden_under(txn, head)
                raws = (raw for key, raw in txn.scan("run", head) if key not in hidden)
                rows = list(map(codec.decode_row, islice(raws, runs)))
                self._read_configs(txn, rows)
                op, platform, configs = partition.op, partition.platform, self._configs
                drawn += [r.run(pattern_id, op, platform, configs[r.config_id]) for r in rows]
        return drawn

    def usual_at(self, platform_id: str) -> Callable[[], State]:
        """The usual state of an instance over its stored runs, computed on the first call, in
        milliseconds, and cached. Empty where no run has a state."""

        @cache
        def computed() -> State:
            drawn = (
                run.measurement.context
                for partition in self.partitions()
                if partition.platform == platform_id
                for run in self.sample(partition, patterns=_PATTERNS, runs=_RUNS)
            )
            return median_state(state for context in drawn if (state := state_of(context)))

        return computed

    def first_members(self, partition: RunTable, count: int) -> list[str]:
        """The first workload ids with runs in a table, at most `count`."""
        with self._engine.read() as txn:
            rows = islice(txn.scan("member", partition.prefix), count)
            return [key[4:].hex() for key, _ in rows]

    def members(self, partition: RunTable) -> dict[str, int]:
        """Workload ids with runs in a table, and the generation of their last run or vector."""
        with self._engine.read() as txn:
            rows = txn.scan("member", partition.prefix)
            return {key[4:].hex(): int.from_bytes(raw, "big") for key, raw in rows}

    def count_runs(self, partition: RunTable | None = None) -> int:
        """Number of runs without withdrawn ones."""
        with self._engine.read() as txn:
            if partition is None:
                return txn.count("run") - txn.count("withdrawn")
            hidden = hidden_under(txn, partition.prefix)
            return txn.count_under("run", partition.prefix) - len(hidden)

    # -- workloads -------------------------------------------------------------------

    def put_patterns(self, infos: Iterable[WorkloadInfo]) -> None:
        """Store or complete facts about workloads; stored fields are never emptied."""
        batch = list(infos)
        self._engine.write(lambda txn: merge_infos(txn, batch))

    def put_structure(self, pattern: Workload, info: WorkloadInfo) -> None:
        """Store the content of a workload, deflated, with its facts."""
        self.put_structures([(pattern, info)])

    def put_structures(self, workloads: Iterable[tuple[Workload, WorkloadInfo]]) -> None:
        """Store the content of several workloads, in one transaction."""
        rows = [(info, *codec.encode_workload(one, info)) for one, info in workloads]

        def body(txn: Txn) -> None:
            for info, table, raw in rows:
                # The id of a structure is never a stub, even if an earlier import says so.
                txn.delete("alias", codec.pattern_key(info.id))
                merge_infos(txn, [info])
                txn.put(table, codec.pattern_key(info.id), raw)

        self._engine.write(body)

    def pattern(self, pattern_id: str) -> WorkloadInfo | None:
        with self._engine.read() as txn:
            raw = txn.get("pattern", codec.pattern_key(pattern_id))
        return None if raw is None else codec.decode_info(raw)

    def patterns(self) -> Iterator[WorkloadInfo]:
        """All workloads whose kind is known here."""
        with self._engine.read() as txn:
            raws = [raw for _, raw in txn.scan("pattern")]
        return (info for info in map(codec.decode_info, raws) if kind_exists(info.kind))

    def structure(self, pattern_id: str) -> Pattern | None:
        """The matrix itself, if its structure is stored. Raises: StoreCorrupt."""
        return cast("Pattern | None", self.workload(pattern_id, table="structure"))

    def nest(self, pattern_id: str) -> Nest | None:
        """The nest of that id, with its stored matrices. Raises: StoreCorrupt."""
        return cast("Nest | None", self.workload(pattern_id, table="nest"))

    def tensor(self, pattern_id: str) -> TensorGraph | None:
        """The tensor kernel or program of that id, if there is one. Raises: StoreCorrupt."""
        workload = self.workload(pattern_id, table="tensor")
        # Other kinds are in that table too.
        return workload if isinstance(workload, TensorGraph) else None

    def workload(self, pattern_id: str, *, table: str = "") -> Workload | None:
        """The workload of that id, if its content is stored here. Raises: StoreCorrupt."""
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
        bare = kind.decode(raw, pattern_id=pattern_id, name=info.name, group=info.group)
        whole: Workload = kind.complete(bare, self.structure)
        return whole

    def workload_or_info(self, info: WorkloadInfo) -> Workload | WorkloadInfo:
        """The workload that facts are about, for kinds with rules of their own; else the facts."""
        return info if info.workload.sparse else (self.workload(info.id) or info)

    def find(self, name: str) -> list[WorkloadInfo]:
        """Every workload that was ever called `name`, complete ones before stubs."""
        with self._engine.read() as txn:
            prefix = name_key(name)
            keys = [key[len(prefix) :] for key, _ in txn.scan("name", prefix)]
            raws = [txn.get("pattern", key) for key in keys if len(key) == 16]
        infos = [info for raw in raws if raw and kind_exists((info := codec.decode_info(raw)).kind)]
        return sorted(infos, key=lambda info: (info.stub, info.id))

    def resolve(self, pattern_id: str) -> str:
        """The id under which a stub's runs are stored now (its own until it was adopted)."""
        with self._engine.read() as txn:
            return resolved(txn, codec.pattern_key(pattern_id)).hex()

    def adopt(self, stub: str, info: WorkloadInfo) -> int:
        """Move every run of a stub to the real workload; later runs of the stub follow.

        Returns the number of runs moved. Raises: NothingFound if there is no such stub; UsageError
        for runs of a kind of workload whose plug-in is not here.
        """
        return self._engine.write(lambda txn: adopt(txn, stub, info, self._moving))

    def _moving(self, txn: Txn, pattern_id: str) -> dict[bytes, Run]:
        """All runs of a workload, in every table, withdrawn ones too. Raises: UsageError."""
        runs: dict[bytes, Run] = {}
        for table in tables_with(txn, codec.pattern_key(pattern_id)):
            pairs = self._pattern_runs(txn, table, pattern_id, replaced=True)
            runs |= {key: run for key, (_, run) in pairs.items()}
        return runs

    # -- platforms -------------------------------------------------------------------------

    def put_platform(self, platform: Platform) -> list[str]:
        """Store a platform's file and facts of its environment: the last value of each fact, since
        a later writer may know fewer. A parameter whose choices were opened stays open, since its
        new values may be stored, and the order of the parameters stays, in which models read them.

        Returns a line for each change of the file that changes the meaning of the runs stored
        before: `simulated`, `portable`. Raises: StoreError if the same id has another configuration
        space already, which the file does not extend, or a run that the file forbids.
        """

        def body(txn: Txn) -> list[str]:
            stored, text = platform_in(txn, platform.id), platform.text
            refuse_other_space(stored, platform)
            if stored is not None and extends(platform, stored):
                if reason := self._forbidden(txn, platform):
                    raise StoreError(f"platform {platform.id}: {reason}")
            elif stored is not None and stays(stored, platform):
                text = stored.text
            write_platform(txn, platform.id, text, platform.environment)
            return changed_meaning(stored, platform) if text == platform.text else []

        return self._engine.write(body)

    def take_platform(self, platform: Platform) -> Contradiction | None:
        """Store a platform of an import, if it is new. For a stored one the file and every fact of
        the environment stay; other facts are added. Only a built-in file replaces an earlier
        version that it extends."""

        def body(txn: Txn) -> Contradiction | None:
            stored = platform_in(txn, platform.id)
            if stored is None:
                write_platform(txn, platform.id, platform.text, platform.environment)
                return None
            later = extends(platform, stored) and is_builtin(platform)
            if later and not self._forbidden(txn, platform):
                write_platform(txn, platform.id, platform.text, {})
                stored = platform.at(stored.instance, stored.environment)
            against = platform_conflict(stored, platform)
            new = {k: v for k, v in platform.environment.items() if k not in stored.environment}
            if new and not (against and against.refused):
                write_platform(txn, platform.id, stored.text, new)
            return against

        return self._engine.write(body)

    def _forbidden(self, txn: Txn, later: Platform) -> str:
        """Reason why stored runs, withdrawn and replaced ones too, do not belong to a later version
        of their platform; empty if the configuration of each is legal in it on some workload. Runs
        of operations that only a missing plug-in has cannot be checked."""
        for key, number in list(txn.scan("partition")):
            op, where = codec.decode_partition(key, number)
            if where != later.id or isinstance(op, str):
                continue
            rows = {(r := codec.decode_row(raw)).config_id: r for _, raw in txn.scan("run", number)}
            if not rows:
                continue
            if op.name not in later.kernels:
                return f"version {later.version} has no {op.name}, of which there are runs"
            self._read_configs(txn, rows.values())
            space = later.space(op)
            for config in map(self._configs.__getitem__, rows):
                if reason := space.reason(config):
                    return f"version {later.version} forbids {config} of {op}: {reason}"
        return ""

    def platform(self, platform_id: str) -> Platform | None:
        """The platform of an id. Raises: StoreCorrupt, naming it, if it is damaged."""
        with self._engine.read() as txn:
            return platform_in(txn, platform_id)

    def sound_platform(self, platform_id: str) -> Platform | None:
        """For lists: as `platform`, None also for a damaged one, which `problems` reports."""
        try:
            return self.platform(platform_id)
        except StoreCorrupt:
            return None

    def platforms(self) -> list[str]:
        """Ids of the platforms, without those of which no kernel is known here."""
        with self._engine.read() as txn:
            ids = [text_of("platform", key) for key, _ in txn.scan("platform")]
            doubtful = {platform for _, platform, _ in foreign_tables(txn)}
        read = {name: self.sound_platform(name) for name in doubtful}
        return [name for name in ids if name not in read or ((p := read[name]) and p.kernels)]

    # -- the whole -------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Number of valid rows by table; `withdrawn.count()` is the number of the other runs."""
        with self._engine.read() as txn:
            rows = {table: txn.count(table) for table in COUNTED}
            return {**rows, "run": rows["run"] - txn.count("withdrawn")}

    def size_bytes(self) -> int:
        return self._engine.size_bytes()

    def compact(self) -> None:
        self._engine.compact()

    def refuse_damage(self) -> None:
        """Check the data quickly before it is read whole. Raises: StoreCorrupt."""
        self._engine.refuse_damage()

    def problems(self) -> list[str]:
        """Damage found by reading everything, and contradictions in the data."""
        faults = self._engine.problems()
        return faults or inconsistencies(self._engine)

    def close(self) -> None:
        self._engine.close()


def _stamp_schema(txn: Txn) -> None:
    if txn.get("meta", b"schema") is None:
        txn.put("meta", b"schema", str(SCHEMA).encode())
