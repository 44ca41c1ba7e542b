"""A kernel as values: layouts, reshapes, transposes, slices and broadcasts become index
expressions; the remaining values are numbers, element-wise operations, paddings, concatenations and
sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from embeddb.core.errors import TensorError
from embeddb.tensors.analysis import ELEMENTWISE
from embeddb.tensors.tensor_graph import Operation, Shape, TensorGraph
from embeddb.tensors.tiling.forms import ZERO, Forms, divided, modulo, whole
from embeddb.tensors.tiling.sums import Sums
from embeddb.tensors.tiling.values import SUPPORTED, Value, Values, number_of, strides_of

#: Operations that return their operand unchanged.
_SAME = ("copy", "optimization-barrier", "domain", "reduce-precision")


def values_of(kernel: TensorGraph) -> Values:
    """Values of a kernel. Raises: TensorError, one line that names an unsupported operation."""
    builder = _Builder(kernel)
    for at, operation in enumerate(kernel.operations):
        name = kernel.names[at] if kernel.names else operation.opcode
        for shape in operation.results:
            if shape.dtype not in SUPPORTED:
                raise TensorError(f"{name}: arrays of {shape.dtype} are not supported")
        try:
            builder.place.append(builder.operation(operation, kernel.operand_shapes(at)))
        except (IndexError, KeyError, ValueError, ZeroDivisionError):
            raise TensorError(f"{name}: its attributes do not fit its shapes") from None
        except TensorError as error:
            raise TensorError(f"{name}: {error}") from None
    outputs = tuple(builder.place[at] for at in kernel.outputs)
    largest = max(outputs, key=lambda at: builder.values[at].elements)
    return Values(tuple(builder.values), outputs, largest)


class _Builder(Sums):
    """Values so far, and the position of the value of each operation."""

    def __init__(self, kernel: TensorGraph) -> None:
        super().__init__()
        self.place: list[int] = []
        self._given = 0

    def operation(self, op: Operation, shapes: Sequence[Shape]) -> int:
        if len(op.results) != 1:
            raise TensorError(f"{op.opcode} has several results")
        operands = tuple(self.place[at] for at in op.operands)
        if op.opcode in ELEMENTWISE and op.opcode not in _SAME:
            return self._map(op, operands)
        if op.opcode in ("parameter", "constant", "iota"):
            return self.add(self._leaf(op))
        if (seen := _seen(op, shapes)) is not None:
            return self._view(op, operands[0], seen)
        match op.opcode:
            case "pad":
                low, gap = op.dims("low"), op.dims("interior") or (0,) * op.shape.rank
                _alike(low, gap, op.shape.dims)
                return self.pad(operands[0], operands[1], op.shape.dims, low, gap)
            case "concatenate":
                return self._join(op, operands, shapes)
            case "dot":
                return self.dot(op, operands, shapes)
            case "convolution":
                return self.convolution(op, operands, shapes)
            case "reduce":
                return self.reduce(op, operands, shapes)
            case "reduce-window":
                return self.reduce_window(op, operands, shapes)
        raise TensorError(f"{op.opcode} is not supported")

    def _leaf(self, op: Operation) -> Value:
        """Value of an operation without operands."""
        dims, dtype = op.shape.dims, op.shape.dtype
        if op.opcode == "parameter":
            self._given += 1
            strides = strides_of(op.shape)
            return Value("given", dtype, dims, number=self._given - 1, strides=strides)
        if op.opcode == "iota":
            return Value("iota", dtype, dims, number=_one(op, "dimension"))
        if "value" not in op.attributes:
            raise TensorError("a constant of several numbers is not stored")
        text = str(op.attributes["value"])
        number_of(text, dtype)
        return Value("number", dtype, dims, text=text)

    def _map(self, op: Operation, operands: tuple[int, ...]) -> int:
        dims = [self.values[o].dims for o in operands]
        if any(d and d != op.shape.dims for d in dims):
            raise ValueError
        text = str(op.attributes.get("direction", ""))
        return self.add(
            Value(
                "map",
                op.shape.dtype,
                op.shape.dims,
                operands,
                op.opcode,
                text=text,
                access=lambda forms, _: [forms if d else () for d in dims],
            )
        )

    def _view(self, op: Operation, operand: int, seen: Callable[[Forms], Forms]) -> int:
        return self.add(
            Value(
                "view",
                op.shape.dtype,
                op.shape.dims,
                (operand,),
                access=lambda forms, _: [seen(forms)],
            )
        )

    def _join(self, op: Operation, operands: tuple[int, ...], shapes: Sequence[Shape]) -> int:
        along = _one(op, "dimension")
        if sum(shape.dims[along] for shape in shapes) != op.shape.dims[along]:
            raise ValueError
        starts = [sum(s.dims[along] for s in shapes[:at]) for at in range(len(shapes))]

        def access(forms: Forms, _: Forms) -> list[Forms]:
            return [(*forms[:along], forms[along] + -s, *forms[along + 1 :]) for s in starts]

        value = Value("join", op.shape.dtype, op.shape.dims, operands, number=along, access=access)
        return self.add(value)


def _seen(op: Operation, shapes: Sequence[Shape]) -> Callable[[Forms], Forms] | None:
    """Map from the index of a result element to the same element in the first operand; None where
    elements are computed.

    Raises: ValueError, IndexError where attributes do not fit the shapes.
    """
    match op.opcode:
        case "broadcast":
            to, of = op.dims("dimensions"), shapes[0].dims
            if len(to) != len(of) or not all(0 <= d < op.shape.rank for d in to):
                raise ValueError
            return lambda f: tuple(f[d] if n > 1 else ZERO for d, n in zip(to, of, strict=True))
        case "transpose":
            perm = op.dims("dimensions")
            if sorted(perm) != list(range(op.shape.rank)):
                raise ValueError
            return lambda f: tuple(f[perm.index(d)] for d in range(len(perm)))
        case "reshape" | "bitcast":
            return _reshaping(op, shapes[0])
        case "slice":
            start = op.dims("start")
            stride = op.dims("stride") or (1,) * len(start)
            _alike(start, stride, op.shape.dims)
            return lambda f: tuple(x * s + a for x, a, s in zip(f, start, stride, strict=True))
        case "reverse":
            turned, dims = op.dims("dimensions"), op.shape.dims
            return lambda f: tuple(
                x * -1 + (dims[d] - 1) if d in turned else x for d, x in enumerate(f)
            )
    return (lambda forms: forms) if op.opcode in _SAME else None


def _reshaping(op: Operation, operand: Shape) -> Callable[[Forms], Forms]:
    if operand.elements != op.shape.elements or operand.dtype != op.shape.dtype:
        raise ValueError
    orders = (op.shape, operand)
    if op.opcode == "reshape":
        orders = (Shape(operand.dtype, op.shape.dims), Shape(operand.dtype, operand.dims))
    return lambda f: _reshaped(f, *orders)


def _reshaped(forms: Forms, shape: Shape, operand: Shape) -> Forms:
    """Index in the operand of the element at the same position in memory order."""
    place = ZERO
    for form, stride in zip(forms, strides_of(shape), strict=True):
        place = place + form * stride
    indices = []
    for dim, stride in zip(operand.dims, strides_of(operand), strict=True):
        outermost = stride * dim == operand.elements
        here = divided(place, stride)
        indices.append(whole(0) if dim == 1 else here if outermost else modulo(here, dim))
    return tuple(indices)


def _alike(*parts: Sequence[int]) -> None:
    if len({len(part) for part in parts}) != 1:
        raise ValueError


def _one(op: Operation, name: str) -> int:
    """An attribute that is a dimension of the result."""
    value = op.attributes.get(name, 0)
    if not isinstance(value, int) or not 0 <= value < op.shape.rank:
        raise ValueError
    return value
