"""Tensor programs, to be fused by a compiler: `embeddb.tensors.tensor_graph.TensorGraph`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from embeddb.core.config import Op
from embeddb.core.kinds import Operation
from embeddb.core.sizes import UNKNOWN, Sizes
from embeddb.workloads.kernel import TensorComputation

if TYPE_CHECKING:
    from embeddb.index.lookup import Lookup
    from embeddb.store import Store
    from embeddb.tensors.partition import CutJudge
    from embeddb.tensors.tensor_graph import TensorGraph
    from tuners.evaluation.figures import EvalRow


class TensorProgram(TensorComputation):
    name = "program"
    one, many = "tensor program", "tensor programs"
    operations = (Operation("fusion"),)
    answer_keys = frozenset({"kernel", "transfers"})
    symbols = ("OPERATIONS",)
    structural = frozenset()

    def sizes_text(self, named: Mapping[str, int]) -> str:
        return f"{named['OPERATIONS']:,} operations"

    def sample_sizes(self) -> list[Sizes]:
        return [UNKNOWN.naming({"OPERATIONS": count}) for count in (1, 30, 5000)]

    def judge(self, op: Op, workload: Any, parameters: frozenset[str], runner: str) -> Any:
        from embeddb.tensors.edges import CUT
        from embeddb.tensors.tensor_graph import TensorGraph

        return _judge(workload) if CUT in parameters and isinstance(workload, TensorGraph) else None

    embedded = False
    extent = "operations"
    measures = "`embeddb kernel measure --op fusion`"

    def other_kind_hint(self, name: str, wanted: str, store: Store) -> str:
        if wanted != "kernel":
            return super().other_kind_hint(name, wanted, store)
        if store.find(f"{name}/0"):
            return f"its kernels are {name}/0 and on"
        return "`embeddb kernel import DB FILE --cut` keeps its kernels, each with a name"

    unreadable = "programs have no neighbours: `embeddb tune DB PROGRAM` searches for a fusion plan"

    def judged(self, db: Lookup, instance: str, **options: Any) -> list[EvalRow] | None:
        from tuners.evaluation.judged_fusions import judged_fusions

        return judged_fusions(db, instance, **options)


@lru_cache(maxsize=64)
def _judge(program: TensorGraph) -> CutJudge:
    from embeddb.tensors.partition import CutJudge

    return CutJudge(program)


PLUGIN = TensorProgram()
