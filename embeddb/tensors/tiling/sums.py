"""Index expressions of contractions, convolutions, reductions and windows as sums."""

from __future__ import annotations

from collections.abc import Sequence

from embeddb.core.errors import TensorError
from embeddb.tensors.tensor_graph import Operation, Shape
from embeddb.tensors.tiling.forms import ZERO, Form, Forms, Var, divided
from embeddb.tensors.tiling.values import Access, Value

_COMBINES = ("add", "multiply", "minimum", "maximum", "and", "or")


class Sums:
    """Builder of sums; new values are appended to `values`."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._sums = 0

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

        value = Value(
            "pad",
            self.values[operand].dtype,
            dims,
            (operand, filled),
            low=low,
            gap=gap,
            access=access,
        )
        return self.add(value)

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
        if combine not in _COMBINES:
            raise TensorError(f"a {op.opcode} that combines by {combine[:20]!r} is not supported")
        return self.add(
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
        window = _Window(op, len(op.dims("size")))
        lhs_at, kernel_at, out_at = _labels(str(op.attributes["labels"]), window.rank)
        groups = int(str(op.attributes.get("feature_groups", 1)))
        if int(str(op.attributes.get("batch_groups", 1))) != 1:
            raise TensorError("a convolution in groups of the batch is not supported")
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
            image_index = {lhs_at["b"]: forms[out_at["b"]]}
            image_index[lhs_at["f"]] = terms[-1] + (
                divided(out, each) * features if groups > 1 else ZERO
            )
            weights = {kernel_at["i"]: terms[-1], kernel_at["o"]: out}
            for n in range(window.rank):
                image_index[lhs_at[str(n)]] = window.at(forms[out_at[str(n)]], terms[n], n)
                weights[kernel_at[str(n)]] = window.turned(terms[n], n)
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
        """Number of positions of the window along its n-th dimension."""
        return (padded - (self.size[n] - 1) * self.step[n] - 1) // self.stride[n] + 1

    def at(self, out: Form, term: Form, n: int) -> Form:
        """Index in the padded operand."""
        return out * self.stride[n] + term * self.step[n]

    def turned(self, term: Form, n: int) -> Form:
        return term * -1 + (self.size[n] - 1) if self.reversal[n] else term


def _labels(labels: str, rank: int) -> tuple[dict[str, int], ...]:
    """Dimension by letter, for the operand, the weights and the result of a convolution."""
    lhs, _, rest = labels.partition("_")
    kernel, _, out = rest.partition("->")
    spatial = {str(n) for n in range(rank)}
    for text, letters in ((lhs, "bf"), (kernel, "io"), (out, "bf")):
        if len(text) != rank + 2 or set(text) != spatial | set(letters):
            raise ValueError
    return tuple({letter: d for d, letter in enumerate(t)} for t in (lhs, kernel, out))
