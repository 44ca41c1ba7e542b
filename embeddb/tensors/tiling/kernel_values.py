"""A kernel as values: layouts, reshapes, transposes, slices and broadcasts become index
expressions; what remains are numbers, element-wise operations, paddings, concatenations and sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from embeddb.core.errors import TensorError
from embeddb.tensors.analysis import COMBINES, ELEMENTWISE
from embeddb.tensors.edges import ConvolutionLabels
from embeddb.tensors.tensor_graph import Operation, Shape, TensorGraph
from embeddb.tensors.tiling.forms import (
    SUPPORTED,
    ZERO,
    Access,
    Form,
    Forms,
    Value,
    Var,
    divided,
    modulo,
    number_of,
    position,
    strides_of,
)

#: Operations that return their operand unchanged.
_SAME = ("copy", "optimization-barrier", "domain")
#: Element-wise operations with code for operands that are real numbers alone, and for others alone.
_REAL_ONLY = frozenset(
    """
    atan2 cbrt ceil cosine erf exponential exponential-minus-one floor is-finite log log-plus-one
    logistic power round-nearest-afz round-nearest-even rsqrt sine sqrt tan tanh
    """.split()  # noqa: SIM905 - a table of words
)
_WHOLE_ONLY = frozenset(("and", "not", "or", "xor"))
_DIRECTIONS = ("EQ", "NE", "LT", "LE", "GT", "GE")


def values_of(kernel: TensorGraph) -> tuple[tuple[Value, ...], tuple[int, ...]]:
    """Values of a kernel in topological order, and the positions of its outputs among them. Raises:
    TensorError, one line that names an unsupported operation."""
    builder = _Builder()
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
    return tuple(builder.values), tuple(builder.place[at] for at in kernel.outputs)


class _Builder:
    """Values so far, and the position of the value of each operation."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.place: list[int] = []
        self._given = self._sums = 0

    def operation(self, op: Operation, shapes: Sequence[Shape]) -> int:
        if len(op.results) != 1:
            raise TensorError(f"{op.opcode} has several results")
        operands = tuple(self.place[at] for at in op.operands)
        if op.opcode in ELEMENTWISE and op.opcode not in _SAME:
            return self._map(op, operands)
        if op.opcode in ("parameter", "constant", "iota"):
            return self.add(self._leaf(op))
        if (seen := _seen(op, shapes)) is not None:
            shape, of = op.shape, (operands[0],)
            value = Value("view", shape.dtype, shape.dims, of, access=lambda f, _: [seen(f)])
            return self.add(value)
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
        _check_type(op.opcode, self.values[operands[0]].dtype)
        direction = str(op.attributes.get("direction", ""))
        if op.opcode == "compare" and direction not in _DIRECTIONS:
            raise TensorError(f"comparison {direction[:20]!r} is not supported")
        dims = [self.values[o].dims for o in operands]
        if any(d and d != op.shape.dims for d in dims):
            raise ValueError

        def access(forms: Forms, _: Forms) -> list[Forms]:
            return [forms if d else () for d in dims]

        parts = (op.shape.dtype, op.shape.dims, operands, op.opcode)
        return self.add(Value("map", *parts, text=direction, access=access))

    def _join(self, op: Operation, operands: tuple[int, ...], shapes: Sequence[Shape]) -> int:
        along = _one(op, "dimension")
        if sum(shape.dims[along] for shape in shapes) != op.shape.dims[along]:
            raise ValueError
        starts = [sum(s.dims[along] for s in shapes[:at]) for at in range(len(shapes))]

        def access(forms: Forms, _: Forms) -> list[Forms]:
            return [(*forms[:along], forms[along] + -s, *forms[along + 1 :]) for s in starts]

        value = Value("join", op.shape.dtype, op.shape.dims, operands, number=along, access=access)
        return self.add(value)

    def add(self, value: Value) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def hold(self, operand: int) -> int:
        value = self.values[operand]
        return self.add(
            Value("hold", value.dtype, value.dims, (operand,), access=lambda forms, _: [forms])
        )

    def pad(
        self,
        operand: int,
        filled: int,
        dims: tuple[int, ...],
        low: tuple[int, ...],
        gap: tuple[int, ...],
    ) -> int:
        def access(forms: Forms, _: Forms) -> list[Forms]:
            moved = zip(forms, low, gap, strict=True)
            return [tuple(divided(f + -at, g + 1) for f, at, g in moved), ()]

        dtype, operands = self.values[operand].dtype, (operand, filled)
        return self.add(Value("pad", dtype, dims, operands, low=low, gap=gap, access=access))

    def _padded(
        self,
        operand: int,
        dims: tuple[int, ...],
        low: tuple[int, ...],
        gap: tuple[int, ...],
        fill: int = -1,
    ) -> int:
        """Padded operand; the operand itself without padding."""
        if dims == self.values[operand].dims and not any(low) and not any(gap):
            return operand
        if fill < 0:
            fill = self.add(Value("number", self.values[operand].dtype, (), text="0"))
        return self.pad(operand, fill, dims, low, gap)

    def _over(self, *extents: int) -> tuple[Var, ...]:
        self._sums += 1
        return tuple(Var(f"r{self._sums}_{at}", extent) for at, extent in enumerate(extents))

    def _sum(
        self,
        op: Operation,
        operands: tuple[int, ...],
        over: tuple[Var, ...],
        access: Access,
        start: int | None = None,
    ) -> int:
        combine = str(op.attributes.get("combine", "add"))
        if combine not in COMBINES:
            raise TensorError(f"a {op.opcode} that combines by {combine[:20]!r} is not supported")
        _check_type(combine, op.shape.dtype)
        of = (op.shape.dtype, op.shape.dims, operands, combine)
        return self.add(Value("sum", *of, over=over, start=start, access=access))

    def dot(self, op: Operation, operands: tuple[int, ...], shapes: Sequence[Shape]) -> int:
        lhs, rhs = shapes
        batch = op.dims("lhs_batch"), op.dims("rhs_batch")
        summed = op.dims("lhs_contracting"), op.dims("rhs_contracting")
        over = self._over(*(lhs.dims[d] for d in summed[0]))
        if [rhs.dims[d] for d in summed[1]] != [var.extent for var in over]:
            raise ValueError
        free = [
            [d for d in range(s.rank) if d not in (*batch[n], *summed[n])]
            for n, s in enumerate(shapes)
        ]
        result = (
            *(lhs.dims[d] for d in batch[0]),
            *(lhs.dims[d] for d in free[0]),
            *(rhs.dims[d] for d in free[1]),
        )
        if result != op.shape.dims or [rhs.dims[d] for d in batch[1]] != [*result[: len(batch[0])]]:
            raise ValueError
        shared, first = len(batch[0]), len(batch[0]) + len(free[0])

        def access(forms: Forms, terms: Forms) -> list[Forms]:
            own = [forms[shared:first], forms[first:]]
            indices = []
            for n, shape in enumerate(shapes):
                by_dimension = dict(zip(batch[n], forms[:shared], strict=True))
                by_dimension |= dict(zip(summed[n], terms, strict=True))
                by_dimension |= dict(zip(free[n], own[n], strict=True))
                indices.append(tuple(by_dimension[d] for d in range(shape.rank)))
            return indices

        return self._sum(op, tuple(self.hold(o) for o in operands), over, access)

    def convolution(self, op: Operation, operands: tuple[int, ...], shapes: Sequence[Shape]) -> int:
        window, at = _Window(op, len(op.dims("size"))), ConvolutionLabels.of(op)
        groups = int(str(op.attributes.get("feature_groups", 1)))
        if int(str(op.attributes.get("batch_groups", 1))) != 1:
            raise TensorError("a convolution in groups of the batch is not supported")
        lhs, kernel = shapes
        features = kernel.dims[at.weights_in]
        out_features = op.shape.dims[at.out_feature]
        if lhs.dims[at.feature] != features * groups or out_features % groups:
            raise ValueError
        each = out_features // groups
        low, gap = [0] * lhs.rank, [0] * lhs.rank
        padded = list(lhs.dims)
        for n, d in enumerate(at.spatial):
            low[d], gap[d] = window.low[n], window.gap[n] - 1
            padded[d] = window.low[n] + window.high[n] + (lhs.dims[d] - 1) * window.gap[n] + 1
            if window.out(padded[d], n) != op.shape.dims[at.out_spatial[n]]:
                raise ValueError
        over = self._over(*window.size, features)

        def access(forms: Forms, terms: Forms) -> list[Forms]:
            out = forms[at.out_feature]
            first = divided(out, each) * features if groups > 1 else ZERO
            image_index = {at.batch: forms[at.out_batch], at.feature: terms[-1] + first}
            weights = {at.weights_in: terms[-1], at.weights_out: out}
            for n, d in enumerate(at.spatial):
                image_index[d] = window.at(forms[at.out_spatial[n]], terms[n], n)
                weights[at.weights_spatial[n]] = window.turned(terms[n], n)
            return [tuple(t[d] for d in range(len(t))) for t in (image_index, weights)]

        image = self._padded(operands[0], tuple(padded), tuple(low), tuple(gap))
        copies = (self.hold(image), self.hold(operands[1]))
        return self._sum(op, copies, over, access)

    def reduce(self, op: Operation, operands: tuple[int, ...], shapes: Sequence[Shape]) -> int:
        if len(operands) != 2:
            raise TensorError("a reduce of several arrays is not supported")
        summed, dims = op.dims("dimensions"), shapes[0].dims
        over = self._over(*(dims[d] for d in summed))
        remaining = [d for d in range(len(dims)) if d not in summed]
        if tuple(dims[d] for d in remaining) != op.shape.dims:
            raise ValueError

        def access(forms: Forms, terms: Forms) -> list[Forms]:
            by_dimension = dict(zip(remaining, forms, strict=True)) | dict(
                zip(summed, terms, strict=True)
            )
            return [tuple(by_dimension[d] for d in range(len(dims)))]

        return self._sum(op, operands[:1], over, access, operands[1])

    def reduce_window(
        self, op: Operation, operands: tuple[int, ...], shapes: Sequence[Shape]
    ) -> int:
        if len(operands) != 2:
            raise TensorError("a reduce-window of several arrays is not supported")
        rank = shapes[0].rank
        window = _Window(op, rank)
        padded = tuple(
            window.low[d] + window.high[d] + (n - 1) * window.gap[d] + 1
            for d, n in enumerate(shapes[0].dims)
        )
        if tuple(window.out(n, d) for d, n in enumerate(padded)) != op.shape.dims:
            raise ValueError
        over = self._over(*window.size)

        def access(forms: Forms, terms: Forms) -> list[Forms]:
            return [tuple(window.at(forms[d], terms[d], d) for d in range(rank))]

        gap = tuple(g - 1 for g in window.gap)
        copy = self.hold(self._padded(operands[0], padded, window.low, gap, operands[1]))
        return self._sum(op, (copy,), over, access, operands[1])


class _Window:
    """Window of an operation over so many dimensions."""

    def __init__(self, op: Operation, rank: int) -> None:
        self.size = op.dims("size")
        self.stride = op.dims("stride") or (1,) * rank
        self.low, self.high = (op.dims(n) or (0,) * rank for n in ("low", "high"))
        self.gap = op.dims("lhs_dilate") or (1,) * rank
        self.step = op.dims("rhs_dilate") or (1,) * rank
        self.reversal = op.dims("reversal") or (0,) * rank
        parts = (self.size, self.stride, self.low, self.high, self.gap, self.step, self.reversal)
        if any(len(part) != rank for part in parts):
            raise ValueError

    def out(self, padded: int, n: int) -> int:
        """Number of positions of the window along its n-th dimension."""
        return (padded - (self.size[n] - 1) * self.step[n] - 1) // self.stride[n] + 1

    def at(self, out: Form, term: Form, n: int) -> Form:
        """Index in the padded operand."""
        return out * self.stride[n] + term * self.step[n]

    def turned(self, term: Form, n: int) -> Form:
        return term * -1 + (self.size[n] - 1) if self.reversal[n] else term


def _seen(op: Operation, shapes: Sequence[Shape]) -> Callable[[Forms], Forms] | None:
    """Map from the index of a result element to the same element in the first operand; None where
    elements are computed. Raises: ValueError, IndexError where attributes do not fit the shapes."""
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
    place, indices = position(forms, strides_of(shape)), []
    for dim, stride in zip(operand.dims, strides_of(operand), strict=True):
        outermost = stride * dim == operand.elements
        here = divided(place, stride)
        indices.append(ZERO if dim == 1 else here if outermost else modulo(here, dim))
    return tuple(indices)


def _check_type(opcode: str, dtype: str) -> None:
    """Raises: TensorError for an operation without code for operands of a type."""
    if opcode in (_WHOLE_ONLY if dtype.startswith("f") else _REAL_ONLY):
        raise TensorError(f"{opcode} of {dtype} is not supported")


def _alike(*parts: Sequence[int]) -> None:
    if len({len(part) for part in parts}) != 1:
        raise ValueError


def _one(op: Operation, name: str) -> int:
    """An attribute that is a dimension of the result."""
    value = op.attributes.get(name, 0)
    if not isinstance(value, int) or not 0 <= value < op.shape.rank:
        raise ValueError
    return value
