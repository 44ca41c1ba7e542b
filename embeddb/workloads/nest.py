"""Loop nests: `embeddb.nests.nest.Nest`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embeddb.core.config import Config, Op
from embeddb.core.errors import NestError
from embeddb.core.kinds import Limit, Operation, WorkloadKind
from embeddb.core.sizes import UNKNOWN, Sizes

if TYPE_CHECKING:
    from embeddb.core.pattern import Pattern
    from embeddb.core.records import WorkloadInfo
    from embeddb.index.answer_index import AnswerIndex
    from embeddb.nests.nest import Nest
    from embeddb.platforms.platform import Platform
    from embeddb.ranking.query import Query
    from embeddb.ranking.recommendation import Recommendation
    from embeddb.store import Store

#: Number of loops of the nests with which a space is checked, and the trip count of each.
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

    def judge(self, op: Op, workload: Any, names: frozenset[str], runner: str) -> Any:
        from embeddb.nests.check import NestJudge
        from embeddb.nests.nest import Nest
        from embeddb.nests.schedule import parameters

        if not isinstance(workload, Nest) or not names & parameters(workload.depth):
            return None
        return NestJudge(workload, names)

    def natural(self, workload: Any) -> Config | None:
        from embeddb.nests.check import canonical_schedule
        from embeddb.nests.nest import Nest

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
            return workload.with_matrices(matrix for matrix in there if matrix is not None)
        except NestError:  # an imported fill contradicts a stored matrix: the nest is never run
            return workload

    #: A bad schedule costs more than a bad format (docs/explanation/decisions.md).
    max_slower = Limit(0.02, 1.02)
    counted = two_runs = transfers = True
    copies = False
    answer_keys = frozenset({"nest", "transfers", "counters"})

    def parts(self, workload: Nest) -> Iterable[Pattern]:
        return workload.matrices

    def transferred(
        self, query: Query, partition: AnswerIndex, workload: Any, workload_of: Callable[[str], Any]
    ) -> Query | None:
        from embeddb.nests.nest import Nest
        from embeddb.ranking.transferred import transfer_schedules

        if not isinstance(workload, Nest):
            return None
        return transfer_schedules(query, partition, workload, nest_of=workload_of)

    def answer(self, workload: Nest) -> dict[str, Any]:
        return {"nest": self.write(workload).decode()}

    def view(self, recommendation: Recommendation, store: Store) -> dict[str, Any]:
        from embeddb.explain.explanation import NestView
        from embeddb.nests.lines import loop_lines, statement_line
        from embeddb.nests.nest_text import nest_from_text
        from embeddb.nests.schedule import Schedule

        if recommendation.nest:
            nest: Nest | None = nest_from_text(
                recommendation.nest, where=f"answer {recommendation.id}"
            )
        else:
            nest = store.nest(store.resolve(recommendation.pattern_id))
        if nest is None:
            return {}
        shown = NestView(
            loops=loop_lines(nest),
            body=[statement_line(nest, statement) for statement in nest.body],
            answer=loop_lines(nest, Schedule.of(recommendation.best, nest.depth)),
        )
        return {"nest": shown}

    unreadable = "its nests are known by name only: give --matrices DIR, or `embeddb nest import`"
    adds = "--matrices DIR or `embeddb nest import` adds their code"

    def files(self, folder: Path) -> Iterable[Path]:
        from indexer.frontends import nest_files

        return nest_files(folder)

    file = "program"
    extent = "turns"
    many_file = "PROGRAM.c"
    measures = "`embeddb nest measure`"

    def page(self, info: WorkloadInfo, store: Store) -> dict[str, Any]:
        from embeddb.nests.lines import loop_lines, statement_line

        nest = store.nest(info.id)
        if nest is None:
            return {}
        body = [statement_line(nest, statement) for statement in nest.body]
        return {"code": {"loops": loop_lines(nest), "body": body}}

    def transfer_note(self, platform: Platform) -> str:
        from embeddb.nests.schedule import KNOWN

        names = {param.name for param in platform.kernel("nest").space.params}
        if not names & KNOWN:
            return "configurations are voted on as a whole: no parameter belongs to a schedule"
        if names <= KNOWN:
            return "schedules are checked against dependences, and transferred loop by loop"
        others = ", ".join(sorted(names - KNOWN))
        judged = "schedules are checked against dependences, and voted on as a whole"
        return f"{judged}; not of a schedule: {others}"

    def example(self) -> tuple[Nest, str]:
        from embeddb.nests.examples import sample_nests

        return sample_nests(64)["matmul"], "three loops of 64 turns, any order legal"

    endings = (".json", ".c", ".sdfg", ".py")

    def read_file(self, path: Path, *, alone: bool = False) -> Sequence[Nest]:
        from indexer.frontends import read_nests

        return read_nests(path)

    def holds_more(self, workload: Nest, stored: Nest) -> bool:
        return len(stored.matrices) < len(workload.matrices)


PLUGIN = LoopNest()
