"""Why an answer is what it is: computed from the stored recommendation and the store alone.

No model, no runner, no index, no matrix file and no network is needed, so an explanation given
today can be given again next year, on another machine, from a copy of the database.
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
    NeighbourEvidence,
    OwnRuns,
    PatternView,
    best_here,
    why,
)
from embeddb.explain.quantities import QuantityView, quantity_views, stored_lengths
from embeddb.platforms.machines import machine_words
from embeddb.platforms.of_subject import default_of
from embeddb.platforms.platform import Platform, builtin_platforms, load_platform
from embeddb.ranking.order_reason import with_order_reasons, without_search
from embeddb.ranking.recommendation import Candidate, Recommendation, RecommendedNeighbour
from embeddb.store import Store
from embeddb.store.codec import RunRow
from embeddb.store.models import ModelFacts, facts_of
from embeddb.store.provenance import Provenance, Provenances
from embeddb.store.usual_state import usual_at

#: Features shown where the query differs from its neighbours, at most.
_MOST_DIFFERENCES = 6
#: A difference is worth a word from this many standard deviations of the partition on.
_NOTABLE = 0.75
#: Points of a neighbour's measured curve, at most.
_MOST_RATIOS = 200
#: Bytes of a thumbnail: 32 x 32.
_PICTURE = 1024
#: Percentiles of the nearest distance: nearer than most, unusually far, unlike anything.
_NEAR, _USUAL, _FAR, _STRANGE = 0.25, 0.8, 0.9, 0.99


def explain(made: Recommendation, store: Store) -> Explanation:
    """Raises: StoreCorrupt if the runs it rests on cannot be read."""
    made = with_order_reasons(made)  # an older program's answer has none
    answer, counts, whose = Config(made.best), Counter[str](), Provenances(store)
    shown = list(_neighbours(made, store, answer, counts, whose))
    gain = _measured_gain(made)
    platform, pattern = store.sound_platform(made.platform), _pattern(made, store)
    winners = [(best, n.weight) for n in shown if (best := best_here(made, n))]
    done = Explanation(
        recommendation=made,
        learned=_learned(made, store),
        measured_gain=gain,
        neighbours=shown,
        differences=_differences(made, store),
        agreement=_agreement(winners, answer),
        evidence=dict(sorted(counts.items())),
        near_ties=near_ties(made),
        pattern=pattern,
        novelty=novelty(made),
        # What is measured leaves preparation out; where the prediction has it, they do not compare.
        within_interval=_within(made.first, gain) if made.calls is None else None,
        own=list(_own(made, store, platform, pattern, whose)),
        runnable=platform is not None and bool(platform.runner),
        machines=list(_machines(made, store)),
        machine="" if platform is None else machine_words(platform.environment),
        platform_name=made.platform if platform is None else platform.display_name,
        meaning={} if platform is None else _meaning(platform, answer),
        quantities=_quantities(made, store, platform, pattern),
    )
    return msgspec.structs.replace(done, why=why(done))


def _meaning(platform: Platform, answer: Config) -> dict[str, str]:
    """As its file tells it; what ships may tell more than the text that was stored once."""
    shipped = platform.name in builtin_platforms() and not platform.meaning
    return (load_platform(platform.name) if shipped else platform).meanings(answer)


def _quantities(
    made: Recommendation, store: Store, platform: Platform | None, pattern: PatternView
) -> list[QuantityView]:
    op = Op.parse(made.op)
    if platform is None or op.name not in platform.ops or made.first is None:
        return []
    lengths = stored_lengths(store, store.resolve(made.pattern_id), pattern.sizes)
    return quantity_views(platform, op, (made.best, made.default), pattern.sizes, lengths)


def _machines(made: Recommendation, store: Store) -> Iterator[MachineShare]:
    for name, share in sorted(made.machines.items(), key=lambda x: (-x[1], x[0])):
        platform = store.sound_platform(name)
        facts = {} if platform is None else dict(platform.environment)
        yield MachineShare(platform=name, share=share, own=name == made.platform, facts=facts)


def _learned(made: Recommendation, store: Store) -> ModelFacts | None:
    try:
        entry = store.models.get(made.model)
    except StoreCorrupt:  # one damaged card is no reason to explain nothing
        return None
    return None if entry is None else facts_of(entry)


def _own(
    made: Recommendation,
    store: Store,
    platform: Platform | None,
    pattern: PatternView,
    whose: Provenances,
) -> Iterator[OwnRuns]:
    """Of the answer and of the default, where they ran on the pattern itself."""
    op = Op.parse(made.op)
    if platform is None or op.name not in platform.ops:
        return
    stored, pattern_id = platform.space(op, pattern.sizes).canonical, store.resolve(made.pattern_id)
    held: dict[Config, list[Run]] = {}
    for run in without_search(list(store.runs(made.platform, op, pattern_id))):
        if run.measurement.ok and 0.0 < run.measurement.seconds < math.inf:
            held.setdefault(stored(run.config), []).append(run)
    answer = [c.config for c in made.candidates[:1]]
    for config in dict.fromkeys(map(Config, (*answer, made.default))):
        if config in held:
            told = {bytes.fromhex(run.config.id) for run in held[config]}
            by = whose.of(made.platform, op, pattern_id, partial(_is_of, told))
            yield _own_runs(config, held[config], by)


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
    made: Recommendation, store: Store, answer: Config, counts: Counter[str], whose: Provenances
) -> Iterator[NeighbourEvidence]:
    """What each neighbour ran; its runs are counted by status."""
    platforms: dict[str, Platform | None] = {}
    for near in made.neighbours:
        op = Op.parse(near.op or made.evidence_op)
        platform = platforms.setdefault(near.platform, store.sound_platform(near.platform))
        pattern_id = store.resolve(near.pattern_id)
        info = store.pattern(pattern_id) or WorkloadInfo(id=pattern_id)
        runs = list(store.runs(near.platform, op, pattern_id))
        counts.update(run.measurement.status for run in runs)
        default = Config(made.default)
        if platform is not None:
            default = default_of(platform, op, store.workload_or_info(info))
        curve = summarise_runs(runs, usual_at(store, near.platform))
        found = _evidence(near, info, curve, default, _there(made, near.pattern_id, answer))
        by = whose.of(near.platform, op, pattern_id)
        yield msgspec.structs.replace(found, provenance=by) if by else found


def _there(made: Recommendation, pattern_id: str, answer: Config) -> Config:
    """The answer as a neighbour ran it: of a nest the schedule that became it."""
    for one in made.transfers:
        if one.pattern_id == pattern_id and Config(one.config) == answer:
            return Config(one.source)
    return answer


def _pattern(made: Recommendation, store: Store) -> PatternView:
    """As it was asked about; of older answers what the store knows."""
    known = store.pattern(store.resolve(made.pattern_id))
    info = made.pattern or known or WorkloadInfo(id=made.pattern_id)
    picture = info.thumbnail or (known.thumbnail if known is not None else b"")
    return PatternView(
        id=made.pattern_id,
        name=made.pattern_name,
        group=info.group,
        m=info.m,
        n=info.n,
        nnz=info.nnz,
        features={name: value for name, (value, _, _) in made.features.items()},
        thumbnail=picture if len(picture) == _PICTURE else b"",
        kind=info.kind,
        named=info.named,
        **info.workload.view(made, store),
    )


def novelty(made: Recommendation) -> str:
    """One sentence on how near what was measured is to the pattern asked about."""
    if made.link == "measured":
        return "this very pattern was measured here"
    if made.link == "other-width":
        return "this very pattern was measured here, at another width"
    if not made.neighbours:
        return "nothing measured could be compared with it"
    near = min(made.neighbours, key=lambda n: n.distance)
    if near.pattern_id == made.pattern_id:
        return "this very pattern was measured, on another machine of this kind or at another width"
    if near.percentile is None:
        many = many_of(Op.parse(made.op).kind)
        return f"too few groups of {many} were measured to say how near its neighbours are"
    return _how_near(near.percentile)


def _how_near(percentile: float) -> str:
    """`percentile` is the share of measured patterns whose nearest of another group is nearer."""
    if percentile >= 1.0:
        return (
            "nothing like this was ever measured here: its nearest neighbour is farther than any "
            "measured pattern's own"
        )
    share = f"{100 * percentile:.0f} %"
    if percentile > _STRANGE:
        return (
            "nothing like this was ever measured here: for more than 99 % of the measured patterns "
            "something is nearer"
        )
    if percentile > _FAR:
        return (
            f"unusually far from what was measured: {share} of the measured patterns have a nearer "
            "neighbour"
        )
    if percentile > _USUAL:
        return f"farther than most measured patterns: {share} of them have a nearer neighbour"
    if percentile > _NEAR:
        return f"as near as a typical measured pattern: {share} of them have a nearer neighbour"
    return f"nearer than most: only {share} of the measured patterns have a nearer neighbour"


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
) -> NeighbourEvidence:
    base = curve[default].seconds if default in curve else math.inf
    ok = {config: c.seconds for config, c in curve.items() if math.isfinite(c.seconds)}
    order = sorted(ok, key=lambda config: (ok[config], config.json))
    best = order[0] if order else None
    shown = _thinned(order, default, answer)
    return NeighbourEvidence(
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


def _thinned(order: list[Config], *kept: Config) -> list[Config]:
    """At most `_MOST_RATIOS` of them, evenly by rank, the first, the last and those to be kept
    among them."""
    if len(order) <= _MOST_RATIOS:
        return order
    even = np.linspace(0, len(order) - 1, _MOST_RATIOS - len(kept)).astype(np.int64)
    wanted = {config for config in kept if config in order}
    chosen = {int(at) for at in even} | {order.index(config) for config in wanted}
    return [order[at] for at in sorted(chosen)]


def _factor(base: float, seconds: float) -> float | None:
    return base / seconds if math.isfinite(base) and seconds > 0 else None


def _measured_gain(made: Recommendation) -> float | None:
    seconds = None if made.first is None else made.first.seconds
    if not seconds or made.default_seconds is None:
        return None
    return made.default_seconds / seconds


def _differences(made: Recommendation, store: Store) -> list[Difference]:
    """Features that lie far from the neighbours' weighted mean."""
    names = list(made.features)
    near = {n.pattern_id: n.weight for n in made.neighbours}
    # As long as the answer has features: which these are, and what they say, is in its text alone.
    stored = store.vectors.get(made.featurizer, made.featurizer_version, near, dim=len(names))
    if not stored or not names:
        return []
    weights = np.array([near[i] for i in stored])
    rows = np.array(list(stored.values()), dtype=np.float64)
    query = np.array([made.features[name][0] for name in names])
    scale = np.array([made.features[name][2] for name in names])
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
    """Per parameter, the weighted votes of the neighbours' best configurations."""
    total = sum(weight for _, weight in winners)
    names = sorted({name for best, _ in winners for name in best} | set(answer))
    found = []
    for name in names:
        votes: dict[str, float] = {}
        for best, weight in winners:
            value = value_text(best.get(name))
            votes[value] = votes.get(value, 0.0) + (weight / total if total else 0.0)
        ranked = dict(sorted(votes.items(), key=lambda v: (-v[1], v[0])))
        found.append(
            Agreement(
                parameter=name,
                votes=ranked,
                answer=value_text(answer.get(name)),
                open=max(ranked.values(), default=0.0) < 2 / 3,
            )
        )
    return found


def near_ties(made: Recommendation) -> list[dict[str, Any]]:
    """Candidates that cannot be told from the first: within the partition's measured noise.

    Measured ones are compared by their seconds, others by score (a log of time as well).
    """
    first, margin = made.first, max(made.noise, 0.0)
    if first is None:
        return []
    measured = first.seconds is not None
    return [
        c.config
        for c in made.candidates[1:]
        if (c.seconds is not None) == measured and _cost(c) - _cost(first) <= margin
    ]


def _cost(candidate: Candidate) -> float:
    return candidate.score if candidate.seconds is None else math.log(candidate.seconds)
