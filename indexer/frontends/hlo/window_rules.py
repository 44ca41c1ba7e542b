"""Shape inference for HLO's windows (convolutions, pooling) and indexed reads and writes."""

from __future__ import annotations

from collections.abc import Sequence

from embeddb.core.errors import TensorError
from embeddb.tensors.computation import Operation
from embeddb.tensors.edges import ConvolutionLabels
from indexer.frontends.hlo.shape_rules import Applied, Dims, Rule, check_axes

_PARTS = ("size", "stride", "low", "high", "lhs_dilate", "rhs_dilate")


def _windowed(call: Applied, sizes: Sequence[int]) -> Dims:
    """The number of places of a window along dimensions of these sizes."""
    parts = [call.dims(name) for name in _PARTS]
    if any(len(part) != len(sizes) for part in parts):
        raise TensorError(f"the window has {len(parts[0])} of {len(sizes)} dimensions")
    out = []
    for size, window, stride, low, high, apart, spread in zip(sizes, *parts, strict=True):
        if min(window, stride, apart, spread) < 1:
            raise TensorError("the window's sizes, strides and dilations must be positive")
        padded = low + high + ((size - 1) * apart + 1 if size else 0)
        span = (window - 1) * spread + 1
        out.append((padded - span) // stride + 1 if padded >= span else 0)
    return tuple(out)


def _convolution(call: Applied) -> list[Dims]:
    data, weights = (shape.dims for shape in call.take(2))
    labels = ConvolutionLabels.of(Operation(call.opcode, call.results, (), call.attributes))
    rank = 2 + len(labels.spatial)
    if len(data) != rank or len(weights) != rank:
        raise TensorError(f"its labels are for {rank} dimensions")
    groups, batches = call.whole("feature_groups", 1), call.whole("batch_groups", 1)
    size = tuple(weights[axis] for axis in labels.weights_spatial)
    outputs = weights[labels.weights_out]
    if size != call.dims("size"):
        raise TensorError("the window is not as large as the weights")
    if groups < 1 or batches < 1 or outputs % groups or outputs % batches:
        raise TensorError(f"{outputs} features of the result are not divided by its groups")
    if data[labels.feature] != weights[labels.weights_in] * groups:
        raise TensorError(
            f"{data[labels.feature]} features are not {weights[labels.weights_in]} x {groups}"
        )
    if data[labels.batch] % batches:
        raise TensorError(f"a batch of {data[labels.batch]} is not divided by {batches}")
    out = [0] * rank
    out[labels.out_batch] = data[labels.batch] // batches
    out[labels.out_feature] = outputs
    places = _windowed(call, [data[axis] for axis in labels.spatial])
    for axis, count in zip(labels.out_spatial, places, strict=True):
        out[axis] = count
    return [tuple(out)]


def _reduce_window(call: Applied) -> list[Dims]:
    count = len(call.operands) // 2
    arrays, starts = call.operands[:count], call.operands[count:]
    if not count or len(starts) != count or any(shape.rank for shape in starts):
        raise TensorError("it takes arrays and as many scalars to start from")
    if any(shape.dims != arrays[0].dims for shape in arrays):
        raise TensorError("the arrays differ in size")
    return [_windowed(call, arrays[0].dims)] * count


def _select_and_scatter(call: Applied) -> list[Dims]:
    operand, source, start = call.take(3)
    if start.rank:
        raise TensorError("the value to start from is no scalar")
    if source.dims != (places := _windowed(call, operand.dims)):
        raise TensorError(f"the window has {list(places)} places, the source {list(source.dims)}")
    return [operand.dims]


def _indexed(call: Applied, indices: Dims) -> Dims:
    """The sizes of the indices without the dimension that holds the parts of one index."""
    axis = (*call.numbers("index_vector_dim"), len(indices))[0]
    if not 0 <= axis <= len(indices):
        raise TensorError(f"index_vector_dim={axis} does not fit {len(indices)} dimensions")
    return (*indices[:axis], *indices[axis + 1 :])


def _index_parts(call: Applied, indices: Dims, to: Dims, rank: int, name: str) -> None:
    axis = (*call.numbers("index_vector_dim"), len(indices))[0]
    parts = indices[axis] if axis < len(indices) else 1
    check_axes(to, rank, name)
    if parts != len(to):
        raise TensorError(f"an index has {parts} parts, {name} {len(to)}")


def _merged(outer: Dims, inner: Dims, places: Dims) -> Dims:
    """`inner` at the `places` of the result, `outer` at the others, both in order."""
    check_axes(places, len(outer) + len(inner), "offset_dims")
    if len(places) != len(inner):
        raise TensorError(f"a slice has {len(inner)} dimensions, the result {len(places)} for it")
    rest, own = iter(outer), iter(inner)
    total = len(outer) + len(inner)
    return tuple(next(own) if at in places else next(rest) for at in range(total))


def _gather(call: Applied) -> list[Dims]:
    operand, indices = (shape.dims for shape in call.take(2))
    sizes = call.numbers("slice_sizes")
    left_out = (*call.numbers("collapsed_slice_dims"), *call.numbers("operand_batching_dims"))
    outer = _indexed(call, indices)
    _index_parts(call, indices, call.numbers("start_index_map"), len(operand), "start_index_map")
    check_axes(left_out, len(operand), "collapsed_slice_dims")
    if len(sizes) != len(operand) or any(a > b for a, b in zip(sizes, operand, strict=True)):
        raise TensorError(f"slices of {list(sizes)} are larger than {list(operand)}")
    if any(sizes[axis] > 1 for axis in left_out):
        raise TensorError("a dimension that is left out has slices of more than 1")
    inner = tuple(n for axis, n in enumerate(sizes) if axis not in left_out)
    return [_merged(outer, inner, call.numbers("offset_dims"))]


def _scatter(call: Applied) -> list[Dims]:
    count = (len(call.operands) - 1) // 2
    if count < 1 or len(call.operands) != 2 * count + 1:
        raise TensorError("it takes arrays, indices and as many updates")
    arrays, indices = call.operands[:count], call.operands[count].dims
    operand = arrays[0].dims
    left_out = (*call.numbers("inserted_window_dims"), *call.numbers("input_batching_dims"))
    check_axes(left_out, len(operand), "inserted_window_dims")
    to = call.numbers("scatter_dims_to_operand_dims")
    _index_parts(call, indices, to, len(operand), "scatter_dims_to_operand_dims")
    outer, windows = _indexed(call, indices), call.numbers("update_window_dims")
    most = tuple(n for axis, n in enumerate(operand) if axis not in left_out)
    for array, update in zip(arrays, call.operands[count + 1 :], strict=True):
        check_axes(windows, update.rank, "update_window_dims")
        own = tuple(update.dims[axis] for axis in windows)
        rest = tuple(n for axis, n in enumerate(update.dims) if axis not in windows)
        fits = len(own) == len(most) and all(a <= b for a, b in zip(own, most, strict=True))
        if array.dims != operand or rest != outer or not fits:
            raise TensorError(f"updates of {list(update.dims)} do not fit the indices or the array")
    return [operand] * count


WINDOW_RULES: dict[str, Rule] = {
    "convolution": _convolution,
    "gather": _gather,
    "reduce-window": _reduce_window,
    "scatter": _scatter,
    "select-and-scatter": _select_and_scatter,
}
