"""The rules of a nest, as others ask for them: a judge of its configurations, and the schedule that
is taken where none is known. The rules themselves are in `embeddb.nests.dependence.legality`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from embeddb.core.config import Value
from embeddb.nests.dependence.dependences import dependences, parallel_loops, reduction_loops
from embeddb.nests.dependence.legality import MOST_PRIVATE, Legality, packable
from embeddb.nests.nest import Nest
from embeddb.nests.schedule import Schedule, parameters

__all__ = [
    "MOST_PRIVATE",
    "Legality",
    "NestJudge",
    "canonical_schedule",
    "dependences",
    "legality_of",
    "packable",
    "parallel_loops",
    "reduction_loops",
]


#: What decides beside order and blocks.
_CHOICES = ("parallel", "inner", "pack")


class NestJudge:
    """The rules of a nest as one more constraint (`embeddb.platforms.space.rules`) of a space that
    has the parameters `given`; what it has no parameter for is as in the nest as it stands."""

    def __init__(self, nest: Nest, given: Collection[str] | None = None) -> None:
        self.legality = legality_of(nest)
        decisive = parameters(nest.depth)
        self.names = decisive if given is None else decisive & frozenset(given)
        self.text = f"the dependences of {nest.name or nest.id[:12]}"
        self._order = f"order_{nest.depth}"
        self._tiles = [f"tile_{at + 1}" for at in range(nest.depth)]
        self._harmless = {("inner", "plain"), ("inner", "unroll4"), ("pack", "none")}
        self._harmless |= {("pack", f"read{at + 1}") for at in range(len(packable(nest)))}
        self._known: dict[tuple[Any, ...], str] = {}

    def holds(self, env: Mapping[str, Any]) -> bool | None:
        """Whether the schedule is legal; None while a parameter that decides it is open."""
        return not self.reason(env) if self.names <= env.keys() else None

    def seen(self, name: str, value: Value) -> Value:
        """Of blocks whether there are any; of what is always legal nothing."""
        if name in self._tiles:
            return value != 0
        return "" if (name, value) in self._harmless else value

    def reason(self, values: Mapping[str, Any]) -> str:
        """Why not, in one line; empty where the schedule is legal."""
        split = [values.get(name, 0) != 0 for name in self._tiles]
        key = (values.get(self._order), *split, *[values.get(name) for name in _CHOICES])
        known = self._known.get(key)
        if known is None:
            schedule = Schedule.of(values, self.legality.nest.depth)
            known = self._known[key] = self.legality.reason(schedule) or ""
        return known


def canonical_schedule(nest: Nest) -> Schedule:
    """The nest as it stands, its outermost loop in parallel where that is legal."""
    still = Schedule(tuple(range(nest.depth)), (0,) * nest.depth)
    parallel = Schedule(still.order, still.tiles, parallel="outer")
    return still if legality_of(nest).reason(parallel) else parallel


def legality_of(nest: Nest) -> Legality:
    """The rules of a nest with what was asked of them before: a query asks from several sides."""
    return _legality(nest, nest.loop_names, nest.array_names)


@lru_cache(maxsize=64)
def _legality(nest: Nest, *_: tuple[str, ...]) -> Legality:
    # By names too: nests that differ in them are equal, and a reason names loops.
    return Legality(nest)
