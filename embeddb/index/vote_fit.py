"""Which policy has the least loss and what is expected of it, with machines held out as well.

`embeddb.index.vote` has the vote itself, `embeddb.index.trial` how the features of one kind are
fitted, and `embeddb.index.guards` what is expected of the next answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.kinds import Limit
from embeddb.index.guards import (
    GainErrors,
    errors_across_machines,
    gain_errors,
    safe_guard,
    short_bound,
    usual_guard,
)
from embeddb.index.held_out import (
    FirstChoices,
    Judged,
    Near,
    first_choices,
    losses_of,
)
from embeddb.index.vote import (
    VoteSettings,
    surely_positive,
)

Floats = NDArray[np.float64]
#: Neighbours, pseudo-neighbours, and whether the metric is a learned one.
Key = tuple[int, float, bool]

#: Raised with every change of how metric, policy and guard are found: saved ones are found again.
FIT_VERSION = "6"
#: Rows as which what leaving machines out has shown counts beside a machine's own.
_PSEUDO_ROWS, _PSEUDO_PROMISES = 20.0, 10.0


class Shown(NamedTuple):
    """First choices of one machine's rows [q], their groups int64[q] or str[q], and the guard of
    each row float64[q] where it was found without that row (empty: the policy's)."""

    choices: FirstChoices
    group: NDArray[Any]
    guards: Floats = np.zeros(0)

    @classmethod
    def joined(cls, parts: Sequence[Shown]) -> Shown:
        if not parts:
            return cls(FirstChoices(*np.zeros((4, 0))), np.zeros(0, dtype=np.int64))
        choices, groups, guards = zip(*parts, strict=True)
        return cls(FirstChoices.joined(choices), np.concatenate(groups), np.concatenate(guards))

    def of(self, rows: NDArray[np.bool_]) -> Shown:
        guards = self.guards[rows] if self.guards.size else self.guards
        return Shown(self.choices.of(rows), self.group[rows], guards)

    def counted(self) -> Shown:
        return self.of(self.choices.counted)

    def lost(self, guard: float) -> Floats:
        """float64[q] log loss to the optimum."""
        return self.choices.lost(self.guards if self.guards.size else guard)


class _Expected(NamedTuple):
    """Expected errors and guard of the next first choice, from held-out ones."""

    errors: GainErrors = GainErrors()
    guard: float = 0.0

    @classmethod
    def of(cls, policy: VoteSettings) -> _Expected:
        return cls(GainErrors(policy.bias, policy.low, policy.high), policy.guard)

    def mixed(self, other: _Expected, part: float) -> _Expected:
        """Weighted means, this one with the weight `part` and alone with 1."""
        if part == 0.0:
            return other
        pairs = zip((*self.errors, self.guard), (*other.errors, other.guard), strict=True)
        *errors, guard = (part * mine + (1.0 - part) * theirs for mine, theirs in pairs)
        return _Expected(GainErrors(*errors), guard)


def expected(by_machine: Sequence[Shown], most_slower: Limit | None) -> _Expected:
    """Guard, and the errors of the promises that pass it."""
    known = [
        one.of(rows) for one in by_machine if (rows := np.isfinite(one.choices.promised)).any()
    ]
    if not known:
        return _Expected()
    pairs = [np.column_stack([one.choices.promised, one.choices.got]) for one in known]
    guard = usual_guard(pairs) if most_slower is None else safe_guard(pairs, most_slower)
    off = [np.where(one.choices.promised > guard, one.choices.off, np.nan) for one in known]
    if len(off) > 1:
        return _Expected(errors_across_machines(off), guard)
    return _Expected(gain_errors(off[0], known[0].group), guard)


def settings_of(
    how: tuple[int, float], by_machine: Sequence[Shown], expected: _Expected
) -> VoteSettings:
    """The policy (k, shrink) with what it loses on held-out rows; machines count alike."""
    judged = [one for shown in by_machine if (one := shown.counted()).group.size]
    if not judged:
        return VoteSettings(*how, **expected.errors._asdict(), guard=expected.guard)
    lost = [one.lost(expected.guard) for one in judged]
    static = [one.choices.best - one.choices.static for one in judged]
    groups, group = np.unique(np.concatenate([one.group for one in judged]), return_inverse=True)
    return VoteSettings(
        *how,
        loss=float(np.mean([of.mean() for of in lost])),
        static_loss=float(np.mean([of.mean() for of in static])),
        fitted_on=len(group),
        **expected.errors._asdict(),
        guard=expected.guard,
        groups=groups.size,
        short=short_bound(np.concatenate(lost), group),
    )


class LeftOut(NamedTuple):
    """What leaving machines out has shown: the policy with the least loss, and the mean log loss of
    every (k, shrink); `known` the same where the others ran the very pattern asked about."""

    policy: VoteSettings
    table: Mapping[tuple[int, float], float]
    known: LeftOut | None = None

    def to_json(self) -> str:
        table = [[k, repr(shrink), repr(loss)] for (k, shrink), loss in self.table.items()]
        return json.dumps([self.policy.to_json(), table, self.known and self.known.to_json()])

    @classmethod
    def from_json(cls, text: str) -> LeftOut:
        policy, table, known = json.loads(text)
        losses = {(int(k), float(shrink)): float(loss) for k, shrink, loss in table}
        return cls(VoteSettings.from_json(policy), losses, cls.from_json(known) if known else None)


def leave_out(
    near: Near,
    parts: Sequence[Judged],
    group: NDArray[np.int64],
    *,
    promised: Sequence[Judged] = (),
    most_slower: Limit | None = None,
) -> LeftOut | None:
    """Policy for a machine that was never measured: the least loss on `parts`, each a machine's
    rows judged by all others, which count alike however many rows they have; `group` int64[p]. What
    such a policy promises, and its losses, are of `promised` where that is given. None where
    nothing can be judged."""
    judged = _tables(near, parts, group)
    shown = _tables(near, promised, group) or judged
    if not judged:
        return None
    keys = set.intersection(*(set(table) for _, table in (*judged, *shown)))
    means = {key: float(np.mean([table[key].mean() for _, table in judged])) for key in keys}
    k, shrink = min(sorted(keys), key=lambda key: means[key])
    asked = [
        Shown(first_choices(near, part, group, k=k, shrink=shrink), group[part.rows])
        for part, _ in shown
    ]
    policy = settings_of((k, shrink), asked, expected(asked, most_slower))
    return LeftOut(replace(policy, across=True), means)


def refit(
    near: Near,
    parts: Sequence[Judged],
    group: NDArray[np.int64],
    *,
    base: VoteSettings,
    left_out: LeftOut | None,
    most_slower: Limit | None = None,
) -> VoteSettings:
    """The policy with the least loss on a machine's own rows, in parts that are each judged by what
    is known without them. What leaving machines out has shown counts as `_PSEUDO_ROWS` more rows;
    without it the static best wins unless it is beaten surely, as in `fit_policy`, and the guard of
    `base` counts as `_PSEUDO_PROMISES` rows. `base` where there is nothing to judge."""
    judged = _tables(near, parts, group)
    if not judged:
        return base
    keys = set.intersection(*(set(table) for _, table in judged))
    joint = {key: np.concatenate([table[key] for _, table in judged]) for key in keys}
    rows = sum(part.rows.size for part, _ in judged)
    if left_out is not None and keys <= set(left_out.table):

        def loss(key: tuple[int, float]) -> float:
            return float(joint[key].sum()) + _PSEUDO_ROWS * left_out.table[key]

        k, shrink = min(sorted(keys), key=loss)
    else:
        names = np.concatenate([group[part.rows] for part, _ in judged])
        group_of = np.unique(names, return_inverse=True)[1]
        ways = [(*key, False) for key in joint]
        k, shrink, _ = chosen_key(ways, np.array(list(joint.values())), group_of)
    choices = [first_choices(near, part, group, k=k, shrink=shrink) for part, _ in judged]
    names = np.concatenate([group[part.rows] for part, _ in judged])
    shown = Shown(FirstChoices.joined(choices), names)
    mine = expected([shown], most_slower)
    part = rows / (rows + _PSEUDO_PROMISES)
    if left_out is None:
        mine = mine._replace(guard=part * mine.guard + (1 - part) * base.guard)
    elif math.isfinite(left_out.policy.bias):
        part = part if math.isfinite(mine.errors.bias) else 0.0
        mine = mine.mixed(_Expected.of(left_out.policy), part)
    return settings_of((k, shrink), [shown], mine)


def losses_by(
    policy: VoteSettings, near: Near, parts: Sequence[Judged], group: NDArray[np.int64]
) -> dict[int, float]:
    """Log loss of the first choice to the best run by judged row, with its group held out; rows
    that cannot be judged are absent."""
    k = min(policy.k, near.places.shape[1])
    found: dict[int, float] = {}
    for part, table in _tables(near, parts, group):
        found.update(zip(part.rows.tolist(), table[k, policy.shrink].tolist(), strict=True))
    return found


def _tables(
    near: Near, parts: Sequence[Judged], group: NDArray[np.int64]
) -> list[tuple[Judged, dict[tuple[int, float], Floats]]]:
    """Each part, its rows that can be judged, and their losses; parts without such rows are left
    out."""
    found = []
    for part in parts:
        able = np.isfinite(part.truth).sum(axis=1) >= 2
        able &= np.isfinite(near.distances[part.rows, :1]).any(axis=1)
        kept = Judged(part.rows[able], part.truth[able], part.gains, part.trust)
        if kept.rows.size:
            found.append((kept, losses_of(near, kept, group)))
    return found


def chosen_key(keys: Sequence[Key], table: Floats, group: NDArray[np.int64]) -> Key:
    """The key of the least mean loss in table float64[y,q]; the static best if that is not a
    standard error (over groups) better."""
    best = int(table.mean(axis=1).argmin())
    k, shrink, learned = keys[best]
    gain = table[keys.index((k, np.inf, learned))] - table[best]
    return (k, shrink if surely_positive(gain, group) else np.inf, learned)
