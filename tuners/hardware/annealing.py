"""Simulated annealing over anything that has neighbours, on whatever seconds it is told: a model's
or the hardware's ("A Learned Performance Model for Tensor Processing Units", Section 7.3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, Protocol, TypeVar

import numpy as np

__all__ = ["Annealer", "Steps", "anneal"]

S = TypeVar("S", bound=Hashable)

#: What a worse state may add with a chance of 1/e, at first and at last, to the mean change of the
#: states so far: one edge is more of a small program than of a large one.
_HOT, _COLD = 0.5, 0.02
#: States in a row that were all seen before, after which the walk goes on from one by chance, and
#: after which there is nothing more to find.
_STUCK, _STALE = 200, 1000


class Steps(Protocol[S]):
    """Where a walk can go: cuts of a program, configurations of a space."""

    def near(self, state: S, rng: np.random.Generator) -> S:
        """A legal state one step away; the same where there is none."""

    def anywhere(self, rng: np.random.Generator) -> S:
        """A legal state by chance."""


class Annealer(Generic[S]):
    """Proposes one state after the other and is told what each takes; it never measures.

    `current` is where the walk is, and `seconds` what that takes, infinite before anything is told.
    The same generator state, seconds and shares give the same states.
    """

    def __init__(self, steps: Steps[S], start: S, *, rng: np.random.Generator) -> None:
        self.current = start
        self.seconds = math.inf
        self._steps, self._rng = steps, rng
        self._begun = False
        self._changes, self._changed = 0, 0.0

    def ask(self) -> S:
        """The start, then always one step from the current state."""
        return self._steps.near(self.current, self._rng) if self._begun else self.current

    def tell(self, state: S, seconds: float, share: float) -> None:
        """Seconds (infinite for a failure) of a state that was asked for; `share` of the budget is
        spent, from 0 to 1, and cools the walk."""
        self._begun = True
        change = _change(self.seconds, seconds)
        if math.isfinite(change) and change:
            self._changes, self._changed = self._changes + 1, self._changed + abs(change)
        if change <= 0 or self._rng.random() < math.exp(-change / self._heat(share)):
            self.current, self.seconds = state, seconds

    def leap(self) -> None:
        """Go on from a state by chance."""
        self.current, self.seconds = self._steps.anywhere(self._rng), math.inf
        self._begun = False

    def _heat(self, share: float) -> float:
        mean = self._changed / max(self._changes, 1)
        return max(mean, 1e-9) * _HOT * float((_COLD / _HOT) ** min(max(share, 0.0), 1.0))


def anneal(
    annealer: Annealer[S],
    price: Callable[[S], float],
    spent: Callable[[], float],
    budget: float,
) -> Iterator[tuple[S, float]]:
    """Each state that is new, with its price in seconds, until so much is spent or nothing new
    comes. Whatever `price` raises ends it."""
    seen: dict[int, float] = {}
    stale = 0
    while spent() < budget and stale < _STALE:
        state = annealer.ask()
        key = hash(state)
        stale += 1
        if fresh := key not in seen:
            seen[key] = price(state)
            stale = 0
        elif stale % _STUCK == 0:
            annealer.leap()
            continue
        annealer.tell(state, seen[key], spent() / budget)
        if fresh:
            yield state, seen[key]


def _change(now: float, then: float) -> float:
    """Logarithm of the ratio; what fails is infinitely slower than what ran."""
    if math.isinf(now) or math.isinf(then):
        return then if now < then else -math.inf
    return math.log(then / now)
