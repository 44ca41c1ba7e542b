"""The rules of a nest, as others ask for them: a judge of its configurations, and the schedule that
is taken where none is known. The rules themselves are in `embeddb.nests.dependence.legality`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

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
        self.legality = Legality(nest)
        decisive = parameters(nest.depth)
        self.names = decisive if given is None else decisive & frozenset(given)
        self.text = f"the dependences of {nest.name or nest.id[:12]}"
        self._order = f"order_{nest.depth}"
        self._tiles = [f"tile_{at + 1}" for at in range(nest.depth)]
        self._holds: dict[tuple[Any, ...], bool] = {}

    def holds(self, env: Mapping[str, Any]) -> bool | None:
        """Whether the schedule is legal; None while a parameter that decides it is open."""
        if not self.names <= env.keys():
            return None
        tiled = tuple([env.get(name, 0) != 0 for name in self._tiles])
        key = (env.get(self._order), tiled, *(env.get(name) for name in _CHOICES))
        known = self._holds.get(key)
        if known is None:
            known = self._holds[key] = self._reason(env) is None
        return known

    def reason(self, values: Mapping[str, Any]) -> str:
        """Why not, in one line; empty where the schedule is legal."""
        return self._reason(values) or ""

    def _reason(self, values: Mapping[str, Any]) -> str | None:
        return self.legality.reason(Schedule.of(values, self.legality.nest.depth))


def canonical_schedule(nest: Nest) -> Schedule:
    """The nest as it stands, its outermost loop in parallel where that is legal."""
    still = Schedule(tuple(range(nest.depth)), (0,) * nest.depth)
    parallel = Schedule(still.order, still.tiles, parallel="outer")
    return still if Legality(nest).reason(parallel) else parallel
