"""Explanation of an answer, computed from the stored recommendation and the store alone.

It needs no model, no runner, no index, no matrix file and no network, so a copy of the database
reproduces it later, on another machine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import StoreCorrupt
from embeddb.core.records import Run, WorkloadInfo
from embeddb.core.timing import TimingSummary, joined_seconds, summarise_runs
from embeddb.core.wording import many_of, value_text
from embeddb.explain.explanation import (
    Agreement,
    Difference,
    Explanation,
    MachineShare,
    NeighbourDetail,
    OwnRuns,
    PatternView,
    best_here,
)
from embeddb.explain.quantities import QuantityView, quantity_views, stored_lengths
from embeddb.explain.why import computed, why
from embeddb.platforms.machines import machine_words
from embeddb.platforms.platform import Platform, builtin_platforms, default_of, load_platform
from embeddb.ranking.order_reason import with_order_reasons, without_search
from embeddb.ranking.recommendation import Candidate, Recommendation, RecommendedNeighbour
from embeddb.store import Store
from embeddb.store.codec import RunRow
from embeddb.store.models import ModelFacts, facts_of
from embeddb.store.provenance import Provenance, Provenances
from embeddb.store.versions import instance_at_latest

#: Largest number of features by which the query differs from its neighbours.
_MOST_DIFFERENCES = 6
#: Smallest difference that is shown, in standard deviations of the partition.
_NOTABLE = 0.75
#: Largest number of points of a neighbour's measured curve.
_MOST_RATIOS = 200
#: Bytes of a thumbnail: 32 x 32.
_PICTURE = 1024
#: Percentile of the nearest distance above which a pattern is unlike all measured ones, and those
#: above which the words on a nearer one begin so.
_STRANGE, _NEARER = 0.99, "nearer than most: only"
_DISTANCES = ((0.9, "unusually far:"), (0.8, "farther than most:"), (0.25, "as near as usual:"))


def explain(recommendation: Recommendation, store: Store) -> Explanation:
    """The explanation of an answer. Raises: StoreCorrupt if its evidence cannot be read."""
    if not any(one.order_reason for one in recommendation.candidates):
        recommendation = with_order_reasons(recommendation)  # an older program's answer has none
    answer, counts, whose = Config(recommendation.best), Counter[str](), Provenances(store)
    shown = list(_neighbours(recommendation, store, answer, counts, whose))
    gain = _measured_gain(recommendation)
    platform = store.sound_platform(recommendation.platform)
    pattern = _pattern(recommendation, store)
    winners = [(best, n.weight) for n in shown if (best := best_here(recommendation, n))]
    done = Explanation(
        recommendation=recommendation,
        learned=_learned(recommendation, store),
        measured_gain=gain,
        neighbours=shown,
        differences=_differences(recommendation, store),
        agreement=_agreement(winners, answer),
        evidence=dict(sorted(counts.items())),
        near_ties=near_ties(recommendation),
        pattern=pattern,
        novelty=novelty(recommendation),
        # Measured gains exclude the conversion: not comparable to a prediction that includes it.
        within_interval=_within(recommendation.first, gain)
        if recommendation.calls is None
        else None,
        own=list(_own(recommendation, store, platform, pattern, whose)),
        runnable=platform is not None and bool(platform.runner),
        machines=list(_machines(recommendation, store)),
        machine="" if platform is None else machine_words(platform.environment),
        platform_name=recommendation.platform if platform is None else platform.display_name,
        meaning={} if platform is None else _meaning(platform, answer),
        quantities=_quantities(recommendation, store, platform, pattern),
        computed=computed(recommendation.first),
    )
    return msgspec.structs.replace(done, why=why(done))


def _meaning(platform: Platform, answer: Config) -> dict[str, str]:
    """Meaning of the answer's values, from a shipped file where the stored text has none."""
    shipped = platform.name in builtin_platforms() and not platform.meaning
    return (load_platform(platform.name) if shipped else platform).meanings(answer)


def _quantities(
    recommendation: Recommendation,
    store: Store,
    platform: Platform | None,
    pattern: PatternView,
) -> list[QuantityView]:
    op = Op.parse(recommendation.op)
    if platform is None or op.name not in platform.ops or recommendation.first is None:
        return []
    pattern_id = store.resolve(recommendation.pattern_id)
    lengths = stored_lengths(store, pattern_id, pattern.sizes)
    configs = (recommendation.best, recommendation.default)
    return quantity_views(platform, op, configs, pattern.sizes, lengths)


def _machines(recommendation: Recommendation, store: Store) -> Iterator[MachineShare]:
    for name, share in sorted(recommendation.machines.items(), key=lambda x: (-x[1], x[0])):
        platform = store.sound_platform(name)
        facts = {} if platform is None else dict(platform.environment)
        yield MachineShare(
            platform=name, share=share, own=name == recommendation.platform, facts=facts
        )


def _learned(recommendation: Recommendation, store: Store) -> ModelFacts | None:
    try:
        entry = store.models.get(recommendation.model)
    except StoreCorrupt:  # the rest can be explained all the same
        return None
    return None if entry is None else facts_of(entry)


def _own(
    recommendation: Recommendation,
    store: Store,
    platform: Platform | None,
    pattern: PatternView,
    whose: Provenances,
) -> Iterator[OwnRuns]:
    """Runs of the answer and of the default on the pattern itself."""
    op = Op.parse(recommendation.op)
    if platform is None or op.name not in platform.ops:
        return
    stored = platform.space(op, pattern.sizes).canonical
    pattern_id = store.resolve(recommendation.pattern_id)
    runs_of: dict[Config, list[Run]] = {}
    for run in without_search(list(store.runs(recommendation.platform, op, pattern_id))):
        if run.measurement.ok and 0.0 < run.measurement.seconds < math.inf:
            runs_of.setdefault(stored(run.config), []).append(run)
    answer = [c.config for c in recommendation.candidates[:1]]
    for config in dict.fromkeys(map(Config, (*answer, recommendation.default))):
        if config in runs_of:
            config_ids = {bytes.fromhex(run.config.id) for run in runs_of[config]}
            by = whose.of(recommendation.platform, op, pattern_id, partial(_is_of, config_ids))
            yield _own_runs(config, runs_of[config], by)


def _is_of(configs: set[bytes], row: RunRow) -> bool:
    return row.config_id in configs and row.measurement.ok


def _own_runs(config: Config, runs: Sequence[Run], whose: list[Provenance]) -> OwnRuns:
    measured = [run.measurement for run in runs]
    times = [t for m in measured for t in m.times_s]
    whens = [m.when for m in measured if m.when > 0.0]
    return OwnRuns(
        config=dict(config),
        runs=len(runs),
        times=len(times),
        seconds=joined_seconds(runs[0].op, [run.seconds for run in runs]),
        fastest=min(times),
        slowest=max(times),
        first=min(whens, default=0.0),
        last=max(whens, default=0.0),
        sources=sorted({m.source for m in measured}),
        provenance=whose,
    )


def _neighbours(
    recommendation: Recommendation,
    store: Store,
    answer: Config,
    counts: Counter[str],
    whose: Provenances,
) -> Iterator[NeighbourDetail]:
    """Details of each neighbour; counts its runs by status."""
    platforms: dict[str, Platform | None] = {}
    first = recommendation.first
    terms = {t.pattern_id: (t.weight, t.voted) for t in (first.terms if first else ())}
    total = sum(near.weight for near in recommendation.neighbours) or 1.0
    for near in recommendation.neighbours:
        op = Op.parse(near.op or recommendation.evidence_op)
        if near.platform not in platforms:
            platforms[near.platform] = instance_at_latest(store, near.platform)
        platform = platforms[near.platform]
        pattern_id = store.resolve(near.pattern_id)
        info = store.pattern(pattern_id) or WorkloadInfo(id=pattern_id)
        runs = list(store.runs(near.platform, op, pattern_id))
        counts.update(run.measurement.status for run in runs)
        default = Config(recommendation.default)
        if platform is not None:
            default = default_of(platform, op, store.workload_or_info(info))
        curve = summarise_runs(runs, store.usual_at(near.platform))
        detail = _evidence(
            near, info, curve, default, _there(recommendation, near.pattern_id, answer)
        )
        by = whose.of(near.platform, op, pattern_id)
        share, voted = terms.get(near.pattern_id, (near.weight / total, None))
        yield msgspec.structs.replace(detail, provenance=by, share=share, voted=voted)


def _there(recommendation: Recommendation, pattern_id: str, answer: Config) -> Config:
    """The answer as a neighbour ran it: for a nest, the schedule it was transferred from."""
    for one in recommendation.transfers:
        if one.pattern_id == pattern_id and Config(one.config) == answer:
            return Config(one.source)
    return answer


def _pattern(recommendation: Recommendation, store: Store) -> PatternView:
    """The queried pattern; for older answers, the stored record."""
    stored = store.pattern(store.resolve(recommendation.pattern_id))
    info = recommendation.pattern or stored or WorkloadInfo(id=recommendation.pattern_id)
    picture = info.thumbnail or (stored.thumbnail if stored is not None else b"")
    return PatternView(
        id=recommendation.pattern_id,
        name=recommendation.pattern_name,
        group=info.group,
        m=info.m,
        n=info.n,
        nnz=info.nnz,
        features={name: value for name, (value, _, _) in recommendation.features.items()},
        thumbnail=picture if len(picture) == _PICTURE else b"",
        kind=info.kind,
        named=info.named,
        **info.workload.view(recommendation, store),
    )


def novelty(recommendation: Recommendation) -> str:
    """One sentence on the distance of the queried pattern from measured patterns."""
    if recommendation.link == "measured":
        return "this very pattern was measured here"
    if recommendation.link == "other-width":
        return "this very pattern was measured here, at another width"
    if not recommendation.neighbours:
        return "no measured pattern is comparable"
    near = min(recommendation.neighbours, key=lambda n: n.distance)
    if near.pattern_id == recommendation.pattern_id:
        other = ["on another machine"] if near.platform != recommendation.platform else []
        other += [f"at {near.op}"] if near.op not in ("", recommendation.op) else []
        return f"this very pattern was measured {' and '.join(other)}".strip()
    if near.percentile is None:
        many = many_of(Op.parse(recommendation.op).kind)
        return f"too few groups of {many} were measured to rate the distance of its neighbours"
    return _how_near(near.percentile)


def _how_near(percentile: float) -> str:
    """`percentile` is the share of measured patterns with a nearer neighbour in another group."""
    if percentile > _STRANGE:
        more = "more than 99 % of the measured patterns are nearer to their own neighbours"
        if percentile >= 1.0:
            more = "its nearest neighbour is farther than that of any measured pattern"
        return f"unlike anything measured here: {more}"
    far = next((words for least, words in _DISTANCES if percentile > least), _NEARER)
    return f"{far} {100 * percentile:.0f} % of the measured patterns are nearer to their neighbours"


def _within(first: Candidate | None, gain: float | None) -> bool | None:
    if first is None or gain is None or first.gain_low is None or first.gain_high is None:
        return None
    return first.gain_low <= gain <= first.gain_high


def _evidence(
    near: RecommendedNeighbour,
    info: WorkloadInfo,
    curve: dict[Config, TimingSummary],
    default: Config,
    answer: Config,
) -> NeighbourDetail:
    base = curve[default].seconds if default in curve else math.inf
    ok = {config: c.seconds for config, c in curve.items() if math.isfinite(c.seconds)}
    order = sorted(ok, key=lambda config: (ok[config], config.json))
    best = order[0] if order else None
    shown = _thinned(order, default, answer)
    return NeighbourDetail(
        pattern_id=near.pattern_id,
        name=near.name,
        platform=near.platform,
        op=near.op,
        distance=near.distance,
        percentile=near.percentile,
        weight=near.weight,
        measured=len(curve),
        failed=dict(Counter(c.status for c in curve.values() if c.status != "ok")),
        best=dict(best) if best is not None else {},
        best_gain=_factor(base, ok[best]) if best is not None else None,
        answer_gain=_factor(base, ok[answer]) if answer in ok else None,
        group=info.group,
        m=info.m,
        n=info.n,
        nnz=info.nnz,
        named=info.named,
        thumbnail=info.thumbnail if len(info.thumbnail) == _PICTURE else b"",
        ratios=[ok[config] / ok[order[0]] for config in shown],
        default_at=shown.index(default) if default in ok else None,
        answer_at=shown.index(answer) if answer in ok else None,
    )


def _thinned(order: list[Config], *required: Config) -> list[Config]:
    """At most `_MOST_RATIOS` configurations, evenly by rank, with the required ones."""
    if len(order) <= _MOST_RATIOS:
        return order
    even = np.linspace(0, len(order) - 1, _MOST_RATIOS - len(required)).astype(np.int64)
    wanted = {config for config in required if config in order}
    chosen = {int(at) for at in even} | {order.index(config) for config in wanted}
    return [order[at] for at in sorted(chosen)]


def _factor(base: float, seconds: float) -> float | None:
    return base / seconds if math.isfinite(base) and seconds > 0 else None


def _measured_gain(recommendation: Recommendation) -> float | None:
    seconds = None if recommendation.first is None else recommendation.first.seconds
    if not seconds or recommendation.default_seconds is None:
        return None
    return recommendation.default_seconds / seconds


def _differences(recommendation: Recommendation, store: Store) -> list[Difference]:
    """Features that differ most from the neighbours' weighted mean."""
    names = list(recommendation.features)
    near = {n.pattern_id: n.weight for n in recommendation.neighbours}
    # Only while the answer has features: their names and values are in its text alone.
    own = (recommendation.featurizer, recommendation.featurizer_version)  # of an earlier release
    by = recommendation.features_by if recommendation.features_by[0] else own
    stored = store.vectors.get(*by, near, dim=len(names))
    if not stored or not names or names[0].startswith(f"{by[1][:8]}."):
        return []  # no names of statistics, but numbers of a learned vector
    weights = np.array([near[i] for i in stored])
    rows = np.array(list(stored.values()), dtype=np.float64)
    query = np.array([recommendation.features[name][0] for name in names])
    scale = np.array([recommendation.features[name][2] for name in names])
    with np.errstate(all="ignore"):
        mean = weights @ rows / weights.sum()
        away = np.nan_to_num((query - mean) / scale, posinf=0.0, neginf=0.0)
    order = np.argsort(-np.abs(away), kind="stable")[:_MOST_DIFFERENCES]
    return [
        Difference(
            feature=names[at],
            query=float(query[at]),
            neighbours=float(mean[at]),
            deviations=float(away[at]),
        )
        for at in order
        if abs(away[at]) >= _NOTABLE
    ]


def _agreement(winners: list[tuple[dict[str, Any], float]], answer: Config) -> list[Agreement]:
    """Weighted votes of the neighbours' best configurations, by parameter."""
    total = sum(weight for _, weight in winners)
    names = sorted({name for best, _ in winners for name in best} | set(answer))
    rows = []
    for name in names:
        votes: dict[str, float] = {}
        for best, weight in winners:
            value = value_text(best.get(name))
            votes[value] = votes.get(value, 0.0) + (weight / total if total else 0.0)
        ranked = dict(sorted(votes.items(), key=lambda v: (-v[1], v[0])))
        rows.append(
            Agreement(
                parameter=name,
                votes=ranked,
                answer=value_text(answer.get(name)),
                open=max(ranked.values(), default=0.0) < 2 / 3,
            )
        )
    return rows


def near_ties(recommendation: Recommendation) -> list[dict[str, Any]]:
    """Candidates tied with the first: within the partition's measured noise.

    Measured ones are compared by their seconds, others by expected gain, else by score (a log of
    time as well): a default that is kept has the score of the best behind it.
    """
    first, margin = recommendation.first, max(recommendation.noise, 0.0)
    if first is None:
        return []
    measured = first.seconds is not None
    return [
        c.config
        for c in recommendation.candidates[1:]
        if (c.seconds is not None) == measured and abs(_cost(c) - _cost(first)) <= margin
    ]


def _cost(candidate: Candidate) -> float:
    if candidate.seconds is not None:
        return math.log(candidate.seconds)
    return -math.log(candidate.expected_gain) if candidate.expected_gain else candidate.score
