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
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError
from embeddb.core.records import WorkloadInfo
from embeddb.core.timing import summarise_runs
from embeddb.core.wording import many_of, value_text
from embeddb.index.large import read_sample
from embeddb.index.run_matrix import Extent, MatrixRow, RunMatrix, join
from embeddb.index.scopes import Scope, scope_partitions
from embeddb.platforms.platform import default_of
from embeddb.store.versions import at_latest
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
    """Noise as a share of the median: half the range of the repeats `within` one run, and the error
    (`TimingSummary.spread`) of the median `between` runs of one configuration; median and 90th
    percentile, None without repeats.
    `repeated` configurations of a matrix ran more than once, and the time of `disagreeing` of them
    is uncertain by more than 20 %."""

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

    @property
    def places(self) -> list[str]:
        """The platforms in its rows of `eval`: its own, or each instance if there are several."""
        return list(dict.fromkeys([self.platform, *self.instances]))


@dataclass
class _Tally:
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
    partitions = scope_partitions(db.store, op, scope.name)
    # A scope is made of platforms that are there.
    stored = [p for t in partitions if (p := db.store.sound_platform(t.platform)) is not None]
    members = list(zip(partitions, at_latest(db.store, stored), strict=True))
    only = read_sample(coverage.ids)
    tally = _Tally(progress)
    winners_only = any(bool(where.traits.get("winners_only")) for _, where in members)
    evidence = join(op, _rows(db, members, infos, tally, only), winners=winners_only)
    best = Best.of(evidence)
    patterns = [infos[r.pattern_id] for r in evidence.rows if r.pattern_id in infos]
    seen = evidence.spread[evidence.spread > 0]
    inside = np.asarray(tally.within, dtype=np.float64)
    return ScopeFacts(
        **coverage.head,
        winners_only=winners_only,
        runnable=bool(scope.platform.runner),
        groups=len({(infos.get(i) or WorkloadInfo(id=i)).family for i in coverage.ids}),
        configs=len(evidence.configs),
        runs=sum(db.store.count_runs(p) for p, _ in members) if only else tally.runs,
        per_pattern=float(np.median(np.diff(evidence.indptr))) if evidence.rows else 0.0,
        statuses=dict(tally.statuses.most_common()),
        sources=dict(tally.sources.most_common()),
        first=tally.first if math.isfinite(tally.first) else None,
        last=tally.last if math.isfinite(tally.last) else None,
        without_default=int((~np.isfinite(evidence.default_s)).sum()),
        noise=Noise(
            within=_quantile(inside, 0.5),
            within_p90=_quantile(inside, 0.9),
            between=_quantile(seen, 0.5),
            between_p90=_quantile(seen, 0.9),
            repeated=tally.repeated,
            disagreeing=int((evidence.spread > _DISAGREE).sum()),
        ),
        read=len(only or coverage.ids),
        **_chosen(best, patterns, op),
        **_quality(coverage),
        **_map(db, scope.platform, op),
    )


def _chosen(best: Best, patterns: Sequence[WorkloadInfo], op: Op) -> dict[str, Any]:
    if not is_shared(op):
        return {"winners": [], "distinct_winners": 0, "preferences": [], "classes": []}
    return {
        "winners": best.winners(_MOST_WINNERS),
        "distinct_winners": len({int(c) for c in best.column if c >= 0}),
        "preferences": best.preferences(),
        "classes": choices(best, {i.id: i for i in patterns}, kind=op.kind),
    }


def _rows(
    db: Database,
    members: Sequence[tuple[RunTable, Platform]],
    infos: Mapping[str, WorkloadInfo],
    tally: _Tally,
    only: Sequence[str] | None,
) -> Iterator[Any]:
    store = db.store
    for partition, platform in members:
        where = (partition.platform, partition.op)
        each = [store.runs(*where)] if only is None else (store.runs(*where, i) for i in only)
        runs = chain.from_iterable(each)
        normal = store.usual_at(platform.id)
        for pattern_id, group in groupby(runs, key=attrgetter("pattern_id")):
            of_pattern = list(group)
            tally.see(of_pattern)
            curve = summarise_runs(of_pattern, normal)
            tally.repeated += sum(c.runs > 1 for c in curve.values())
            info = infos.get(pattern_id) or WorkloadInfo(id=pattern_id)
            default = default_of(platform, partition.op, store.workload_or_info(info))
            yield MatrixRow(pattern_id, partition.platform, info.family), default, curve


def _quantile(values: NDArray[Any], q: float) -> float | None:
    return float(np.quantile(values, q)) if values.size else None


def _quality(coverage: Coverage) -> dict[str, Any]:
    figures: Mapping[str, Any] = {}
    with suppress(EmbeddbError):  # no index can be opened on this machine: the runs remain
        figures = coverage.figures
    model = coverage.model
    dce = None if model is None else model.card.get("dce")  # of an untrusted card
    return {
        "indexed": figures.get("indexed", 0),
        "featurizer": figures.get("featurizer", ""),
        "of_optimum": figures.get("of_optimum_held_out"),
        "static_best": figures.get("static_best_held_out"),
        "winner_hits": figures.get("winner_hits_held_out"),
        "static_hits": figures.get("static_best_hits_held_out"),
        "model": "" if model is None else model.version,
        "model_dce": float(dce) if isinstance(dce, int | float) and math.isfinite(dce) else None,
        "model_of_optimum": {name: float(v) for name, v in coverage.model_held_out.items()},
    }


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


# -- winners ---------------------------------------------------------------------------------------

#: Largest numbers of items, so that a report stays small.
_MOST_GROUPS = 12
_MOST_VALUES = 6
#: Fewest matrices of a class: the best fixed choice for one is just its own best.
_CLASS = 3
#: Share of winners above which a parameter's value is settled.
_SETTLED = 0.95
#: Smallest share of the matrices of the most measured configuration on which a fixed choice was
#: measured.
_TRIED = 0.5
#: Classes by nonzeros in a mean row, longest first: lower bound and name.
_ROWS = ((64, "64 or more"), (16, "16 to 64"), (4, "4 to 16"), (0, "under 4"))


class Winner(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration that was the fastest on `patterns` matrices, on any machine, and its
    geometric mean gain over the default there (None: the default did not run)."""

    config: dict[str, Any]
    patterns: int
    gain: float | None


class Preference(msgspec.Struct, frozen=True, kw_only=True):
    """Distribution of a parameter's values among the fastest configurations: shares of matrices,
    the most frequent first; `others` is the number of further values."""

    parameter: str
    shares: dict[str, float]
    others: int

    @property
    def settled(self) -> bool:
        """True if nearly all winners have one value."""
        return max(self.shares.values()) >= _SETTLED


class ClassChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The best fixed choice for a class of matrices: `kind` is `all`, `row length` or `group`.

    `gain` is the geometric mean over the `tried` matrices of the class on which it and the default
    ran (a failure counts as the default); `headroom` that of each matrix's best. Candidates are
    configurations measured on about as many matrices as any other, and the choice is the static
    best of `eval`: over all matrices, where it did not run it counts as the default. A matrix
    counts once for each machine in `pairs` and `tried_pairs`.
    """

    kind: str
    name: str
    patterns: int
    config: dict[str, Any]
    gain: float | None
    tried: int
    headroom: float | None
    pairs: int
    tried_pairs: int


@dataclass(frozen=True)
class Best:
    """Fastest configurations, for r rows and x entries of evidence: `column` int64[r] the fastest
    configuration (-1: all failed), `gain` float64[r] its log gain over the default (nan: unknown),
    `row` int64[x] the row of an entry, `entry` float64[x] its log gain, 0 for a failure, nan if
    unknown."""

    evidence: RunMatrix
    column: NDArray[np.int64]
    gain: NDArray[np.float64]
    row: NDArray[np.int64]
    entry: NDArray[np.float64]

    @classmethod
    def of(cls, e: RunMatrix) -> Best:
        row = np.repeat(np.arange(len(e.rows)), np.diff(e.indptr))
        has_default = e.knows_default[row]
        ok = np.isfinite(e.seconds)
        entry = np.where(has_default, 0.0, np.nan)
        entry[has_default & ok] = np.log(e.default_s[row] / np.where(ok, e.seconds, 1.0))[
            has_default & ok
        ]
        column = np.full(len(e.rows), -1, dtype=np.int64)
        gain = np.full(len(e.rows), np.nan)
        for at in range(len(e.rows)):
            runs = e.row(at)
            if runs.fastest is not None:
                column[at] = runs.column[runs.fastest]
                gain[at] = entry[e.part(at)][runs.fastest]
        return cls(e, column, gain, row, entry)

    def winners(self, most: int) -> list[Winner]:
        """The `most` configurations that are the fastest on most matrices, then on most machines
        there."""
        counts = Counter(int(c) for c in self.column if c >= 0)
        every = [
            Winner(
                config=dict(self.evidence.configs[c]),
                patterns=self._patterns(self.column == c),
                gain=_mean_factor(self.gain[self.column == c]),
            )
            for c, _ in counts.most_common()
        ]
        return sorted(every, key=lambda winner: -winner.patterns)[:most]

    def preferences(self) -> list[Preference]:
        """Preferences of parameters that have more than one value among winners."""
        won = [self.evidence.configs[c] for c in self.column if c >= 0]
        rows = []
        for name in sorted({n for config in won for n in config}):
            counts = Counter(value_text(config.get(name)) for config in won)
            if len(counts) > 1:
                shares = {v: n / len(won) for v, n in counts.most_common(_MOST_VALUES)}
                others = max(0, len(counts) - _MOST_VALUES)
                rows.append(Preference(parameter=name, shares=shares, others=others))
        return rows

    def choice(self, kind: str, name: str, rows: NDArray[np.bool_]) -> ClassChoice | None:
        """The best fixed choice for the rows with true `rows` bool[r]; without gain where a single
        configuration, mostly the default, ran on enough of them."""
        picked = rows[self.row]
        if not picked.any():
            return None
        used = picked & np.isfinite(self.entry)
        won = Counter(int(c) for c in self.column[rows] if c >= 0)
        at, gain, among = next(iter(won.most_common(1)), (-1, 0))[0], None, rows
        if used.any():
            size = len(self.evidence.configs)
            column = self.evidence.column[used]
            count = np.bincount(column, minlength=size)
            total = np.bincount(column, self.entry[used], minlength=size)
            able = count >= _TRIED * count.max()
            if able.sum() > 1:
                # Each mean over the matrices that ran a configuration would be of other matrices.
                ok = np.bincount(column, np.isfinite(self.evidence.seconds[used]), minlength=size)
                at = int(np.lexsort((ok, np.where(able, total, -np.inf)))[-1])
                gain = float(np.exp(total[at] / count[at]))
                among = np.zeros_like(rows)
                among[self.row[used & (self.evidence.column == at)]] = True
        return ClassChoice(
            kind=kind,
            name=name,
            patterns=self._patterns(rows),
            config=dict(self.evidence.configs[at]) if at >= 0 else {},
            gain=gain,
            tried=self._patterns(among) if gain is not None else 0,
            headroom=_mean_factor(self.gain[among]),
            pairs=int(rows.sum()),
            tried_pairs=int(among.sum()) if gain is not None else 0,
        )

    def _patterns(self, rows: NDArray[np.bool_]) -> int:
        """Number of matrices of the rows with true `rows` bool[r]."""
        return Extent.of(self.evidence.rows[at] for at in np.flatnonzero(rows)).patterns


def is_shared(op: Op | str) -> bool:
    """True if configurations transfer between workloads: a fusion plan is one program's own, and a
    fused kernel has no configurations."""
    read = Op.parse(op)
    return read.workload.embedded and read.traits.tunable


def choices(
    best: Best, infos: Mapping[str, WorkloadInfo], *, kind: str = "matrix"
) -> list[ClassChoice]:
    """Best fixed choices: of all workloads of a kind, by mean row length, of the largest groups."""
    rows = best.evidence.rows
    lengths = [_row_length(infos.get(r.pattern_id)) for r in rows]
    groups = Counter(group for group, _ in {(r.group, r.pattern_id) for r in rows})
    large = [g for g, n in groups.most_common(_MOST_GROUPS) if n >= _CLASS]
    wanted = [("all", f"all {many_of(kind)}", np.ones(len(rows), dtype=np.bool_))]
    wanted += [
        ("row length", name, np.array([length == name for length in lengths], dtype=np.bool_))
        for _, name in reversed(_ROWS)
    ]
    wanted += [("group", g, np.array([r.group == g for r in rows], dtype=np.bool_)) for g in large]
    wanted = [w for w in wanted if w[0] == "all" or w[2].sum() >= _CLASS]
    return [c for kind, name, mask in wanted if (c := best.choice(kind, name, mask)) is not None]


def _row_length(info: WorkloadInfo | None) -> str:
    if info is None or info.m <= 0 or info.nnz < 0:
        return ""
    return next(name for least, name in _ROWS if info.nnz / info.m >= least)


def _mean_factor(logs: NDArray[np.float64]) -> float | None:
    finite = logs[np.isfinite(logs)]
    return float(np.exp(finite.mean())) if finite.size else None
