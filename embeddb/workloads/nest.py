"""Loop nests: `embeddb.nests.nest.Nest`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from embeddb.core.config import Config, Op
from embeddb.core.errors import NestError
from embeddb.core.kinds import Operation, WorkloadKind
from embeddb.core.sizes import UNKNOWN, Sizes

if TYPE_CHECKING:
    from embeddb.core.pattern import Pattern
    from embeddb.nests.nest import Nest

#: Loops of the nests that a space is tried with, and how often each runs.
_NESTS = ((1, 4096), (2, 1), (3, 64), (4, 20), (6, 7))


class LoopNest(WorkloadKind):
    name = "nest"
    one, many = "nest", "nests"
    operations = (Operation("nest"),)
    #: The number of loops, and the trip count of each.
    symbols = ("DEPTH", "TRIP_1", "TRIP_2", "TRIP_3", "TRIP_4", "TRIP_5", "TRIP_6")
    structural = frozenset({"DEPTH"})

    def sizes_text(self, named: Mapping[str, int]) -> str:
        return f"{super().sizes_text(named)} turns"

    def sample_sizes(self) -> list[Sizes]:
        trips = [{f"TRIP_{at + 1}": trip for at in range(d)} for d, trip in _NESTS]
        return [UNKNOWN.naming({"DEPTH": len(t), **t}) for t in trips]

    def samples(self) -> Iterable[Nest]:
        from embeddb.nests.examples import sample_nests

        return sample_nests(64).values()

    def judge(self, op: Op, workload: Any, given: frozenset[str], runner: str) -> Any:
        from embeddb.nests.nest import Nest
        from embeddb.nests.rules import NestJudge
        from embeddb.nests.schedule import parameters

        if not isinstance(workload, Nest) or not given & parameters(workload.depth):
            return None
        return NestJudge(workload, given)

    def natural(self, workload: Any) -> Config | None:
        from embeddb.nests.nest import Nest
        from embeddb.nests.rules import canonical_schedule

        return canonical_schedule(workload).config if isinstance(workload, Nest) else None

    table = "nest"

    def write(self, workload: Nest) -> bytes:
        from embeddb.nests.nest_text import nest_text

        return nest_text(workload)

    def read(self, raw: bytes) -> Nest:
        from embeddb.nests.nest_text import nest_from_text

        return nest_from_text(raw)

    def complete(self, workload: Nest, structure: Callable[[str], Pattern | None]) -> Nest:
        there = map(structure, sorted(set(workload.matrix_ids.values())))
        try:
            return workload.holding(matrix for matrix in there if matrix is not None)
        except NestError:  # a stranger's fill, untrue of a matrix that is here: it is never run
            return workload


PLUGIN = LoopNest()
