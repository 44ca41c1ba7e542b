"""Symbolic values: arrays whose elements are functions of their indices. Nothing is computed
here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from embeddb.tensors.tensor_graph import Shape
from embeddb.tensors.tiling.forms import ZERO, Forms, Var, of_var

#: Supported types.
SUPPORTED = ("f32", "f64", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "pred")
#: Maps the indices of an element, and of a sum's terms, to the indices of each operand.
Access = Callable[[Forms, Forms], list[Forms]]


@dataclass(frozen=True, eq=False)
class Value:
    """`what` is `given` (parameter `number`), `number` (`text`), `iota` (along dimension `number`),
    `map` (`opcode`), `view`, `hold` (its operand, which may be worth a copy), `pad` (the first
    operand with the second: `low`, `gap`), `join` (along dimension `number`) or `sum` (`opcode`
    combines its terms, the products of its operands, over the variables `over`; `start`: the
    initial value, if it is not 0). `strides`, for `given` only, are in elements."""

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
    """Values in topological order. `outputs` are positions by output of the kernel; `root` is that
    of its largest output."""

    values: tuple[Value, ...]
    outputs: tuple[int, ...]
    root: int


def strides_of(shape: Shape) -> tuple[int, ...]:
    """Stride in elements by dimension, for its layout."""
    strides, step = [0] * shape.rank, 1
    for dim in shape.layout:
        strides[dim] = step
        step *= shape.dims[dim]
    return tuple(strides)


def number_of(text: str, dtype: str) -> float | int:
    """Value of a constant. Raises: ValueError for a text that is not a number of its type."""
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


def identity(dims: Sequence[int], prefix: str) -> tuple[tuple[Var, ...], Forms]:
    """A variable for each dimension, and their forms."""
    variables = tuple(Var(f"{prefix}{at}", dim) for at, dim in enumerate(dims))
    return variables, tuple(of_var(var) if var.extent > 1 else ZERO for var in variables)
