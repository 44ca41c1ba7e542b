"""A nest as JSON: the canonical text that its id is made from, and the file form with names.

    {"nest": 1, "name": "mm_64", "group": "mm", "loops": ["i", "j", "k"], "arrays": ["C", "A", "B"],
     "code": {"loops": [[[0], [64], 1], [[0], [64], 1], [[0], [64], 1]],
              "arrays": [["f32", [64, 64], "zero", 0], ...],
              "body": [["+=", [0, [0, 1], [0, 0, 1]], ["*", ["read", ...], ["read", ...]], null]]}}

An index is `[constant, coefficient of loop 1, ...]`, or `{"plus": index, "of": access}` where an
element of an array is added; an access is `[array, index, ...]`. What a stranger wrote is checked
in full by `check`: nothing that leaves an array is ever run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from embeddb.core.errors import NestError
from embeddb.core.gate import refusing
from embeddb.nests.code import code_of
from embeddb.nests.extents import index_range, loop_range, values_of
from embeddb.nests.nest import Nest
from embeddb.nests.parts import (
    COMBINES,
    DTYPES,
    MOST_LOOPS,
    OPERATORS,
    Access,
    Affine,
    Array,
    Call,
    Const,
    Expr,
    Index,
    Loop,
    LoopIndex,
    Read,
    Statement,
)

__all__ = ["MOST_TEXT", "check", "nest_from_text", "nest_text"]

T = TypeVar("T")

#: Longer texts are no nests.
MOST_TEXT = 1 << 20
#: Largest number in a text: products of two stay far below 2**63.
_LARGEST = 1 << 40
_MOST_STATEMENTS = 64
_MOST_ARRAYS = 64
_MOST_DIMENSIONS = 8
_DEEPEST = 60
_FILL = re.compile(
    r"uniform|zero|range|permutation|below:[1-9]\d{0,11}|offsets:\d{1,12}(:\d{1,3}(\.\d{1,3})?)?"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_FORM = 1
#: Turns of the innermost loop, and bytes of all arrays, beyond which a nest is refused.
MOST_POINTS = 1 << 48
MOST_BYTES = 1 << 40


def nest_text(nest: Nest) -> bytes:
    """The file form, one line of UTF-8."""
    told = {
        "nest": _FORM,
        "name": nest.name,
        "group": nest.group,
        "loops": [nest.loop_name(at) for at in range(nest.depth)],
        "arrays": [nest.array_name(a) for a in range(len(nest.arrays))],
        "code": code_of(nest.loops, nest.arrays, nest.body),
    }
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode()


def nest_from_text(text: bytes | str, *, where: str = "") -> Nest:
    """The file form read back, checked, with its arrays in the order they are met.

    Raises: NestError, one line that names the part.
    """
    with refusing(NestError, where=where):
        if len(text) > MOST_TEXT:
            raise NestError(f"a nest has at most {MOST_TEXT} characters")
        told = json.loads(text, parse_constant=_no_number)
        if not isinstance(told, dict) or told.get("nest") != _FORM:
            raise NestError(f'is no nest: it needs "nest": {_FORM}')
        code = told.get("code")
        if not isinstance(code, dict) or sorted(code) != ["arrays", "body", "loops"]:
            raise NestError('"code" must have "loops", "arrays" and "body"')
        nest = Nest(
            tuple(_list(code["loops"], _read_loop, "loops", MOST_LOOPS)),
            tuple(_list(code["arrays"], _read_array, "arrays", _MOST_ARRAYS)),
            tuple(_list(code["body"], _read_statement, "body", _MOST_STATEMENTS)),
            name=_text(told.get("name", ""), "name"),
            group=_text(told.get("group", ""), "group"),
            loop_names=_names(told.get("loops", []), "loops"),
            array_names=_names(told.get("arrays", []), "arrays"),
        )
        return check(nest)


def check(nest: Nest) -> Nest:
    """The nest with its arrays in the order they are met and those that nothing touches left out.

    Raises: NestError for what is no nest, or could leave an array when it runs.
    """
    if not nest.loops or not nest.body:
        raise NestError("a nest needs a loop and a statement")
    if len(nest.loops) > MOST_LOOPS:
        raise NestError(f"{len(nest.loops)} loops, at most {MOST_LOOPS} are allowed")
    if len(set(nest.array_names)) != len(nest.array_names):
        twice = next(n for n in nest.array_names if nest.array_names.count(n) > 1)
        raise NestError(f"two arrays are called {twice!r}: arrays that overlap are not known here")
    _check_arrays(nest)
    _check_loops(nest)
    for statement, access, _ in nest.accesses():
        _check_known(nest, access)
        if statement < 0 and access.array in nest.written:
            raise NestError(
                f"{nest.array_name(access.array)}: is written and bounds a loop in one nest"
            )
    nest = _in_order(nest)
    for _, access, _ in nest.accesses():
        _check_inside(nest, access)
    return nest


def _check_arrays(nest: Nest) -> None:
    for at, array in enumerate(nest.arrays):
        name = nest.array_name(at)
        if array.dtype not in DTYPES:
            raise NestError(f"{name}: no type {array.dtype!r}; types: {', '.join(DTYPES)}")
        if not array.shape or len(array.shape) > _MOST_DIMENSIONS or min(array.shape) < 1:
            raise NestError(f"{name}: a shape is 1 to {_MOST_DIMENSIONS} sizes of at least 1")
        if not _FILL.fullmatch(array.fill):
            raise NestError(f"{name}: no fill {array.fill[:40]!r}")
        whole = array.fill not in ("uniform", "zero")
        if whole and array.dtype not in ("i32", "i64"):
            raise NestError(f"{name}: fill {array.fill} needs whole numbers, not {array.dtype}")
        if whole and array.dtype == "i32" and values_of(array)[1] >= 1 << 31:
            raise NestError(f"{name}: fill {array.fill} does not fit into i32")
    if sum(array.bytes for array in nest.arrays) > MOST_BYTES:
        raise NestError(f"the arrays have more than {MOST_BYTES} bytes")


def _check_loops(nest: Nest) -> None:
    indices = [i for loop in nest.loops for i in (loop.lower, loop.upper)]
    for at, loop in enumerate(nest.loops):
        for bound in (loop.lower, loop.upper):
            if any(outer >= at for outer in bound.loops):
                raise NestError(f"loop {nest.loop_name(at)}: a bound depends on an inner loop")
        if loop.step < 1:
            raise NestError(f"loop {nest.loop_name(at)}: step {loop.step} is not positive")
    for index in indices:
        if index.of is not None:
            _check_known(nest, index.of)
    for at in range(nest.depth):
        low, high = loop_range(nest.loops, nest.arrays, at)
        if max(abs(low), abs(high)) > _LARGEST or high < low:
            raise NestError(f"loop {nest.loop_name(at)}: runs from {low} to {high}")
        if nest.trips[at] < 1:
            raise NestError(f"loop {nest.loop_name(at)}: never runs")
    if nest.points > MOST_POINTS:
        raise NestError(f"the body runs {nest.points} times, at most {MOST_POINTS} are allowed")


def _check_known(nest: Nest, access: Access) -> None:
    for one in (*access.inner(), access):
        if not 0 <= one.array < len(nest.arrays):
            raise NestError(f"there is no array {one.array}")
        array, name = nest.arrays[one.array], nest.array_name(one.array)
        if len(one.at) != len(array.shape):
            raise NestError(f"{name}: {len(one.at)} indices for {len(array.shape)} dimensions")
        if any(at >= nest.depth for at in one.loops):
            raise NestError(f"{name}: an index uses a loop that is not there")
        for index in one.at:
            index_range(nest.loops, nest.arrays, index)
    for inner in access.inner():
        if inner.array in nest.written:
            raise NestError(
                f"{nest.array_name(inner.array)}: is written and used as an index in one nest"
            )


def _check_inside(nest: Nest, access: Access) -> None:
    array, name = nest.arrays[access.array], nest.array_name(access.array)
    for dimension, (index, extent) in enumerate(zip(access.at, array.shape, strict=True)):
        low, high = index_range(nest.loops, nest.arrays, index)
        if low < 0 or high >= extent:
            raise NestError(
                f"{name}: index {dimension + 1} runs from {low} to {high}, outside 0 to "
                f"{extent - 1}"
            )


def _in_order(nest: Nest) -> Nest:
    """Arrays renumbered by first access: the target first, then what is read, then bounds."""
    met: list[int] = []
    of_bounds = [a for at, a, _ in nest.accesses() if at < 0]
    for statement in nest.body:
        met += [a.array for a in (statement.target, *statement.reads())]
    met += [a.array for a in of_bounds]
    order = list(dict.fromkeys(met))
    place = {old: new for new, old in enumerate(order)}
    if order == list(range(len(nest.arrays))):
        return nest
    return replace(
        nest,
        loops=tuple(
            Loop(_index_at(loop.lower, place), _index_at(loop.upper, place), loop.step)
            for loop in nest.loops
        ),
        arrays=tuple(nest.arrays[old] for old in order),
        body=tuple(
            Statement(
                _access_at(s.target, place),
                s.combine,
                _expr_at(s.value, place),
                None if s.where is None else _expr_at(s.where, place),
            )
            for s in nest.body
        ),
        array_names=tuple(nest.array_name(old) for old in order),
    )


def _index_at(index: Index, place: dict[int, int]) -> Index:
    return Index(index.affine, None if index.of is None else _access_at(index.of, place))


def _access_at(access: Access, place: dict[int, int]) -> Access:
    return Access(place[access.array], tuple(_index_at(i, place) for i in access.at))


def _expr_at(expression: Expr, place: dict[int, int]) -> Expr:
    if isinstance(expression, Read):
        return Read(_access_at(expression.access, place))
    if isinstance(expression, Call):
        return Call(expression.op, tuple(_expr_at(a, place) for a in expression.args))
    return expression


# -- reading ---------------------------------------------------------------------------------------


def _list(value: Any, read: Callable[[Any, str], T], where: str, most: int) -> list[T]:
    if not isinstance(value, list):
        raise NestError(f"{where}: must be a list")
    if len(value) > most:
        raise NestError(f"{where}: {len(value)} of them, at most {most} are allowed")
    return [read(item, f"{where}[{at}]") for at, item in enumerate(value)]


def _whole(value: Any, where: str) -> int:
    if type(value) is not int or abs(value) > _LARGEST:
        raise NestError(f"{where}: must be a whole number of at most {_LARGEST}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or len(value) > 200 or not value.isprintable():
        raise NestError(f"{where}: must be a short text")
    return value


def _names(value: Any, where: str) -> tuple[str, ...]:
    def read(item: Any, at: str) -> str:
        if not isinstance(item, str) or not _NAME.fullmatch(item):
            raise NestError(f"{at}: must be a name of letters, digits and _")
        return item

    return tuple(_list(value, read, where, _MOST_ARRAYS))


def _read_index(value: Any, where: str, depth: int = 0) -> Index:
    if isinstance(value, dict):
        if sorted(value) != ["of", "plus"] or depth > 2:
            raise NestError(f'{where}: an index out of an array has "plus" and "of"')
        plain = _read_index(value["plus"], f"{where}.plus", depth + 1)
        return Index(plain.affine, _read_access(value["of"], f"{where}.of", depth + 1))
    numbers = _list(value, _whole, where, MOST_LOOPS + 1)
    if not numbers:
        raise NestError(f"{where}: an index has a constant at least")
    return Index(Affine(numbers[0], tuple(numbers[1:])))


def _read_access(value: Any, where: str, depth: int = 0) -> Access:
    if not isinstance(value, list) or not 2 <= len(value) <= _MOST_DIMENSIONS + 1:
        raise NestError(f"{where}: an access is [array, index, ...]")
    at = [_read_index(v, f"{where}[{n + 1}]", depth) for n, v in enumerate(value[1:])]
    return Access(_whole(value[0], where), tuple(at))


def _read_loop(value: Any, where: str) -> Loop:
    if not isinstance(value, list) or len(value) != 3:
        raise NestError(f"{where}: a loop is [lower, upper, step]")
    lower, upper = (_read_index(v, where) for v in value[:2])
    return Loop(lower, upper, _whole(value[2], where))


def _read_array(value: Any, where: str) -> Array:
    if not isinstance(value, list) or len(value) != 4 or value[3] not in (0, 1):
        raise NestError(f"{where}: an array is [type, shape, fill, transient]")
    shape = _list(value[1], _whole, where, _MOST_DIMENSIONS)
    return Array(_text(value[0], where), tuple(shape), _text(value[2], where), bool(value[3]))


def _read_statement(value: Any, where: str) -> Statement:
    if not isinstance(value, list) or len(value) != 4 or value[0] not in COMBINES:
        raise NestError(f"{where}: a statement is [{' or '.join(COMBINES)}, target, value, where]")
    masked = None if value[3] is None else _read_expr(value[3], f"{where}.where", 0)
    return Statement(
        _read_access(value[1], f"{where}.target"),
        value[0],
        _read_expr(value[2], f"{where}.value", 0),
        masked,
    )


def _read_expr(value: Any, where: str, depth: int) -> Expr:
    if depth > _DEEPEST:
        raise NestError(f"{where}: nested more than {_DEEPEST} deep")
    if type(value) in (int, float):
        if not math.isfinite(value):
            raise NestError(f"{where}: {value} is no number")
        return Const(value)
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise NestError(f"{where}: an expression is a number or [operator, ...]")
    op, args = value[0], value[1:]
    if op == "read":
        return Read(_read_access(args, where))
    if op == "loop" and len(args) == 1:
        return LoopIndex(_whole(args[0], where))
    if OPERATORS.get(op) != len(args):
        raise NestError(f"{where}: {op[:20]!r} with {len(args)} operands is not known")
    return Call(op, tuple(_read_expr(a, where, depth + 1) for a in args))


def _no_number(text: str) -> float:
    raise NestError(f"{text} is no number")
