"""Arrays of an `.sdfg` file, the parts of them that its graphs pass on, places in it, and its
symbolic texts and tasklet code as indices and values of a nest.

Texts are Python, parsed by `ast` and never run: anything but arithmetic is refused. Arrays are
created at their first use: sizes may depend on loops around, and a transient of a nested program
exists once per iteration of these.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from embeddb.core.errors import NestError
from embeddb.nests.nest import index_range, loop_range
from embeddb.nests.parts import Access, Affine, Array, Const, Expr, Index, Loop, Read
from indexer.frontends.scalars import (
    all_true,
    any_true,
    chosen,
    function,
    is_whole,
    negated,
    opposite,
    pair,
    power,
)
from indexer.frontends.tree import (
    Refused,
    Registry,
    Scope,
    constant,
    expression_of,
    index_pair,
    index_power,
    whole,
)


@dataclass(frozen=True, slots=True)
class Part:
    """The elements of one dimension from `start` to `end`, inclusive."""

    start: Index
    end: Index

    @property
    def single(self) -> bool:
        return self.start == self.end

    @property
    def size(self) -> Index:
        return self.end - self.start + 1


@dataclass(frozen=True, slots=True)
class View:
    """A part of an array that is used as an array of `rank` dimensions. `at`: for each dimension of
    the array the start of the part, and the dimension of the part that runs along it, if any."""

    array: int
    at: tuple[tuple[Index, int | None], ...]
    rank: int

    @property
    def single(self) -> bool:
        """True if it is one element."""
        return all(of is None for _, of in self.at)

    def access(self, at: Sequence[Index]) -> Access:
        """An element. Indices of a single element are ignored.

        Raises: NestError if the number of indices is not that of the dimensions.
        """
        if self.single:
            return Access(self.array, tuple(start for start, _ in self.at))
        if len(at) != self.rank:
            raise NestError(f"{len(at)} subscripts for {self.rank} dimensions")
        return Access(
            self.array,
            tuple(start if of is None else start + at[of] for start, of in self.at),
        )

    def part(self, parts: Sequence[Part], ones: Sequence[bool] | None = None) -> View:
        """The part of a part. Dimensions of one element are dropped, unless `ones` gives the
        dimensions of the result, True for one element.

        Raises: NestError if the numbers of dimensions do not fit.
        """
        if not self.at:
            return self
        if self.single and all(part.single for part in parts):
            return replace(self, rank=self.rank if ones is None else len(ones))
        if len(parts) != self.rank:
            raise NestError(f"{len(parts)} ranges for {self.rank} dimensions")
        dimensions = _dimensions_used(parts, ones)
        place = {d: at for at, d in enumerate(dimensions)}
        at = tuple(
            (start, None) if of is None else (start + parts[of].start, place.get(of))
            for start, of in self.at
        )
        return View(self.array, at, len(dimensions) if ones is None else len(ones))


def _dimensions_used(parts: Sequence[Part], ones: Sequence[bool] | None) -> list[int]:
    """The dimensions of a part in its use: all, if their number fits; else those of more than one
    element, and between them as many of one element as required."""
    if ones is not None and len(ones) == len(parts):
        return list(range(len(parts)))
    dimensions = [d for d, part in enumerate(parts) if not part.single]
    if ones is None or len(ones) == len(dimensions) or (len(ones) == 1 and not dimensions):
        return dimensions
    dimensions = []
    for d, part in enumerate(parts):
        if not part.single or (len(dimensions) < len(ones) and ones[len(dimensions)]):
            dimensions.append(d)
    if [parts[d].single for d in dimensions] != list(ones):
        raise NestError(f"a part of {len(parts)} dimensions is used as one of {len(ones)}")
    return dimensions


@dataclass(frozen=True)
class Place:
    """Symbols and loops around, and the arrays of the program around, which is nested in `depth`
    others."""

    registry: Registry
    views: Containers
    scope: Scope
    depth: int = 0

    @property
    def loops(self) -> tuple[Loop, ...]:
        return self.scope.loops

    def view(self, name: str) -> View:
        """The view of an array. Raises: NestError for an unknown array, or one of an unsupported
        kind."""
        return self.views.view(name, self)

    def within(self, name: str, loop: Loop, index: Index) -> Place:
        """The place in the body of a loop."""
        return replace(self, scope=self.scope.within(name, loop, index))

    def deeper(self) -> Place:
        """The place with a scope of its own for symbols."""
        return replace(self, scope=self.scope.inner())

    def inside(self, views: Containers, symbols: Mapping[str, Index | Expr | Refused]) -> Place:
        """The place in a nested program, which has only its own symbols."""
        scope = Scope(self.scope.arrays, loops=self.loops)
        scope.names.update(symbols)
        return replace(self, views=views, scope=scope, depth=self.depth + 1)


_LONGEST = 4000
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
}
_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
_MODULES = ("math", "np", "numpy", "dace")
_FLOATS = ("float", "float32", "float64")
_WHOLES = ("int", "int32", "int64", "uint32", "uint64")


def parsed(text: object) -> list[ast.stmt]:
    """Statements of a text. Raises: NestError."""
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise NestError("a code is a text of at most 4000 letters")
    try:
        return ast.parse(text.strip()).body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise NestError(f"{text[:40]!r} cannot be parsed") from error


def expression(text: object) -> ast.expr:
    """The one expression of a text. Raises: NestError."""
    match parsed(text):
        case [ast.Expr(value)]:
            return value
    raise NestError(f"{str(text)[:40]!r} is no expression")


def index_of(text: object, place: Place) -> Index:
    """A size, a bound or a subscript, as a text, its tree or a number. Raises: NestError if it is
    not affine."""
    if isinstance(text, int) and not isinstance(text, bool):
        return whole(text)
    return _index(text if isinstance(text, ast.expr) else expression(text), place)


def number_of(text: object, place: Place) -> int:
    """An integer. Raises: NestError for anything else."""
    number = constant(index_of(text, place))
    if number is None:
        raise NestError(f"{str(text)[:40]!r} is no number")
    return number


def _index(node: ast.expr, place: Place) -> Index:
    match node:
        case ast.Constant(int(value)):
            return whole(int(value))
        case ast.Name(name):
            return place.scope.index(name)
        case ast.UnaryOp(ast.USub(), operand):
            return _index(operand, place) * -1
        case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
            return index_pair(_ARITHMETIC[type(op)], _index(left, place), _index(right, place))
        case ast.BinOp(left, ast.FloorDiv(), right) | ast.Call(
            ast.Name("int_floor"), [left, right]
        ):
            return index_pair("/", _index(left, place), _index(right, place))
        case ast.BinOp(base, ast.Pow(), times):
            return index_power(_index(base, place), _index(times, place))
        case ast.Subscript(ast.Name(name), at):
            return Index(of=place.view(name).access([_index(n, place) for n in _subscripts(at)]))
    raise NestError(
        f"{ast.unparse(node)[:60]!r} is not affine, as subscripts, bounds and sizes are"
    )


def _subscripts(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


class Values:
    """Expressions of a tasklet. `names`: its connectors and own variables; an array that is passed
    as a whole is a view."""

    def __init__(self, names: Mapping[str, Expr | View], place: Place) -> None:
        self.names = dict(names)
        self._place = place

    def of(self, node: ast.expr) -> Expr:
        """The value of an expression. Raises: NestError for an unsupported one."""
        match node:
            case ast.Constant(bool(value)):
                return Const(int(value))
            case ast.Constant(int(value) | float(value)):
                return Const(value)
            case ast.Name(name):
                return self._name(name)
            case ast.Subscript(ast.Name(name), at):
                return Read(self.element(name, at))
            case ast.UnaryOp(ast.USub(), operand):
                return negated(self.of(operand))
            case ast.UnaryOp(ast.UAdd(), operand):
                return self.of(operand)
            case ast.UnaryOp(ast.Not(), operand):
                return opposite(self.of(operand))
            case ast.BinOp(left, ast.Pow(), right):
                return power(self.of(left), self.of(right))
            case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
                return pair(_ARITHMETIC[type(op)], self.of(left), self.of(right))
            case ast.Compare(left, [op], [right]) if type(op) in _COMPARED:
                return pair(_COMPARED[type(op)], self.of(left), self.of(right))
            case ast.BoolOp(op, [first, *rest]):
                combined = self.of(first)
                for one in rest:
                    both = all_true if isinstance(op, ast.And) else any_true
                    combined = both(combined, self.of(one))
                return combined
            case ast.IfExp(test, one, other):
                return chosen(self.of(test), self.of(one), self.of(other))
            case ast.Call(called, args, []):
                return self._call(called, args)
        raise NestError(f"{type(node).__name__} is not supported in a tasklet")

    def element(self, name: str, at: ast.expr) -> Access:
        """`name[at]` of an array that is passed as a whole."""
        view = self.names.get(name)
        if not isinstance(view, View):
            raise NestError(f"{name} has no elements")
        return view.access([self._subscript(one) for one in _subscripts(at)])

    def _subscript(self, node: ast.expr) -> Index:
        if isinstance(node, ast.Name) and node.id in self.names:
            match self.names[node.id]:
                case Read(access):
                    return Index(of=access)
            raise NestError(f"{node.id} is computed: a subscript is not affine")
        return _index(node, self._place)

    def _name(self, name: str) -> Expr:
        value = self.names.get(name)
        if isinstance(value, View):
            raise NestError(f"{name} is more than one element")
        if value is not None:
            return value
        symbol = self._place.scope.of(name)
        if isinstance(symbol, Index):
            return expression_of(symbol)
        if isinstance(symbol, Const):
            return symbol
        raise NestError(f"{name} is no number")

    def _call(self, called: ast.expr, operands: list[ast.expr]) -> Expr:
        match called:
            case ast.Name(name):
                pass
            case ast.Attribute(ast.Name(module), name) if module in _MODULES:
                pass
            case _:
                raise NestError("a call of this kind is not supported in a tasklet")
        args = [self.of(one) for one in operands]
        if len(args) == 1 and name in _FLOATS:
            return args[0]
        if len(args) == 1 and name in _WHOLES:
            if is_whole(args[0], self._place.scope.arrays):
                return args[0]
            raise NestError("a number is truncated to an integer, which is not supported in a nest")
        return function(name, args)


_TYPES = {
    **{"float32": "f32", "float": "f32", "float64": "f64", "double": "f64"},
    **{"int32": "i32", "int": "i32", "uint32": "i32", "int64": "i64", "uint64": "i64"},
    "bool": "i32",
}
_KINDS = ("Array", "Scalar")
#: DaCe leaves defaults out of a file.
_DEFAULT_TYPE = "int32"


class Containers:
    """The arrays of one program. `described`: its declarations; `handed`: views passed by the
    program around; `private`: the loops around a nested program."""

    def __init__(
        self,
        described: Mapping[str, Any],
        handed: Mapping[str, View],
        private: tuple[Loop, ...] = (),
    ) -> None:
        self._described = described
        self._views = dict(handed)
        self._private = private

    def ones(self, name: str, place: Place) -> list[bool]:
        """For every declared dimension, True if it is known to have one element.

        Raises: NestError for an unknown array.
        """
        kind, attributes = self._declaration(name)
        shape = [] if kind == "Scalar" else attributes.get("shape", [])
        return [_is_one(size, place) for size in shape]

    def view(self, name: str, place: Place) -> View:
        """The view of an array. Raises: NestError."""
        if name not in self._views:
            self._views[name] = self._create(name, place)
        return self._views[name]

    def alias(
        self, name: str, part: Callable[[Mapping[str, Any], Place], View], place: Place
    ) -> None:
        """Bind a view of DaCe to the result of `part` for its declaration, or to nothing if that
        refuses.

        Raises: NestError if it is no view.
        """
        kind, attributes = self._declaration(name)
        if "View" not in kind:
            raise NestError(f"{name} is no view")
        self._views.pop(name, None)
        with suppress(NestError):
            view = part(attributes, place)
            if _type_of(name, attributes) == place.registry.arrays[view.array].dtype:
                self._views[name] = view

    def _declaration(self, name: str) -> tuple[str, dict[str, Any]]:
        declaration = self._described.get(name)
        if not isinstance(declaration, dict) or not isinstance(declaration.get("attributes"), dict):
            raise NestError(f"there is no array {name[:40]!r}")
        return str(declaration.get("type")), declaration["attributes"]

    def _create(self, name: str, place: Place) -> View:
        kind, attributes = self._declaration(name)
        if kind not in _KINDS:
            overlaps = "View" in kind or "Reference" in kind
            why = ": arrays that overlap are not supported" if overlaps else ""
            raise NestError(f"{name} is of kind {kind[:40]}{why}")
        dtype = _type_of(name, attributes)
        transient = attributes.get("transient") is True
        shape = [] if kind == "Scalar" else _shape(name, attributes, place)
        if shape == [1] and transient:
            shape = []
        private = self._private if transient and shape else ()
        turns = [loop_range(private, place.registry.arrays, at) for at in range(len(private))]
        fill = "below:2" if attributes.get("dtype") == "bool" else ""
        array = Array(dtype, (*(high - low + 1 for low, high in turns), *shape), fill)
        number = place.registry.add(name, array, local=transient)
        own = ((Index(Affine.of_loop(at, -low)), None) for at, (low, _) in enumerate(turns))
        return View(number, (*own, *((Index(), at) for at in range(len(shape)))), len(shape))


def _is_one(size: object, place: Place) -> bool:
    try:
        return constant(index_of(size, place)) == 1
    except NestError:
        return False


def _type_of(name: str, attributes: Mapping[str, Any]) -> str:
    written = str(attributes.get("dtype", _DEFAULT_TYPE))
    dtype = _TYPES.get(written)
    if dtype is None:
        raise NestError(f"{name} has elements of type {written[:40]}")
    return dtype


def _shape(name: str, attributes: Mapping[str, Any], place: Place) -> list[int]:
    sizes = [index_of(size, place) for size in attributes.get("shape", [])]
    shape = [index_range(place.loops, place.registry.arrays, size)[1] for size in sizes]
    if any(offset not in ("0", 0) for offset in (attributes.get("offset") or [])):
        raise NestError(f"{name} starts at an offset")
    if all(size.of is None and not size.affine.coefs for size in sizes):
        strides = [number_of(stride, place) for stride in attributes.get("strides") or []]
        if strides and strides != [prod(shape[at + 1 :]) for at in range(len(shape))]:
            raise NestError(f"{name} has strides {strides}, not those of rows in order")
    if not shape or min(shape) < 1:
        raise NestError(f"{name} has no elements")
    return shape
