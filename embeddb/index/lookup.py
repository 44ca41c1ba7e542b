"""`Lookup`: an open database with store, featurizers, models and index."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.core.errors import (
    MissingDependency,
    ModelError,
    NothingFound,
    PluginError,
    StoreCorrupt,
    UsageError,
)
from embeddb.core.files.model_file import read_card
from embeddb.core.kinds import kind_of
from embeddb.core.records import Run, WorkloadInfo
from embeddb.core.reports import Announce, ignore_message
from embeddb.core.row_lengths import RowLengths
from embeddb.core.wording import plural
from embeddb.core.workload import Workload
from embeddb.cost_model.files import CostModelFiles
from embeddb.featurizers import Featurizer, Featurizers, WithCounters, reads
from embeddb.featurizers.base import Joint, embedded
from embeddb.featurizers.row_lengths import ROW_LENGTHS, RowHistograms, estimate
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.files import IndexFiles
from embeddb.index.large import read_sample
from embeddb.index.platform_names import platform_named
from embeddb.index.projection import Projection, projection_of
from embeddb.index.run_matrix import RunMatrix
from embeddb.index.scopes import (
    answering_op,
    members_of,
    run_matrix_of,
    scope_of,
    scope_partitions,
    scopes,
)
from embeddb.platforms.platform import Platform
from embeddb.store import Store, memory_store, open_store
from embeddb.store.counters import counter_problems, counters_of, were_counted
from embeddb.store.model_files import fetch_models, model_entries, register_files, registry_problems

if TYPE_CHECKING:
    from embeddb.cost_model.graph_model import GraphModel
    from embeddb.cost_model.model import CostModel


#: Vectors of structures that are kept in memory, and scopes named in a message.
_MOST_VECTORS, _MOST_NAMED = 64, 8


class _Derived:
    """Indexes, featurizers and cost models of a database, shared within a process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = Lock()
        self.models = CostModelFiles(store.path)
        self.reload()

    def reload(self) -> None:
        """Drop featurizers and open indexes, whose vectors are of earlier weights."""
        store = self._store
        self.featurizers = Featurizers(store.path, partial(counters_of, store), self._embedded)
        self.files = IndexFiles(store, self.featurizers)
        self._vectors: dict[tuple[str, str, str], NDArray[np.float32]] = {}

    def embed(self, structure: Workload, plug: Featurizer) -> NDArray[np.float32]:
        """Raw features float32[d] of a structure. One query needs the same vector for neighbours,
        cost model and explanation, so the latest ones are kept."""
        if isinstance(plug, Joint):
            return plug.join([self.embed(structure, part) for part in plug.parts])
        if isinstance(plug, WithCounters):  # counters may be added to the same structure
            return embedded(plug, structure)
        key = (structure.id, plug.name, plug.version)
        vector = self._vectors.get(key)
        if vector is None:
            vector = embedded(plug, structure)
            with self._lock:
                self._vectors[key] = vector
                if len(self._vectors) > _MOST_VECTORS:
                    self._vectors.pop(next(iter(self._vectors)))
        return vector

    def _embedded(self, featurizer: str) -> bool:
        """Return true if vectors of a featurizer were ever computed here."""
        return bool(self._store.notes.get(f"embedded/{featurizer}"))


class Lookup:
    """An open database for queries and the indexer; use as a context manager.

    A folder may be opened any number of times; all of one process share its engine and indexes. All
    methods are thread-safe; after a fork the child opens it again.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        #: The featurizer by which neighbours are searched; empty: each partition's choice.
        self.featurizer = ""
        #: False: queries use a model learned earlier from fewer runs, and learn none.
        self.learns = True
        #: Called before work of this opening that takes seconds.
        self.announce: Announce = ignore_message
        fetch_models(store)
        self._derived = store.engine.shared_state(
            lambda engine: _Derived(store if engine is store.engine else Store(engine))
        )

    @property
    def _files(self) -> IndexFiles:
        return self._derived.files

    @classmethod
    def open(cls, path: str | Path, *, readonly: bool = False) -> Self:
        """Open a database. Raises: StoreError if there is none."""
        return cls(open_store(path, readonly=readonly))

    @classmethod
    def create(cls, path: str | Path) -> Self:
        """Create a database. Raises: StoreError if the path exists."""
        return cls(open_store(path, create=True))

    @classmethod
    def in_memory(cls) -> Self:
        return cls(memory_store())

    def by_featurizer(self, name: str) -> Self:
        """The same open database with neighbours by this featurizer. Raises: UsageError for one
        that it does not have."""
        self.featurizers().named(name)
        view = object.__new__(type(self))
        view.store, view._derived, view.featurizer = self.store, self._derived, name
        view.learns, view.announce = self.learns, self.announce
        return view

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.store.place!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise UsageError(
            "an open database cannot be copied or pickled",
            hint="pass its path and open that: openings in one process share one engine",
        )

    # -- contents --------------------------------------------------------------------------

    def featurizers(self) -> Featurizers:
        """Featurizers by name, in order of preference; loaded on demand."""
        return self._derived.featurizers

    def featurizer_version(self, name: str) -> str:
        return str(self.featurizers().named(name).version) if name else ""

    def use_weights(self, file: str | Path) -> str:
        """Install a model file as the weights of `tower`, `scnn` or `nest-embedding`; returns their
        version. `indexer.embed.embed` computes the vectors.

        Raises: ModelError for a file that cannot be used; UsageError for a database in memory;
        MissingDependency without torch, which checks the weights of `scnn`.
        """
        from embeddb.featurizers import nest_embedding, scnn, tower

        if self.store.path is None:
            raise UsageError("a database in memory has no folder for weights")
        before = model_entries(self.store)
        installs = {"nests": nest_embedding.install, "towers": tower.install}
        install = installs.get(str(read_card(file)["kind"]), scnn.install)
        version = install(Path(file), self.store.path)
        self._derived.reload()
        register_files(self.store, before)
        return version

    def scopes(self, platform: str = "", op: Op | None = None) -> list[tuple[Op, str]]:
        """Every (op, scope) with runs, only of a platform and an op if these are passed."""
        return [
            (scope.op, scope.name)
            for scope in scopes(self.store)
            if platform in ("", scope.name, scope.name.partition("@")[0]) and op in (None, scope.op)
        ]

    def nothing_of(self, what: str, platform: str = "") -> NothingFound:
        """The error where no scope is of a platform and an operation; its hint has those there
        are, and that of a single machine."""
        there = scopes(self.store)
        whole = next((s.name for s in there if platform in s.instances and platform), "")
        hint = ", ".join(f"{scope.op} on {scope.name}" for scope in there[:_MOST_NAMED])
        hint = f"there are: {hint}" if hint else "the database is empty: `embeddb index` fills it"
        if whole:
            hint = f"{platform} is one machine of {whole}, whose runs count together: name {whole}"
        return NothingFound(what, hint=hint)

    def platform(self, text: str) -> Platform:
        """Resolve a platform's name (`embeddb.index.platform_names.platform_named`)."""
        return platform_named(self.store, text)

    def pattern_name(self, pattern_id: str) -> str:
        """The name of a pattern; empty if it has none or is not stored."""
        info = self.store.pattern(pattern_id)
        return "" if info is None else info.name

    # -- partitions ------------------------------------------------------------------------

    def refresh(
        self, op: Op, scope: str, *, again: bool = False, counters: str = ""
    ) -> AnswerIndex | None:
        """Build a partition from the store and save it, unless the saved one is current (`again`:
        in any case); with `counters`, the one for nests that were counted on that platform
        instance, None where too few were; None where no workload has a vector. Raises: StoreError
        if it cannot be saved."""
        return _comparing(self._files.refresh(op, scope, again=again, counters=counters))

    def partition(self, op: Op, platform: Platform) -> AnswerIndex | None:
        """The current evidence for an op on a platform; None if it was never measured, or no
        workload that ran has a vector."""
        scope = scope_of(platform)
        measured = scope_partitions(self.store, op, scope)
        return _comparing(self._partition(op, scope)) if measured else None

    def answering(self, op: Op, platform: Platform, *, nest_id: str = "") -> AnswerIndex | None:
        """The index that answers for an op on a platform: its own evidence, where that is little
        with other widths and value types of the kernel; at a width that was never measured that of
        `answering_op`; None if there is none of these. Without vectors it has averages only. For a
        nest that was counted there, by vectors with counters where its neighbours have them too and
        held-out answers are better."""
        scope = scope_of(platform)
        plain = self._partition(answering_op(self.store, op, scope), scope)
        counted = op.workload.counted and nest_id and not self.featurizer
        if not counted or not were_counted(self.store, nest_id, platform.id):
            return plain
        partition = self.by_counters(op, platform)
        plug = None if partition is None else self.featurizers()[partition.featurizer]
        usable = isinstance(plug, WithCounters) and plug.counters(nest_id) is not None
        return partition if usable else plain

    def _partition(self, op: Op, scope: str) -> AnswerIndex | None:
        """The current partition, with neighbours by `featurizer` if it is set."""
        plain = self._files.get(op, scope, announce=self.announce)
        if not self.featurizer or plain is None:
            return plain
        return self._files.by_featurizer(plain, self.featurizer)

    def around(
        self,
        partition: AnswerIndex,
        vector: NDArray[np.float32],
        pattern_id: str,
        platform: Platform,
    ) -> AnswerIndex:
        """The partition for a query on a platform by raw features float32[d]: one of very many
        patterns is extended by the runs of the nearest ones and of the queried pattern, another may
        leave out other machines' runs."""
        if partition.lists is None:
            return partition.for_query(platform, pattern_id)
        return self._files.around(partition, vector, pattern_id, platform, announce=self.announce)

    def around_stored(
        self, partition: AnswerIndex, pattern_id: str, platform: Platform
    ) -> AnswerIndex:
        """`around` for a pattern of the database, by its stored features."""
        if partition.lists is None:
            return partition.for_query(platform, pattern_id)
        name = partition.featurizer
        version = self.featurizer_version(name)
        vector = self.store.vectors.get(name, version, [pattern_id]).get(pattern_id)
        return partition if vector is None else self.around(partition, vector, pattern_id, platform)

    def by_counters(self, op: Op, platform: Platform) -> AnswerIndex | None:
        """The evidence for an op whose candidate featurizers include those that read the counters
        of a platform instance; None where fewer than nine in ten nests were counted."""
        plain = self._files.get(op, scope_of(platform), announce=self.announce)
        if plain is None or not op.workload.counted:
            return None
        return self._files.by_counters(plain, platform.id, announce=self.announce)

    def prime(self, partition: AnswerIndex, platform: Platform) -> None:
        """Prepare the view of a machine; a new fit takes seconds, and is noted."""
        if not self.featurizer:  # notes are of saved partitions
            self._files.prime(partition, platform)

    def evidence(
        self, op: Op, scope: str
    ) -> tuple[RunMatrix, dict[str, dict[str, NDArray[np.float32]]]]:
        """Evidence of a scope (of very many patterns a sample, `embeddb.index.large`), and raw
        vectors by featurizer and pattern id."""
        only = read_sample(members_of(self.store, op, scope))
        runs = run_matrix_of(self.store, op, scope, only=only)
        return runs, self._files.readable(runs, only=self.featurizer)

    def atlas(self, op: Op, platform: Platform) -> Projection | None:
        """The 2-D map of the current evidence for an op on a platform; None without evidence."""
        partition = self.partition(op, platform)
        return None if partition is None else projection_of(self.store, partition)

    def preparing_s(self, op: Op, scope: str) -> float:
        """Estimated seconds to build the partition of an op in a scope; 0 where one is saved."""
        return self._files.preparing_s(answering_op(self.store, op, scope), scope)

    def forget_partitions(self, *, but: Collection[tuple[Op, str]] = ()) -> None:
        """Drop the partitions and maps that are not among `but`."""
        maps = {f"atlas/{op}/{scope}" for op, scope in but}
        self.store.derived.delete(self.store.derived.items("atlas/").keys() - maps)
        self._files.forget(but=but)

    def problems(self) -> list[str]:
        """Faults of store and derived files; the latter are repaired by the next use."""
        derived = self._files.problems()
        models = [*self.featurizers().problems(), *registry_problems(self.store)]
        stored = [*self.store.problems(), *counter_problems(self.store)]
        platforms = [p for p in self.platform_problems() if not any(p in line for line in stored)]
        return stored + platforms + models + derived

    def platform_problems(self) -> list[str]:
        """One line for every stored platform that is damaged."""
        problems = []
        for platform_id in self.store.platforms():
            try:
                self.store.platform(platform_id)
            except StoreCorrupt as e:
                problems.append(str(e))
        return problems

    def unfinished(self) -> list[str]:
        """One line if patterns lack their vectors, which is no fault; else none."""
        kinds = [(name, f.version) for name, f in self.featurizers().items()]
        waiting = [one for one in self.store.vectors.lacking(kinds) if self._can_be_read(one)]
        if not waiting:
            return []
        return [
            f"{plural(len(waiting), 'pattern')} with a structure and without a vector cannot be a "
            "neighbour; `embeddb embed` makes what is missing"
        ]

    def _can_be_read(self, pattern_id: str) -> bool:
        """Return true if a featurizer reads patterns of this kind. Damaged ones are reported by
        `problems`."""
        with suppress(StoreCorrupt):
            info = self.store.pattern(pattern_id)
            plugs = self.featurizers().values()
            return info is None or any(reads(plug, info.kind) for plug in plugs)
        return False

    def repairs(self) -> list[str]:
        """Derived files that were stale or damaged, and were rebuilt since opening."""
        return list(self._files.repairs)

    # -- cost models -----------------------------------------------------------------------

    def cost_model(self, platform: Platform, op: Op) -> CostModel | None:
        """The cost model that ranks for an op on a platform; None for one that cannot be used."""
        return self.usable_model(platform, op)[0]

    @property
    def models(self) -> CostModelFiles:
        """The files of cost models."""
        return self._derived.models

    def usable_model(self, platform: Platform, op: Op) -> tuple[CostModel | None, str]:
        """The cost model for an op on a platform, or the reason why it cannot be used."""
        return self.models.find(platform, op, self.featurizer_version)

    def graph_model(self, platform: Platform, op: Op) -> tuple[GraphModel | None, str]:
        """The model of tensor kernels for an op on a platform, or the reason why it cannot be
        used."""
        return self.models.find_graph_model(platform, op)

    def model(self, platform: Platform, op: Op) -> CostModel | GraphModel | None:
        """The model of any kind that was trained on runs of an op on a platform."""
        model: CostModel | GraphModel | None = op.workload.model(self, platform, op)
        return model

    # -- patterns and runs -----------------------------------------------------------------

    def vector(self, pattern: Workload | WorkloadInfo, featurizer: str) -> NDArray[np.float32]:
        """Raw features float32[d] of a pattern, stored or computed.

        Raises: NothingFound if a pattern known by name has none; MissingDependency or ModelError if
        the featurizer cannot compute here.
        """
        plug = self.featurizers().named(featurizer)
        stored = self.store.vectors.get(featurizer, plug.version, [pattern.id], dim=plug.dim)
        vector = stored.get(pattern.id)
        by_name = isinstance(pattern, WorkloadInfo)
        if vector is None and isinstance(pattern, WorkloadInfo):
            vector = plug.from_info(pattern)
        if vector is None:
            structure = self.store.workload(pattern.id) if by_name else pattern
            if structure is None:
                raise NothingFound(
                    f"{pattern.name or pattern.id}: only known by name; {featurizer} needs more",
                    hint="give its file",
                )
            vector = self._derived.embed(structure, plug)
        return np.asarray(vector, dtype=np.float32)

    def lengths(self, pattern: Workload | WorkloadInfo) -> RowLengths | None:
        """Row lengths of a matrix, from its structure if there is one, else as stored or imported
        with runs, else estimated from statistics or sizes; None for other kinds of workload and
        unknown sizes."""
        kind, vectors = kind_of(pattern.kind), self.store.vectors
        if not kind.sparse:
            return None
        if not isinstance(pattern, WorkloadInfo):
            return kind.row_lengths(pattern)
        with suppress(StoreCorrupt):
            stored = vectors.get(ROW_LENGTHS.name, ROW_LENGTHS.version, [pattern.id])
            vector = stored.get(pattern.id, ROW_LENGTHS.from_info(pattern))
            lengths = None if vector is None else ROW_LENGTHS.lengths(vector, pattern)
            structure = self.store.workload(pattern.id) if lengths is None else None
            if lengths is not None or structure is not None:
                return lengths or kind.row_lengths(structure)
        plug = self.featurizers().named("stats")
        statistics = vectors.get(plug.name, plug.version, [pattern.id], dim=plug.dim)
        return estimate(pattern, statistics.get(pattern.id, plug.from_info(pattern)))

    def add_pattern(self, pattern: Workload, *, only: Collection[str] | None = None) -> None:
        """Store one pattern (`add_patterns`)."""
        self.add_patterns([pattern], only=only)

    def add_patterns(
        self, patterns: Sequence[Workload], *, only: Collection[str] | None = None
    ) -> None:
        """Store structures (or nests), thumbnails and those vectors that can be computed here, so
        that the patterns can be neighbours; with `only`, vectors of these featurizers alone. The
        matrices that a nest refers to are stored too."""
        parts = [part for one in patterns for part in kind_of(one.kind).parts(one)]
        new = {part.id: part for part in parts if self.store.workload(part.id) is None}
        if new:
            self.add_patterns(list(new.values()), only=only)
        self.store.put_structures((one, WorkloadInfo.whole(one)) for one in patterns)
        plugs: list[Featurizer | RowHistograms] = [ROW_LENGTHS]
        named = self.featurizers().items()
        plugs += [plug for name, plug in named if only is None or name in only]
        vectors: dict[tuple[str, str], dict[str, NDArray[np.float32]]] = {}
        for pattern in patterns:
            for plug in (plug for plug in plugs if reads(plug, pattern.kind)):
                # `indexer.embed` reports those that cannot be computed.
                with suppress(MissingDependency, ModelError, PluginError):
                    vector = embedded(plug, pattern)
                    vectors.setdefault((plug.name, plug.version), {})[pattern.id] = vector
        for (name, version), by_id in vectors.items():
            self.store.vectors.put(name, version, by_id)

    def record(self, runs: list[Run], pattern: Workload, platform: Platform) -> None:
        """Store measured runs with their pattern and platform."""
        self.store.put_platform(platform)
        if self.store.pattern(pattern.id) is None or self.store.workload(pattern.id) is None:
            self.add_pattern(pattern)
        self.store.append(runs)


def _comparing(partition: AnswerIndex | None) -> AnswerIndex | None:
    """The partition, if it has workloads that can be compared."""
    return partition if partition is not None and partition.ids else None
