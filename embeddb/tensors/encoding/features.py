"""Features of an operation, a kernel and a tile ("A Learned Performance Model for Tensor Processing
Units", Section 3.1).

Vectors (shape, layout, window) have six places, padded with 0 or truncated, then the sum and the
product of all their elements. Own choices, since the paper does not state them: every number v is
encoded as sign(v) log2(1 + |v|), so that min-max scaling separates small sizes; dimensions are
ordered from the minor to the major one in memory, so that the vectorised one is always first;
dimensions in attributes are given by their position in memory, 1 the minor one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.sizes import signed_log
from embeddb.tensors.analysis import work_of
from embeddb.tensors.encoding.operation_rows import OPCODES, opcode_number
from embeddb.tensors.tensor_graph import DTYPES, Operation, Shape, TensorGraph, reduced

#: Length of a vector before its sum and product.
_PLACES = 6
_WINDOW = ("size", "stride", "low", "high", "lhs_dilate", "rhs_dilate")
_CUTS = ("start", "limit", "interior", "sizes")
_JOINED = ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch")
_SINGLE = (
    "output",
    "element_bytes",
    "floating",
    "operands",
    "results",
    "reduced",
    "feature_groups",
    "batch_groups",
)


def _names(vectors: Sequence[str]) -> tuple[str, ...]:
    parts = (*(str(at) for at in range(1, _PLACES + 1)), "sum", "product")
    return tuple(f"{vector}_{part}" for vector in vectors for part in parts)


#: Features of an operation, beside its opcode.
NODE: tuple[str, ...] = (
    *_SINGLE,
    *_names(("shape", "layout", "dimensions", *_WINDOW, *_CUTS, *_JOINED)),
)
#: Features of a kernel for any tile: the optional static performance features.
STATIC: tuple[str, ...] = ("flops", "bytes_read", "bytes_written", "transcendentals")
#: Features of a tile: its sides, and the block length of the longest sum (our addition).
TILE: tuple[str, ...] = (*_names(("tile",)), "terms")


def encoding_version() -> str:
    """8 hex digits that identify all features; weights fit one encoding only."""
    text = "\n".join(("3", *OPCODES, "", *NODE, "", *STATIC, "", *TILE))
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def node_row(kernel: TensorGraph, at: int) -> list[float]:
    """Features of one operation, in the order of `NODE`."""
    op, shapes = kernel.operations[at], kernel.operand_shapes(at)
    shape = op.shape
    single = (
        float(at in kernel.outputs),
        DTYPES[shape.dtype],
        float("f" in shape.dtype or shape.dtype.startswith("c")),
        len(op.operands),
        len(op.results),
        reduced(op, shapes),
        op.number("feature_groups", 0),
        op.number("batch_groups", 0),
    )
    row = [signed_log(value) for value in single]
    row += _vector([shape.dims[d] for d in shape.layout])
    row += _vector([d + 1 for d in shape.layout])
    row += _vector(_dimensions(op, shapes))
    for name in (*_WINDOW, *_CUTS):
        row += _vector(_by_memory(op.dims(name), shape))
    for name in _JOINED:
        side = 0 if name.startswith("lhs") else 1
        row += _vector(_places(op.dims(name), shapes[side]) if len(shapes) > side else ())
    return row


def tile_rows(kernel: TensorGraph, tiles: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
    """float32[c,t] of c configurations in the order of `TILE`; a size that is 0, missing, or larger
    than its dimension is that of the dimension."""
    sizes = kernel.sizes.symbols
    rank, terms = sizes["RANK"], sizes["REDUCED"]
    root = kernel.root
    # Dimensions before the last six are merged (`TensorGraph.sizes`): their order is then logical.
    order = root.layout if root.rank == rank else tuple(reversed(range(rank)))
    dims = [sizes[f"DIM_{d + 1}"] for d in order]
    names = [f"t{d + 1}" for d in order]
    rows = []
    for tile in tiles:
        sides = [_side(tile.get(name, 0), dim) for name, dim in zip(names, dims, strict=True)]
        rows.append([*_vector(sides), signed_log(_side(tile.get("tr", 0), terms))])
    return np.array(rows, dtype=np.float32).reshape(len(rows), len(TILE))


def _side(size: Any, whole: int) -> int:
    return min(size, whole) if isinstance(size, int) and size > 0 else whole


def _vector(values: Sequence[int]) -> list[float]:
    if not values:
        return [0.0] * (_PLACES + 2)
    plain = [*values[:_PLACES], *[0] * (_PLACES - len(values))]
    return [signed_log(value) for value in (*plain, sum(values), math.prod(values))]


def _dimensions(op: Operation, operands: Sequence[Shape]) -> list[int]:
    """Dimensions that an operation acts on, by position in memory."""
    own = op.opcode in ("broadcast", "concatenate", "iota", "reverse") or not operands
    named = op.dims("dimensions") or (
        (op.number("dimension", 0),) if "dimension" in op.attributes else ()
    )
    return _places(named, op.shape if own else operands[0])


def _places(dimensions: Sequence[int], shape: Shape) -> list[int]:
    return [shape.layout.index(d) + 1 for d in dimensions if d in shape.layout]


def _by_memory(values: Sequence[int], shape: Shape) -> list[int]:
    """One number for each dimension, or each spatial one, from the minor to the major."""
    if len(values) == shape.rank:
        return [values[d] for d in shape.layout]
    return list(reversed(values))


# -- A kernel as input of the network: operations as nodes, data flow as edges --------------------

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
    work = work_of(kernel)
    static = (work.flops, work.bytes_read, work.bytes_written, work.transcendentals)
    return KernelGraph(
        np.array([opcode_number(op.opcode) for op in operations], dtype=np.int64),
        np.array(rows, dtype=np.float32).reshape(-1, len(NODE)),
        _edges(operands),
        _edges(kernel.users),
        np.array([signed_log(value) for value in static], dtype=np.float32),
    )


def hidden(graph: KernelGraph, at: int) -> KernelGraph:
    """The graph with one operation hidden but for its edges: an unknown opcode, all features 0."""
    opcodes, features = graph.opcodes.copy(), graph.features.copy()
    opcodes[at], features[at] = 0, 0.0
    return replace(graph, opcodes=opcodes, features=features)


def _edges(sources: Sequence[tuple[int, ...]]) -> NDArray[np.int64]:
    """Edges from the sources of each node."""
    pairs = [(s, goal) for goal, some in enumerate(sources) for s in some[:MOST_NEIGHBOURS]]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2).T


# -- Kernels and tiles as rows of numbers without edges, for boosted trees ------------------------

Floats = NDArray[np.float32]
_SHAPE = slice(NODE.index("shape_1"), NODE.index("shape_sum"))
_SIDES = slice(TILE.index("tile_1"), TILE.index("tile_sum"))
#: Length of `statistics`, and of a row of `flat_rows`.
STATISTICS = len(STATIC) + len(OPCODES) + 3 * len(NODE) + 1
TILED = STATISTICS + len(TILE) + _SIDES.stop - _SIDES.start


def statistics(graph: KernelGraph) -> Floats:
    """float32[f]: static features, number of operations by opcode, the largest output, and maximum
    and sum of every feature of the operations."""
    counts = np.bincount(graph.opcodes, minlength=len(OPCODES)).astype(np.float32)
    features, root = graph.features, graph.features[_root(graph)]
    parts = (graph.static, np.log2(1 + counts), root, features.max(axis=0), features.sum(axis=0))
    return np.concatenate([*parts, [np.log2(1 + len(graph))]]).astype(np.float32)


def flat_rows(graph: KernelGraph, tiles: Floats) -> Floats:
    """float32[c,f] under tiles float32[c,t]: statistics of the kernel, its tile, and the number of
    tiles along each dimension, as logarithms."""
    own = statistics(graph)
    blocks = graph.features[_root(graph), _SHAPE] - tiles[:, _SIDES]
    shared = np.broadcast_to(own, (len(tiles), len(own)))
    return np.concatenate([shared, tiles, blocks], axis=1)


def _root(graph: KernelGraph) -> int:
    """Position of the largest output."""
    features = graph.features
    return int(np.argmax(features[:, 0] * (1 + features[:, NODE.index("shape_product")])))
