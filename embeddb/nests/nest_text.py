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
from typing import Any, TypeVar

from embeddb.core.errors import NestError
from embeddb.core.files.safe_read import refusing
from embeddb.nests.check import LARGEST, MOST_DIMENSIONS, check
from embeddb.nests.nest import Nest, code_of
from embeddb.nests.parts import (
    COMBINES,
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

T = TypeVar("T")

#: Longest text of a nest.
MOST_TEXT = 1 << 20
_MOST_STATEMENTS = 64
_MOST_ARRAYS = 64
_DEEPEST = 60
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_FORM = 1


def nest_text(nest: Nest) -> bytes:
    """The file form, one line of UTF-8."""
    document = {
        "nest": _FORM,
        "name": nest.name,
        "group": nest.group,
        "loops": [nest.loop_name(at) for at in range(nest.depth)],
        "arrays": [nest.array_name(a) for a in range(len(nest.arrays))],
        "code": code_of(nest.loops, nest.arrays, nest.body),
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def nest_from_text(text: bytes | str, *, where: str = "") -> Nest:
    """Read the file form and check it; arrays are in the order of their first access. Raises:
    NestError, one line that names the part."""
    with refusing(NestError, where=where):
        if len(text) > MOST_TEXT:
            raise NestError(f"a nest has at most {MOST_TEXT} characters")
        document = json.loads(text, parse_constant=_no_number)
        if not isinstance(document, dict) or document.get("nest") != _FORM:
            raise NestError(f'is not a nest: it needs "nest": {_FORM}')
        code = document.get("code")
        if not isinstance(code, dict) or sorted(code) != ["arrays", "body", "loops"]:
            raise NestError('"code" must have "loops", "arrays" and "body"')
        nest = Nest(
            tuple(_list(code["loops"], _read_loop, "loops", MOST_LOOPS)),
            tuple(_list(code["arrays"], _read_array, "arrays", _MOST_ARRAYS)),
            tuple(_list(code["body"], _read_statement, "body", _MOST_STATEMENTS)),
            name=_text(document.get("name", ""), "name"),
            group=_text(document.get("group", ""), "group"),
            loop_names=_names(document.get("loops", []), "loops"),
            array_names=_names(document.get("arrays", []), "arrays"),
        )
        return check(nest)


# -- reading ---------------------------------------------------------------------------------------


def _list(value: Any, read: Callable[[Any, str], T], where: str, most: int) -> list[T]:
    if not isinstance(value, list):
        raise NestError(f"{where}: must be a list")
    if len(value) > most:
        raise NestError(f"{where}: {len(value)} entries, at most {most} are allowed")
    return [read(item, f"{where}[{at}]") for at, item in enumerate(value)]


def _whole(value: Any, where: str) -> int:
    if type(value) is not int or abs(value) > LARGEST:
        raise NestError(f"{where}: must be a whole number of at most {LARGEST}")
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
            raise NestError(f'{where}: an indirect index has "plus" and "of"')
        plain = _read_index(value["plus"], f"{where}.plus", depth + 1)
        return Index(plain.affine, _read_access(value["of"], f"{where}.of", depth + 1))
    numbers = _list(value, _whole, where, MOST_LOOPS + 1)
    if not numbers:
        raise NestError(f"{where}: an index has a constant at least")
    return Index(Affine(numbers[0], tuple(numbers[1:])))


def _read_access(value: Any, where: str, depth: int = 0) -> Access:
    if not isinstance(value, list) or not 2 <= len(value) <= MOST_DIMENSIONS + 1:
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
    shape = _list(value[1], _whole, where, MOST_DIMENSIONS)
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
            raise NestError(f"{where}: {value} is not a finite number")
        return Const(value)
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise NestError(f"{where}: an expression is a number or [operator, ...]")
    op, args = value[0], value[1:]
    if op == "read":
        return Read(_read_access(args, where))
    if op == "loop" and len(args) == 1:
        return LoopIndex(_whole(args[0], where))
    if OPERATORS.get(op) != len(args):
        raise NestError(f"{where}: {op[:20]!r} with {len(args)} operands is unknown")
    return Call(op, tuple(_read_expr(a, where, depth + 1) for a in args))


def _no_number(text: str) -> float:
    raise NestError(f"{text} is not a finite number")
