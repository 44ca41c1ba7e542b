"""Simulated annealing over the legal cuts of a program, on whatever seconds it is told: a model's
or the hardware's ("A Learned Performance Model for Tensor Processing Units", Section 7.3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from embeddb.tensors.computation import Computation
from embeddb.tensors.cuts import near_cut
from embeddb.tensors.edges import Cut

__all__ = ["CutAnnealer", "anneal"]

#: Share of the seconds that a worse cut may add with a chance of 1/e, at first and at last. One
#: edge changes a program of a hundred kernels by about a hundredth.
_HOT, _COLD = 0.02, 0.0005
#: Cuts in a row that were all seen before, after which there is nothing more to find.
_STALE = 2000


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

    def ask(self) -> Cut:
        """The start, then always one with an edge of the current cut turned."""
        return near_cut(self.program, self.current, self._rng) if self._begun else self.current

    def tell(self, cut: Cut, seconds: float, share: float) -> None:
        """Seconds (infinite for a failure) of a cut that was asked for; `share` of the budget is
        spent, from 0 to 1, and cools the walk."""
        self._begun = True
        heat = _HOT * (_COLD / _HOT) ** min(max(share, 0.0), 1.0)
        if seconds <= self.seconds or self._rng.random() < _chance(self.seconds, seconds, heat):
            self.current, self.seconds = cut, seconds


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
        annealer.tell(cut, seen[key], spent() / budget)
        if fresh:
            yield cut, seen[key]


def _chance(now: float, then: float, heat: float) -> float:
    """That a slower cut is taken."""
    return 0.0 if math.isinf(then) else math.exp(-math.log(then / now) / heat)
