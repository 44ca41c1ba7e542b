"""Summary of one op on one platform: runs, winners, preferred values, noise, quality."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError
from embeddb.core.records import WorkloadInfo
from embeddb.core.timing import summarise_runs
from embeddb.index.large.sampling import read_of
from embeddb.index.run_matrix import MatrixRow, RunMatrix, join
from embeddb.index.scopes import Scope, scope_partitions
from embeddb.platforms.of_subject import default_of
from embeddb.store.usual_state import usual_at
from embeddb.ui.report.winners import Best, ClassChoice, Preference, Winner, choices, is_shared
from indexer.coverage import Coverage

if TYPE_CHECKING:
    from embeddb.core.records import Run
    from embeddb.database import Database
    from embeddb.platforms.platform import Platform
    from embeddb.store import RunTable

#: Largest numbers of items, so that a report stays small.
_MOST_WINNERS = 8
_MOST_PLACES = 400
#: Spread between runs of one configuration above which they disagree.
_DISAGREE = 0.2


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """Noise as half the range over the median: of the repeats `within` one run, and of the medians
    `between` runs of one configuration; median and 90th percentile, None without repeats.
    `repeated` configurations of a matrix ran more than once, and the runs of `disagreeing` of them
    differ by more than 20 %."""

    within: float | None
    within_p90: float | None
    between: float | None
    between_p90: float | None
    repeated: int
    disagreeing: int


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A pattern on the map of the embedding space; x, y in 0..1."""

    pattern_id: str
    name: str
    x: float
    y: float
    winner: dict[str, Any]


class ScopeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of one op on one platform (or all instances of a portable one).

    `of_optimum` and `static_best` are cross-validated shares of the optimum; `winner_hits` and
    `static_hits` the share of held-out winners predicted, if only winners were recorded. `model` is
    the cost model's version, `model_dce` the data collection expense of its training data
    (docs/explanation/cost-model.md) and `model_of_optimum` its share of the optimum by method.
    `map_of` is the number of patterns behind the map, `read` that of patterns whose runs were read:
    of very many patterns an even sample.
    """

    op: str
    platform: str
    instances: list[str]
    simulated: bool
    winners_only: bool
    runnable: bool
    patterns: int
    groups: int
    configs: int
    runs: int
    per_pattern: float
    statuses: dict[str, int]
    sources: dict[str, int]
    first: float | None
    last: float | None
    without_default: int
    indexed: int
    featurizer: str
    of_optimum: float | None
    static_best: float | None
    winner_hits: float | None
    static_hits: float | None
    model: str
    model_dce: float | None
    model_of_optimum: dict[str, float]
    noise: Noise
    winners: list[Winner]
    distinct_winners: int
    preferences: list[Preference]
    classes: list[ClassChoice]
    map: list[Place]
    map_of: int
    read: int = 0


@dataclass
class _Tally:
    """Running counts over runs."""

    progress: Callable[[int], None]
    runs: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    within: array[float] = field(default_factory=lambda: array("d"))
    repeated: int = 0
    first: float = math.inf
    last: float = -math.inf

    def see(self, runs: Sequence[Run]) -> None:
        self.runs += len(runs)
        for run in runs:
            m = run.measurement
            self.statuses[m.status] += 1
            self.sources[m.source] += 1
            if m.when > 0:
                self.first, self.last = min(self.first, m.when), max(self.last, m.when)
            if m.ok and len(m.times_s) > 1 and 0 < m.seconds < math.inf:
                self.within.append((max(m.times_s) - min(m.times_s)) / (2 * m.seconds))
        self.progress(self.runs)


def scope_facts(
    db: Database,
    scope: Scope,
    infos: Mapping[str, WorkloadInfo],
    progress: Callable[[int], None],
) -> ScopeFacts:
    """Read a scope once. `infos` are the patterns by id; `progress` receives the number of runs
    read so far."""
    op, coverage = scope.op, Coverage.of(db.index, scope)
    members = list(_members(db, op, scope.name))
    only = read_of(coverage.ids)
    tally = _Tally(progress)
    winners_only = any(bool(where.traits.get("winners_only")) for _, where in members)
    evidence = join(op, _rows(db, members, infos, tally, only), winners=winners_only)
    best = Best.of(evidence)
    patterns = [infos[r.pattern_id] for r in evidence.rows if r.pattern_id in infos]
    return ScopeFacts(
        **coverage.head,
        winners_only=winners_only,
        runnable=bool(scope.platform.runner),
        groups=len({_group(infos.get(i) or WorkloadInfo(id=i)) for i in coverage.ids}),
        configs=len(evidence.configs),
        runs=sum(db.store.count_runs(p) for p, _ in members) if only else tally.runs,
        per_pattern=float(np.median(np.diff(evidence.indptr))) if evidence.rows else 0.0,
        statuses=dict(tally.statuses.most_common()),
        sources=dict(tally.sources.most_common()),
        first=tally.first if math.isfinite(tally.first) else None,
        last=tally.last if math.isfinite(tally.last) else None,
        without_default=int((~np.isfinite(evidence.default_s)).sum()),
        noise=_noise(evidence, tally),
        read=len(only or coverage.ids),
        **(_chosen(best, patterns, op) if is_shared(op) else _NOTHING_CHOSEN),
        **_quality(coverage),
        **_map(db, scope.platform, op),
    )


_NOTHING_CHOSEN: Mapping[str, Any] = MappingProxyType(
    {"winners": [], "distinct_winners": 0, "preferences": [], "classes": []}
)


def _chosen(best: Best, patterns: Sequence[WorkloadInfo], op: Op) -> dict[str, Any]:
    return {
        "winners": best.winners(_MOST_WINNERS),
        "distinct_winners": len({int(c) for c in best.column if c >= 0}),
        "preferences": best.preferences(),
        "classes": choices(best, {i.id: i for i in patterns}, kind=op.kind),
    }


def _members(db: Database, op: Op, scope: str) -> Iterator[tuple[RunTable, Platform]]:
    for partition in scope_partitions(db.store, op, scope):
        platform = db.store.sound_platform(partition.platform)
        assert platform is not None  # a scope is made of platforms that are there
        yield partition, platform


def _rows(
    db: Database,
    members: Sequence[tuple[RunTable, Platform]],
    infos: Mapping[str, WorkloadInfo],
    tally: _Tally,
    only: Sequence[str] | None,
) -> Iterator[Any]:
    for partition, platform in members:
        runs = _runs(db, partition, only)
        normal = usual_at(db.store, platform.id)
        for pattern_id, group in groupby(runs, key=attrgetter("pattern_id")):
            of_pattern = list(group)
            tally.see(of_pattern)
            curve = summarise_runs(of_pattern, normal)
            tally.repeated += sum(c.runs > 1 for c in curve.values())
            info = infos.get(pattern_id) or WorkloadInfo(id=pattern_id)
            default = default_of(platform, partition.op, db.store.workload_or_info(info))
            yield MatrixRow(pattern_id, partition.platform, _group(info)), default, curve


def _runs(db: Database, partition: RunTable, only: Sequence[str] | None) -> Iterator[Run]:
    platform, op = partition.platform, partition.op
    if only is None:
        return db.store.runs(platform, op)
    return chain.from_iterable(db.store.runs(platform, op, i) for i in only)


def _group(info: WorkloadInfo) -> str:
    return info.group or info.name or info.id


def _noise(e: RunMatrix, tally: _Tally) -> Noise:
    seen = e.spread[e.spread > 0]
    inside = np.asarray(tally.within, dtype=np.float64)
    return Noise(
        within=_quantile(inside, 0.5),
        within_p90=_quantile(inside, 0.9),
        between=_quantile(seen, 0.5),
        between_p90=_quantile(seen, 0.9),
        repeated=tally.repeated,
        disagreeing=int((e.spread > _DISAGREE).sum()),
    )


def _quantile(values: NDArray[Any], q: float) -> float | None:
    return float(np.quantile(values, q)) if values.size else None


def _quality(coverage: Coverage) -> dict[str, Any]:
    """Stored figures of the answer index and of the cost model."""
    figures: Mapping[str, Any] = {}
    with suppress(EmbeddbError):  # no index can be opened on this machine: the runs remain
        figures = coverage.figures
    model = coverage.model
    return {
        "indexed": figures.get("indexed", 0),
        "featurizer": figures.get("featurizer", ""),
        "of_optimum": figures.get("of_optimum_held_out"),
        "static_best": figures.get("static_best_held_out"),
        "winner_hits": figures.get("winner_hits_held_out"),
        "static_hits": figures.get("static_best_hits_held_out"),
        "model": "" if model is None else model.version,
        "model_dce": None if model is None else _number(model.card.get("dce")),
        "model_of_optimum": {name: float(v) for name, v in coverage.model_held_out.items()},
    }


def _number(value: Any) -> float | None:
    """A number of an untrusted model card, or None."""
    able = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if able else None


def _map(db: Database, platform: Platform, op: Op) -> dict[str, Any]:
    """Places of the patterns, evenly thinned if there are too many to draw."""
    try:
        projection = db.atlas(op, platform)
    except EmbeddbError:
        projection = None
    if projection is None:
        return {"map": [], "map_of": 0}
    count = len(projection.ids)
    picked = np.unique(np.linspace(0, count - 1, min(count, _MOST_PLACES)).astype(np.int64))
    places = [
        Place(
            pattern_id=projection.ids[i],
            name=projection.names[i],
            x=projection.x[i],
            y=projection.y[i],
            winner=dict(Config.from_json(projection.winners[i])) if projection.winners[i] else {},
        )
        for i in (picked.tolist() if count else [])
    ]
    return {"map": places, "map_of": count}
