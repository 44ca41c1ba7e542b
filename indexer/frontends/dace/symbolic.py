"""Symbolic texts and tasklet code of an `.sdfg` file as indices and values of a nest.

They are Python, parsed by `ast` and never run: anything but arithmetic is refused.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from embeddb.core.errors import NestError
from embeddb.nests.parts import Access, Const, Expr, Index, Read
from indexer.frontends.dace.data import Place, View
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
    constant,
    expression_of,
    index_pair,
    index_power,
    scaled,
    whole,
)

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
    """Statements of a text.

    Raises: NestError.
    """
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise NestError("a code is a text of at most 4000 letters")
    try:
        return ast.parse(text.strip()).body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise NestError(f"{text[:40]!r} cannot be parsed") from error


def expression(text: object) -> ast.expr:
    """The one expression of a text.

    Raises: NestError.
    """
    match parsed(text):
        case [ast.Expr(value)]:
            return value
    raise NestError(f"{str(text)[:40]!r} is no expression")


def index_of(text: object, place: Place) -> Index:
    """A size, a bound or a subscript.

    Raises: NestError if it is not affine.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return whole(text)
    return _index(expression(text), place)


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
            meaning = place.scope.of(name)
            if isinstance(meaning, Index):
                return meaning
            if isinstance(meaning, Const) and isinstance(meaning.value, int):
                return whole(meaning.value)
            raise NestError(f"{name} is no whole number")
        case ast.UnaryOp(ast.USub(), operand):
            return scaled(_index(operand, place), -1)
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
