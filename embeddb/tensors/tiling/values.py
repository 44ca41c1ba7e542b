"""A kernel as values: arrays whose elements are told by their indices, operand by operand.

Layouts, reshapes, transposes, slices and broadcasts become forms of indices; what is left are
numbers, element-wise operations, paddings, concatenations and sums. Nothing is computed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from embeddb.core.errors import TensorError
from embeddb.tensors.computation import Computation
from embeddb.tensors.operation import Operation, Shape
from embeddb.tensors.tiling.forms import (
    ZERO,
    Form,
    Forms,
    Var,
    divided,
    modulo,
    of_var,
    whole,
)

__all__ = ["ELEMENTWISE", "SUPPORTED", "Value", "Values", "number_of", "strides_of", "values_of"]

#: Types that are computed with.
SUPPORTED = ("f32", "f64", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "pred")
#: Operations whose elements depend on those of their operands at the same index.
ELEMENTWISE = frozenset(
    """
    abs add and atan2 cbrt ceil clamp compare convert copy cosine divide erf exponential
    exponential-minus-one floor is-finite log log-plus-one logistic maximum minimum multiply negate
    not or power remainder round-nearest-afz round-nearest-even rsqrt select sign sine sqrt subtract
    tan tanh xor
    """.split()  # noqa: SIM905 - a table of words
)
_COMBINES = ("add", "multiply", "minimum", "maximum", "and", "or")
#: What passes its operand on as it is.
_SAME = ("copy", "optimization-barrier", "domain", "reduce-precision")

#: From the indices of an element, and those of a sum's terms, to the indices of each operand.
Access = Callable[[Forms, Forms], list[Forms]]


@dataclass(frozen=True, eq=False)
class Value:
    """`what` is `given` (a parameter: `number`), `number` (`text`), `iota` (`number`: along which
    dimension), `map` (`opcode`), `view`, `hold` (its operand, which may be worth a copy), `pad`
    (of the first operand with the second: `low`, `gap`), `join` (`number`: along which dimension)
    or `sum` (`opcode`: how its terms, the products of its operands, are combined, over the
    variables `over`; `start`: the value it starts from, if it is not 0). `strides`, of `given`
    only, are in elements."""

    what: str
    dtype: str
    dims: tuple[int, ...]
    operands: tuple[int, ...] = ()
    opcode: str = ""
    number: int = 0
    text: str = ""
    over: tuple[Var, ...] = ()
    start: int | None = None
    low: tuple[int, ...] = ()
    gap: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    access: Access = field(default=lambda forms, over: [], repr=False)

    @property
    def elements(self) -> int:
        return math.prod(self.dims)


@dataclass(frozen=True, eq=False)
class Values:
    """Operands first. `outputs` are places among them, by output of the kernel; `root` is that of
    its largest output."""

    values: tuple[Value, ...]
    outputs: tuple[int, ...]
    root: int


def strides_of(shape: Shape) -> tuple[int, ...]:
    """Elements from one index to the next, by dimension, as its layout has them."""
    found, step = [0] * shape.rank, 1
    for dim in shape.layout:
        found[dim] = step
        step *= shape.dims[dim]
    return tuple(found)


def number_of(text: str, dtype: str) -> float | int:
    """What a constant is. Raises: ValueError for what is no number of its type."""
    word = text.strip().lower()
    if dtype == "pred":
        return {"true": 1, "false": 0, "1": 1, "0": 0}[word]
    if dtype.startswith("f"):
        return float(word)
    number = int(word)
    bits, low = int(dtype[1:]), 0 if dtype.startswith("u") else -1
    if not low * 2 ** (bits - 1) <= number < 2 ** (bits + low):
        raise ValueError
    return number


def values_of(kernel: Computation) -> Values:
    """Raises: TensorError, one line that names the operation that cannot be told so."""
    made = _Made(kernel)
    for at, operation in enumerate(kernel.operations):
        name = kernel.names[at] if kernel.names else operation.opcode
        for shape in operation.results:
            if shape.dtype not in SUPPORTED:
                raise TensorError(f"{name}: arrays of {shape.dtype} are not computed here")
        try:
            made.place.append(made.operation(operation, kernel.operand_shapes(at)))
        except (IndexError, KeyError, ValueError, ZeroDivisionError):
            raise TensorError(f"{name}: its attributes do not fit its shapes") from None
        except TensorError as error:
            raise TensorError(f"{name}: {error}") from None
    outputs = tuple(made.place[at] for at in kernel.outputs)
    largest = max(outputs, key=lambda at: made.values[at].elements)
    return Values(tuple(made.values), outputs, largest)


class _Made:
    """Values so far, and by operation the place of the value it became."""

    def __init__(self, kernel: Computation) -> None:
        self.values: list[Value] = []
        self.place: list[int] = []
        self._given = 0
        self._sums = 0

    def operation(self, op: Operation, shapes: Sequence[Shape]) -> int:
        if len(op.results) != 1:
            raise TensorError(f"{op.opcode} gives several arrays")
        operands = tuple(self.place[at] for at in op.operands)
        dims, dtype = op.shape.dims, op.shape.dtype
        if op.opcode in ELEMENTWISE and op.opcode not in _SAME:
            return self._map(op, operands)
        if op.opcode in _SAME:
            return self._view(op, operands[0], lambda forms: forms)
        match op.opcode:
            case "parameter":
                self._given += 1
                return self._add(
                    Value(
                        "given", dtype, dims, number=self._given - 1, strides=strides_of(op.shape)
                    )
                )
            case "constant":
                if "value" not in op.attributes:
                    raise TensorError("a constant of several numbers is not kept")
                text = str(op.attributes["value"])
                number_of(text, dtype)
                return self._add(Value("number", dtype, dims, text=text))
            case "iota":
                return self._add(Value("iota", dtype, dims, number=_one(op, "dimension")))
            case "broadcast":
                to, of = op.dims("dimensions"), shapes[0].dims
                if len(to) != len(of):
                    raise ValueError
                return self._view(
                    op,
                    operands[0],
                    lambda f: tuple(f[d] if n > 1 else ZERO for d, n in zip(to, of, strict=True)),
                )
            case "transpose":
                perm = op.dims("dimensions")
                if sorted(perm) != list(range(len(dims))):
                    raise ValueError
                return self._view(
                    op, operands[0], lambda f: tuple(f[perm.index(d)] for d in range(len(perm)))
                )
            case "reshape" | "bitcast":
                if shapes[0].elements != op.shape.elements or shapes[0].dtype != dtype:
                    raise ValueError
                orders = (op.shape, shapes[0])
                if op.opcode == "reshape":
                    orders = (Shape(dtype, dims), Shape(dtype, shapes[0].dims))
                return self._view(op, operands[0], lambda f: _reshaped(f, *orders))
            case "slice":
                start = op.dims("start")
                stride = op.dims("stride") or (1,) * len(start)
                _alike(start, stride, dims)
                return self._view(
                    op,
                    operands[0],
                    lambda f: tuple(x * s + a for x, a, s in zip(f, start, stride, strict=True)),
                )
            case "reverse":
                turned = op.dims("dimensions")
                return self._view(
                    op,
                    operands[0],
                    lambda f: tuple(
                        x * -1 + (dims[d] - 1) if d in turned else x for d, x in enumerate(f)
                    ),
                )
            case "pad":
                low, gap = op.dims("low"), op.dims("interior") or (0,) * len(dims)
                _alike(low, gap, dims)
                return self.pad(operands[0], operands[1], dims, low, gap)
            case "concatenate":
                return self._join(op, operands, shapes)
            case "dot":
                return self._dot(op, operands, shapes)
            case "convolution":
                return self._convolution(op, operands, shapes)
            case "reduce":
                return self._reduce(op, operands, shapes)
            case "reduce-window":
                return self._reduce_window(op, operands, shapes)
        raise TensorError(f"{op.opcode} is not computed here")

    # -- one by one --------------------------------------------------------------------------------

    def _add(self, value: Value) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def _map(self, op: Operation, operands: tuple[int, ...]) -> int:
        dims = [self.values[o].dims for o in operands]
        if any(d and d != op.shape.dims for d in dims):
            raise ValueError
        text = str(op.attributes.get("direction", ""))
        return self._add(
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
        return self._add(
            Value(
                "view",
                op.shape.dtype,
                op.shape.dims,
                (operand,),
                access=lambda forms, _: [seen(forms)],
            )
        )

    def hold(self, operand: int) -> int:
        held = self.values[operand]
        return self._add(
            Value("hold", held.dtype, held.dims, (operand,), access=lambda forms, _: [forms])
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

        value = Value(
            "pad",
            self.values[operand].dtype,
            dims,
            (operand, filled),
            low=low,
            gap=gap,
            access=access,
        )
        return self._add(value)

    def _join(self, op: Operation, operands: tuple[int, ...], shapes: Sequence[Shape]) -> int:
        along = _one(op, "dimension")
        if sum(shape.dims[along] for shape in shapes) != op.shape.dims[along]:
            raise ValueError
        starts = [sum(s.dims[along] for s in shapes[:at]) for at in range(len(shapes))]

        def access(forms: Forms, _: Forms) -> list[Forms]:
            return [(*forms[:along], forms[along] + -s, *forms[along + 1 :]) for s in starts]

        made = Value("join", op.shape.dtype, op.shape.dims, operands, number=along, access=access)
        return self._add(made)

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
        if combine not in _COMBINES:
            raise TensorError(
                f"a {op.opcode} that combines by {combine[:20]!r} is not computed here"
            )
        return self._add(
            Value(
                "sum",
                op.shape.dtype,
                op.shape.dims,
                operands,
                combine,
                over=over,
                start=start,
                access=access,
            )
        )

    def _dot(self, op: Operation, operands: tuple[int, ...], shapes: Sequence[Shape]) -> int:
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
            found = []
            for n, shape in enumerate(shapes):
                told = dict(zip(batch[n], forms[:shared], strict=True))
                told |= dict(zip(summed[n], terms, strict=True))
                told |= dict(zip(free[n], own[n], strict=True))
                found.append(tuple(told[d] for d in range(shape.rank)))
            return found

        return self._sum(op, tuple(self.hold(o) for o in operands), over, access)

    def _convolution(
        self, op: Operation, operands: tuple[int, ...], shapes: Sequence[Shape]
    ) -> int:
        window = _Window(op, len(op.dims("size")))
        lhs_at, kernel_at, out_at = _labels(str(op.attributes["labels"]), window.rank)
        groups = int(str(op.attributes.get("feature_groups", 1)))
        if int(str(op.attributes.get("batch_groups", 1))) != 1:
            raise TensorError("a convolution in groups of the batch is not computed here")
        lhs, kernel = shapes
        features = kernel.dims[kernel_at["i"]]
        out_features = op.shape.dims[out_at["f"]]
        if lhs.dims[lhs_at["f"]] != features * groups or out_features % groups:
            raise ValueError
        each = out_features // groups
        low, gap = [0] * lhs.rank, [0] * lhs.rank
        padded = list(lhs.dims)
        for n in range(window.rank):
            d = lhs_at[str(n)]
            low[d], gap[d] = window.low[n], window.gap[n] - 1
            padded[d] = window.low[n] + window.high[n] + (lhs.dims[d] - 1) * window.gap[n] + 1
            if window.out(padded[d], n) != op.shape.dims[out_at[str(n)]]:
                raise ValueError
        over = self._over(*window.size, features)

        def access(forms: Forms, terms: Forms) -> list[Forms]:
            out = forms[out_at["f"]]
            told = {lhs_at["b"]: forms[out_at["b"]]}
            told[lhs_at["f"]] = terms[-1] + (divided(out, each) * features if groups > 1 else ZERO)
            weights = {kernel_at["i"]: terms[-1], kernel_at["o"]: out}
            for n in range(window.rank):
                told[lhs_at[str(n)]] = window.at(forms[out_at[str(n)]], terms[n], n)
                weights[kernel_at[str(n)]] = window.turned(terms[n], n)
            return [tuple(t[d] for d in range(len(t))) for t in (told, weights)]

        image = self._padded(operands[0], tuple(padded), tuple(low), tuple(gap))
        held = (self.hold(image), self.hold(operands[1]))
        return self._sum(op, held, over, access)

    def _padded(
        self,
        operand: int,
        dims: tuple[int, ...],
        low: tuple[int, ...],
        gap: tuple[int, ...],
        fill: int = -1,
    ) -> int:
        """The operand itself where nothing is added to it."""
        if dims == self.values[operand].dims and not any(low) and not any(gap):
            return operand
        if fill < 0:
            fill = self._add(Value("number", self.values[operand].dtype, (), text="0"))
        return self.pad(operand, fill, dims, low, gap)

    def _reduce(self, op: Operation, operands: tuple[int, ...], shapes: Sequence[Shape]) -> int:
        if len(operands) != 2:
            raise TensorError("a reduce of several arrays is not computed here")
        summed, dims = op.dims("dimensions"), shapes[0].dims
        over = self._over(*(dims[d] for d in summed))
        kept = [d for d in range(len(dims)) if d not in summed]
        if tuple(dims[d] for d in kept) != op.shape.dims:
            raise ValueError

        def access(forms: Forms, terms: Forms) -> list[Forms]:
            told = dict(zip(kept, forms, strict=True)) | dict(zip(summed, terms, strict=True))
            return [tuple(told[d] for d in range(len(dims)))]

        return self._sum(op, operands[:1], over, access, operands[1])

    def _reduce_window(
        self, op: Operation, operands: tuple[int, ...], shapes: Sequence[Shape]
    ) -> int:
        if len(operands) != 2:
            raise TensorError("a reduce-window of several arrays is not computed here")
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
        held = self.hold(self._padded(operands[0], padded, window.low, gap, operands[1]))
        return self._sum(op, (held,), over, access, operands[1])


class _Window:
    """The window of an operation over so many dimensions."""

    def __init__(self, op: Operation, rank: int) -> None:
        self.rank = rank
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
        """Positions of the window along its n-th dimension."""
        return (padded - (self.size[n] - 1) * self.step[n] - 1) // self.stride[n] + 1

    def at(self, out: Form, term: Form, n: int) -> Form:
        """In the padded operand."""
        return out * self.stride[n] + term * self.step[n]

    def turned(self, term: Form, n: int) -> Form:
        return term * -1 + (self.size[n] - 1) if self.reversal[n] else term


def _labels(labels: str, rank: int) -> tuple[dict[str, int], ...]:
    """Dimension by letter, of the operand, the weights and the result of a convolution."""
    lhs, _, rest = labels.partition("_")
    kernel, _, out = rest.partition("->")
    spatial = {str(n) for n in range(rank)}
    for text, letters in ((lhs, "bf"), (kernel, "io"), (out, "bf")):
        if len(text) != rank + 2 or set(text) != spatial | set(letters):
            raise ValueError
    return tuple({letter: d for d, letter in enumerate(t)} for t in (lhs, kernel, out))


def _reshaped(forms: Forms, shape: Shape, operand: Shape) -> Forms:
    """The index in the operand of the element that has the same place in memory order."""
    place = ZERO
    for form, stride in zip(forms, strides_of(shape), strict=True):
        place = place + form * stride
    found = []
    for dim, stride in zip(operand.dims, strides_of(operand), strict=True):
        outermost = stride * dim == operand.elements
        here = divided(place, stride)
        found.append(whole(0) if dim == 1 else here if outermost else modulo(here, dim))
    return tuple(found)


def _alike(*parts: Sequence[int]) -> None:
    if len({len(part) for part in parts}) != 1:
        raise ValueError


def _one(op: Operation, name: str) -> int:
    """A number that is a dimension of its result."""
    found = op.attributes.get(name, 0)
    if not isinstance(found, int) or not 0 <= found < op.shape.rank:
        raise ValueError
    return found


def identity(dims: Sequence[int], prefix: str) -> tuple[tuple[Var, ...], Forms]:
    """A variable for each dimension, and their forms."""
    made = tuple(Var(f"{prefix}{at}", dim) for at, dim in enumerate(dims))
    return made, tuple(of_var(var) if var.extent > 1 else ZERO for var in made)
