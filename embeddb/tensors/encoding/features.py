"""What a network is told of an operation, of a kernel and of a tile ("A Learned Performance Model
for Tensor Processing Units", Section 3.1).

What is several numbers (shape, layout, window) has six places, padded with 0 or cut short, then the
sum and the product of all of them. Ours, because the paper does not state it: every number v is
read as sign(v) log2(1 + |v|), so that min-max scaling leaves small sizes apart; dimensions come
from the minor to the major one in memory, so that the one that is vectorised is always the first;
dimensions that an attribute names are told by their place in memory, 1 the minor one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.tensors.analysis import work_of
from embeddb.tensors.encoding.operation_rows import OPCODES
from embeddb.tensors.tensor_graph import DTYPES, Operation, Shape, TensorGraph, reduced

#: Numbers of a vector before its sum and product.
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


#: Coordinates of an operation, beside its opcode.
NODE: tuple[str, ...] = (
    *_SINGLE,
    *_names(("shape", "layout", "dimensions", *_WINDOW, *_CUTS, *_JOINED)),
)
#: Of a kernel, whatever its tile: the optional static performance features.
STATIC: tuple[str, ...] = ("flops", "bytes_read", "bytes_written", "transcendentals")
#: Of a tile: its sides, and in how long blocks the longest sum runs (ours).
TILE: tuple[str, ...] = (*_names(("tile",)), "terms")
#: The parameters that say what a tile is, as platform `tile-cpu` has them; 0 is the whole.
TILE_PARAMETERS: tuple[str, ...] = (*(f"t{at}" for at in range(1, _PLACES + 1)), "tr")


def encoding_version() -> str:
    """8 hex digits that stand for all coordinates; weights fit one encoding only."""
    told = "\n".join(("3", *OPCODES, "", *NODE, "", *STATIC, "", *TILE))
    return hashlib.blake2b(told.encode(), digest_size=4).hexdigest()


def node_row(kernel: TensorGraph, at: int) -> list[float]:
    """The operation at a place, in the order of `NODE`."""
    op, given = kernel.operations[at], kernel.operand_shapes(at)
    shape = op.shape
    single = (
        float(at in kernel.outputs),
        DTYPES[shape.dtype],
        float("f" in shape.dtype or shape.dtype.startswith("c")),
        len(op.operands),
        len(op.results),
        reduced(op, given),
        _whole(op, "feature_groups"),
        _whole(op, "batch_groups"),
    )
    row = [_read(value) for value in single]
    row += _vector([shape.dims[d] for d in shape.layout])
    row += _vector([d + 1 for d in shape.layout])
    row += _vector(_dimensions(op, given))
    for name in (*_WINDOW, *_CUTS):
        row += _vector(_by_memory(op.dims(name), shape))
    for name in _JOINED:
        side = 0 if name.startswith("lhs") else 1
        row += _vector(_places(op.dims(name), given[side]) if len(given) > side else ())
    return row


def static_row(kernel: TensorGraph) -> NDArray[np.float32]:
    """float32[4] in the order of `STATIC`."""
    work = work_of(kernel)
    told = (work.flops, work.bytes_read, work.bytes_written, work.transcendentals)
    return np.array([_read(value) for value in told], dtype=np.float32)


def tile_rows(kernel: TensorGraph, tiles: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
    """float32[c,t] of c configurations in the order of `TILE`; a size that is 0, or not there, or
    larger than its dimension, is that dimension's."""
    sizes = kernel.sizes.symbols
    rank, terms = sizes["RANK"], sizes["REDUCED"]
    root = kernel.root
    # Dimensions before the last six are one (`TensorGraph.sizes`): its places are then as logical.
    order = root.layout if root.rank == rank else tuple(reversed(range(rank)))
    dims = [sizes[f"DIM_{d + 1}"] for d in order]
    names = [f"t{d + 1}" for d in order]
    rows = []
    for tile in tiles:
        sides = [_side(tile.get(name, 0), dim) for name, dim in zip(names, dims, strict=True)]
        rows.append([*_vector(sides), _read(_side(tile.get("tr", 0), terms))])
    return np.array(rows, dtype=np.float32).reshape(len(rows), len(TILE))


def _side(size: Any, whole: int) -> int:
    return min(size, whole) if isinstance(size, int) and size > 0 else whole


def _read(value: float) -> float:
    return math.copysign(math.log2(1 + abs(value)), value)


def _vector(values: Sequence[int]) -> list[float]:
    if not values:
        return [0.0] * (_PLACES + 2)
    plain = [*values[:_PLACES], *[0] * (_PLACES - len(values))]
    return [_read(value) for value in (*plain, sum(values), math.prod(values))]


def _whole(op: Operation, name: str) -> int:
    value = op.attributes.get(name, 0)
    return value if isinstance(value, int) else 0


def _dimensions(op: Operation, given: Sequence[Shape]) -> list[int]:
    """The dimensions that an operation is about, by their places in memory."""
    own = op.opcode in ("broadcast", "concatenate", "iota", "reverse") or not given
    named = op.dims("dimensions") or (
        (_whole(op, "dimension"),) if "dimension" in op.attributes else ()
    )
    return _places(named, op.shape if own else given[0])


def _places(dimensions: Sequence[int], shape: Shape) -> list[int]:
    return [shape.layout.index(d) + 1 for d in dimensions if d in shape.layout]


def _by_memory(values: Sequence[int], shape: Shape) -> list[int]:
    """One number for each dimension, or for each spatial one, from the minor to the major."""
    if len(values) == shape.rank:
        return [values[d] for d in shape.layout]
    return list(reversed(values))
