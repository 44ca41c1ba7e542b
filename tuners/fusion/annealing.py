"""Simulated annealing over the legal cuts of a program, on whatever seconds it is told: a model's
or the hardware's ("A Learned Performance Model for Tensor Processing Units", Section 7.3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from embeddb.tensors.computation import Computation
from embeddb.tensors.cuts import near_cut, random_cut
from embeddb.tensors.edges import Cut

__all__ = ["CutAnnealer", "anneal"]

#: What a worse cut may add with a chance of 1/e, at first and at last, to the mean change of the
#: cuts so far: one edge is more of a small program than of a large one.
_HOT, _COLD = 0.5, 0.02
#: Cuts in a row that were all seen before, after which the walk goes on from one by chance, and
#: after which there is nothing more to find.
_STUCK, _STALE = 200, 1000


class CutAnnealer:
    """Proposes one cut after the other and is told what each takes; it never measures.

    `current` is where the walk is, and `seconds` what that takes, infinite before anything is told.
    The same generator state, seconds and shares give the same cuts.
    """

    def __init__(self, program: Computation, start: Cut, *, rng: np.random.Generator) -> None:
        self.program, self.current = program, start
        self.seconds = math.inf
        self._rng = rng
        self._begun = False
        self._changes, self._changed = 0, 0.0

    def ask(self) -> Cut:
        """The start, then always one with an edge of the current cut turned."""
        return near_cut(self.program, self.current, self._rng) if self._begun else self.current

    def tell(self, cut: Cut, seconds: float, share: float) -> None:
        """Seconds (infinite for a failure) of a cut that was asked for; `share` of the budget is
        spent, from 0 to 1, and cools the walk."""
        self._begun = True
        change = _change(self.seconds, seconds)
        if math.isfinite(change) and change:
            self._changes, self._changed = self._changes + 1, self._changed + abs(change)
        if change <= 0 or self._rng.random() < math.exp(-change / self._heat(share)):
            self.current, self.seconds = cut, seconds

    def leap(self) -> None:
        """Go on from a cut by chance."""
        self.current, self.seconds = random_cut(self.program, self._rng), math.inf
        self._begun = False

    def _heat(self, share: float) -> float:
        mean = self._changed / max(self._changes, 1)
        return max(mean, 1e-9) * _HOT * float((_COLD / _HOT) ** min(max(share, 0.0), 1.0))


def anneal(
    annealer: CutAnnealer,
    price: Callable[[Cut], float],
    spent: Callable[[], float],
    budget: float,
) -> Iterator[tuple[Cut, float]]:
    """Each cut that is new, with its price in seconds, until so much is spent or nothing new comes.
    Whatever `price` raises ends it."""
    seen: dict[int, float] = {}
    stale = 0
    while spent() < budget and stale < _STALE:
        cut = annealer.ask()
        key = hash(cut)
        stale += 1
        if fresh := key not in seen:
            seen[key] = price(cut)
            stale = 0
        elif stale % _STUCK == 0:
            annealer.leap()
            continue
        annealer.tell(cut, seen[key], spent() / budget)
        if fresh:
            yield cut, seen[key]


def _change(now: float, then: float) -> float:
    """Logarithm of the ratio; what fails is infinitely slower than what ran."""
    if math.isinf(now) or math.isinf(then):
        return then if now < then else -math.inf
    return math.log(then / now)
