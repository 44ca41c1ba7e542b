"""Tensor kernels: `embeddb.tensors.tensor_graph.TensorGraph`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.errors import ModelError, TensorError
from embeddb.core.files.safe_read import refusing
from embeddb.core.kinds import Limit, Operation, WorkloadKind
from embeddb.core.sizes import UNKNOWN, Sizes

if TYPE_CHECKING:
    from embeddb.core.records import WorkloadInfo
    from embeddb.cost_model.graph_model import GraphModel
    from embeddb.index.answer_index import AnswerIndex
    from embeddb.index.lookup import Lookup
    from embeddb.platforms.platform import Platform
    from embeddb.platforms.space.space import ConfigSpace
    from embeddb.ranking.query import Query
    from embeddb.ranking.rankers.base import Ranker
    from embeddb.ranking.recommendation import Recommendation
    from embeddb.store import Store
    from embeddb.tensors.tensor_graph import TensorGraph
    from embeddb.tensors.tiles import TileJudge

#: Dimensions of the kernels with which a space is checked, and the number of terms of their sums.
_KERNELS = (((1,), 1), ((4096,), 500), ((7, 3000), 1), ((8, 56, 56, 64), 576), ((3,) * 6, 1))


class TensorComputation(WorkloadKind):
    """Kernels and programs: HLO graphs, stored and displayed alike."""

    def write(self, workload: TensorGraph) -> bytes:
        from embeddb.tensors.tensor_text import tensor_text

        return tensor_text(workload)

    def read(self, raw: bytes) -> TensorGraph:
        from embeddb.tensors.tensor_text import tensor_from_text

        return tensor_from_text(raw)

    def holds_more(self, workload: TensorGraph, stored: TensorGraph) -> bool:
        """Return true for a signature of the same module; another has an order of its own."""
        same = (workload.name, workload.names) == (stored.name, stored.names)
        return same and stored.signature is None and workload.signature is not None

    transfers = True

    def model(self, lookup: Lookup, platform: Platform, op: Op) -> GraphModel | None:
        return lookup.graph_model(platform, op)[0]

    def answer(self, workload: TensorGraph) -> dict[str, Any]:
        from embeddb.ranking.kernel_view import kernel_view

        return {"kernel": kernel_view(workload)}

    def view(self, recommendation: Recommendation, store: Store) -> dict[str, Any]:
        if recommendation.kernel is not None:
            return {"kernel": recommendation.kernel}
        graph = store.tensor(store.resolve(recommendation.pattern_id))
        return {} if graph is None else self.answer(graph)

    files_of = "kernel"
    adds = "--matrices DIR or `embeddb kernel import` adds their operations"

    def files(self, folder: Path) -> Iterable[Path]:
        from indexer.frontends.hlo.files import tensor_files

        return tensor_files(folder)

    def read_file(self, path: Path, *, alone: bool = False) -> Sequence[TensorGraph]:
        from indexer.frontends.hlo.files import read_tensors

        return read_tensors(path, kind=self.name if alone else "").tensors

    file = "file with HLO"
    many_file = "HLO.txt"

    def page(self, info: WorkloadInfo, store: Store) -> dict[str, Any]:
        graph = store.tensor(info.id)
        shown: dict[str, Any] = {} if graph is None else msgspec.to_builtins(self.answer(graph))
        return shown

    def description(self, info: WorkloadInfo, store: Store) -> str:
        """Number of operations, arithmetic and result; variants of a program for another batch have
        equally many operations."""
        from embeddb.core.wording import plural
        from embeddb.tensors.analysis import work_of

        tensor = store.tensor(info.id)
        if tensor is None:
            return super().description(info, store)
        count = plural(len(tensor.operations), "operation")
        shape = tensor.operations[tensor.outputs[0]].shape
        return f"{info.kind} of {count}, {work_of(tensor).flops:,} flops, gives {shape}"

    def recognises(self, path: Path) -> bool:
        from indexer.frontends.hlo.files import holds_tensors

        return holds_tensors(path)


class TensorKernel(TensorComputation):
    """Tensor kernels: `tile` runs a kernel by tiles, `fused` as its compiler generates it. Both
    take the minimum of all repeats, as in "A Learned Performance Model for Tensor Processing Units"
    (Section 4): they take microseconds, so another process on the host that runs for a tenth of a
    second slows all repeats of a run."""

    name = "kernel"
    one, many = "tensor kernel", "tensor kernels"
    operations = (Operation("tile", minimum=True), Operation("fused", minimum=True, tunable=False))
    #: The dimensions of the result, the length of each, and the terms of the longest sum.
    symbols = ("RANK", "DIM_1", "DIM_2", "DIM_3", "DIM_4", "DIM_5", "DIM_6", "REDUCED")
    structural = frozenset({"RANK"})

    def sizes_text(self, named: Mapping[str, int]) -> str:
        reduced = named.get("REDUCED", 1)
        sides = super().sizes_text({n: s for n, s in named.items() if n != "REDUCED"})
        return sides + (f", sums of {reduced:,}" if reduced > 1 else "")

    def sample_sizes(self) -> list[Sizes]:
        return [_sizes(dims, reduced) for dims, reduced in _KERNELS]

    #: A bad tile costs more than a bad format (docs/explanation/decisions.md).
    max_slower = Limit(0.02, 1.2)
    answer_keys = frozenset({"kernel", "transfers", "occluded", "occluded_by"})

    def check_default(
        self, info: WorkloadInfo, op: Op, space: ConfigSpace, default: Config
    ) -> None:
        if op.name == "tile" and (reason := space.reason(default)) is not None:
            raise TensorError(f"{info.name or info.id[:12]} has no tiles: {reason}")

    def transferred(
        self, query: Query, partition: AnswerIndex, workload: Any, workload_of: Callable[[str], Any]
    ) -> Query | None:
        from embeddb.ranking.transferred import transfer_tiles
        from embeddb.tensors.tensor_graph import TensorGraph

        if query.op.name != "tile" or not isinstance(workload, TensorGraph):
            return None
        return transfer_tiles(query, partition, workload, kernel_of=workload_of)

    def predicted(self, query: Query, lookup: Lookup, workload: Any) -> Query | None:
        from embeddb.ranking.kernel_prediction import predicted_tiles
        from embeddb.tensors.tensor_graph import TensorGraph

        kernel = workload if isinstance(workload, TensorGraph) else None
        return predicted_tiles(query, lookup, kernel)

    def occluded(
        self, ranker: Ranker, lookup: Lookup, workload: Any, progress: Any
    ) -> dict[str, Any]:
        from embeddb.explain.deep import kernel_occlusion
        from embeddb.tensors.tensor_graph import TensorGraph

        whole = isinstance(workload, TensorGraph)
        kernel = workload if whole else lookup.store.tensor(workload.id)
        by, parts = kernel_occlusion(ranker, lookup, kernel)
        return {"occluded_by": by, "occluded": parts}

    def judge(self, op: Op, workload: Any, parameters: frozenset[str], runner: str) -> Any:
        """Rules are known only for the tiles that the runner `tile` computes."""
        from embeddb.tensors.tensor_graph import TensorGraph
        from embeddb.tensors.tiles import PARAMETERS

        own = op.name == runner == "tile" and bool(parameters & set(PARAMETERS))
        return _judge(workload, parameters) if own and isinstance(workload, TensorGraph) else None

    placeholder = "KERNEL"
    measures = "`embeddb kernel measure`"
    unreadable = (
        "its kernels have no vectors: where they are known by name only, give "
        "--matrices DIR, or `embeddb kernel import`"
    )

    def model_facts(self, op: Op, card: Mapping[str, Any]) -> dict[str, Any]:
        """For a model of seconds (op `fused`) its mean absolute percentage error, `mape`."""
        if op.name == "fused":
            with suppress(ModelError), refusing(ModelError):  # the card may come from anywhere
                return {"mape": float(card["figures"]["valid"]["mape"])}
        return {}

    def program(self, info: WorkloadInfo) -> str:
        from embeddb.tensors.tensor_graph import program_of

        return program_of(info.name, info.id)


def _sizes(dims: tuple[int, ...], reduced: int) -> Sizes:
    named = {f"DIM_{at + 1}": dim for at, dim in enumerate(dims)}
    return UNKNOWN.naming({"RANK": len(dims), **named, "REDUCED": reduced})


@lru_cache(maxsize=256)
def _judge(kernel: TensorGraph, parameters: frozenset[str]) -> TileJudge:
    from embeddb.tensors.tiles import TileJudge

    return TileJudge(kernel, parameters)


PLUGIN = TensorKernel()
