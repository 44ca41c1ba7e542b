"""`Database`: the one facade over store, featurizers and partitions.

import embeddb
with embeddb.open("runs.db") as db:
    pattern = embeddb.read_pattern("A.mtx")
    print(db.query(pattern, platform="cpu", op="spmm:64"))
"""

from __future__ import annotations

import math
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import (
    EmbeddbError,
    MissingDependency,
    ModelError,
    NothingFound,
    UsageError,
)
from embeddb.core.machine_state import usual_at
from embeddb.core.pattern import Pattern
from embeddb.core.records import PatternInfo, Run
from embeddb.explain.explain import Explanation, explain
from embeddb.featurizers import Featurizers, missing
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.files import IndexFiles
from embeddb.index.projection import Projection, projection_of
from embeddb.index.run_matrix import RunMatrix, timings_of
from embeddb.index.scopes import run_matrix_of, scope_of, scope_partitions
from embeddb.platforms.platform import Platform, builtin_platforms, load_platform, platform_hint
from embeddb.query.build import Clock, CostModels, nearest_widths, with_evidence
from embeddb.query.query import Query, Recommendation
from embeddb.store import Store, memory_store, open_store
from embeddb.store.model_files import model_entries, register_files, registry_problems

if TYPE_CHECKING:
    from embeddb.cost_model.model import CostModel

__all__ = ["Database"]


class Database:
    """An open database; use as a context manager.

    All reading methods may be called from several threads; a database must be opened again after
    a fork.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._files = IndexFiles(store)
        self._featurizers = Featurizers(store.path)
        self._models = CostModels(store.path)

    @classmethod
    def open(cls, path: str | Path, *, readonly: bool = False) -> Database:
        """Raises: StoreError if there is none."""
        return cls(open_store(path, readonly=readonly))

    @classmethod
    def create(cls, path: str | Path) -> Database:
        """Raises: StoreError if something is there already."""
        return cls(open_store(path, create=True))

    @classmethod
    def in_memory(cls) -> Database:
        return cls(memory_store())

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Database({str(self.store.path or 'in memory')!r})"

    def _repr_html_(self) -> str:
        return str(import_module("embeddb.ui.notebook").database_html(self))

    # -- what there is ---------------------------------------------------------------------

    def featurizers(self) -> Featurizers:
        """Featurizers by name, in order of preference; loaded when asked for."""
        return self._featurizers

    def use_weights(self, file: str | Path) -> str:
        """Make a model file the weights of this database's `scnn`; returns their version. The
        vectors are made by `indexer.embed.embed`.

        Raises: ModelError for a file that cannot be used; UsageError for a database in memory;
        MissingDependency without torch, with which the file is checked.
        """
        from embeddb.featurizers.scnn import install

        if self.store.path is None:
            raise UsageError("a database in memory has no folder for weights")
        before = model_entries(self.store)
        version = install(Path(file), self.store.path)
        self._featurizers = Featurizers(self.store.path)
        self._files = IndexFiles(self.store)  # open ones hold vectors of the old weights
        register_files(self.store, before)
        return version

    def scopes(self) -> list[tuple[Op, str]]:
        """Every (op, scope) with runs."""
        found = set()
        for partition in self.store.partitions():
            platform = self.store.platform(partition.platform)
            if platform is not None:
                found.add((partition.op, scope_of(platform)))
        return sorted(found, key=lambda x: (x[1], x[0]))

    def featurizer_version(self, name: str) -> str:
        return str(self.featurizers().named(name).version) if name else ""

    def platform(self, text: str) -> Platform:
        """The platform a user means: an id in the store, a built-in name, or a TOML file.

        A bare name stands for its only instance where there is just one.
        Raises: UsageError if nothing, or more than one instance, goes by that name.
        """
        known = self.store.platforms()
        if text in known:
            return self._stored(text)
        instances = [p for p in known if p.partition("@")[0] == text]
        if instances and self._stored(instances[0]).portable:
            # Without an instance: any machine of its kind.
            own = text not in builtin_platforms()
            return self._stored(instances[0]).at("") if own else load_platform(text)
        if len(instances) == 1:
            return self._stored(instances[0])
        if instances:
            raise UsageError(
                f"platform {text} has {len(instances)} instances here",
                hint=f"name one: {', '.join(instances)}",
            )
        name, _, instance = text.partition("@")
        if Path(text).suffix == ".toml" or name in builtin_platforms():
            return load_platform(text)
        described = [p for p in known if p.partition("@")[0] == name]
        if described and instance:
            return self._stored(described[0]).at(instance)
        raise UsageError(f"no platform {text!r}", hint=platform_hint(text, known))

    def _stored(self, platform_id: str) -> Platform:
        found = self.store.platform(platform_id)
        assert found is not None
        return found

    # -- partitions ------------------------------------------------------------------------

    def refresh(self, op: Op, scope: str) -> AnswerIndex | None:
        """Build a partition from the store and save it, unless the saved one is current."""
        return self._files.refresh(op, scope, self.featurizers())

    def partition(self, op: Op, platform: Platform) -> AnswerIndex | None:
        """The evidence for an op on a platform as of now; None if it was never measured."""
        known = scope_partitions(self.store, op, scope_of(platform))
        return self.answering(op, platform) if known else None

    def answering(self, op: Op, platform: Platform) -> AnswerIndex | None:
        """What answers for an op on a platform: its own evidence, and where that is thin or missing
        other widths and value types of the kernel beside it; None if there is none of these."""
        return self._files.get(op, scope_of(platform), self.featurizers())

    def evidence(
        self, op: Op, scope: str
    ) -> tuple[RunMatrix, dict[str, dict[str, NDArray[np.float32]]]]:
        """Everything measured in a scope, and raw vectors by featurizer and pattern id."""
        found = run_matrix_of(self.store, op, scope)
        return found, self._files.readable(found, self.featurizers())

    def atlas(self, op: Op, platform: Platform) -> Projection | None:
        """The 2-D map of the evidence for an op on a platform as of now; None if there is none."""
        found = self.partition(op, platform)
        return None if found is None else projection_of(self.store, found)

    def partition_notes(self) -> dict[str, dict[str, Any]]:
        """What is saved of each partition: generation, rows, checksums."""
        return self._files.notes()

    def forget_derived(self) -> None:
        """Drop every vector and partition; `indexer.embed.embed` makes them anew."""
        self.store.vectors.drop()
        self.store.notes.delete(self.store.notes.items("atlas/"))
        self._files.forget()

    def problems(self) -> list[str]:
        """Everything wrong with store and derived files; the latter heal on the next use."""
        derived = self._files.problems(self.featurizers())
        models = [*self.featurizers().problems(), *registry_problems(self.store)]
        return self.store.problems() + models + derived

    def repairs(self) -> list[str]:
        """Derived files that were found stale or damaged since opening, and were rebuilt."""
        return list(self._files.repairs)

    # -- asking ----------------------------------------------------------------------------

    def query(
        self,
        pattern: Pattern | PatternInfo,
        *,
        platform: str | Platform,
        op: str | Op,
        count: int = 5,
        calls: float = math.inf,
        deep: bool = False,
        reproducible: bool = False,
    ) -> Recommendation:
        """Rank configurations for a pattern; the answer is stored under its `id`. With `deep` it
        also says what would change it (`Diagnostics`), which costs seconds. With `reproducible` it
        leaves out configurations whose sums run in an order that varies from call to call.

        Raises: UsageError for an unknown platform or op, or one whose file does not say which
        configurations are reproducible; NothingFound for a pattern known by name
        only where the evidence needs its structure.
        """
        # The search side sits above this facade (tuners import it), so it is found by name.
        loop = import_module("tuners.loop")
        where = self.platform(platform) if isinstance(platform, str) else platform
        what = Op.parse(op) if isinstance(op, str) else op
        here = loop.local_platform(where)
        if reproducible:
            here = here.reproducible(what)
        made: Recommendation = loop.recommend(
            self, pattern, here, what, count=count, calls=calls, deep=deep
        )
        return made

    # -- preparing a query -----------------------------------------------------------------

    def vector(self, pattern: Pattern | PatternInfo, featurizer: str) -> NDArray[np.float32]:
        """Raw features float32[d] of a pattern: those in the store, else computed.

        Raises: NothingFound if they cannot be had of a pattern known by name; MissingDependency or
        ModelError if the featurizer cannot compute here.
        """
        plug = self.featurizers().named(featurizer)
        found = self.store.vectors.get(featurizer, plug.version, [pattern.id]).get(pattern.id)
        if found is None and isinstance(pattern, PatternInfo):
            found = plug.from_info(pattern)
        if found is None:
            named = isinstance(pattern, PatternInfo)
            structure = self.store.structure(pattern.id) if named else pattern
            if structure is None:
                raise NothingFound(
                    f"{pattern.name or pattern.id}: only known by name; {featurizer} needs more",
                    hint="give the matrix file",
                )
            found = plug.embed(structure)
        return np.asarray(found, dtype=np.float32)

    def prepare(
        self,
        pattern: Pattern | PatternInfo,
        platform: Platform,
        op: Op,
        *,
        calls: float = math.inf,
        stages_s: dict[str, float] | None = None,
    ) -> Query:
        """Everything known that bears on one question, as a tuner wants it.

        Raises: UsageError if the platform has no such op.
        """
        clock = Clock(stages_s if stages_s is not None else {})
        info = PatternInfo.of(pattern)
        space = platform.space(op, m=info.m, n=info.n, nnz=info.nnz)
        partition = self.answering(op, platform)
        clock.lap("open")
        normal = usual_at(self.store, platform.id)
        own = timings_of(self.store.runs(platform.id, op, info.id), normal)
        width_op, own_width = self._other_width(platform, op, info.id)
        query = Query(
            info,
            platform,
            op,
            space,
            platform.default(op, m=info.m, n=info.n, nnz=info.nnz),
            own=own,
            own_width=own_width,
            own_width_op=width_op,
            calls=calls,
        )
        if partition is not None:
            vector = None
            try:
                partition, vector = self._placed(pattern, op, platform, partition)
            except NothingFound:
                if not own and not own_width:
                    raise
            clock.lap("features")
            self._files.prime(partition, platform)
            query = with_evidence(query, partition, vector, name_of=self._name)
            clock.lap("search")
        query = self._models.apply(
            query,
            lambda name: self.vector(pattern, name),
            version_of=self.featurizer_version,
            store=self.store,
        )
        if query.model:
            clock.lap("model")
        return query

    def cost_model(self, platform: Platform, op: Op) -> CostModel | None:
        """The cost model that ranks for an op on a platform: this database's own, else one that
        ships. One that cannot be used (damaged, for another space or featurizer) is none; an
        answer says so in its warnings."""
        return self._models.find(platform, op, self.featurizer_version)[0]

    def _placed(
        self, pattern: Pattern | PatternInfo, op: Op, platform: Platform, partition: AnswerIndex
    ) -> tuple[AnswerIndex, NDArray[np.float32]]:
        """The pattern's features, and the partition to look them up in: another than the given one
        where its featurizer turns out not to work on this machine."""
        try:
            return partition, self.vector(pattern, partition.featurizer)
        except EmbeddbError:
            if not missing(self.featurizers().named(partition.featurizer)):
                raise
            other = self.answering(op, platform)
            if other is None or other.featurizer == partition.featurizer:
                raise
        return other, self.vector(pattern, other.featurizer)

    def _other_width(
        self, platform: Platform, op: Op, pattern_id: str
    ) -> tuple[Op | None, dict[Config, Any]]:
        """What was measured on this pattern at the nearest other width."""
        known = [p.op for p in self.store.partitions() if p.platform == platform.id]
        for near in nearest_widths((o for o in known if o.width != op.width), op):
            runs = self.store.runs(platform.id, near, pattern_id)
            curve = timings_of(runs, usual_at(self.store, platform.id))
            if sum(math.isfinite(c.seconds) for c in curve.values()) >= _ENOUGH_AT_OTHER_WIDTH:
                return near, curve
        return None, {}

    def named_features(self, query: Query) -> dict[str, tuple[float, float, float]]:
        """(value, mean, scale) of the query's features in the partition that answered."""
        partition = self.answering(query.op, query.platform)
        if partition is None or partition.featurizer != query.featurizer or not query.vector.size:
            return {}
        plug = self.featurizers()[partition.featurizer]
        mean, scale = partition.metric.center, partition.metric.scale
        rows = zip(plug.names, query.vector, mean, scale, strict=True)
        return {name: (float(v), float(a), float(b)) for name, v, a, b in rows}

    # -- keeping answers and runs ----------------------------------------------------------

    def keep(self, made: Recommendation) -> None:
        """Store a recommendation under its id, and the card of the model it rests on."""
        self._models.register(made.model, self.store)
        self.store.recommendations.put(made.id, msgspec.json.encode(made))

    def recommendation(self, rec_id: str) -> Recommendation:
        """Raises: NothingFound, naming the latest answers there are."""
        raw = self.store.recommendations.get(rec_id)
        if raw is None:
            latest = sorted(self.recommendations(), key=lambda r: -r.created)[:3]
            hint = f"latest: {', '.join(r.id for r in latest)}" if latest else "run a query first"
            raise NothingFound(f"no recommendation {rec_id!r}", hint=hint)
        return msgspec.json.decode(raw, type=Recommendation)

    def recommendations(self) -> list[Recommendation]:
        raws = self.store.recommendations.items().values()
        return [msgspec.json.decode(raw, type=Recommendation) for raw in raws]

    def add_pattern(self, pattern: Pattern, *, only: Collection[str] | None = None) -> None:
        """Keep a pattern's structure, thumbnail and those vectors that can be computed here, so
        that it can be a neighbour; with `only`, vectors of these featurizers alone."""
        from embeddb.core.thumbnail import thumbnail

        info = msgspec.structs.replace(PatternInfo.of(pattern), thumbnail=thumbnail(pattern))
        self.store.put_structure(pattern, info)
        for name, featurizer in self.featurizers().items():
            if only is not None and name not in only:
                continue
            try:
                vector = featurizer.embed(pattern)
            except (MissingDependency, ModelError):
                continue
            self.store.vectors.put(name, featurizer.version, {pattern.id: vector})

    def record(self, runs: list[Run], pattern: Pattern, platform: Platform) -> None:
        """Write measured runs back, with the pattern and platform they belong to."""
        self.store.put_platform(platform)
        if self.store.pattern(pattern.id) is None or self.store.structure(pattern.id) is None:
            self.add_pattern(pattern)
        self.store.append(runs)

    def explain(self, rec_id: str) -> Explanation:
        """Why an answer is what it is, from the store alone. Raises: NothingFound."""
        return explain(self.recommendation(rec_id), self.store)

    def _name(self, pattern_id: str) -> str:
        info = self.store.pattern(pattern_id)
        return "" if info is None else info.name


#: A pattern's own curve at another width counts from this many measured configurations on.
_ENOUGH_AT_OTHER_WIDTH = 8
