"""Derived quantities: vectorised expressions of a platform file over many configurations, with sums
and maxima over the rows of the matrix.

In addition to the language of constraints: `/`, `a if condition else b`, `ceil`, `floor`, `log2`,
`default(a, b)` (b where a does not apply), `fact('name', b)` (a number of the machine or of the
file's traits, b where it has none), and over the rows `sum_rows(...)` and `max_rows(...)` of an
expression in `LENGTH`, the entries of a row.

A parameter that a configuration lacks does not apply (nan), nor does arithmetic with it, a division
by zero or a logarithm of zero. A value that does not apply is not equal to, less or greater than
any other.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import SpaceError
from embeddb.core.sizes import MATRIX_SYMBOLS
from embeddb.platforms.space.expression import Compiled, Expression, Language, names_in
from embeddb.platforms.space.rules import Param, Rules, readers_last

#: The entries of a row, within an aggregate.
LENGTH = "LENGTH"
#: Before the name of a fact in an environment; no name of an expression begins so.
FACT = "fact:"
AGGREGATES = ("sum_rows", "max_rows")

MAX_LENGTH = 1000
MAX_QUANTITIES = 32
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
#: Levels of nesting of an expression.
MAX_DEPTH = 60
#: Combinations of values are numbered up to here; beyond, those that occur are renumbered.
_MOST_KEYS = 1 << 62

Floats = NDArray[np.float64]


class Column(NamedTuple):
    """One parameter of c configurations: its distinct `values`, and `codes` int64[c], their places
    by configuration (-1: the configuration has no value)."""

    values: tuple[Any, ...]
    codes: NDArray[np.int64]

    @classmethod
    def of(cls, cells: Iterable[Any]) -> Column:
        """Encode cells; None stands for no value."""
        # True equals 1 in a dictionary, but not in a space.
        places: dict[tuple[type, Any], int] = {}
        codes = [
            -1 if value is None else places.setdefault((type(value), value), len(places))
            for value in cells
        ]
        return cls(tuple(value for _, value in places), np.array(codes, dtype=np.int64))

    def mapped(self, change: Callable[[Any], Any]) -> Column:
        """The column with changed values, merged where they become equal."""
        joined = Column.of(map(change, self.values))
        return Column(joined.values, np.append(joined.codes, -1)[self.codes])

    def looked_up(self, function: Callable[[Any], float | bool]) -> NDArray[Any]:
        """Apply a function once per distinct value, and to None for no value."""
        return np.array([function(value) for value in (*self.values, None)])[self.codes]


class EncodedConfigs:
    """The parameters of c configurations as columns, each encoded when it is first read."""

    def __init__(self, configs: Sequence[Mapping[str, Any]]) -> None:
        self.configs = configs
        self._columns: dict[str, Column] = {}

    def __len__(self) -> int:
        return len(self.configs)

    @cached_property
    def names(self) -> list[str]:
        """All parameters that a configuration has, sorted."""
        return sorted({name for config in self.configs for name in config})

    def column(self, name: str) -> Column:
        """The column of one parameter; a configuration without it has no value."""
        if name not in self._columns:
            self._columns[name] = Column.of(config.get(name) for config in self.configs)
        return self._columns[name]


def combinations(
    columns: Iterable[Column], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Distinct combinations of the values of columns at rows int64[r]: the first row of each, as a
    place in `rows` int64[k], and the combination of each row int64[r]."""
    key, count = np.zeros(len(rows), dtype=np.int64), 1
    for values, codes in columns:
        if count > _MOST_KEYS // (len(values) + 1):
            distinct, key = np.unique(key, return_inverse=True)
            count = len(distinct)
        key = key * (len(values) + 1) + codes[rows] + 1
        count *= len(values) + 1
    _, firsts, group = np.unique(key, return_index=True, return_inverse=True)
    return firsts, group


def _equal(a: Any, b: Any) -> Any:
    if isinstance(b, Column):
        a, b = b, a
    if isinstance(a, Column):
        return a.looked_up(lambda value: value == b)
    return np.equal(a, b)


def _among(a: Any, items: tuple[Any, ...]) -> Any:
    return reduce(np.logical_or, (_equal(a, item) for item in items), False)


def _truth(x: Any) -> Any:
    """True where a value applies and is not zero."""
    return x if np.asarray(x).dtype == bool else np.abs(x) > 0


def _number(x: Any) -> Any:
    return np.asarray(x, dtype=np.float64)


def _position(order: Column, name: str) -> Any:
    return order.looked_up(
        lambda value: value.index(name) if value is not None and name in value else np.nan
    )


def _finite(x: Any) -> Any:
    """Nan in place of infinite numbers."""
    return np.where(np.isfinite(x), x, np.nan)[()]


def _default(x: Any, instead: Any) -> Any:
    return np.where(np.isnan(x), instead, x)


_ARITIES = {"ceil": 1, "floor": 1, "log2": 1, "default": 2, "position": 2}


class _Arrays(Language):
    """Operations for many configurations at a time: numbers are arrays that broadcast, texts are
    `Column`, values that do not apply are nan."""

    operators: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
        ast.Add: np.add,
        ast.Sub: np.subtract,
        ast.Mult: np.multiply,
        ast.Div: lambda a, b: _finite(np.divide(a, b)),
        ast.FloorDiv: lambda a, b: _finite(np.floor_divide(a, b)),
        ast.Mod: lambda a, b: _finite(np.mod(a, b)),
    }
    tests: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
        ast.Eq: _equal,
        ast.NotEq: lambda a, b: np.logical_not(_equal(a, b)),
        ast.Lt: np.less,
        ast.LtE: np.less_equal,
        ast.Gt: np.greater,
        ast.GtE: np.greater_equal,
        ast.In: _among,
        ast.NotIn: lambda a, items: np.logical_not(_among(a, items)),
    }
    functions: Mapping[str, Callable[..., Any]] = {
        "min": lambda *numbers: reduce(np.minimum, map(_number, numbers)),
        "max": lambda *numbers: reduce(np.maximum, map(_number, numbers)),
        "ceil": lambda x: np.ceil(_number(x)),
        "floor": lambda x: np.floor(_number(x)),
        "log2": lambda x: _finite(np.log2(_number(x))),
        "default": lambda x, instead: _default(_number(x), _number(instead)),
        "position": _position,
    }
    longest = MAX_LENGTH

    def junction(self, conjunction: bool, parts: list[Compiled]) -> Compiled:
        join = np.logical_and if conjunction else np.logical_or
        return lambda env: reduce(join, (_truth(part(env)) for part in parts))

    def opposite(self, part: Compiled) -> Compiled:
        return lambda env: np.logical_not(_truth(part(env)))

    def arithmetic(
        self, apply: Callable[[Any, Any], Any], left: Compiled, right: Compiled
    ) -> Compiled:
        return lambda env: apply(_number(left(env)), _number(right(env)))

    def other(self, node: ast.expr, compiled: Callable[[ast.expr], Compiled]) -> Compiled | None:
        match node:
            case ast.IfExp(test=test, body=body, orelse=orelse):
                when, then, instead = compiled(test), compiled(body), compiled(orelse)
                return lambda env: np.where(
                    _truth(when(env)), _number(then(env)), _number(instead(env))
                )
            case ast.Call(
                func=ast.Name(id="fact"),
                args=[ast.Constant(value=str() as name), ast.Constant(value=int() | float())],
                keywords=[],
            ):
                number = compiled(node.args[1])({})
                return lambda env: env.get(FACT + name, number)
            case ast.Call(func=ast.Name(id=name), args=[of], keywords=[]) if name in AGGREGATES:
                if not names_in(of):  # a constant, which is computed at once
                    raise _unread(node)
                names, each, largest = names_in(of) - {LENGTH}, compiled(of), name == "max_rows"
                return lambda env: env.over_rows(names, each, largest=largest)  # type: ignore[attr-defined]  # environments of arrays have it
        return None


_ARRAYS = _Arrays()


class Quantity(Expression):
    """One derived quantity: a name and the parsed expression; `names` are without `LENGTH`.

    Raises: SpaceError naming the part that is not allowed.
    """

    __slots__ = ("name",)

    def __init__(self, name: str, text: str) -> None:
        with np.errstate(all="ignore"):
            super().__init__(" ".join(text.split()), _ARRAYS)
        self.name = name
        aggregates = [n for n in ast.walk(self.body) if _is_aggregate(n)]
        _check_shape(self.body, self.text, aggregates)
        self.names -= {LENGTH}

    @property
    def over_rows(self) -> bool:
        """True if it needs the lengths of the rows."""
        return any(map(_is_aggregate, ast.walk(self.body)))

    def check(self, params: Mapping[str, Param]) -> None:
        """Raises: SpaceError for an aggregate of what is the same in every row, and for a text that
        must be a number or is compared by size. Names are checked before: a misspelt `LENGTH` is
        an unknown name."""
        for node in filter(_is_aggregate, ast.walk(self.body)):
            if LENGTH not in names_in(node):
                raise _unread(node)
        texts = {name: param.kind for name, param in params.items() if holds_texts(param)}
        if _textual(self.body, texts):
            raise SpaceError(f"{self.text!r} is a text, not a number")
        for node in ast.walk(self.body):
            parts = [part for part in ast.iter_child_nodes(node) if _textual(part, texts)]
            if parts and not _may_read_texts(node, texts):
                shown = ast.unparse(parts[0])
                raise SpaceError(
                    f"{shown!r} is a text in {ast.unparse(node)!r}: compare it by ==, != or in"
                )


def _unread(aggregate: ast.AST) -> SpaceError:
    shown = ast.unparse(aggregate)
    return SpaceError(f"{shown!r} does not read {LENGTH}, so every row has the same")


def holds_texts(param: Param) -> bool:
    """True if values of a parameter are compared as texts, not used in arithmetic."""
    return param.kind == "permutation" or (
        param.kind == "choice" and any(isinstance(value, str) for value in param.values)
    )


def _textual(node: ast.AST, texts: Mapping[str, str]) -> bool:
    match node:
        case ast.Name(id=name):
            return name in texts
        case ast.Constant(value=value):
            return isinstance(value, str)
        case ast.Tuple() | ast.List():
            return True
    return False


def _may_read_texts(node: ast.AST, texts: Mapping[str, str]) -> bool:
    """True if a part may have texts as operands; `texts` are kinds of parameters by name."""
    match node:
        case ast.Tuple() | ast.List():
            return True
        case ast.Call(func=ast.Name(id="fact")):
            return True
        case ast.Call(func=ast.Name(id="position"), args=[ast.Name(id=name), ast.Constant()]):
            return texts.get(name) == "permutation"
        case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[items]):
            assert isinstance(items, (ast.Tuple, ast.List))
            plain = all(isinstance(item, (ast.Constant, ast.UnaryOp)) for item in items.elts)
            some = any(_textual(item, {}) for item in items.elts)
            return plain and (_is_choice(left, texts) or not (some or _textual(left, texts)))
        case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
            literal = any(isinstance(part, ast.Constant) for part in (left, right))
            return literal and any(_is_choice(part, texts) for part in (left, right))
    return False


def _is_choice(node: ast.AST, texts: Mapping[str, str]) -> bool:
    return isinstance(node, ast.Name) and texts.get(node.id) == "choice"


def _is_aggregate(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in AGGREGATES
    )


def _check_shape(body: ast.expr, text: str, aggregates: Sequence[ast.AST]) -> None:
    """Raises: SpaceError for a part that no environment can evaluate."""
    if (depth := _depth(body)) > MAX_DEPTH:
        raise SpaceError(f"nested {depth} levels deep, at most {MAX_DEPTH} are allowed")
    for node in ast.walk(body):
        if isinstance(node, ast.Call):
            assert isinstance(node.func, ast.Name)
            wanted = _ARITIES.get(node.func.id, len(node.args) or 1)
            if len(node.args) != wanted:
                shown = ast.unparse(node)
                raise SpaceError(f"{shown!r}: {node.func.id}() takes {wanted} values")
    below = (node for top in aggregates for node in ast.walk(top) if node is not top)
    inside = set(map(id, below))
    if any(id(node) in inside for node in aggregates):
        raise SpaceError(f"{text!r}: {' and '.join(AGGREGATES)} cannot be nested")
    for node in ast.walk(body):
        if isinstance(node, ast.Name) and node.id == LENGTH and id(node) not in inside:
            raise SpaceError(f"{LENGTH} is of one row: use it within {' or '.join(AGGREGATES)}")


def _depth(body: ast.AST) -> int:
    depth, level = 0, [body]
    while level:
        depth += 1
        level = [part for node in level for part in ast.iter_child_nodes(node)]
    return depth


class Quantities:
    """Derived quantities of a space in declared order, perhaps none. Raises: SpaceError whose
    `where` is the quantity at fault."""

    def __init__(self, quantities: Sequence[Quantity], rules: Rules) -> None:
        self.quantities = tuple(quantities)
        self.names = tuple(quantity.name for quantity in quantities)
        self.params = rules.params
        by_name = {quantity.name: quantity for quantity in quantities}
        if len(by_name) > MAX_QUANTITIES:
            raise SpaceError(
                f"{len(by_name)} quantities, at most {MAX_QUANTITIES} are allowed", where="derived"
            )
        for quantity in quantities:
            _check(quantity, rules, frozenset(by_name))
        reads = {name: one.names & by_name.keys() for name, one in by_name.items()}
        order = readers_last(reads, "quantities", "derived.{}")
        #: Each after the quantities that it reads.
        self.order = [by_name[name] for name in order]

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def digest(self) -> str:
        """16 hex digits that change with a definition, or "": stored with models trained on the
        values."""
        text = "\n".join(f"{quantity.name} = {quantity.text}" for quantity in self.quantities)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest() if text else ""


def _check(quantity: Quantity, rules: Rules, names: frozenset[str]) -> None:
    """Raises: SpaceError."""
    name, where = quantity.name, f"derived.{quantity.name}"
    if not _NAME.fullmatch(name):
        raise SpaceError(f"{name!r} cannot be the name of a quantity", where=where)
    if name in rules.by_name or name in rules.sizes or name in (*MATRIX_SYMBOLS, LENGTH):
        raise SpaceError(f"{name!r} is the name of a parameter or a size already", where=where)
    rules.check_names(quantity, where, further=names)
    if quantity.over_rows and not rules.workload.learned:
        raise SpaceError(f"a {rules.workload.name} has no rows to sum over", where=where)
    if quantity.over_rows and LENGTH in rules.by_name:
        raise SpaceError(f"{LENGTH} is the name of a parameter here", where=where)
    try:
        quantity.check(rules.by_name)
    except SpaceError as error:
        raise SpaceError(error.reason, where=where) from None
