"""A partition as one machine sees it: what all sources say, pooled for it, and how its neighbours
vote.

What was measured on the machine itself at the op asked about counts fully; other machines and
widths count by `embeddb.index.pooling`. How many neighbours vote is judged by the machine's own
runs with groups held out, and without enough of these by leaving whole machines out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.core.kinds import Limit
from embeddb.index.held_out import Judged, Near, with_itself
from embeddb.index.pooling import Belief, Layer, Source, beliefs_of, layers_of, pooled
from embeddb.index.run_matrix import RunMatrix
from embeddb.index.vote import (
    VoteSettings,
    effects,
    greedy_cover,
    mean_gain,
    votes,
)
from embeddb.index.vote_fit import LeftOut, leave_out, losses_by, refit
from embeddb.platforms.machines import Facts, same_machine

Floats = NDArray[np.float64]

#: With fewer groups of its own a machine's answers are judged by leaving machines out.
FEWEST_GROUPS = 8
#: Standard deviations between two machines that a promise from one must exceed on another, where
#: no third tells what such promises are worth.
_MACHINES_APART = 2.0
#: With fewer other machines any run is as good as another; and with less than this share of the
#: configurations that ran, the well tried ones are a few that somebody happened to measure.
_FEW_MACHINES, _LEAST_TRIED = 3, 0.25
#: Parts in which a machine's own runs are left out of the shifts that they are judged by.
_FOLDS = 4
#: Neighbours by which patterns are compared; the variance where nothing can be compared.
_BESIDE, _UNKNOWN_APART = 5, 0.06


@dataclass(frozen=True, slots=True, eq=False)
class Averages:
    """What holds for the platform as a whole, over p patterns and c configurations.

    `level` float64[p] and `prior` float64[c] are the additive fit of the gains, `mean` float64[c]
    the plain mean gain, `cover` int64[<=c] a fixed set that serves most patterns, best first.
    In the latter two a failure counts as the default, which is what trying it would cost.
    """

    level: Floats
    prior: Floats
    mean: Floats
    cover: NDArray[np.int64]

    @classmethod
    def of(cls, gains: Floats, tried: Floats) -> Averages:
        """`gains` float64[p,c] as they vote, `tried` the same with failures as the default."""
        return cls(*effects(gains), mean_gain(tried), greedy_cover(tried))


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """What every view of a partition stands on: evidence by source over `ids`, their `groups`
    int64[p], and the nearest patterns of other groups of each."""

    evidence: RunMatrix
    ids: tuple[str, ...]
    groups: NDArray[np.int64]
    near: Near
    facts: Mapping[str, Facts]
    layers: tuple[Layer, ...]

    @property
    def configs(self) -> tuple[Config, ...]:
        return self.evidence.configs


def ground_of(
    evidence: RunMatrix, ids: Sequence[str], near: Near, facts: Mapping[str, Facts]
) -> Ground:
    of = {row.pattern_id: row.group for row in evidence.rows}
    groups = np.unique([of[i] for i in ids], return_inverse=True)[1] if ids else np.zeros(0)
    layers = tuple(layers_of(evidence, ids))
    return Ground(evidence, tuple(ids), groups.astype(np.int64), near, facts, layers)


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """`gains` and `trust` float64[p,c] are one row per pattern, `shares` float64[p,s] the part of
    each source in it, `effects` float64[s,c] by how much more a configuration gains at a source
    than in all together (of several sources that are not the target), `failing` float64[p,c]
    the part of runs that failed. `own` counts the patterns
    measured on the target itself, `judged` says by what the policy was chosen: `here`, `machines`
    (left out whole) or `elsewhere`; `apart` is the variance between a pattern and its near ones."""

    target: Source
    policy: VoteSettings
    averages: Averages
    gains: Floats
    trust: Floats
    shares: Floats
    beliefs: tuple[Belief, ...]
    own: int
    judged: str
    effects: Floats
    failing: Floats
    apart: float


def view_of(
    ground: Ground,
    target: Source,
    base: VoteSettings,
    left_out: LeftOut | None,
    *,
    calls: float = math.inf,
    policy: VoteSettings | None = None,
) -> View:
    """The view of a target; `base` is the policy of all rows together, `left_out` that of machines
    left out, and `policy`, if it is known already, the target's own."""
    layers = ground.layers
    own = next((layer for layer in layers if layer.source == target), None)
    gapped = _apart(ground, layers)
    beliefs = _beliefs(ground, target, layers, gapped)
    if math.isfinite(calls):
        layers = tuple(layers_of(ground.evidence, ground.ids, calls=calls))
    found = pooled(layers, beliefs, len(ground.ids), gapped)
    tried = found.gains
    if np.isinf(ground.evidence.seconds).any():
        risked = tuple(layers_of(ground.evidence, ground.ids, calls=calls, failed=0.0))
        tried = pooled(risked, beliefs, len(ground.ids), gapped).gains
    gains = votes(found.gains)
    if left_out is None:
        base = _unjudged(base, target, beliefs)
    chosen, judged = base, "elsewhere"
    if own is not None and len(layers) == 1:
        judged = "here"
    elif policy is not None or (own is not None and _enough(ground, own)):
        chosen, judged = policy or own_policy(ground, target, base, left_out), "here"
    elif left_out is not None:
        chosen, judged = left_out.policy, "machines"
    return View(
        target,
        chosen,
        Averages.of(gains, tried),
        gains,
        found.trust,
        found.shares,
        tuple(beliefs),
        0 if own is None else len(own.rows),
        judged,
        _machine_effects(ground, target, beliefs, gains),
        found.failing,
        gapped,
    )


def _unjudged(base: VoteSettings, target: Source, beliefs: Sequence[Belief]) -> VoteSettings:
    """What nothing here can judge, since only one other machine is known: its promises must exceed
    by how much machines differ that are as unlike as these two."""
    others = [b for b in beliefs if b.source != target]
    if not others or any(b.source.platform == target.platform for b in others):
        return base
    apart = min(belief.variance for belief in others)
    return replace(base, guard=max(base.guard, _MACHINES_APART * math.sqrt(apart)))


def _machine_effects(
    ground: Ground, target: Source, beliefs: Sequence[Belief], gains: Floats
) -> Floats:
    """Mean difference of each other source to the pooled rows of its own patterns, at the op asked
    about; drawn to zero where few patterns tell."""
    found = []
    for layer, belief in zip(ground.layers, beliefs, strict=True):
        if layer.source != target and layer.source.op == target.op and len(beliefs) > 1:
            off = votes(layer.gains) + belief.shift - gains[layer.rows]
            known = np.isfinite(off)
            found.append(np.where(known, off, 0.0).sum(axis=0) / (known.sum(axis=0) + 3.0))
    return np.array(found).reshape(len(found), len(ground.configs))


def own_policy(
    ground: Ground, target: Source, base: VoteSettings, left_out: LeftOut | None
) -> VoteSettings:
    """The policy with the least loss on the target's own rows, each judged by shifts that were
    found without its fold, and by votes without its group."""
    parts = _own_parts(ground, target)
    return refit(
        ground.near, parts, ground.groups, base=base, left_out=left_out, most_slower=_risk(ground)
    )


def _own_parts(ground: Ground, target: Source) -> list[Judged]:
    """The target's own rows in folds, each with what is known without the fold's shifts."""
    own = next(layer for layer in ground.layers if layer.source == target)
    parts = []
    for out in _folds(ground.groups[own.rows]):
        rest = Layer(target, own.rows[~out], own.gains[~out])
        layers = [rest if layer.source == target else layer for layer in ground.layers]
        # Those left out stay voters for other groups, as they are.
        beliefs = _beliefs(ground, target, layers, _apart(ground, layers))
        whole = pooled(ground.layers, beliefs, len(ground.ids), _apart(ground, ground.layers))
        parts.append(Judged(own.rows[out], own.gains[out], votes(whole.gains), whole.trust))
    return parts


def known_policy(ground: Ground, view: View, left_out: LeftOut | None) -> VoteSettings:
    """The policy for patterns that other machines ran and the target did not: judged on those that
    both ran, whose own rows are then what the others say of them. That of the view where nothing
    can be judged."""
    known = left_out.known if left_out is not None else None
    own = next((layer for layer in ground.layers if layer.source == view.target), None)
    if own is None or not _enough(ground, own) or len(ground.layers) == 1:
        return known.policy if known is not None and view.judged == "machines" else view.policy
    near, parts = with_itself(ground.near), []
    for out in _folds(ground.groups[own.rows]):
        rest = Layer(view.target, own.rows[~out], own.gains[~out])
        layers = [rest if layer.source == view.target else layer for layer in ground.layers]
        gapped = _apart(ground, layers)
        beliefs = _beliefs(ground, view.target, layers, gapped)
        found = pooled(layers, beliefs, len(ground.ids), gapped)
        part = Judged(own.rows[out], own.gains[out], votes(found.gains), found.trust)
        parts.append(_ran_elsewhere(part))
    return refit(
        near, parts, ground.groups, base=view.policy, left_out=known, most_slower=_risk(ground)
    )


def well_tried(ground: Ground, platform: str) -> NDArray[np.bool_] | None:
    """bool[c]: ran on the machine of an instance, or on two others; None where fewer than three
    machines ran eight groups or more, or where that leaves too little: a few runs decide nothing.
    What a configuration gains that only one other machine ran may be that machine's own."""
    machines: list[tuple[str, NDArray[np.bool_]]] = []
    for layer in ground.layers:
        if not (_enough(ground, layer) or layer.source.platform == platform):
            continue
        ran: NDArray[np.bool_] = np.any(np.isfinite(layer.gains), axis=0)
        name = layer.source.platform
        at = next((m for m in machines if same_machine(m[0], name, ground.facts)), None)
        if at is None:
            machines.append((name, ran))
        else:
            at[1][:] |= ran
    others = [m for m in machines if not same_machine(m[0], platform, ground.facts)]
    if len(others) < _FEW_MACHINES:
        return None
    often: NDArray[np.bool_] = np.sum([ran for _, ran in machines], axis=0) >= 2
    for name, ran in machines:
        if same_machine(name, platform, ground.facts):
            often |= ran
    every = np.logical_or.reduce([ran for _, ran in machines])
    return often if often.sum() >= _LEAST_TRIED * every.sum() else None


def _risk(ground: Ground) -> Limit | None:
    return ground.evidence.op.workload.max_slower


def _ran_elsewhere(part: Judged) -> Judged:
    """Only the rows of which others know something."""
    ran = np.isfinite(part.gains[part.rows]).sum(axis=1) >= 2
    return Judged(part.rows[ran], part.truth[ran], part.gains, part.trust)


def across(ground: Ground) -> LeftOut | None:
    """The policy for a machine that was never measured: each instance is asked with its whole
    machine left out, and its groups held out of all others too. None with fewer than two
    machines.

    At a width that nobody measured it is asked at those it was; what answers promise is then judged
    with that width left out of all others as well, if there is another."""
    judges = [layer for layer in ground.layers if _enough(ground, layer)]
    same = [layer for layer in judges if layer.source.op == ground.evidence.op]
    asked = sorted(same or judges, key=lambda layer: str(layer.source))
    parts = [part for own in asked if (part := _left_out(ground, own)) is not None]
    far = [] if same else [_left_out(ground, own, width=True) for own in asked]
    apart = [part for part in far if part is not None]
    risk = _risk(ground)
    found = leave_out(ground.near, parts, ground.groups, promised=apart, most_slower=risk)
    if found is None:
        return None
    known, known_apart = ([_ran_elsewhere(part) for part in of] for of in (parts, apart))
    near = with_itself(ground.near)
    told = leave_out(near, known, ground.groups, promised=known_apart, most_slower=risk)
    return found._replace(known=told)


def _left_out(ground: Ground, own: Layer, *, width: bool = False) -> Judged | None:
    """The rows of one machine with what all others say, at other widths only if `width`; None if
    there are no others."""
    layers = [
        layer
        for layer in ground.layers
        if not same_machine(layer.source.platform, own.source.platform, ground.facts)
        and not (width and layer.source.op == own.source.op)
    ]
    if not layers:
        return None
    gapped = _apart(ground, layers)
    beliefs = _beliefs(ground, own.source, layers, gapped)
    rest = pooled(layers, beliefs, len(ground.ids), gapped)
    return Judged(own.rows, own.gains, votes(rest.gains), rest.trust)


def without(ground: Ground, platform: str) -> Ground:
    """The same as if an instance had never been measured; patterns that only it ran are known, but
    nothing is known of them."""
    kept = [i for i, row in enumerate(ground.evidence.rows) if row.platform != platform]
    return replace(
        ground,
        evidence=ground.evidence.take(np.array(kept, dtype=np.int64)),
        layers=tuple(layer for layer in ground.layers if layer.source.platform != platform),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Foretold:
    """Log losses float64[r] to the best run of the first choice on a machine's own rows, each with
    its group held out: `before` any run of the machine was known (nan: nobody else ran anything),
    and `after`, by shifts found without the row's fold."""

    before: Floats
    after: Floats


def foretold(ground: Ground, target: Source, view: View) -> Foretold | None:
    """What a machine's own runs are worth to it, by the vote of neighbours; None where none of its
    rows can be judged. `view` is the machine's."""
    own = next((layer for layer in ground.layers if layer.source == target), None)
    if own is None:
        return None
    after = losses_by(view.policy, ground.near, _own_parts(ground, target), ground.groups)
    if not after:
        return None
    rest = without(ground, target.platform)
    before: dict[int, float] = {}
    if rest.layers:
        left_out = across(rest)
        gapped = _apart(ground, rest.layers)
        beliefs = _beliefs(ground, target, rest.layers, gapped)
        seen = pooled(rest.layers, beliefs, len(ground.ids), gapped)
        part = Judged(own.rows, own.gains, votes(seen.gains), seen.trust)
        policy = view.policy if left_out is None else left_out.policy
        before = losses_by(policy, ground.near, [part], ground.groups)
    rows = sorted(after)
    return Foretold(
        np.array([before.get(row, np.nan) for row in rows]), np.array([after[row] for row in rows])
    )


def base_gains(ground: Ground) -> tuple[Floats, Floats]:
    """Gains and trust float64[p,c] of nobody's view, in which all sources are others: what the
    metric is learned from."""
    gapped = _UNKNOWN_APART
    nobody = Source("", ground.evidence.op)
    found = pooled(
        ground.layers, _beliefs(ground, nobody, ground.layers, gapped), len(ground.ids), gapped
    )
    return found.gains, found.trust


def _beliefs(
    ground: Ground, target: Source, layers: Sequence[Layer], gapped: float
) -> list[Belief]:
    """Of one source alone nothing is asked; records of winners have no gains to shift."""
    if ground.evidence.winners or (
        len(layers) == 1 and target.platform in ("", layers[0].source[0])
    ):
        still = np.zeros(len(ground.configs))
        return [Belief(layer.source, still, 0.0, len(layer.rows)) for layer in layers]
    near = ground.near.places
    return beliefs_of(target, layers, ground.configs, ground.facts, near, apart=gapped)


def _enough(ground: Ground, own: Layer) -> bool:
    able = own.rows[np.isfinite(own.gains).sum(axis=1) >= 2]
    return bool(np.unique(ground.groups[able]).size >= FEWEST_GROUPS)


def _folds(groups: NDArray[np.int64]) -> Iterator[NDArray[np.bool_]]:
    """Which rows bool[r] each fold leaves out; a group is in one."""
    place = np.unique(groups, return_inverse=True)[1]
    for fold in range(min(_FOLDS, int(place.max()) + 1)):
        yield place % _FOLDS == fold


def _apart(ground: Ground, layers: Sequence[Layer]) -> float:
    """Variance of a gain between a pattern and its near ones of other groups, on one source."""
    total, count = 0.0, 0
    for layer in layers:
        place = np.full(len(ground.ids) + 1, -1)
        place[layer.rows] = np.arange(len(layer.rows))
        gains = votes(layer.gains)
        gains = gains - effects(gains)[0][:, None]
        beside = place[ground.near.places[layer.rows][:, :_BESIDE]]
        rows, at = np.nonzero(beside >= 0)
        if rows.size:
            square = (gains[rows] - gains[beside[rows, at]]) ** 2
            total += float(np.nansum(square))
            count += int(np.isfinite(square).sum())
    return total / count if count else _UNKNOWN_APART
