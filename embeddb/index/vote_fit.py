"""Choice of the policy with the least loss and its expected error, also with machines held out.

`embeddb.index.vote` defines the vote, `embeddb.index.trial` fits the features of one kind, and
`embeddb.index.guards` bounds the error of the next answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.kinds import Limit
from embeddb.index.guards import (
    NEVER,
    GainErrors,
    errors_across_machines,
    gain_errors,
    safe_guard,
    short_bound,
    usual_guard,
)
from embeddb.index.held_out import FirstChoices, Judged, Near, first_choices, losses_of
from embeddb.index.vote import VoteSettings, surely_positive

Floats = NDArray[np.float64]
#: Neighbours, pseudo-neighbours, and whether the metric is a learned one.
Key = tuple[int, float, bool]

#: Rows of a machine's own to which the losses (guard and errors) of left-out machines are equal.
_PSEUDO_ROWS, _PSEUDO_CHOICES = 20.0, 10.0


def expected(by_machine: Sequence[FirstChoices], most_slower: Limit | None) -> GainErrors:
    """Guard, and the errors of the predicted gains that pass it. Where slower answers are limited
    and none can be judged, nothing passes."""
    parts = [one.of(rows) for one in by_machine if (rows := np.isfinite(one.predicted)).any()]
    if not parts:
        return GainErrors(guard=0.0 if most_slower is None else NEVER)
    pairs = [np.column_stack([one.predicted, one.measured]) for one in parts]
    guard = usual_guard(pairs) if most_slower is None else safe_guard(pairs, most_slower)
    errors = [np.where(one.predicted > guard, one.errors, np.nan) for one in parts]
    if len(errors) > 1:
        return errors_across_machines(errors)._replace(guard=guard)
    return gain_errors(errors[0], parts[0].group)._replace(guard=guard)


def settings_of(
    how: tuple[int, float], by_machine: Sequence[FirstChoices], expected: GainErrors
) -> VoteSettings:
    """The policy (k, shrink) with its losses on held-out rows; machines count alike."""
    judged = [one for part in by_machine if (one := part.counted()).group.size]
    if not judged:
        return VoteSettings(*how, **expected._asdict())
    lost = [one.lost(expected.guard) for one in judged]
    static = [one.best - one.static for one in judged]
    groups, group = np.unique(np.concatenate([one.group for one in judged]), return_inverse=True)
    return VoteSettings(
        *how,
        loss=float(np.mean([of.mean() for of in lost])),
        static_loss=float(np.mean([of.mean() for of in static])),
        fitted_on=len(group),
        **expected._asdict(),
        groups=groups.size,
        short=short_bound(np.concatenate(lost), group),
    )


#: Rows of a machine, and their losses by (k, shrink).
_Table = tuple[Judged, dict[tuple[int, float], Floats]]


class LeftOut(NamedTuple):
    """The policy with the least loss where machines are left out, and the mean log loss of every
    (k, shrink); `shared` is the same for patterns that other machines ran."""

    policy: VoteSettings
    table: Mapping[tuple[int, float], float]
    shared: LeftOut | None = None

    def to_json(self) -> str:
        table = [[k, repr(shrink), repr(loss)] for (k, shrink), loss in self.table.items()]
        return json.dumps([self.policy.to_json(), table, self.shared and self.shared.to_json()])

    @classmethod
    def from_json(cls, text: str) -> LeftOut:
        policy, table, shared = json.loads(text)
        losses = {(int(k), float(shrink)): float(loss) for k, shrink, loss in table}
        return cls(
            VoteSettings.from_json(policy), losses, cls.from_json(shared) if shared else None
        )


def leave_out(
    near: Near,
    parts: Sequence[Judged],
    group: NDArray[np.int64],
    *,
    validation: Sequence[Judged] = (),
    most_slower: Limit | None = None,
) -> LeftOut | None:
    """The policy for a machine that was never measured: the least loss on `parts`, each a machine's
    rows judged by all others, weighted equally; `group` int64[p]. Its losses and errors are those
    on `validation`, if any is passed, else on `parts`. None where nothing can be judged."""
    judged = _tables(near, parts, group)
    validated = _tables(near, validation, group) or judged
    if not judged:
        return None
    keys = set.intersection(*(set(table) for _, table in (*judged, *validated)))
    means = {key: float(np.mean([table[key].mean() for _, table in judged])) for key in keys}
    k, shrink = min(sorted(keys), key=lambda key: means[key])
    by_machine = [first_choices(near, part, group, k=k, shrink=shrink) for part, _ in validated]
    policy = settings_of((k, shrink), by_machine, expected(by_machine, most_slower))
    return LeftOut(replace(policy, across=True), means)


class OwnFit:
    """The choice of a policy by a machine's own rows, in `parts` each judged without its own runs.

    `left_out` counts as `_PSEUDO_ROWS` more rows; without it the static best wins unless it is
    beaten by a standard error, as in `chosen_key`, and the guard of `base` counts as
    `_PSEUDO_CHOICES` rows."""

    def __init__(
        self,
        near: Near,
        parts: Sequence[Judged],
        group: NDArray[np.int64],
        *,
        base: VoteSettings,
        left_out: LeftOut | None,
        most_slower: Limit | None = None,
    ) -> None:
        self._near, self._group, self._most_slower = near, group, most_slower
        self._base, self._left_out = base, left_out
        self._judged = _tables(near, parts, group)
        self._first: dict[tuple[int, int, float], FirstChoices] = {}

    def policy(self) -> VoteSettings:
        """The policy with the least loss; its loss on each part is by settings chosen on the
        others. `base` where there is nothing to judge."""
        if not self._judged:
            return self._base
        how, choices, errors = self._chosen(range(len(self._judged)))
        settings = settings_of(how, [choices], errors)
        counted = self.held_out()[1].counted()
        if not counted.group.size:
            return settings
        lost, of = counted.lost(errors.guard), np.unique(counted.group, return_inverse=True)[1]
        return replace(settings, loss=float(lost.mean()), short=short_bound(lost, of))

    def held_out(self) -> tuple[NDArray[np.int64], FirstChoices]:
        """The judged rows int64[q] and their first choices, by settings and a guard that were
        chosen on the other parts; none of a single part."""
        rows, choices = [np.zeros(0, dtype=np.int64)], []
        for at, (part, _) in enumerate(self._judged if len(self._judged) > 1 else ()):
            how, _, errors = self._chosen([n for n in range(len(self._judged)) if n != at])
            one = self._choices(at, how)
            choices.append(one._replace(guard=np.full(len(one.group), errors.guard)))
            rows.append(part.rows)
        return np.concatenate(rows), FirstChoices.joined(choices)

    def _choices(self, at: int, how: tuple[int, float]) -> FirstChoices:
        """The first choices on one part; kept, since most parts have the same settings."""
        if (key := (at, *how)) not in self._first:
            part, (k, shrink) = self._judged[at][0], how
            self._first[key] = first_choices(self._near, part, self._group, k=k, shrink=shrink)
        return self._first[key]

    def _chosen(self, parts: Sequence[int]) -> tuple[tuple[int, float], FirstChoices, GainErrors]:
        """(k, shrink) with the least loss on some parts, its first choices there, and the errors of
        its gains."""
        how = self._least([self._judged[at] for at in parts])
        choices = FirstChoices.joined([self._choices(at, how) for at in parts])
        mine = expected([choices], self._most_slower)
        own = int(np.isfinite(choices.predicted).sum())
        part = own / (own + _PSEUDO_CHOICES)
        if self._left_out is None:
            mine = mine._replace(guard=part * mine.guard + (1 - part) * self._base.guard)
        elif math.isfinite(self._left_out.policy.bias):
            policy = self._left_out.policy
            theirs = GainErrors(*(getattr(policy, name) for name in GainErrors._fields))
            if math.isfinite(mine.bias):
                pairs = zip(mine, theirs, strict=True)
                theirs = GainErrors(*(part * one + (1.0 - part) * other for one, other in pairs))
            mine = theirs
        return how, choices, mine

    def _least(self, judged: Sequence[_Table]) -> tuple[int, float]:
        """(k, shrink) with the least loss on parts."""
        keys = set.intersection(*(set(table) for _, table in judged))
        joint = {key: np.concatenate([table[key] for _, table in judged]) for key in keys}
        if (left_out := self._left_out) is not None and keys <= set(left_out.table):

            def loss(key: tuple[int, float]) -> float:
                return float(joint[key].sum()) + _PSEUDO_ROWS * left_out.table[key]

            return min(sorted(keys), key=loss)
        names = np.concatenate([self._group[part.rows] for part, _ in judged])
        group_of = np.unique(names, return_inverse=True)[1]
        ways = [(*key, False) for key in joint]
        return chosen_key(ways, np.array(list(joint.values())), group_of)[:2]


def losses_by(
    policy: VoteSettings, near: Near, parts: Sequence[Judged], group: NDArray[np.int64]
) -> dict[int, float]:
    """Log loss of the first choice to the best run by judged row, with its group held out; rows
    that cannot be judged are absent."""
    k = min(policy.k, near.places.shape[1])
    losses: dict[int, float] = {}
    for part, table in _tables(near, parts, group):
        losses.update(zip(part.rows.tolist(), table[k, policy.shrink].tolist(), strict=True))
    return losses


def _tables(near: Near, parts: Sequence[Judged], group: NDArray[np.int64]) -> list[_Table]:
    """Each part, its rows that can be judged, and their losses; parts without such rows are left
    out."""
    tables = []
    for part in parts:
        able = np.isfinite(part.truth).sum(axis=1) >= 2
        able &= np.isfinite(near.distances[part.rows, :1]).any(axis=1)
        judged = Judged(part.rows[able], part.truth[able], part.gains, part.trust)
        if judged.rows.size:
            tables.append((judged, losses_of(near, judged, group)))
    return tables


def chosen_key(keys: Sequence[Key], table: Floats, group: NDArray[np.int64]) -> Key:
    """The key of the least mean loss in table float64[y,q]; the static best if that is not a
    standard error (over groups) better."""
    best = int(table.mean(axis=1).argmin())
    k, shrink, learned = keys[best]
    gain = table[keys.index((k, np.inf, learned))] - table[best]
    return (k, shrink if surely_positive(gain, group) else np.inf, learned)
