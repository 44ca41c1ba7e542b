"""The small expression language of platform files: conditions, constraints, split sizes and derived
quantities.

Names, numbers, strings, `and or not`, `== != < <= > >=` (chained as in Python), `in (a, b)`,
`+ - * // %`, `min`, `max` and `position(order, 'i1')`. Texts are parsed with `ast`, checked
against a list of allowed nodes and compiled to closures: nothing is executed as Python. A
`Language` defines the operations; `embeddb.platforms.space.quantity` has one for arrays.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from embeddb.core.errors import SpaceError
from embeddb.core.files.safe_read import refusing

#: Longer texts are refused before parsing; also bounds nesting.
MAX_LENGTH = 400
#: Larger literals and products are refused, so that every number of an expression, sums included,
#: fits a float and is computed fast.
LARGEST = 1e300

#: Exceptions of the allowed operators for unsuitable operands. A KeyError is always a name without
#: a value.
_FAILURES = (TypeError, ValueError, ArithmeticError, RecursionError)

_Env = Mapping[str, Any]
Compiled = Callable[[_Env], Any]


def _position(items: Any, name: Any) -> int:
    if not isinstance(items, tuple) or name not in items:
        raise TypeError("position() takes a permutation and one of its names")
    return items.index(name)


FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "position": _position}

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_GROWING = (operator.mul, operator.floordiv)
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


class Language:
    """The operations of expressions: here on single values, as in Python."""

    operators: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = _ARITHMETIC
    tests: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = _COMPARE
    functions: Mapping[str, Callable[..., Any]] = FUNCTIONS
    longest = MAX_LENGTH

    def junction(self, conjunction: bool, parts: list[Compiled]) -> Compiled:
        """`and`, else `or`, short-circuiting: a name that is not reached needs no value."""
        if conjunction:
            return lambda env: all(part(env) for part in parts)
        return lambda env: any(part(env) for part in parts)

    def opposite(self, part: Compiled) -> Compiled:
        """`not`."""
        return lambda env: not part(env)

    def arithmetic(
        self, apply: Callable[[Any, Any], Any], left: Compiled, right: Compiled
    ) -> Compiled:
        """An operator on numbers alone, with a bounded result."""
        grows = apply in _GROWING

        def run(env: _Env) -> Any:
            a, b = left(env), right(env)
            # Text times number would let a short file ask for gigabytes.
            if not isinstance(a, (int, float)) or not isinstance(b, (int, float)):
                raise TypeError("arithmetic needs numbers")
            result = apply(a, b)
            if grows and not -LARGEST <= result <= LARGEST:
                raise OverflowError("the number is too large")
            return result

        return run

    def other(self, node: ast.expr, compiled: Callable[[ast.expr], Compiled]) -> Compiled | None:
        """Compile a node that only this language has; None for another node."""
        return None


_PLAIN = Language()


class Expression:
    """One parsed expression: `names` are its parameters and symbols, `compared` the pairs (name,
    literal) that it tests for equality, to detect misspelt values.

    Raises: SpaceError naming the part that is not allowed or can never be evaluated.
    """

    __slots__ = ("_run", "body", "compared", "names", "text")

    def __init__(self, text: str, language: Language | None = None) -> None:
        self.text = text.strip()
        language = language or _PLAIN
        with refusing(SpaceError):  # nesting too deep for this stack
            self.body = _parse(self.text, language.longest)
            self._run = _compile(self.body, self.text, language)
            _refuse_hopeless(self.body, self.text, language)
        self.names = names_in(self.body)
        self.compared = tuple(_compared(self.body))

    def value(self, env: Mapping[str, Any]) -> Any:
        """Raises: KeyError naming a name without a value; SpaceError if it cannot be evaluated."""
        try:
            return self._run(env)
        except KeyError:
            raise
        except _FAILURES as error:
            raise SpaceError(f"{self.text} cannot be evaluated: {error}") from None

    def holds(self, env: Mapping[str, Any]) -> bool | None:
        """Evaluate as a condition: None if it needs a name that `env` lacks, False if it cannot be
        evaluated (a text compared with a number by size, a division by zero)."""
        try:
            return bool(self._run(env))
        except KeyError:
            return None
        except _FAILURES:
            return False

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


def names_in(body: ast.AST) -> frozenset[str]:
    """The names in a part of an expression, without those of functions."""
    called = {id(n.func) for n in ast.walk(body) if isinstance(n, ast.Call)}
    names = (n for n in ast.walk(body) if isinstance(n, ast.Name) and id(n) not in called)
    return frozenset(n.id for n in names if n.id not in FUNCTIONS)


def _parse(text: str, longest: int) -> ast.expr:
    if not text:
        raise SpaceError("the expression is empty")
    if len(text) > longest:
        raise SpaceError(f"an expression has at most {longest} characters, this has {len(text)}")
    if "\\" in text or "\0" in text:
        raise SpaceError(f"{text!r}: no backslashes in an expression")
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpaceError(f"{text!r} is not an expression") from None


def _refuse_hopeless(body: ast.expr, text: str, language: Language) -> None:
    """Raises: SpaceError for a part without names that cannot be evaluated."""
    for node in ast.walk(body):
        if not isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call)):
            continue
        if not names_in(node):
            try:
                value = _compile(node, text, language)({})
                if isinstance(value, float) and not math.isfinite(value):
                    raise OverflowError("the result is not a finite number")
            except _FAILURES as error:
                raise SpaceError(
                    f"{text!r}: {ast.unparse(node)!r} can never be evaluated: {error}"
                ) from None


def _compile(node: ast.expr, text: str, language: Language) -> Compiled:
    def compiled(part: ast.expr) -> Compiled:
        return _compile(part, text, language)

    match node:
        case ast.Constant(value=int() | float() as number) if abs(number) > LARGEST:
            raise SpaceError(f"an expression has no number larger than {LARGEST:g}")
        case ast.Constant(value=value) if type(value) in (int, float, str):
            return lambda env: value
        case ast.Name(id=name):
            return lambda env: env[name]
        case ast.Tuple(elts=elts) | ast.List(elts=elts):
            items = [compiled(e) for e in elts]
            return lambda env: tuple(item(env) for item in items)
        case ast.BoolOp(op=op, values=values):
            return language.junction(isinstance(op, ast.And), [compiled(v) for v in values])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return language.opposite(compiled(operand))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return language.arithmetic(
                language.operators[ast.Sub], lambda env: 0, compiled(operand)
            )
        case ast.BinOp(left=left, op=op, right=right) if type(op) in language.operators:
            apply = language.operators[type(op)]
            return language.arithmetic(apply, compiled(left), compiled(right))
        case ast.Compare():
            return _comparison(node, text, language)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in language.functions:
            function, operands = language.functions[name], [compiled(a) for a in args]
            return lambda env: function(*(operand(env) for operand in operands))
    further = language.other(node, compiled)
    if further is None:
        shown = ast.unparse(node)
        raise SpaceError(f"{text!r}: {shown!r} is not allowed in an expression")
    return further


def _comparison(node: ast.Compare, text: str, language: Language) -> Compiled:
    pairs, left = [], _compile(node.left, text, language)
    for op, operand in zip(node.ops, node.comparators, strict=True):
        if type(op) not in language.tests:
            raise SpaceError(f"{text!r}: use == or != instead of 'is'")
        if isinstance(op, (ast.In, ast.NotIn)) and not isinstance(operand, (ast.Tuple, ast.List)):
            raise SpaceError(f"{text!r}: 'in' needs a list such as ('a', 'b')")
        right = _compile(operand, text, language)
        pairs.append(_tested(language.tests[type(op)], left, right))
        left = right
    return pairs[0] if len(pairs) == 1 else language.junction(True, pairs)


def _tested(test: Callable[[Any, Any], Any], left: Compiled, right: Compiled) -> Compiled:
    return lambda env: test(left(env), right(env))


def _compared(body: ast.expr) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for node in ast.walk(body):
        if not isinstance(node, ast.Compare) or len(node.ops) != 1:
            continue
        left, right = node.left, node.comparators[0]
        if isinstance(right, ast.Name) and isinstance(left, ast.Constant):
            left, right = right, left
        if not isinstance(left, ast.Name):
            continue
        if isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
            options = [right]
        elif isinstance(node.ops[0], (ast.In, ast.NotIn)) and isinstance(
            right, (ast.Tuple, ast.List)
        ):
            options = right.elts
        else:
            continue
        pairs += [(left.id, o.value) for o in options if isinstance(o, ast.Constant)]
    return pairs
