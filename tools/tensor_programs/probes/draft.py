"""Builder of a probe: every method adds one operation and returns its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from embeddb.tensors.check import computation
from embeddb.tensors.tensor_graph import Attribute, Operation, Shape, TensorGraph

Dims = tuple[int, ...]
T = TypeVar("T")


class Draft:
    """Random draws of a case from `rng` and the operations added so far; the last one is the
    output."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._operations: list[Operation] = []

    def kernel(self, name: str, group: str) -> TensorGraph:
        last = len(self._operations) - 1
        return computation(self._operations, [last], name=name, group=group)

    # -- random draws ------------------------------------------------------------------------------

    def chance(self, share: float) -> bool:
        return bool(self._rng.random() < share)

    def one(self, *choices: T) -> T:
        return choices[int(self._rng.integers(len(choices)))]

    def size(self, least: float, most: float) -> int:
        """Log-uniform; half of them as in programs, 2^k or 3 2^k."""
        value = math.exp(self._rng.uniform(math.log(least), math.log(most)))
        if value > 4 and self.chance(0.5):
            nearest = (2.0**k * part for k in range(24) for part in (1, 1.5))
            value = min(nearest, key=lambda near: abs(math.log(near / value)))
        return min(max(round(value), math.ceil(least)), math.floor(most))

    def dims(self, rank: int, least: float, most: float, minor: int = 0) -> Dims:
        """Shape of an array of about so many elements; its minor dimension is `minor`, if not 0."""
        elements = math.exp(self._rng.uniform(math.log(least), math.log(most)))
        shape = [minor] if minor else []
        while len(shape) < rank - 1:
            left = max(elements / math.prod(shape), 1)
            shape.insert(0, self.size(1, left ** (2 / (rank - len(shape)))))
        if len(shape) < rank:
            left = max(elements / math.prod(shape), 1)
            shape.append(max(round(left), 1))
            if rank > 1 and shape[-1] > 4:
                shape[-1] = self.size(shape[-1] * 0.75, shape[-1] * 1.25)
        return tuple(shape)

    # -- operations --------------------------------------------------------------------------------

    def shape(self, at: int) -> Shape:
        return self._operations[at].shape

    def add(
        self,
        opcode: str,
        dims: Dims,
        *operands: int,
        dtype: Attribute = "",
        **attributes: Attribute,
    ) -> int:
        """Add an operation, by default of the type of its first operand."""
        dtype = str(dtype) or (self.shape(operands[0]).dtype if operands else "f32")
        self._operations.append(Operation(opcode, (Shape(dtype, dims),), operands, attributes))
        return len(self._operations) - 1

    def given(self, *dims: int, dtype: str = "f32") -> int:
        """Add a parameter in row-major, or sometimes in another order: a kernel's input has its
        producer's layout."""
        count = sum(op.opcode == "parameter" for op in self._operations)
        layout: Dims = ()
        if len(dims) > 1 and self.chance(0.08):
            layout = tuple(int(d) for d in self._rng.permutation(len(dims)))
        shape = Shape(dtype, dims, layout)
        self._operations.append(Operation("parameter", (shape,), (), {"number": count}))
        return len(self._operations) - 1

    def number(self, value: str) -> int:
        return self.add("constant", (), value=value)

    def wide(self, at: int, dims: Dims, own: Dims = ()) -> int:
        """An array broadcast to `dims`, its own dimensions at those places."""
        return self.add("broadcast", dims, at, dimensions=own)

    def each(self, opcode: str, *operands: int, **attributes: Attribute) -> int:
        """Add an element-wise operation."""
        return self.add(opcode, self.shape(operands[0]).dims, *operands, **attributes)

    def sum(self, at: int, over: Sequence[int], combine: str = "add") -> int:
        dims = self.shape(at).dims
        left = tuple(dim for d, dim in enumerate(dims) if d not in over)
        start = self.number({"add": "0", "maximum": "-inf", "minimum": "inf"}[combine])
        return self.add("reduce", left, at, start, dimensions=tuple(over), combine=combine)

    def dot(
        self, lhs: int, rhs: int, over: tuple[Dims, Dims], batch: tuple[Dims, Dims] = ((), ())
    ) -> int:
        free = [
            tuple(dim for d, dim in enumerate(self.shape(at).dims) if d not in (*own, *each))
            for at, own, each in zip((lhs, rhs), over, batch, strict=True)
        ]
        first = tuple(self.shape(lhs).dims[d] for d in batch[0])
        names = ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch")
        attributes = dict(zip(names, (*over, *batch), strict=True))
        return self.add("dot", (*first, *free[0], *free[1]), lhs, rhs, **attributes)


#: Puts a probe together.
Case = Callable[[Draft], object]
