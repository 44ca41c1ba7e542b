"""The rules of a nest, as others ask for them: a judge of its configurations, and the schedule that
is taken where none is known. The rules themselves are those of `embeddb.nests.legality`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embeddb.nests.dependences import dependences, parallel_loops, reduction_loops
from embeddb.nests.legality import MOST_PRIVATE, Legality, packable
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


class NestJudge:
    """The rules of a nest as one more constraint of a space (`embeddb.platforms.space.rules`)."""

    def __init__(self, nest: Nest) -> None:
        self.legality = Legality(nest)
        self.names = parameters(nest.depth)
        self.text = f"the dependences of {nest.name or nest.id[:12]}"
        self._order = f"order_{nest.depth}"
        self._tiles = [f"tile_{at + 1}" for at in range(nest.depth)]
        self._holds: dict[tuple[Any, ...], bool] = {}

    def holds(self, env: Mapping[str, Any]) -> bool | None:
        """Whether the schedule is legal; None while a parameter that decides it is open."""
        try:
            tiled = tuple([env[name] != 0 for name in self._tiles])
            order = env[self._order] if len(tiled) > 1 else ()
            key = (order, tiled, env["parallel"], env["inner"], env["pack"])
        except KeyError:
            return None
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
