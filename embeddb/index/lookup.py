"""`Lookup`: an open database as a question and the indexer see it, store, featurizers, models and
index together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.core.errors import (
    MissingDependency,
    ModelError,
    NothingFound,
    StoreCorrupt,
    UsageError,
)
from embeddb.core.files.model_file import read_card
from embeddb.core.kinds import kind_of
from embeddb.core.records import Run, WorkloadInfo
from embeddb.core.row_lengths import RowLengths
from embeddb.core.wording import plural
from embeddb.core.workload import Workload
from embeddb.cost_model.files import CostModelFiles
from embeddb.featurizers import Featurizer, Featurizers, WithCounters, reads
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.files import IndexFiles
from embeddb.index.large.sampling import read_of
from embeddb.index.lengths import lengths_of
from embeddb.index.named import NamedPartitions
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
    from embeddb.featurizers.row_lengths import RowHistograms


class _Derived:
    """Indexes, featurizers and cost models of a database in memory: shared by all that have it open
    in this process, so that none is loaded or built twice."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.models = CostModelFiles(store.path)
        self.reload()

    def reload(self) -> None:
        """Begin anew: open indexes hold vectors of the weights before."""
        store = self._store
        self.featurizers = Featurizers(store.path, partial(counters_of, store), self._embedded)
        self.files = IndexFiles(store)
        self.named = NamedPartitions(store)

    def _embedded(self, featurizer: str) -> bool:
        """True if vectors of a featurizer were ever computed here."""
        return bool(self._store.notes.get(f"embedded/{featurizer}"))


class Lookup:
    """What is known, and where new knowledge is written down; use as a context manager.

    `embeddb.database.Database` is one with a call for every use. A folder may be opened any number
    of times; all of one process share its engine and indexes. All methods may be called from
    several threads; after a fork the child opens it again.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        #: The only one to find neighbours by; empty: the one that was chosen.
        self.featurizer = ""
        #: False: a model that a query learned from fewer runs answers, and none is learned.
        self.learns = True
        fetch_models(store)
        self._derived = store.engine.shared_state(
            lambda engine: _Derived(store if engine is store.engine else Store(engine))
        )

    @property
    def _files(self) -> IndexFiles:
        return self._derived.files

    @property
    def _featurizers(self) -> Featurizers:
        return self._derived.featurizers

    @classmethod
    def open(cls, path: str | Path, *, readonly: bool = False) -> Self:
        """Raises: StoreError if there is none."""
        return cls(open_store(path, readonly=readonly))

    @classmethod
    def create(cls, path: str | Path) -> Self:
        """Raises: StoreError if something is there already."""
        return cls(open_store(path, create=True))

    @classmethod
    def in_memory(cls) -> Self:
        return cls(memory_store())

    def by_featurizer(self, name: str) -> Self:
        """The same open database with neighbours found by one featurizer, whichever it chose
        itself. Raises: UsageError for one that it does not have."""
        self.featurizers().named(name)
        view = object.__new__(type(self))
        view.store, view._derived, view.featurizer = self.store, self._derived, name
        view.learns = self.learns
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

    def tell_of_long_work(self, note: Callable[[str], None]) -> None:
        """Report with `note` work that takes seconds, before it is done."""
        self._files.tell = note

    def announce(self, message: str) -> None:
        """Report such work."""
        self._files.tell(message)

    # -- what there is ---------------------------------------------------------------------

    def featurizers(self) -> Featurizers:
        """Featurizers by name, in order of preference; loaded when asked for."""
        return self._featurizers

    def featurizer_version(self, name: str) -> str:
        return str(self.featurizers().named(name).version) if name else ""

    def use_weights(self, file: str | Path) -> str:
        """Make a model file the weights of this database's `tower`, `scnn` or `nest-embedding`,
        whichever it is for; returns their version. `indexer.embed.embed` computes the vectors.

        Raises: ModelError for a file that cannot be used; UsageError for a database in memory;
        MissingDependency without torch, with which that of `scnn` is checked.
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
        """Every (op, scope) with runs, of the platform and the op that are named."""
        return [
            (scope.op, scope.name)
            for scope in scopes(self.store)
            if platform in ("", scope.name, scope.name.partition("@")[0]) and op in (None, scope.op)
        ]

    def platform(self, text: str) -> Platform:
        """The platform a user means (`embeddb.index.platform_names.platform_named`)."""
        return platform_named(self.store, text)

    def pattern_name(self, pattern_id: str) -> str:
        """Empty where it has none, or is not known."""
        info = self.store.pattern(pattern_id)
        return "" if info is None else info.name

    # -- partitions ------------------------------------------------------------------------

    def refresh(
        self, op: Op, scope: str, *, again: bool = False, counters: str = ""
    ) -> AnswerIndex | None:
        """Build a partition from the store and save it, unless the saved one is current (`again`:
        whether it is or not); with `counters`, the one for nests that were counted on that platform
        instance, None where too few were. Raises: StoreError if it cannot be saved."""
        plugs = self._featurizers.counting(counters)
        return self._files.refresh(op, scope, plugs, again=again, counters=counters)

    def partition(self, op: Op, platform: Platform) -> AnswerIndex | None:
        """The evidence for an op on a platform as of now; None if it was never measured."""
        scope = scope_of(platform)
        known = scope_partitions(self.store, op, scope)
        return self._partition(op, scope) if known else None

    def answering(self, op: Op, platform: Platform, *, nest_id: str = "") -> AnswerIndex | None:
        """The index that answers for an op on a platform: its own evidence, and where that is thin
        other widths and value types of the kernel beside it; at a width that was never measured
        that of `answering_op`; None if there is none of these. For a nest that was counted there it
        is placed by vectors with counters, where its neighbours have such vectors too and held-out
        answers were better by them."""
        scope = scope_of(platform)
        plain = self._partition(answering_op(self.store, op, scope), scope)
        counted = op.workload.counted and nest_id and not self.featurizer
        if not counted or not were_counted(self.store, nest_id, platform.id):
            return plain
        found = self.by_counters(op, platform)
        plug = None if found is None else self.featurizers()[found.featurizer]
        told = isinstance(plug, WithCounters) and plug.counters(nest_id) is not None
        return found if told else plain

    def _partition(self, op: Op, scope: str) -> AnswerIndex | None:
        """Brought up to date, with neighbours by the one featurizer that was named, if any."""
        plugs = self.featurizers()
        plain = self._files.get(op, scope, plugs)
        if not self.featurizer or plain is None:
            return plain
        return self._derived.named.beside(plain, self.featurizer, plugs)

    def around(
        self,
        partition: AnswerIndex,
        vector: NDArray[np.float32],
        pattern_id: str,
        platform: Platform,
    ) -> AnswerIndex:
        """A partition of very many patterns as a platform's question needs it, with the runs of
        those that are nearest to raw features float32[d], and of the one asked about; any other as
        it is."""
        plugs = self.featurizers()
        if partition.counters:
            plugs = self._featurizers.counting(partition.counters)
        return self._files.around(partition, vector, pattern_id, platform, plugs)

    def around_known(
        self, partition: AnswerIndex, pattern_id: str, platform: Platform
    ) -> AnswerIndex:
        """The same for a pattern of the database, by its stored features."""
        if partition.lists is None:
            return partition
        name = partition.featurizer
        version = self.featurizer_version(name)
        found = self.store.vectors.get(name, version, [pattern_id]).get(pattern_id)
        return partition if found is None else self.around(partition, found, pattern_id, platform)

    def by_counters(self, op: Op, platform: Platform) -> AnswerIndex | None:
        """The evidence for an op with the featurizer chosen among those, too, that read what was
        counted on a platform instance; None where fewer than nine of ten nests were."""
        plain = self._files.get(op, scope_of(platform), self.featurizers())
        if plain is None or not op.workload.counted:
            return None
        plugs = self._featurizers.counting(platform.id)
        return self._files.by_counters(plain, platform.id, plugs)

    def prime(self, partition: AnswerIndex, platform: Platform) -> None:
        """Have the view of a machine ready; found anew it takes seconds, and is noted."""
        if not self.featurizer:  # what is noted is of the partition that is saved
            self._files.prime(partition, platform)

    def evidence(
        self, op: Op, scope: str
    ) -> tuple[RunMatrix, dict[str, dict[str, NDArray[np.float32]]]]:
        """Everything measured in a scope, of very many patterns that of some
        (`embeddb.index.large.sampling`), and raw vectors by featurizer and pattern id."""
        only = read_of(members_of(self.store, op, scope))
        found = run_matrix_of(self.store, op, scope, only=only)
        plugs, name = self.featurizers(), self.featurizer
        return found, self._files.readable(found, {name: plugs[name]} if name else plugs)

    def atlas(self, op: Op, platform: Platform) -> Projection | None:
        """The 2-D map of the evidence for an op on a platform as of now; None if there is none."""
        found = self.partition(op, platform)
        return None if found is None else projection_of(self.store, found)

    def preparing_s(self, op: Op, scope: str) -> float:
        """About how many seconds the first answer for an op in a scope waits for its partition to
        be made; 0 where one is there."""
        return self._files.preparing_s(answering_op(self.store, op, scope), scope)

    def partition_notes(self) -> dict[str, dict[str, Any]]:
        """What is saved of each partition: generation, rows, checksums."""
        return self._files.notes()

    def forget_derived(self) -> None:
        """Drop every vector and partition; `indexer.embed.embed` makes them anew."""
        self.store.vectors.drop()
        self.forget_partitions()

    def forget_partitions(self, *, but: Collection[tuple[Op, str]] = ()) -> None:
        """Drop the partitions and maps that are not among `but`."""
        maps = {f"atlas/{op}/{scope}" for op, scope in but}
        self.store.derived.delete(self.store.derived.items("atlas/").keys() - maps)
        self._files.forget(but=but)

    def problems(self) -> list[str]:
        """Everything wrong with store and derived files; the latter heal on the next use."""
        derived = self._files.problems(self.featurizers())
        models = [*self.featurizers().problems(), *registry_problems(self.store)]
        found = [*self.store.problems(), *counter_problems(self.store)]
        platforms = [p for p in self.platform_problems() if not any(p in line for line in found)]
        return found + platforms + models + derived

    def platform_problems(self) -> list[str]:
        """One line for every stored platform that is none."""
        found = []
        for platform_id in self.store.platforms():
            try:
                self.store.platform(platform_id)
            except StoreCorrupt as e:
                found.append(str(e))
        return found

    def unfinished(self) -> list[str]:
        """What is not wrong but not done: one line if patterns wait for their vectors."""
        kinds = [(name, f.version) for name, f in self.featurizers().items()]
        waiting = [one for one in self.store.vectors.lacking(kinds) if self._can_be_read(one)]
        if not waiting:
            return []
        return [
            f"{plural(len(waiting), 'pattern')} with a structure and without a vector cannot be a "
            "neighbour; `embeddb embed` makes what is missing"
        ]

    def _can_be_read(self, pattern_id: str) -> bool:
        """Whether a featurizer reads what a pattern is: none reads programs. What is damaged is
        told of elsewhere."""
        with suppress(StoreCorrupt):
            info = self.store.pattern(pattern_id)
            plugs = self.featurizers().values()
            return info is None or any(reads(plug, info.kind) for plug in plugs)
        return False

    def repairs(self) -> list[str]:
        """Derived files that were found stale or damaged since opening, and were rebuilt."""
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
        """The cost model for an op on a platform, or one line on why the one that is there cannot
        be used."""
        return self.models.find(platform, op, self.featurizer_version)

    def graph_model(self, platform: Platform, op: Op) -> tuple[GraphModel | None, str]:
        """The learned model of tensor kernels for an op on a platform, or one line on why the one
        that is there cannot be used."""
        return self.models.find_graph_model(platform, op)

    def model(self, platform: Platform, op: Op) -> CostModel | GraphModel | None:
        """The model that learned from runs of an op on a platform, of whatever kind."""
        found: CostModel | GraphModel | None = op.workload.model(self, platform, op)
        return found

    # -- patterns and runs -----------------------------------------------------------------

    def vector(self, pattern: Workload | WorkloadInfo, featurizer: str) -> NDArray[np.float32]:
        """Raw features float32[d] of a pattern: those in the store, else computed.

        Raises: NothingFound if they cannot be had of a pattern known by name; MissingDependency or
        ModelError if the featurizer cannot compute here.
        """
        plug = self.featurizers().named(featurizer)
        kept = self.store.vectors.get(featurizer, plug.version, [pattern.id], dim=plug.dim)
        found = kept.get(pattern.id)
        if found is None and isinstance(pattern, WorkloadInfo):
            found = plug.from_info(pattern)
        if found is None:
            known = isinstance(pattern, WorkloadInfo)
            structure = self.store.workload(pattern.id) if known else pattern
            if structure is None:
                raise NothingFound(
                    f"{pattern.name or pattern.id}: only known by name; {featurizer} needs more",
                    hint="give its file",
                )
            found = plug.embed(structure)
        return np.asarray(found, dtype=np.float32)

    def lengths(self, pattern: Workload | WorkloadInfo) -> RowLengths | None:
        """The row lengths of a matrix (`embeddb.index.lengths`)."""
        return lengths_of(self.store, self.featurizers(), pattern)

    def add_pattern(self, pattern: Workload, *, only: Collection[str] | None = None) -> None:
        """Keep a pattern's structure (or a nest), thumbnail and those vectors that can be computed
        here, so that it can be a neighbour; with `only`, vectors of these featurizers alone. The
        matrices that a nest holds are kept beside it."""
        self.add_patterns([pattern], only=only)

    def add_patterns(
        self, patterns: Sequence[Workload], *, only: Collection[str] | None = None
    ) -> None:
        """The same of several patterns, in as few transactions as for one."""
        held = [part for one in patterns for part in kind_of(one.kind).parts(one)]
        new = {m.id: m for m in held if self.store.workload(m.id) is None}
        if new:
            self.add_patterns(list(new.values()), only=only)
        self.store.put_structures((one, WorkloadInfo.whole(one)) for one in patterns)
        from embeddb.featurizers.row_lengths import ROW_LENGTHS

        plugs = self.featurizers().items()
        asked: list[Featurizer | RowHistograms] = [ROW_LENGTHS]
        asked += [plug for name, plug in plugs if only is None or name in only]
        vectors: dict[tuple[str, str], dict[str, NDArray[np.float32]]] = {}
        for pattern in patterns:
            for plug in (plug for plug in asked if reads(plug, pattern.kind)):
                with suppress(MissingDependency, ModelError):
                    made = plug.embed(pattern)
                    vectors.setdefault((plug.name, plug.version), {})[pattern.id] = made
        for (name, version), found in vectors.items():
            self.store.vectors.put(name, version, found)

    def record(self, runs: list[Run], pattern: Workload, platform: Platform) -> None:
        """Write measured runs back, with the pattern and platform they belong to."""
        self.store.put_platform(platform)
        if self.store.pattern(pattern.id) is None or self.store.workload(pattern.id) is None:
            self.add_pattern(pattern)
        self.store.append(runs)
