"""The attributes of an operation of TpuGraphs, as far as its columns and the shapes tell them."""

from __future__ import annotations

from collections.abc import Sequence

from embeddb.core.errors import TensorError
from embeddb.tensors.computation import Attribute, Shape
from indexer.readers.tensors.tpu_columns import Row

#: What they take elements from is the largest of their operands, and stands first in HLO.
_LARGEST_FIRST = frozenset(
    ("reduce", "reduce-window", "select-and-scatter", "pad", "dynamic-slice", "gather")
) | {"dynamic-update-slice"}
_COMBINERS = frozenset(("add", "multiply", "minimum", "maximum", "and", "or"))
_WINDOW = ("size", "stride", "low", "high", "lhs_dilate", "rhs_dilate")
Attributes = dict[str, Attribute]


def in_order(opcode: str, row: Row, shapes: Sequence[Shape], result: Shape) -> list[int]:
    """Places among the operands, in HLO's order."""
    order = list(range(len(shapes)))
    if opcode in ("convolution", "dot") and len(order) == 1:
        return [0, 0]
    if opcode in ("convolution", "dot") and len(order) == 2:
        fits = _is_filtered if opcode == "convolution" else _is_product
        first, second = shapes
        turned = fits(row, second, first, result) and not fits(row, first, second, result)
        return [1, 0] if turned else order
    if opcode in _LARGEST_FIRST:
        return sorted(order, key=lambda at: -shapes[at].elements)
    if opcode == "select":
        return sorted(order, key=lambda at: shapes[at].dtype != "pred")
    return order


def attributes_of(opcode: str, row: Row, taken: Sequence[Shape], result: Shape) -> Attributes:
    """`taken`: shapes of the operands, in order. Raises: TensorError."""
    first = taken[0] if taken else result
    match opcode:
        case "parameter":
            return {"number": 0}
        case "broadcast":
            return {"dimensions": row.numbers("dimensions", first.rank)}
        case "transpose":
            return {"dimensions": row.numbers("dimensions", result.rank)}
        case "reduce":
            return {"dimensions": row.numbers("dimensions", max(first.rank - result.rank, 0))}
        case "concatenate" | "iota":
            return {"dimension": row.numbers("dimensions", 1)[0]}
        case "dynamic-slice":
            return {"sizes": result.dims}
        case "slice" if result.rank <= 2:
            return {n: row.numbers(f"slice_{n}", result.rank) for n in ("start", "limit", "stride")}
        case "pad" if result.rank <= 2:
            return {n: row.numbers(f"pad_{n}", result.rank) for n in ("low", "high")}
        case "dot" if len(taken) > 1:
            return _contraction(taken[0], taken[1], result)
        case "reduce-window" | "select-and-scatter":
            return _window(row, row.told("size"))
        case "convolution":
            return _convolution(row, result)
    return {}


def called_combiner(root: str) -> Attributes:
    """What a body combines, by the opcode of its root."""
    return {"combine": root if root in _COMBINERS else "other"}


def _window(row: Row, rank: int) -> Attributes:
    return {name: row.numbers(name, rank) for name in _WINDOW}


def _convolution(row: Row, result: Shape) -> Attributes:
    spatial = row.told("size")
    if spatial + 2 != result.rank or spatial > 4:
        raise TensorError(f"operation {row.at}: a window over {spatial} dimensions of {result}")
    ends = row.numbers("output_ends", 2)
    between = tuple(at for at in range(result.rank) if at not in ends)
    labels = (
        _labels("bf", row.numbers("input_ends", 2), row.numbers("input_spatial", spatial))
        + "_"
        + _labels("io", row.numbers("kernel_ends", 2), row.numbers("kernel_spatial", spatial))
        + "->"
        + _labels("bf", ends, between)
    )
    if "?" in labels:
        raise TensorError(f"operation {row.at}: a convolution with the dimensions {labels}")
    features, batches = (max(n, 1) for n in row.numbers("groups", 2))
    told: Attributes = {"labels": labels, "feature_groups": features, "batch_groups": batches}
    reversal = row.numbers("reversal", spatial)
    return _window(row, spatial) | told | ({"reversal": reversal} if any(reversal) else {})


def _labels(words: str, ends: Sequence[int], spatial: Sequence[int]) -> str:
    """`b01f` for batch in 0, features in 3, the window over 1 and 2; `?` where nothing is."""
    named = {**dict(zip(ends, words, strict=True)), **{d: str(n) for n, d in enumerate(spatial)}}
    return "".join(named.get(at, "?") for at in range(len(ends) + len(spatial)))


def _is_product(row: Row, lhs: Shape, rhs: Shape, result: Shape) -> bool:
    return bool(_contraction(lhs, rhs, result))


def _is_filtered(row: Row, given: Shape, weights: Shape, result: Shape) -> bool:
    """Whether these can be what a convolution goes over, and its filter."""
    spatial = row.told("size")
    if not weights.rank == given.rank == result.rank == spatial + 2:
        return False
    terms, features = row.numbers("kernel_ends", 2)
    places = (terms, features, *row.numbers("kernel_spatial", spatial))
    taken, made = row.numbers("input_ends", 2)[1], row.numbers("output_ends", 2)[1]
    if not all(0 <= at < result.rank for at in (*places, taken, made)):
        return False
    groups = max(row.numbers("groups", 1)[0], 1)
    window = tuple(weights.dims[at] for at in places[2:])
    return (
        weights.dims[terms] * groups == given.dims[taken]
        and weights.dims[features] == result.dims[made]
        and window == row.numbers("size", spatial)
    )


def _contraction(lhs: Shape, rhs: Shape, result: Shape) -> Attributes:
    """The dimension that is summed over, of both, below the most leading ones that are batches; {}
    where none fits. The last of the left and the first of the right go first, as in x @ w."""
    most = min(lhs.rank, rhs.rank, result.rank + 1) - 1
    for batch in reversed(range(max(most, 0) + 1)):
        if not lhs.dims[:batch] == rhs.dims[:batch] == result.dims[:batch]:
            continue
        for left in reversed(range(batch, lhs.rank)):
            for right in range(batch, rhs.rank):
                rest = lhs.dims[batch:left] + lhs.dims[left + 1 :]
                rest += rhs.dims[batch:right] + rhs.dims[right + 1 :]
                if lhs.dims[left] == rhs.dims[right] and rest == result.dims[batch:]:
                    batches = tuple(range(batch))
                    found: Attributes = {"lhs_contracting": (left,), "rhs_contracting": (right,)}
                    return found | ({"lhs_batch": batches, "rhs_batch": batches} if batch else {})
    return {}
