"""Check of a module's shapes: every instruction against its operands and bodies.

Rules for the results of most opcodes are in `shape_rules`; those of windows, gathers and scatters
are here, and those of tuples, calls and the pairs of start and done. Unused instructions are
checked as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from embeddb.core.errors import TensorError
from embeddb.tensors.edges import ConvolutionLabels
from embeddb.tensors.tensor_graph import DTYPES, Operation, Shape
from indexer.frontends.hlo.attributes import BODIES, canonical, number_of
from indexer.frontends.hlo.instructions import Body, Instruction, Module, ShapeTree, leaves
from indexer.frontends.hlo.shape_rules import (
    RULES,
    SAME_TYPE,
    Applied,
    Dims,
    Rule,
    by_dimension,
    check_axes,
    check_within,
    reduced_arrays,
)

_PARTS = ("size", "stride", "low", "high", "lhs_dilate", "rhs_dilate")


def _windowed(call: Applied, sizes: Sequence[int]) -> Dims:
    """Number of positions of a window along dimensions of these sizes."""
    parts = by_dimension(call, _PARTS, len(sizes), "the window has")
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
    labels = ConvolutionLabels.of(call.op)
    rank = 2 + len(labels.spatial)
    if len(data) != rank or len(weights) != rank:
        raise TensorError(f"its labels are for {rank} dimensions")
    groups, batches = call.op.number("feature_groups", 1), call.op.number("batch_groups", 1)
    size = tuple(weights[axis] for axis in labels.weights_spatial)
    outputs = weights[labels.weights_out]
    if size != call.op.dims("size"):
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
    arrays = reduced_arrays(call)
    return [_windowed(call, arrays[0].dims)] * len(arrays)


def _select_and_scatter(call: Applied) -> list[Dims]:
    operand, source, start = call.take(3)
    if start.rank:
        raise TensorError("the value to start from is no scalar")
    if source.dims != (places := _windowed(call, operand.dims)):
        raise TensorError(f"the window has {list(places)} places, the source {list(source.dims)}")
    return [operand.dims]


def _indexed(call: Applied, indices: Dims, rank: int, name: str) -> Dims:
    """The sizes of the indices without the dimension that holds the parts of one index, which the
    attribute `name` assigns to dimensions of an array."""
    axis = (*call.numbers("index_vector_dim"), len(indices))[0]
    if not 0 <= axis <= len(indices):
        raise TensorError(f"index_vector_dim={axis} does not fit {len(indices)} dimensions")
    parts, to = (*indices, 1)[axis], call.numbers(name)
    check_axes(to, rank, name)
    if parts != len(to):
        raise TensorError(f"an index has {parts} parts, {name} {len(to)}")
    return (*indices[:axis], *indices[axis + 1 :])


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
    outer = _indexed(call, indices, len(operand), "start_index_map")
    check_axes(left_out, len(operand), "collapsed_slice_dims")
    check_within(sizes, operand, "slice")
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
    outer = _indexed(call, indices, len(operand), "scatter_dims_to_operand_dims")
    windows = call.numbers("update_window_dims")
    most = tuple(n for axis, n in enumerate(operand) if axis not in left_out)
    for array, update in zip(arrays, call.operands[count + 1 :], strict=True):
        check_axes(windows, update.rank, "update_window_dims")
        own = tuple(update.dims[axis] for axis in windows)
        rest = tuple(n for axis, n in enumerate(update.dims) if axis not in windows)
        fits = len(own) == len(most) and all(a <= b for a, b in zip(own, most, strict=True))
        if array.dims != operand or rest != outer or not fits:
            raise TensorError(f"updates of {list(update.dims)} do not fit the indices or the array")
    return [operand] * count


_RULES: dict[str, Rule] = RULES | {
    "convolution": _convolution,
    "gather": _gather,
    "reduce-window": _reduce_window,
    "scatter": _scatter,
    "select-and-scatter": _select_and_scatter,
}


_MOST_SHOWN = 200
#: XLA lets these be mixed.
_FLOATS = frozenset(("f8e4m3fn", "f8e5m2", "f16", "bf16", "f32", "f64"))


def check_module(module: Module) -> None:
    """Raises: TensorError, with the line of the first instruction that cannot be."""
    for body in module.bodies.values():
        _check_parameters(body)
        for takes, gives in body.signatures:
            try:
                result = _called(module, body.name, takes)
                if not _same(gives, result):
                    raise TensorError(f"{body.name} gives {tree_text(result)}")
            except TensorError as error:
                reason = f"the signature of {body.name} does not fit it: {error.reason}"
                raise TensorError(reason[:_MOST_SHOWN], line=body.line) from None
        for one in body.instructions.values():
            try:
                _check(module, body, one)
            except TensorError as error:
                raise TensorError(error.reason, line=one.line, hint=error.hint) from None


def _check_parameters(body: Body) -> None:
    """Raises: TensorError, with the line, unless the parameters have the numbers from 0 on."""
    named: dict[int, str] = {}
    last = body.line
    for one in body.instructions.values():
        if one.opcode != "parameter":
            continue
        try:
            number = number_of(one)
        except TensorError as error:
            raise TensorError(f"{one.name}: {error.reason}", line=one.line) from None
        if other := named.get(number):
            reason = f"{one.name} and {other} of {body.name} are both parameter {number}"
            raise TensorError(reason, line=one.line)
        named[number], last = one.name, one.line
    if missing := sorted(set(range(len(named))) - named.keys()):
        raise TensorError(f"{body.name} has no parameter {missing[0]}", line=last)


def _check_results(call: Applied) -> None:
    """Raises: TensorError, with the reason alone, if results do not follow from operands."""
    expected = _RULES[call.op.opcode](call)
    if len(expected) != len(call.op.results):
        raise TensorError(f"it gives {len(expected)} results, not {len(call.op.results)}")
    for dims, result in zip(expected, call.op.results, strict=True):
        if dims != result.dims:
            raise TensorError(f"it gives [{','.join(map(str, dims))}]")
    _check_types(call)


def _check_types(call: Applied) -> None:
    """Raises: TensorError if arrays that must be of one type differ, floating types of any width
    counting as one, and if a predicate is no `pred`."""
    decisions: Sequence[Shape] = ()
    alike: Sequence[Shape] = ()
    match call.op.opcode:
        case "select":
            decisions, alike = call.operands[:1], (*call.operands[1:], *call.op.results)
        case "compare":
            decisions, alike = call.op.results, call.operands
        case "is-finite":
            decisions = call.op.results
        case "gather" | "dynamic-slice" | "dynamic-update-slice" | "copy":
            alike = (call.operands[0], *call.op.results)
        case opcode if opcode in SAME_TYPE:
            alike = (*call.operands, *call.op.results)
    types = {shape.dtype for shape in alike}
    classes = {"float" if name in _FLOATS else name for name in types}
    if len(classes) > 1 and types <= DTYPES.keys():
        raise TensorError(f"the types {', '.join(sorted(types))} differ")
    if wrong := [shape for shape in decisions if shape.dtype != "pred"]:
        raise TensorError(f"{wrong[0]} is no pred")


def tree_text(shape: ShapeTree) -> str:
    """A shape as HLO writes it."""
    if isinstance(shape, Shape):
        return str(shape)
    return f"({', '.join(map(tree_text, shape))})"


def _check(module: Module, body: Body, one: Instruction) -> None:
    inputs: list[ShapeTree] = []
    for at, name in enumerate(one.operands):
        if name not in body.instructions:
            raise TensorError(f"{one.name} takes {name[:60]!r}, which is undefined")
        inputs.append(body.instructions[name].shape)
        written = one.operand_shapes[at] if at < len(one.operand_shapes) else None
        if written is not None and not _same(written, inputs[at]):
            raise TensorError(
                f"{one.name} takes {tree_text(written)}, but {name} is {tree_text(inputs[at])}"
            )
    for key in BODIES & one.attributes.keys():
        for called in one.called(key):
            if called not in module.bodies:
                raise TensorError(f"there is no computation {called[:60]!r}: the dump was cut off")
    try:
        if one.opcode in _STRUCTURAL:
            expected = _STRUCTURAL[one.opcode](module, one, inputs)
            if expected is not None and not _same(expected, one.shape):
                raise TensorError(f"it gives {tree_text(expected)}")
        elif one.opcode in _RULES:
            operands = tuple(leaf for shape in inputs for leaf in leaves(shape))
            raw = one.attributes | ({"literal": [one.literal]} if one.literal else {})
            op = Operation(one.opcode, tuple(leaves(one.shape)), (), canonical(one))
            _check_results(Applied(op, operands, raw))
    except TensorError as error:
        taken = " and ".join(map(tree_text, inputs)) or "nothing"
        shapes = f"{taken} gives {tree_text(one.shape)}"[:_MOST_SHOWN]
        reason = f"operation {one.name}: no {one.opcode} of {shapes}: {error.reason}"
        raise TensorError(reason, hint=error.hint) from None


def _same(a: ShapeTree, b: ShapeTree) -> bool:
    """Type and dimensions; layouts may differ."""
    if isinstance(a, Shape) or isinstance(b, Shape):
        both = isinstance(a, Shape) and isinstance(b, Shape)
        return both and (a.dtype, a.dims) == (b.dtype, b.dims)  # type: ignore[union-attr]
    return len(a) == len(b) and all(map(_same, a, b))


def _called(module: Module, name: str, inputs: Sequence[ShapeTree]) -> ShapeTree:
    """The result of a computation with these operands. Raises: TensorError if its parameters
    differ."""
    body = module.bodies[name]
    numbers = set()
    for one in body.instructions.values():
        if one.opcode != "parameter":
            continue
        number = number_of(one)
        numbers.add(number)
        if not 0 <= number < len(inputs):
            raise TensorError(f"parameter {number} of {name} with {len(inputs)} operands")
        if not _same(one.shape, inputs[number]):
            shapes = f"{tree_text(one.shape)}, operand {number} is {tree_text(inputs[number])}"
            raise TensorError(f"parameter {one.name} of {name} is {shapes}")
    if len(numbers) != len(inputs):
        raise TensorError(f"{name} takes {len(numbers)} operands, not {len(inputs)}")
    return body.instructions[body.root].shape


def _part(inputs: Sequence[ShapeTree], index: int) -> ShapeTree:
    """Part of the tuple that is the only operand."""
    if len(inputs) != 1 or isinstance(inputs[0], Shape):
        raise TensorError("it takes a part, but its operand is no tuple")
    if not 0 <= index < len(inputs[0]):
        raise TensorError(f"it takes part {index} of {len(inputs[0])}")
    return inputs[0][index]


_Structural = Callable[[Module, Instruction, Sequence[ShapeTree]], ShapeTree | None]


def _element(module: Module, one: Instruction, inputs: Sequence[ShapeTree]) -> ShapeTree:
    index = canonical(one)["index"]
    assert isinstance(index, int)
    return _part(inputs, index)


def _operand(module: Module, one: Instruction, inputs: Sequence[ShapeTree]) -> ShapeTree:
    if not inputs:
        raise TensorError("it takes an operand")
    return inputs[0]


def _call(module: Module, one: Instruction, inputs: Sequence[ShapeTree]) -> ShapeTree:
    names = one.called("to_apply" if "to_apply" in one.attributes else "calls")
    if len(names) != 1:
        raise TensorError(f"{one.opcode} names no computation")
    return _called(module, names[0], inputs)


def _async_start(module: Module, one: Instruction, inputs: Sequence[ShapeTree]) -> ShapeTree:
    """The operands, the result, and the compiler's own values."""
    result = _call(module, one, inputs)
    rest = () if isinstance(one.shape, Shape) else one.shape[2:]
    return (tuple(inputs), result, *rest)


def _while(module: Module, one: Instruction, inputs: Sequence[ShapeTree]) -> ShapeTree:
    state = _operand(module, one, inputs)
    for key in ("condition", "body"):
        for name in one.called(key):
            result = _called(module, name, inputs)
            if key == "body" and not _same(result, state):
                raise TensorError(f"{name} gives {tree_text(result)}")
    return state


def _conditional(module: Module, one: Instruction, inputs: Sequence[ShapeTree]) -> ShapeTree | None:
    names = one.called("branch_computations", "true_computation", "false_computation")
    if len(inputs) != len(names) + 1:
        raise TensorError(f"{len(names)} branches with {len(inputs)} operands")
    results = [_called(module, n, [own]) for n, own in zip(names, inputs[1:], strict=True)]
    if any(not _same(result, results[0]) for result in results):
        raise TensorError("its branches give different shapes")
    return results[0] if results else None


def _copy_start(module: Module, one: Instruction, inputs: Sequence[ShapeTree]) -> ShapeTree:
    rest = () if isinstance(one.shape, Shape) else one.shape[2:]
    return (_operand(module, one, inputs), inputs[0], *rest)


#: Rules for the shape of an instruction; None allows any.
_STRUCTURAL: dict[str, _Structural] = {
    **dict.fromkeys(("opt-barrier", "add-dependency", "domain", "async-update"), _operand),
    **dict.fromkeys(("call", "fusion"), _call),
    **dict.fromkeys(
        ("async-done", "all-gather-done", "collective-permute-done"),
        lambda _, __, inputs: _part(inputs, 1),
    ),
    "all-reduce-done": _operand,
    "async-start": _async_start,
    "conditional": _conditional,
    "copy-done": lambda _, __, inputs: _part(inputs, 0),
    "copy-start": _copy_start,
    "get-tuple-element": _element,
    "recv-done": lambda _, __, inputs: (_part(inputs, 0), _part(inputs, 2)),
    "tuple": lambda _, __, inputs: tuple(inputs),
    "while": _while,
}
