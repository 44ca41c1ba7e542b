"""The small expression language of platform files: conditions, constraints and split sizes.

Names, numbers, strings, `and or not`, `== != < <= > >=` (chained as in Python), `in (a, b)`,
`+ - * // %`, `min`, `max` and `position(order, 'i1')`. Parsed with `ast`, checked against a list
of allowed nodes and turned into closures: nothing is ever executed as Python.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from embeddb.core.errors import SpaceError
from embeddb.core.files.safe_read import refusing

#: Longer texts are refused before parsing; also bounds nesting.
MAX_LENGTH = 400
#: Larger numbers, written or multiplied, cannot be evaluated: what is below it, and so many sums of
#: it as fit into a text, is a float, too, and never long enough to cost time.
LARGEST = 1e300

#: What the allowed operators raise for operands that they cannot be applied to. A name without a
#: value is a KeyError, and nothing else is one.
_FAILURES = (TypeError, ValueError, ArithmeticError, RecursionError)

_Env = Mapping[str, Any]
_Compiled = Callable[[_Env], Any]


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


class Expression:
    """One parsed expression.

    `names` are the parameters and symbols it mentions; `compared` the pairs (name, literal) that
    it tests for equality, so that a misspelt value can be told from a legal one.

    Raises: SpaceError saying what in the text is not allowed, or can never be evaluated.
    """

    __slots__ = ("_run", "compared", "names", "text")

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        with refusing(SpaceError):  # what is left is a nesting that is too deep for this stack
            body = _parse(self.text)
            self._run = _compile(body, self.text)
            _refuse_hopeless(body, self.text)
        self.names = frozenset(
            n.id for n in ast.walk(body) if isinstance(n, ast.Name) and n.id not in FUNCTIONS
        )
        self.compared = tuple(_compared(body))

    def value(self, env: Mapping[str, Any]) -> Any:
        """Raises: KeyError naming a name without a value; SpaceError if it cannot be evaluated."""
        try:
            return self._run(env)
        except KeyError:
            raise
        except _FAILURES as error:
            raise SpaceError(f"{self.text} cannot be evaluated: {error}") from None

    def holds(self, env: Mapping[str, Any]) -> bool | None:
        """Whether it is true; None if it needs a name that `env` lacks.

        `and` and `or` stop early, so a name they do not reach may be lacking. What cannot be
        evaluated (a text compared with a number by size, a division by zero) is not true.
        """
        try:
            return bool(self._run(env))
        except KeyError:
            return None
        except _FAILURES:
            return False

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


def _parse(text: str) -> ast.expr:
    if not text:
        raise SpaceError("the expression is empty")
    if len(text) > MAX_LENGTH:
        raise SpaceError(f"an expression has at most {MAX_LENGTH} characters, this has {len(text)}")
    if "\\" in text or "\0" in text:
        raise SpaceError(f"{text!r}: no backslashes in an expression")
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpaceError(f"{text!r} is not an expression") from None


def _refuse_hopeless(body: ast.expr, text: str) -> None:
    """Raises: SpaceError for a part without names that cannot be evaluated: no values help."""
    for node in ast.walk(body):
        if not isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call)):
            continue
        if all(n.id in FUNCTIONS for n in ast.walk(node) if isinstance(n, ast.Name)):
            try:
                _compile(node, text)({})
            except _FAILURES as error:
                raise SpaceError(
                    f"{text!r}: {ast.unparse(node)!r} can never be evaluated: {error}"
                ) from None


def _compile(node: ast.expr, text: str) -> _Compiled:
    match node:
        case ast.Constant(value=int() | float() as number) if abs(number) > LARGEST:
            raise SpaceError(f"an expression has no number larger than {LARGEST:g}")
        case ast.Constant(value=value) if type(value) in (int, float, str):
            return lambda env: value
        case ast.Name(id=name):
            return lambda env: env[name]
        case ast.Tuple(elts=elts) | ast.List(elts=elts):
            items = [_compile(e, text) for e in elts]
            return lambda env: tuple(item(env) for item in items)
        case ast.BoolOp(op=op, values=values):
            return _boolean(isinstance(op, ast.And), [_compile(v, text) for v in values])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _compile(operand, text)
            return lambda env: not inner(env)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            negated = _compile(operand, text)
            return lambda env: -negated(env)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _arithmetic(_ARITHMETIC[type(op)], _compile(left, text), _compile(right, text))
        case ast.Compare():
            return _comparison(node, text)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            function, given = FUNCTIONS[name], [_compile(a, text) for a in args]
            return lambda env: function(*(g(env) for g in given))
    shown = ast.unparse(node)
    raise SpaceError(f"{text!r}: {shown!r} is not allowed in an expression")


def _boolean(conjunction: bool, parts: list[_Compiled]) -> _Compiled:
    if conjunction:
        return lambda env: all(part(env) for part in parts)
    return lambda env: any(part(env) for part in parts)


def _arithmetic(apply: Callable[[Any, Any], Any], left: _Compiled, right: _Compiled) -> _Compiled:
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


def _comparison(node: ast.Compare, text: str) -> _Compiled:
    tests = []
    for op, right in zip(node.ops, node.comparators, strict=True):
        if type(op) not in _COMPARE:
            raise SpaceError(f"{text!r}: use == or != instead of 'is'")
        if isinstance(op, (ast.In, ast.NotIn)) and not isinstance(right, (ast.Tuple, ast.List)):
            raise SpaceError(f"{text!r}: 'in' needs a list such as ('a', 'b')")
        tests.append((_COMPARE[type(op)], _compile(right, text)))
    first = _compile(node.left, text)
    if len(tests) == 1:
        test, other = tests[0]
        return lambda env: test(first(env), other(env))

    def run(env: _Env) -> bool:
        left = first(env)
        for check, operand in tests:
            value = operand(env)
            if not check(left, value):
                return False
            left = value
        return True

    return run


def _compared(body: ast.expr) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
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
        found += [(left.id, o.value) for o in options if isinstance(o, ast.Constant)]
    return found
