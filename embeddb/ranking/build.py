"""Building a query from a pattern, a platform and an op: all evidence on it from the index, the
store and the cost model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError, NothingFound, UsageError
from embeddb.core.records import WorkloadInfo
from embeddb.core.timing import TimingSummary, summarise_runs
from embeddb.core.workload import Workload
from embeddb.featurizers import Featurizer, missing
from embeddb.featurizers.base import Explained
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.config_counts import Failures, well_tried
from embeddb.index.lookup import Lookup
from embeddb.index.pooling import Source
from embeddb.index.scopes import nearest_widths
from embeddb.index.view import View
from embeddb.platforms.platform import Platform, default_of, space_of
from embeddb.platforms.space.screen import screened
from embeddb.platforms.space.space import ConfigSpace
from embeddb.ranking.order_reason import settled
from embeddb.ranking.prediction import predicted
from embeddb.ranking.query import Neighbour, OwnTimings, Query, Vote, VoteOrigin, VoteQuality

#: Fewest measured configurations for a pattern's own timings at another width to count.
_ENOUGH_AT_OTHER_WIDTH = 8


def build_query(
    lookup: Lookup,
    pattern: Workload | WorkloadInfo,
    platform: Platform,
    op: Op,
    *,
    calls: float = math.inf,
    stages_s: dict[str, float] | None = None,
) -> Query:
    """The query with all evidence on it; the seconds of each stage are added to `stages_s`.

    Raises: UsageError if the platform has no such op, or the op is of another kind of workload;
    NothingFound for a pattern known by name only where the evidence needs its structure;
    TensorError for a kernel that has no tiles.
    """
    clock = _Clock(stages_s if stages_s is not None else {})
    info = WorkloadInfo.of(pattern)
    subject = _subject(lookup, pattern, info, op)
    partition = lookup.answering(op, platform, nest_id=info.id)
    clock.lap("open")
    space, default = space_of(platform, op, subject), default_of(platform, op, subject)
    op.workload.check_default(info, op, space, default)
    query = Query(info, platform, op, space, default, calls)
    query = replace(query, own=_own(lookup, query))
    if partition is not None:
        vector = None
        try:
            if partition.ids:
                partition, vector = _placed(lookup, pattern, op, platform, partition)
        except NothingFound:
            if not query.own.timings and not query.own.other_width:
                raise
        clock.lap("features")
        lookup.prime(partition, platform)
        if vector is not None:
            partition = lookup.around(partition, vector, info.id, platform)
        query = with_evidence(query, partition, vector, name_of=lookup.pattern_name)
        query = op.workload.transferred(query, partition, subject, lookup.store.workload) or query
        clock.lap("search")
    by_kind: Query | None = query.op.workload.predicted(query, lookup, subject)
    query = predicted(query, lookup, pattern) if by_kind is None else by_kind
    if query.prediction.version:
        clock.lap("model")
    return query


def _subject(
    lookup: Lookup, pattern: Workload | WorkloadInfo, info: WorkloadInfo, op: Op
) -> Workload | WorkloadInfo:
    """The workload with its structure, if that is stored. Raises: UsageError for another kind of
    workload."""
    if info.kind != op.kind:
        raise UsageError(
            f"{op} runs on a {op.kind}, and {info.name or info.id} is a {info.kind}",
            hint=f"ask for an operation on a {info.kind}",
        )
    return lookup.store.workload_or_info(info) if isinstance(pattern, WorkloadInfo) else pattern


def _own(lookup: Lookup, query: Query) -> OwnTimings:
    """Timings of the very workload."""
    platform, op, pattern_id = query.platform, query.op, query.pattern.id
    normal = lookup.store.usual_at(platform.id)
    runs = list(lookup.store.runs(platform.id, op, pattern_id))
    timings, behind = settled(runs, query.default, normal)
    other_op, other_width = _other_width(lookup, platform, op, pattern_id)
    return OwnTimings(timings, behind, other_width, other_op)


def _placed(
    lookup: Lookup,
    pattern: Workload | WorkloadInfo,
    op: Op,
    platform: Platform,
    partition: AnswerIndex,
) -> tuple[AnswerIndex, NDArray[np.float32]]:
    """The partition and the pattern's features in it; another partition if the featurizer of the
    given one does not work on this machine."""
    try:
        return partition, lookup.vector(pattern, partition.featurizer)
    except EmbeddbError:
        if not missing(lookup.featurizers().named(partition.featurizer)):
            raise
        other = lookup.answering(op, platform, nest_id=pattern.id)
        if other is None or other.featurizer == partition.featurizer:
            raise
    return other, lookup.vector(pattern, other.featurizer)


def _other_width(
    lookup: Lookup, platform: Platform, op: Op, pattern_id: str
) -> tuple[Op | None, dict[Config, TimingSummary]]:
    """Timings of this pattern at the nearest other width."""
    store = lookup.store
    ops = [p.op for p in store.partitions() if p.platform == platform.id]
    for near in nearest_widths((o for o in ops if o.width != op.width), op):
        runs = store.runs(platform.id, near, pattern_id)
        curve = summarise_runs(runs, store.usual_at(platform.id))
        if sum(math.isfinite(c.seconds) for c in curve.values()) >= _ENOUGH_AT_OTHER_WIDTH:
            return near, curve
    return None, {}


class Coordinates(NamedTuple):
    """Features in which an answer is explained: those of the neighbours' featurizer, or of its part
    if it is `Explained`. `vector` float32[e] is the query's, `mean` and `scale` [e] are usual."""

    featurizer: Featurizer
    vector: NDArray[np.float32]
    mean: NDArray[np.floating[Any]]
    scale: NDArray[np.floating[Any]]

    @property
    def by(self) -> tuple[str, str]:
        """The featurizer and its version."""
        return self.featurizer.name, self.featurizer.version

    def named(self) -> dict[str, tuple[float, float, float]]:
        """(value, mean, scale) by name."""
        rows = zip(self.featurizer.names, self.vector, self.mean, self.scale, strict=True)
        return {name: (float(v), float(a), float(b)) for name, v, a, b in rows}


def coordinates(
    lookup: Lookup, query: Query, workload: Workload | WorkloadInfo
) -> Coordinates | None:
    """The coordinates for a query on a workload; None without neighbours, or where only the vector
    of a learned function was imported."""
    partition = lookup.answering(query.op, query.platform, nest_id=query.pattern.id)
    vector = query.vote.vector
    if partition is None or partition.featurizer != query.vote.featurizer or not vector.size:
        return None
    plug = lookup.featurizers()[partition.featurizer]
    if isinstance(plug, Explained):
        part = plug.parts[0]
        with suppress(NothingFound):
            return Coordinates(part, lookup.vector(workload, part.name), *plug.usual)
        return None
    return Coordinates(plug, vector, partition.metric.center, partition.metric.scale)


# -- the neighbours' part --------------------------------------------------------------------------


def with_evidence(
    query: Query,
    partition: AnswerIndex,
    vector: NDArray[np.float32] | None,
    *,
    name_of: Callable[[str], str] = lambda _: "",
) -> Query:
    """The query with the vote of a partition for raw features float32[d].

    Measurements of this pattern on this platform are `own`, not a neighbour's; those of another
    instance of a portable platform are the nearest neighbour possible. Without a vector there are
    no neighbours, only averages of the platform.
    """
    view = partition.view(query.platform, calls=query.calls)
    policy = view.policy
    ids: list[str] = []
    distances = np.zeros(0)
    if vector is not None:
        if not query.own.timings and query.pattern.id in partition.ids:
            policy = partition.shared_policy(query.platform)
        excluded = {query.pattern.id} if query.own.timings else set[str]()
        excluded |= partition.generated
        ids, distances = partition.nearest(vector, count=policy.k, exclude=excluded)
    rows = partition.places_of(ids)
    stored, legal, rejected = split_legal(partition, query.space)
    vote = _vote(query, partition, view, rows, policy.weights(distances), legal)
    winners = partition.evidence.winners
    tried = well_tried(partition.view_input, query.platform.id)
    best = [view.beliefs[int(shares.argmax())].source for shares in view.shares[rows]]
    neighbours = zip(ids, best, distances.tolist(), strict=True)
    return replace(
        query,
        vote=replace(
            vote,
            configs=stored,
            well_tried=None if tried is None else frozenset(compress(stored, tried[legal])),
            failures=Failures.of(stored, legal, view.gains, view.failing),
            rejected=rejected,
            prior=view.averages.by(policy.shrink)[legal],
            shrink=policy.shrink,
            quality=VoteQuality.of(policy, winners=winners, judged_by=view.judged),
            neighbours=tuple(_neighbour(partition, *one, name_of) for one in neighbours),
            vector=np.zeros(0, dtype=np.float32) if vector is None else vector,
            featurizer="" if vector is None else partition.featurizer,
        ),
    )


def _vote(
    query: Query,
    partition: AnswerIndex,
    view: View,
    rows: NDArray[np.int64],
    weights: NDArray[np.float64],
    legal: NDArray[np.int64],
) -> Vote:
    """The vote of neighbours, with rows int64[k] and weights float64[k], on the configurations at
    the places `legal` int64[c]."""
    evidence, averages = partition.evidence, view.averages
    place = {at: new for new, at in enumerate(legal.tolist())}
    sources, shares = [belief.source for belief in view.beliefs], view.shares[rows]
    table, here = partition.preparation, query.platform.id
    return Vote(
        gains=view.gains[rows][:, legal],
        trust=view.trust[rows][:, legal],
        levels=averages.level[rows],
        weights=weights,
        prior=averages.prior[legal],
        mean=averages.mean[legal],
        cover=np.array([place[at] for at in averages.cover if at in place], dtype=np.int64),
        knows_default=bool(evidence.knows_default.any()),
        noise=0.0 if query.platform.simulated else evidence.noise_on(here),
        origin=VoteOrigin(
            _main_op(sources, shares, weights, partition.op),
            _machines(sources, shares, weights),
            view.own,
            any(name != here for name in (*partition.facts, *(s.platform for s in sources))),
            sum(b.patterns for b in view.beliefs if b.source == view.target) - view.own,
            view.target.op,
        ),
        failing=view.failing[rows][:, legal],
        machine_effects=view.effects[:, legal],
        preparation=table.cost(rows, weights, here, partition.op) if table else None,
    )


def _machines(
    sources: Sequence[Source], shares: NDArray[np.float64], weights: NDArray[np.float64]
) -> dict[str, float]:
    """Share of the vote by the platform instance of the runs, the largest first."""
    by_platform: dict[str, float] = {}
    if len(weights):
        mass = weights @ shares / max(float(weights.sum()), 1e-12)
        for source, share in zip(sources, mass, strict=True):
            by_platform[source.platform] = by_platform.get(source.platform, 0.0) + float(share)
    return dict(sorted(by_platform.items(), key=lambda x: (-x[1], x[0])))


def _main_op(
    sources: Sequence[Source],
    shares: NDArray[np.float64],
    weights: NDArray[np.float64],
    queried: Op,
) -> Op:
    """The op of most of the vote; without votes that of most measurements."""
    if not len(weights):
        return queried if any(s.op == queried for s in sources) else sources[0].op
    mass: dict[Op, float] = {}
    for source, share in zip(sources, weights @ shares, strict=True):
        mass[source.op] = mass.get(source.op, 0.0) + float(share)
    return max(mass, key=lambda op: (mass[op], op == queried))


def _neighbour(
    partition: AnswerIndex,
    pattern_id: str,
    source: Source,
    distance: float,
    name_of: Callable[[str], str],
) -> Neighbour:
    group = partition.evidence.rows[partition.row_of(pattern_id)].group
    near = (distance, partition.percentile(distance))
    return Neighbour(pattern_id, source.platform, name_of(pattern_id), group, *near, str(source.op))


def split_legal(
    partition: AnswerIndex, space: ConfigSpace
) -> tuple[tuple[Config, ...], NDArray[np.int64], dict[Config, str]]:
    """Legal configurations in their stored form, their places int64[c] in the evidence, ascending,
    and the others with the reason; without those of nests of another depth, which are transferred,
    not copied.

    Of two that are the same choice on this matrix (a symbol and its number) the one with more runs
    is taken.
    """
    configs = partition.evidence.configs
    rows, refused = screened(space, partition.configs)
    rejected = {configs[at]: refused[at] for at in sorted(refused)}
    legal = np.setdiff1d(rows, list(refused), assume_unique=True)
    if space.rules.plain:
        return tuple(configs[at] for at in legal.tolist()), legal, rejected
    runs = np.bincount(partition.evidence.column, minlength=len(configs))
    by_choice: dict[Config, int] = {}
    for at in legal.tolist():
        stored = space.canonical(configs[at])
        if stored not in by_choice or runs[at] > runs[by_choice[stored]]:
            by_choice[stored] = at
    in_order = sorted(by_choice, key=by_choice.__getitem__)
    return tuple(in_order), np.array([by_choice[c] for c in in_order], dtype=np.int64), rejected


class _Clock:
    """Adds the seconds since the last `lap` to a stage."""

    def __init__(self, stages_s: dict[str, float]) -> None:
        self._stages = stages_s
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self._stages[stage] = self._stages.get(stage, 0.0) + now - self._last
        self._last = now
