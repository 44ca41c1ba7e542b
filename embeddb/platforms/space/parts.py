"""The independent parts of a configuration space and the searches within one part."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from embeddb.core.config import Value
from embeddb.core.sizes import signed_log

if TYPE_CHECKING:
    import numpy as np

    from embeddb.platforms.space.rules import Param, Rules

#: A part with more assignments than this is walked, not listed.
PART_LIMIT = 100_000
#: A space of at most so many is cached. Counts up to here list no more assignments of a part.
FEW = 4096
#: Values tried before listing a part, or a search for the nearest assignment, gives up.
NODE_LIMIT = 200_000
#: The same for a search without a legal assignment so far.
GIVE_UP = 1_000_000
#: Cost of omitting a requested value, where a different choice costs 1.
DROPPED = 0.05
#: Weight of the distance to the default for parameters without a wish: only breaks ties.
UNASKED = 1e-3

Assignment = dict[str, Value]


def product_of(base: Assignment, parts: Sequence[Part]) -> Iterator[Assignment]:
    """Generate every combination of `base` with one assignment of each part."""
    if not parts:
        yield base
        return
    first = parts[0].walk() if parts[0].listed is None else parts[0].listed
    for assignment in first:
        yield from product_of({**base, **assignment}, parts[1:])


class Bound(Protocol):
    """The interface of a space for its parts: rules, and the values of symbols."""

    @property
    def rules(self) -> Rules: ...

    @property
    def symbols(self) -> Mapping[str, int]: ...

    @property
    def prefer(self) -> Mapping[str, Value]: ...

    def domain(self, param: Param) -> Sequence[Value]:
        """The values a parameter may have."""

    def number(self, name: str, value: Any) -> Any:
        """A value in expressions; None for an unresolved symbol."""


class Part:
    """Parameters tied together by conditions and constraints, searched depth first."""

    def __init__(self, space: Bound, names: Sequence[str]) -> None:
        self.space = space
        self.names = names
        rules = space.rules
        self._params = [rules.by_name[n] for n in names]
        self.domains = [space.domain(p) for p in self._params]
        self._whens = [rules.whens.get(n) for n in names]
        place = {n: i for i, n in enumerate(names)}
        self._checks: list[list[Any]] = [[] for _ in names]
        for constraint in rules.constraints:
            mine = [place[n] for n in constraint.names if n in place]
            if mine:
                self._checks[max(mine)].append(constraint)

    @cached_property
    def listed(self) -> tuple[Assignment, ...] | None:
        """Every legal assignment; None for too many, and with a judge, which is slow."""
        return self._few if self._few is not None else self._every(PART_LIMIT)

    @cached_property
    def _few(self) -> tuple[Assignment, ...] | None:
        return self._every(FEW)

    def _every(self, most: int) -> tuple[Assignment, ...] | None:
        if self.space.rules.judge is not None:
            return None
        budget: list[float] = [NODE_LIMIT]
        assignments = tuple(itertools.islice(self.walk(budget), most + 1))
        return None if len(assignments) > most or budget[0] < 0 else assignments

    def count(self, most: int) -> int | None:
        """The number of legal assignments; None above `most`, or where they are not `listed`. Up
        to `FEW` it lists no more."""
        every = self._few if most <= FEW else self.listed
        return None if every is None or len(every) > most else len(every)

    def walk(self, budget: list[float] | None = None) -> Iterator[Assignment]:
        """Generate every legal assignment; stops when `budget[0]` values have been tried."""
        return self._walk(0, {}, dict(self.space.symbols), budget or [math.inf])

    def _walk(
        self, i: int, chosen: Assignment, env: dict[str, Any], budget: list[float]
    ) -> Iterator[Assignment]:
        if i == len(self.names):
            yield dict(chosen)
            return
        if not self.active(i, env):
            if self.fits(i, env):
                yield from self._walk(i + 1, chosen, env, budget)
            return
        for value in self.domains[i]:
            budget[0] -= 1
            if budget[0] < 0:
                break
            self.set(i, value, chosen, env)
            if self.fits(i, env):
                yield from self._walk(i + 1, chosen, env, budget)
        self.unset(i, chosen, env)

    def draw(self, rng: np.random.Generator) -> Assignment | None:
        """A random legal assignment; from a part too large to list each value is drawn
        independently, and None is returned if the draw is not legal."""
        if self.listed is not None:
            return self.listed[int(rng.integers(len(self.listed)))] if self.listed else None
        chosen: Assignment = {}
        env: dict[str, Any] = dict(self.space.symbols)
        for i, possible in enumerate(self._possible):
            if self.active(i, env):
                if not possible:
                    return None
                self.set(i, possible[int(rng.integers(len(possible)))], chosen, env)
            if not self.fits(i, env):
                return None
        return chosen

    @cached_property
    def _possible(self) -> list[list[Value]]:
        """Values of each parameter that no constraint on it alone excludes."""

        def alone(i: int, value: Value) -> bool:
            env: dict[str, Any] = dict(self.space.symbols)
            self.set(i, value, {}, env)
            return self.fits(i, env)

        return [
            [value for value in domain if alone(i, value)] for i, domain in enumerate(self.domains)
        ]

    def nearest(
        self, wish: Mapping[str, Value], *, pinned: tuple[str, Value] | None = None
    ) -> Assignment | None:
        """The assignment closest to `wish` (branch and bound); exact unless the part is huge."""
        return _Search(self, wish, pinned).run()

    def active(self, i: int, env: Mapping[str, Any]) -> bool:
        when = self._whens[i]
        return when is None or when.holds(env) is True

    def fits(self, i: int, env: Mapping[str, Any]) -> bool:
        return all(check.holds(env) is not False for check in self._checks[i])

    def set(self, i: int, value: Value, chosen: Assignment, env: dict[str, Any]) -> None:
        name = self.names[i]
        chosen[name] = value
        number = self.space.number(name, value)
        if number is None:
            env.pop(name, None)
        else:
            env[name] = number

    def unset(self, i: int, chosen: Assignment, env: dict[str, Any]) -> None:
        chosen.pop(self.names[i], None)
        env.pop(self.names[i], None)

    def distance(self, i: int, value: Value, goal: Value) -> float:
        """Distance of two values: 0 if equal, 1 for a different choice or the whole range of an
        int, to which numbers are clipped."""
        if value == goal:
            return 0.0
        if isinstance(value, tuple):
            return _inversions(value, goal)
        a, b = (self.space.number(self.names[i], v) for v in (value, goal))
        if self._params[i].kind == "int" and _is_number(a) and _is_number(b):
            low, high = self._ranges[i]
            return abs(signed_log(a) - min(max(signed_log(b), low), high)) / (high - low or 1.0)
        return 1.0

    @cached_property
    def _ranges(self) -> list[tuple[float, float]]:
        """The smallest and largest number of each parameter, on the log2 scale."""
        ranges = []
        for name, domain in zip(self.names, self.domains, strict=True):
            numbers = [self.space.number(name, v) for v in domain]
            scaled = [signed_log(v) for v in numbers if _is_number(v)] or [0.0]
            ranges.append((min(scaled), max(scaled)))
        return ranges


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _inversions(order: tuple[str, ...], goal: Value) -> float:
    """Share of the pairs of names that two orders place differently; 1 for another kind."""
    if not isinstance(goal, tuple) or not set(goal) & set(order):
        return 1.0
    place = {name: i for i, name in enumerate(goal)}
    places = [place[name] for name in order if name in place]
    pairs = list(itertools.combinations(places, 2))
    return sum(a > b for a, b in pairs) / max(len(pairs), 1)


class _Search:
    """Branch and bound for the assignment of one part with the least distance to a wish."""

    def __init__(
        self, part: Part, wish: Mapping[str, Value], pinned: tuple[str, Value] | None
    ) -> None:
        self.part = part
        self.wish = wish
        self.pinned = pinned
        self.nodes = 0
        self.best: Assignment | None = None
        self.best_cost = math.inf

    def run(self) -> Assignment | None:
        self._visit(0, {}, dict(self.part.space.symbols), 0.0)
        return self.best

    def _visit(self, i: int, chosen: Assignment, env: dict[str, Any], cost: float) -> None:
        part = self.part
        if i == len(part.names):
            self.best, self.best_cost = dict(chosen), cost
            return
        if not part.active(i, env):
            if part.names[i] in self.wish:
                cost += DROPPED
            pinned_here = self.pinned is not None and self.pinned[0] == part.names[i]
            if cost < self.best_cost and not pinned_here and part.fits(i, env):
                self._visit(i + 1, chosen, env, cost)
            return
        for extra, value in self._ranked(i):
            self.nodes += 1
            enough = NODE_LIMIT if self.best is not None else GIVE_UP
            if cost + extra >= self.best_cost or self.nodes > enough:
                break
            part.set(i, value, chosen, env)
            if part.fits(i, env):
                self._visit(i + 1, chosen, env, cost + extra)
        part.unset(i, chosen, env)

    def _ranked(self, i: int) -> list[tuple[float, Value]]:
        """The values of one parameter with their distance to the wish, nearest first."""
        part, name = self.part, self.part.names[i]
        if self.pinned is not None and self.pinned[0] == name:
            return [(0.0, self.pinned[1])]
        goal, weight = self.wish.get(name), 1.0
        if goal is None:
            goal, weight = part.space.prefer.get(name), UNASKED
        if goal is None:
            return [(UNASKED * place, v) for place, v in enumerate(part.domains[i])]
        return sorted(
            ((weight * part.distance(i, v, goal), v) for v in part.domains[i]),
            key=lambda pair: pair[0],
        )
