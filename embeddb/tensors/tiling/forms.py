"""Index expressions over loop variables: affine, or quotients and remainders of affine ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from embeddb.tensors.tensor_graph import Shape


@dataclass(frozen=True, slots=True)
class Var:
    """A loop variable, from 0 to `extent` - 1."""

    name: str
    extent: int


@dataclass(frozen=True)
class Part:
    """`form` // `by` (`what` is `/`) or `form` % `by` (`%`)."""

    what: str
    form: Form
    by: int


@dataclass(frozen=True)
class Form:
    """The sum of `terms`, each a variable or a part times an integer, and of `constant`."""

    terms: tuple[tuple[Var | Part, int], ...] = ()
    constant: int = 0

    def __add__(self, other: Form | int) -> Form:
        if isinstance(other, int):
            return Form(self.terms, self.constant + other)
        sums = dict(self.terms)
        for var, coef in other.terms:
            sums[var] = sums.get(var, 0) + coef
        return _form(sums, self.constant + other.constant)

    def __mul__(self, by: int) -> Form:
        return _form({var: coef * by for var, coef in self.terms}, self.constant * by)

    @cached_property
    def variables(self) -> frozenset[Var]:
        """Variables, including those of its parts."""
        union: set[Var] = set()
        for var, _ in self.terms:
            union |= {var} if isinstance(var, Var) else var.form.variables
        return frozenset(union)

    @property
    def affine(self) -> bool:
        return all(isinstance(var, Var) for var, _ in self.terms)

    def coef(self, var: Var) -> int | None:
        """Increase per step of a variable; None where it varies."""
        if any(isinstance(v, Part) and var in v.form.variables for v, _ in self.terms):
            return None
        return next((coef for v, coef in self.terms if v == var), 0)

    def range(self) -> tuple[int, int]:
        """Smallest and largest value."""
        low = high = self.constant
        for var, coef in self.terms:
            first, last = _range(var)
            low += coef * (first if coef > 0 else last)
            high += coef * (last if coef > 0 else first)
        return low, high

    def put(self, values: Mapping[Var, Form]) -> Form:
        """Substitute forms for variables."""
        result = Form((), self.constant)
        for var, coef in self.terms:
            if isinstance(var, Part):
                inner = var.form.put(values)
                new = divided(inner, var.by) if var.what == "/" else modulo(inner, var.by)
            else:
                new = values.get(var, of_var(var))
            result = result + new * coef
        return result


Forms = tuple[Form, ...]
ZERO = Form()


def of_var(var: Var) -> Form:
    return Form(((var, 1),))


def whole(number: int) -> Form:
    return Form((), number)


def divided(form: Form, by: int) -> Form:
    """`form` // `by`, for a non-negative form."""
    quotient, rest = _apart(form, by)
    low, high = rest.range()
    if low >= 0 and high < by:
        return quotient
    return quotient + Form(((Part("/", rest, by), 1),))


def modulo(form: Form, by: int) -> Form:
    """`form` % `by`, for a non-negative form."""
    rest = _apart(form, by)[1]
    low, high = rest.range()
    return rest if low >= 0 and high < by else Form(((Part("%", rest, by), 1),))


def _apart(form: Form, by: int) -> tuple[Form, Form]:
    """Quotient of the terms that `by` divides, and the remaining form."""
    exact = {var: coef // by for var, coef in form.terms if coef % by == 0}
    rest = {var: coef for var, coef in form.terms if coef % by}
    quotient, left = divmod(form.constant, by)
    return _form(exact, quotient), _form(rest, left)


def _form(terms: Mapping[Var | Part, int], constant: int) -> Form:
    nonzero = [(var, coef) for var, coef in terms.items() if coef]
    return Form(tuple(sorted(nonzero, key=lambda term: repr(term[0]))), constant)


def _range(var: Var | Part) -> tuple[int, int]:
    if isinstance(var, Var):
        return 0, var.extent - 1
    if var.what == "%":
        return 0, var.by - 1
    low, high = var.form.range()
    return low // var.by, high // var.by


@dataclass(frozen=True)
class Span:
    """From `low` to below `high`, and within 0 to `dim`; both are affine forms of the variables
    `b0`, `e0`, ...: begin and end of the tile along the dimensions of the root."""

    low: Form
    high: Form
    dim: int

    @cached_property
    def depends(self) -> frozenset[int]:
        """Dimensions of the root that it depends on."""
        return frozenset(int(v.name[1:]) for v in self.low.variables | self.high.variables)

    def size(self, tile: Sequence[int]) -> int:
        """Largest length for a tile of these sizes."""
        constant, by_side = self.length
        return min(self.dim, constant + sum(by * tile[d] for d, by in by_side))

    @cached_property
    def length(self) -> tuple[int, tuple[tuple[int, int], ...]]:
        """Length for an empty tile at 0, and its increase with each side of the tile."""
        form = self.high + self.low * -1
        ends = [(var, by) for var, by in form.terms if isinstance(var, Var) and var.name[0] == "e"]
        return form.constant, tuple((int(var.name[1:]), by) for var, by in ends)


def whole_span(dim: int) -> Span:
    return Span(ZERO, whole(dim), dim)


def tile_span(at: int, dim: int) -> Span:
    """Span of the tile itself along a dimension of the root."""
    return Span(of_var(Var(f"b{at}", dim)), of_var(Var(f"e{at}", dim + 1)), dim)


def span_of(form: Form, spans: Mapping[Var, Span], dim: int) -> Span:
    """Span of an index along a dimension of this length, from the spans of its variables; the whole
    dimension for an index that is not affine."""
    if not form.affine:
        return whole_span(dim)
    low, high = whole(form.constant), whole(form.constant + 1)
    for var in form.variables:
        coef, span = form.coef(var) or 0, spans[var]
        first, last = span.low, span.high + -1
        low = low + (first if coef > 0 else last) * coef
        high = high + (last if coef > 0 else first) * coef
    return Span(low, high, dim)


# Symbolic values: arrays whose elements are functions of their indices. Nothing is computed here.

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
    return variables, indices_of(variables)


def indices_of(variables: Sequence[Var]) -> Forms:
    """The variables as indices; 0 for those of one value."""
    return tuple(of_var(var) if var.extent > 1 else ZERO for var in variables)


def position(forms: Forms, strides: Sequence[int]) -> Form:
    """Position in memory of the element at these indices."""
    place = ZERO
    for form, stride in zip(forms, strides, strict=True):
        place = place + form * stride
    return place
