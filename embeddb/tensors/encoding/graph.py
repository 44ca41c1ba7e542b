"""A kernel as input of the network: operations as nodes, data flow as edges."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embeddb.tensors.encoding.features import NODE, node_row, static_row
from embeddb.tensors.encoding.operation_rows import opcode_number
from embeddb.tensors.tensor_graph import TensorGraph

#: Largest number of neighbours of a node in one direction (Table 5).
MOST_NEIGHBOURS = 20


@dataclass(frozen=True, slots=True, eq=False)
class KernelGraph:
    """n operations, operands first.

    Shapes: `opcodes` int64[n]; `features` float32[n,f] in the order of `NODE`; `operands`
    int64[2,e] from an operand to its user, at most `MOST_NEIGHBOURS` to each; `users` int64[2,e]
    from a user to its operand, likewise; `static` float32[4] in the order of `STATIC`.
    """

    opcodes: NDArray[np.int64]
    features: NDArray[np.float32]
    operands: NDArray[np.int64]
    users: NDArray[np.int64]
    static: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.opcodes)


def graph_of(kernel: TensorGraph) -> KernelGraph:
    """Graph of a kernel; names do not enter."""
    operations = kernel.operations
    rows = [node_row(kernel, at) for at in range(len(operations))]
    operands = [tuple(dict.fromkeys(op.operands)) for op in operations]
    return KernelGraph(
        np.array([opcode_number(op.opcode) for op in operations], dtype=np.int64),
        np.array(rows, dtype=np.float32).reshape(-1, len(NODE)),
        _edges(operands),
        _edges(kernel.users),
        static_row(kernel),
    )


def hidden(graph: KernelGraph, at: int) -> KernelGraph:
    """The graph with one operation hidden except for its edges: unknown opcode, as in training, and
    every feature 0."""
    opcodes, features = graph.opcodes.copy(), graph.features.copy()
    opcodes[at], features[at] = 0, 0.0
    return replace(graph, opcodes=opcodes, features=features)


def _edges(sources: list[tuple[int, ...]] | tuple[tuple[int, ...], ...]) -> NDArray[np.int64]:
    """Edges from the sources of each node."""
    pairs = [(s, goal) for goal, some in enumerate(sources) for s in some[:MOST_NEIGHBOURS]]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2).T
