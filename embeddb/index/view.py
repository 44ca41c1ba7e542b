"""A partition as one machine sees it: the evidence of all sources, pooled for it, and its policy.

Runs of the machine itself at the same op count fully; other machines and widths count by
`embeddb.index.pooling`. The number of neighbours that vote is judged by the machine's own runs with
groups held out, and without enough of these by leaving whole machines out. Generated matrices show
the difference between machines, but neither vote nor judge: no user's matrix is like them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.core.kinds import Limit
from embeddb.core.pattern import GENERATED
from embeddb.index.held_out import Judged, Near, with_itself
from embeddb.index.pooling import Belief, Gaps, Layer, Pooled, Source, beliefs_of, layers_of, pooled
from embeddb.index.run_matrix import RunMatrix
from embeddb.index.vote import (
    PSEUDO_RUNS,
    VoteSettings,
    effects,
    greedy_cover,
    mean_gain,
    surely_positive,
    votes,
)
from embeddb.index.vote_fit import LeftOut, OwnFit, leave_out, losses_by
from embeddb.platforms.machines import Facts, same_machine

Floats = NDArray[np.float64]

#: With fewer groups of its own a machine's answers are judged by leaving machines out.
FEWEST_GROUPS = 8
#: Standard deviations between two machines that a gain predicted from one must exceed on another,
#: where there is no third to validate such predictions.
_MACHINES_APART = 2.0
#: Parts in which a machine's own runs are left out of the shifts that they are judged by.
_FOLDS = 4
#: The variance between neighbours where nothing can be compared.
_UNKNOWN_APART = 0.06


@dataclass(frozen=True, slots=True, eq=False)
class Averages:
    """Averages for the platform as a whole, over p patterns and c configurations.

    `level` float64[p] and `prior` float64[c] are the additive fit of the gains, `mean` float64[c]
    the plain mean gain, `cover` int64[<=c] a fixed set that serves most patterns, best first.
    In the latter two a failure counts as the default, the cost of trying it.
    """

    level: Floats
    prior: Floats
    mean: Floats
    cover: NDArray[np.int64]

    def by(self, shrink: float) -> Floats:
        """The averages float64[c] of a vote; without weight on neighbours the mean gains."""
        return self.mean if math.isinf(shrink) else self.prior


@dataclass(frozen=True, slots=True, eq=False)
class ViewInput:
    """Input of every view of a partition: evidence by source over `ids`, their `groups` int64[p],
    the nearest voters of other groups of each, and the patterns `real` bool[p] that vote and judge:
    all but the generated ones, or all if all are."""

    evidence: RunMatrix
    ids: tuple[str, ...]
    groups: NDArray[np.int64]
    near: Near
    facts: Mapping[str, Facts]
    layers: tuple[Layer, ...]
    real: NDArray[np.bool_]
    gaps: Gaps

    @classmethod
    def of(
        cls, evidence: RunMatrix, ids: Sequence[str], near: Near, facts: Mapping[str, Facts]
    ) -> ViewInput:
        of = {row.pattern_id: row.group for row in evidence.rows}
        groups = np.unique([of[i] for i in ids], return_inverse=True)[1] if ids else np.zeros(0)
        layers = tuple(layers_of(evidence, ids))
        real = np.array([of[i] not in GENERATED for i in ids], dtype=np.bool_)
        real |= not real.any()
        near = near if real.all() else near.among(real)
        gaps = Gaps(layers)
        return cls(evidence, tuple(ids), groups.astype(np.int64), near, facts, layers, real, gaps)

    @property
    def configs(self) -> tuple[Config, ...]:
        return self.evidence.configs

    @property
    def most_slower(self) -> Limit | None:
        return self.evidence.op.workload.max_slower

    def layer_of(self, source: Source) -> Layer | None:
        return next((layer for layer in self.layers if layer.source == source), None)

    def can_judge(self, layer: Layer) -> bool:
        """Return true if it has `FEWEST_GROUPS` groups with two runs of a pattern that judges."""
        able = layer.rows[np.isfinite(layer.gains).sum(axis=1) >= 2]
        return bool(np.unique(self.groups[able[self.real[able]]]).size >= FEWEST_GROUPS)

    def pooled(self, layers: Sequence[Layer], beliefs: Sequence[Belief], apart: float) -> Pooled:
        """The layers pooled by beliefs, without generated patterns as voters."""
        seen = pooled(layers, beliefs, len(self.ids), apart)
        seen.gains[~self.real], seen.trust[~self.real] = np.nan, 0.0
        return seen

    def without(self, platform: str) -> ViewInput:
        """Without the runs of an instance; patterns that only it ran stay, without runs."""
        return replace(
            self,
            evidence=self.evidence.where(lambda row: row.platform != platform),
            layers=tuple(layer for layer in self.layers if layer.source.platform != platform),
        )


class OwnPolicies(NamedTuple):
    """Policies judged on a machine's own runs: `policy` of votes by all machines' runs, and `alone`
    of votes by its own (None: they do not answer better)."""

    policy: VoteSettings
    alone: VoteSettings | None


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """`gains` and `trust` float64[p,c] are one row per pattern, `shares` float64[p,s] the part of
    each source in it, `effects` float64[s,c] the mean difference of a configuration's gain at a
    source from the pooled gain (of several sources that are not the target), `failing` float64[p,c]
    the part of runs that failed. `own` counts the patterns measured on the target itself, `judged`
    names the rows that chose the policy: `here`, `machines` (left out whole) or `elsewhere`;
    `apart` is the variance of gains between a pattern and its nearest ones, `parts` the target's
    own rows with the votes for them, where the policy was fitted to them now."""

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
    parts: tuple[Judged, ...]


def view_of(
    inputs: ViewInput,
    target: Source,
    base: VoteSettings,
    left_out: LeftOut | None,
    *,
    calls: float = math.inf,
    policy: VoteSettings | None = None,
) -> View:
    """The view of a target; `base` is the policy of all rows together, `left_out` that of machines
    left out, and `policy` the target's own, where it was fitted before."""
    layers, own = inputs.layers, inputs.layer_of(target)
    apart = _apart(inputs, layers)
    beliefs = _beliefs(inputs, target, layers, apart)
    if math.isfinite(calls):
        layers = tuple(layers_of(inputs.evidence, inputs.ids, calls=calls))
    seen = inputs.pooled(layers, beliefs, apart)
    tried = seen.gains  # with failures as the default
    if np.isinf(inputs.evidence.seconds).any():
        risked = tuple(layers_of(inputs.evidence, inputs.ids, calls=calls, failed=0.0))
        tried = inputs.pooled(risked, beliefs, apart).gains
    gains = votes(seen.gains)
    if left_out is None:
        base = _with_machine_guard(base, target, beliefs)
    parts: list[Judged] = []
    chosen, judged = base, "elsewhere"
    if own is not None and len(layers) == 1:
        judged = "here"
    elif policy is not None or (own is not None and inputs.can_judge(own)):
        parts = [] if policy else _own_parts(inputs, target)
        chosen = policy or _own_fit(inputs, parts, base, left_out).policy()
        judged = "here"
    elif left_out is not None:
        chosen, judged = left_out.policy, "machines"
    return View(
        target,
        chosen,
        Averages(*effects(gains), mean_gain(tried), greedy_cover(tried)),
        gains,
        seen.trust,
        seen.shares,
        tuple(beliefs),
        0 if own is None else int(inputs.real[own.rows].sum()),
        judged,
        _machine_effects(inputs, target, beliefs, gains),
        seen.failing,
        apart,
        tuple(parts),
    )


def _with_machine_guard(
    base: VoteSettings, target: Source, beliefs: Sequence[Belief]
) -> VoteSettings:
    """A policy that cannot be validated, since there is only one other machine: predicted gains
    must exceed the difference expected between machines as unlike as these two."""
    others = [b for b in beliefs if b.source != target]
    if not others or any(b.source.platform == target.platform for b in others):
        return base
    apart = min(belief.variance for belief in others)
    return replace(base, guard=max(base.guard, _MACHINES_APART * math.sqrt(apart)))


def _machine_effects(
    inputs: ViewInput, target: Source, beliefs: Sequence[Belief], gains: Floats
) -> Floats:
    """Mean difference of each other source at the same op to the pooled rows of its own patterns,
    shrunk to zero where few patterns ran."""
    rows = []
    for layer, belief in zip(inputs.layers, beliefs, strict=True):
        if layer.source != target and layer.source.op == target.op and len(beliefs) > 1:
            off = votes(layer.gains) + belief.shift - gains[layer.rows]
            ran = np.isfinite(off)
            rows.append(np.where(ran, off, 0.0).sum(axis=0) / (ran.sum(axis=0) + 3.0))
    return np.array(rows).reshape(len(rows), len(inputs.configs))


def _own_parts(inputs: ViewInput, target: Source, *, voting: bool = True) -> list[Judged]:
    """The target's own rows in folds, judged by shifts that are fitted without the fold; its rows
    still vote for other groups, if they are `voting`."""
    own, parts = inputs.layer_of(target), list[Judged]()
    assert own is not None
    for out in _folds(inputs.groups[own.rows]):
        rest = Layer(target, own.rows[~out], own.gains[~out])
        layers = [rest if layer is own else layer for layer in inputs.layers]
        parts.append(_judged(inputs, own, layers, inputs.layers if voting else layers, out))
    return parts


def _folds(groups: NDArray[np.int64]) -> Iterator[NDArray[np.bool_]]:
    """Masks of the rows of each fold, by their groups; a group is in one fold."""
    place = np.unique(groups, return_inverse=True)[1]
    for fold in range(min(_FOLDS, int(place.max()) + 1)):
        yield place % _FOLDS == fold


def _judged(
    inputs: ViewInput,
    own: Layer,
    layers: Sequence[Layer],
    voting: Sequence[Layer],
    rows: Any = slice(None),
) -> Judged:
    """The judging rows among `rows` of a layer, and the votes for its source of the `voting` layers
    by beliefs that are fitted to `layers`."""
    beliefs = _beliefs(inputs, own.source, layers, _apart(inputs, layers))
    seen = inputs.pooled(voting, beliefs, _apart(inputs, voting))
    patterns, truth = own.rows[rows], own.gains[rows]
    judges = inputs.real[patterns]
    return Judged(patterns[judges], truth[judges], seen.gains, seen.trust)


def _own_fit(
    inputs: ViewInput, parts: Sequence[Judged], base: VoteSettings, left_out: LeftOut | None
) -> OwnFit:
    near, group, risk = inputs.near, inputs.groups, inputs.most_slower
    return OwnFit(near, parts, group, base=base, left_out=left_out, most_slower=risk)


def policy_alone(inputs: ViewInput, view: View, own: ViewInput) -> VoteSettings | None:
    """The policy by which a machine's `own` runs vote alone, if with groups held out their first
    choices are better by a standard error than those of all machines' runs (`inputs`, as the
    machine's `view` with its `parts` has them); else None. With few groups all are kept."""
    (layer,) = own.layers
    gains = np.full((len(own.ids), len(own.configs)), np.nan)
    gains[layer.rows] = layer.gains
    trust = np.isfinite(gains).astype(np.float64)
    folds = _folds(own.groups[layer.rows])
    parts = [Judged(layer.rows[out], layer.gains[out], gains, trust) for out in folds]
    policy = _own_fit(own, parts, view.policy, None).policy()
    alone = losses_by(policy, own.near, parts, own.groups)
    pooled = losses_by(view.policy, inputs.near, view.parts, inputs.groups)
    place = {pattern_id: at for at, pattern_id in enumerate(inputs.ids)}
    pairs = [(at, place[own.ids[at]]) for at in alone if place[own.ids[at]] in pooled]
    rows = np.array([row for row, _ in pairs], dtype=np.int64)
    groups = np.unique(own.groups[rows], return_inverse=True)[1]
    gain = np.array([pooled[there] - alone[here] for here, there in pairs])
    enough = np.unique(groups).size >= FEWEST_GROUPS
    return policy if enough and surely_positive(gain, groups) else None


def shared_policy(inputs: ViewInput, view: View, left_out: LeftOut | None) -> VoteSettings:
    """The policy for patterns that other machines ran and the target did not, judged on those that
    both ran, where the runs of the others stand for the target's. The view's policy where nothing
    can be judged."""
    shared = left_out.shared if left_out is not None else None
    own = inputs.layer_of(view.target)
    if own is None or not inputs.can_judge(own) or len(inputs.layers) == 1:
        return shared.policy if shared is not None and view.judged == "machines" else view.policy
    parts = [_ran_elsewhere(p) for p in _own_parts(inputs, view.target, voting=False)]
    inputs = replace(inputs, near=with_itself(inputs.near))
    return _own_fit(inputs, parts, view.policy, shared).policy()


def _ran_elsewhere(part: Judged) -> Judged:
    """Only the rows that other machines ran."""
    ran = np.isfinite(part.gains[part.rows]).sum(axis=1) >= 2
    return Judged(part.rows[ran], part.truth[ran], part.gains, part.trust)


def across(inputs: ViewInput) -> LeftOut | None:
    """The policy for a machine that was never measured: each instance is judged with its whole
    machine left out, and its groups held out of all others too. None with fewer than two
    machines.

    At a width that was never measured, instances are judged at other widths, and the figures of the
    policy come from leaving that width out of all others as well, where there is another."""
    judges = [layer for layer in inputs.layers if inputs.can_judge(layer)]
    same = [layer for layer in judges if layer.source.op == inputs.evidence.op]
    own_layers = sorted(same or judges, key=lambda layer: str(layer.source))
    parts = [part for own in own_layers if (part := _left_out(inputs, own)) is not None]
    far = [] if same else [_left_out(inputs, own, width=True) for own in own_layers]
    validation = [part for part in far if part is not None]
    risk = inputs.most_slower
    policy = leave_out(inputs.near, parts, inputs.groups, validation=validation, most_slower=risk)
    if policy is None:
        return None
    parts, validation = ([_ran_elsewhere(part) for part in of] for of in (parts, validation))
    near = with_itself(inputs.near)
    shared = leave_out(near, parts, inputs.groups, validation=validation, most_slower=risk)
    return policy._replace(shared=shared)


def _left_out(inputs: ViewInput, own: Layer, *, width: bool = False) -> Judged | None:
    """The rows of one machine, judged by all others, at other widths only if `width`; None if
    there are no others."""
    layers = [
        layer
        for layer in inputs.layers
        if not same_machine(layer.source.platform, own.source.platform, inputs.facts)
        and not (width and layer.source.op == own.source.op)
    ]
    return _judged(inputs, own, layers, layers) if layers else None


def own_losses(inputs: ViewInput, view: View, left_out: LeftOut | None) -> dict[int, float]:
    """Log loss to the best run of the first choice, by row that the view's target ran, with its
    group held out and by settings and shifts fitted without its fold; not of rows without any."""
    if inputs.layer_of(view.target) is None:
        return {}
    parts = _own_parts(inputs, view.target)
    rows, choices = _own_fit(inputs, parts, view.policy, left_out).held_out()
    fixed = math.isinf(view.policy.shrink)
    lost = choices.best - choices.static if fixed else choices.lost(view.policy.guard)
    each = zip(rows.tolist(), lost.tolist(), strict=True)
    return {row: loss for row, loss in each if math.isfinite(loss)}


def losses_before_and_after(
    inputs: ViewInput, target: Source, view: View
) -> tuple[Floats, Floats] | None:
    """Log losses float64[r] to the best run of the first choice by a vote of neighbours, on a
    machine's own rows with their group held out: before it had any runs (nan: no other machine ran
    anything), and after, by shifts fitted without the row's fold. None where none of its rows can
    be judged. `view` is the machine's. Generated patterns count: they may be all that it ran."""
    own = inputs.layer_of(target)
    if own is None:
        return None
    inputs = replace(inputs, real=np.ones_like(inputs.real))
    after = losses_by(view.policy, inputs.near, _own_parts(inputs, target), inputs.groups)
    if not after:
        return None
    rest = inputs.without(target.platform)
    before: dict[int, float] = {}
    if rest.layers:
        left_out = across(rest)
        part = _judged(inputs, own, rest.layers, rest.layers)
        policy = view.policy if left_out is None else left_out.policy
        before = losses_by(policy, inputs.near, [part], inputs.groups)
    rows = sorted(after)
    return np.array([before.get(row, np.nan) for row in rows]), np.array([after[i] for i in rows])


def base_gains(inputs: ViewInput) -> tuple[Floats, Floats]:
    """Gains and trust float64[p,c] for no machine in particular: what the metric is fitted to."""
    nobody = Source("", inputs.evidence.op)
    beliefs = _beliefs(inputs, nobody, inputs.layers, _UNKNOWN_APART)
    seen = pooled(inputs.layers, beliefs, len(inputs.ids), _UNKNOWN_APART)
    return seen.gains, seen.trust


def _beliefs(
    inputs: ViewInput, target: Source, layers: Sequence[Layer], apart: float
) -> list[Belief]:
    """Beliefs about the layers; without shifts for a single source and for records of winners."""
    alone = len(layers) == 1 and target.platform in ("", layers[0].source[0])
    if inputs.evidence.winners or not layers or alone:
        still = np.zeros(len(inputs.configs))
        return [Belief(layer.source, still, 0.0, len(layer.rows)) for layer in layers]
    near, gaps = inputs.near.places, inputs.gaps
    return beliefs_of(target, layers, inputs.configs, inputs.facts, near, apart=apart, gaps=gaps)


def _apart(inputs: ViewInput, layers: Sequence[Layer]) -> float:
    """Variance of a gain between a pattern and its nearest ones of other groups, on one source."""
    parts = [inputs.gaps.within(layer, inputs.near.places) for layer in layers]
    total, count = sum(total for total, _ in parts), sum(count for _, count in parts)
    return total / count if count else _UNKNOWN_APART


# -- a query's own view --------------------------------------------------------------------------


def query_view(
    view: View, newer: RunMatrix, ids: Sequence[str], *, calls: float = math.inf
) -> View:
    """The view of a large partition's sample, which is computed once, with rows of n patterns `ids`
    after its own. `newer` has their runs; its first configurations are those of the view, in order.
    Beliefs about other sources, by which they are pooled, and averages stay those of the sample."""
    old, new = view.gains.shape[1], len(newer.configs)
    beliefs = tuple(replace(b, shift=_wider(b.shift, new)) for b in view.beliefs)
    rows = _rows_beside(newer, ids, beliefs, view.apart, calls=calls)
    gains = votes(rows.gains)
    return replace(
        view,
        beliefs=beliefs,
        averages=_averages_with(view.averages, gains, old),
        gains=_below(view.gains, gains, np.nan),
        trust=_below(view.trust, rows.trust, 0.0),
        shares=np.vstack([view.shares, rows.shares]),
        failing=_below(view.failing, rows.failing, 0.0),
        effects=np.pad(view.effects, ((0, 0), (0, new - old))),
    )


def _rows_beside(
    newer: RunMatrix, ids: Sequence[str], beliefs: Sequence[Belief], apart: float, *, calls: float
) -> Pooled:
    """Pooled rows of the patterns; sources without a belief are left out."""
    at = {belief.source: place for place, belief in enumerate(beliefs)}
    if len(beliefs) > 1:  # rows without their default cannot be compared with other sources
        newer = newer.take(np.flatnonzero(newer.knows_default))
    layers = [layer for layer in layers_of(newer, ids, calls=calls) if layer.source in at]
    places = [at[layer.source] for layer in layers]
    if not layers:
        none = np.zeros((len(ids), len(newer.configs)))
        return Pooled(none + np.nan, none, np.zeros((len(ids), len(beliefs))), none)
    rows = pooled(layers, [beliefs[place] for place in places], len(ids), apart)
    shares = np.zeros((len(ids), len(beliefs)))
    shares[:, places] = rows.shares
    return replace(rows, shares=shares)


def _averages_with(before: Averages, gains: Floats, old: int) -> Averages:
    """Averages with the levels of new rows float64[n,c], and the means of configurations that only
    these ran."""
    ran = np.isfinite(gains)
    values = np.where(ran, gains, 0.0)
    prior = _wider(before.prior, gains.shape[1])
    level = (values - ran * prior)[:, :old].sum(axis=1)
    level /= np.maximum(ran[:, :old].sum(axis=1), 1)
    extra = (values - ran * level[:, None])[:, old:].sum(axis=0)
    prior[old:] = extra / (ran[:, old:].sum(axis=0) + PSEUDO_RUNS)
    mean = _wider(before.mean, gains.shape[1])
    rows = len(before.level) + len(gains)
    mean[old:] = values[:, old:].sum(axis=0) / max(rows, 1)
    return Averages(np.concatenate([before.level, level]), prior, mean, before.cover)


def _wider(values: Floats, count: int) -> Floats:
    """float64[count]: the values, then zeros."""
    return np.pad(values, (0, count - len(values)))


def _below(values: Floats, rows: Floats, missing: float) -> Floats:
    """float64[p+n,c]: the values, padded with `missing` columns, and the new rows below."""
    columns = (0, rows.shape[1] - values.shape[1])
    return np.vstack([np.pad(values, ((0, 0), columns), constant_values=missing), rows])
