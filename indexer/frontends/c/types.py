"""Values with their types in C, and the conversions between these.

A nest computes a number in the text in the type of the arrays beside it, and `2.0` is `2` there.
Where C's result could differ by more than rounding, operands are converted to double by a factor of
1/1, which is real and of 64 bits in a nest; a conversion that a nest cannot express is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pycparser import c_ast

from embeddb.core.errors import NestError
from embeddb.kernels.nests.expressions import joined_type, type_of
from embeddb.nests.parts import Array, Call, Const, Expr, Read
from indexer.frontends.scalars import chosen, computed_type, in_double, pair, truth
from indexer.frontends.tree import Scope, divided, mapped, reads

#: Types by their names in order, without `int` and `signed`.
_TYPES = {
    "float": "f32",
    "double": "f64",
    "": "i32",
    "long": "i64",
    "long long": "i64",
    "unsigned": "u32",
    "long unsigned": "u64",
    "long long unsigned": "u64",
    "_Bool": "bool",
}
#: Types of the elements of a nest by that of a declaration.
STORED = {"f32": "f32", "f64": "f64", "i32": "i32", "i64": "i64", "u64": "i64", "bool": "i32"}
_REAL = ("f32", "f64")
#: An unsigned value that is not negative if it is read as signed, as that of a loop's index, and
#: one of which only the low 32 bits are the same.
NATURAL, _WRAPPED = "natural", "wrapped"
_UNSIGNED = {NATURAL, _WRAPPED, "u64"}
_CASTS = (*_REAL, "i32", "i64", "u64")
#: Operators that return one of their operands, or its size.
_EXACT = ("abs", "neg", "min", "max")


def declared(kind: Any, scope: Scope) -> str:
    """The type of a declaration or a cast; empty for an unsupported one."""
    if not isinstance(kind, c_ast.TypeDecl) or not isinstance(kind.type, c_ast.IdentifierType):
        return ""
    names = sorted(name for name in kind.type.names if name not in ("int", "signed"))
    text = " ".join(names)
    return scope.types.get(text) or _TYPES.get(text, "")


def of_index(kind: Any, scope: Scope) -> str:
    """The type of a loop's index with this declaration."""
    names = getattr(getattr(kind, "type", None), "names", ())
    own = declared(kind, scope)
    return NATURAL if own in ("u32", "u64") or "unsigned" in names else own


@dataclass(frozen=True, slots=True)
class Typed:
    """A value of the nest, and its type in C."""

    value: Expr
    type: str

    @property
    def real(self) -> bool:
        return self.type in _REAL

    @property
    def natural(self) -> bool:
        """True if signed and unsigned numbers agree on it."""
        positive = isinstance(self.value, Const) and self.value.value >= 0
        return self.type == NATURAL or positive

    @property
    def read(self) -> bool:
        """True if it depends on an element of an array."""
        return any(True for _ in reads(self.value))


def literal(text: str, value: int | float) -> Typed:
    """A number as it is written."""
    if isinstance(value, float):
        return Typed(Const(value), "f32" if text[-1] in "fF" else "f64")
    suffix = text.lower().lstrip("0123456789abcdefx") if text[1:2] in "xX" else text.lower()
    if "u" in suffix or (text[0] == "0" and 1 << 31 <= value < 1 << 32):
        return Typed(Const(value), NATURAL)
    return Typed(Const(value), "i64" if "l" in suffix or value >= 1 << 31 else "i32")


def plain(value: Expr, arrays: Sequence[Array]) -> Typed:
    """A value that has the type of its operands."""
    own = type_of(value, arrays)
    return Typed(value, {"int": "i32", "real": "f64"}.get(own, own))


class Operators:
    """Operators of C on the values of one program."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = arrays

    def pair(self, op: str, one: Typed, other: Typed) -> Typed:
        """An arithmetic operator or a comparison. Raises: NestError."""
        if op in ("<", ">", "<=", ">=", "==", "!="):
            return self._compared(op, one, other)
        if one.real or other.real:
            real = _real_type(one, other)
            left, right = self._alike(one, other)
            if op != "/" and self._computed(left, right) not in _REAL:
                left, right = (self.widened(v) if any(reads(v)) else v for v in (left, right))
            return Typed(pair(op, left, right), real)
        if op == "/":
            return _quotient(one, other)
        return self._whole(Typed(pair(op, one.value, other.value), _whole_type(op, one, other)))

    def negated(self, one: Typed, value: Expr) -> Typed:
        """`value`, the negative of `one`."""
        return self._whole(Typed(value, _WRAPPED if one.type == NATURAL else one.type))

    def chosen(self, condition: Typed, one: Typed, other: Typed) -> Typed:
        left, right, joined = self.joined(one, other)
        return Typed(chosen(condition.value, left, right), joined)

    def joined(self, one: Typed, other: Typed) -> tuple[Expr, Expr, str]:
        """Two values of which one is chosen, and the type of the result."""
        if one.real or other.real:
            return *self._alike(one, other), _real_type(one, other)
        return one.value, other.value, _whole_type("+", one, other)

    def converted(self, args: Sequence[Typed], to: str, *, whole: bool) -> list[Expr]:
        """Operands of a function of doubles or floats; `whole`: of whole numbers, the nest would
        compute it in these."""
        computed = self._computed(*(one.value for one in args))
        values = []
        for one in args:
            _real_type(one)
            if to == "f32" and one.type == "f64" and computed == "f64" and one.read:
                raise NestError("a function of floats gets a double: use that of doubles")
            value = self._in_double(one) if to == computed else one.value
            values.append(self.widened(value) if whole and one.read and not one.real else value)
        return values

    def cast(self, one: Typed, to: str) -> Typed:
        """Raises: NestError where a number would be cut or rounded."""
        value, computed = one.value, computed_type(one.value, self._arrays)
        if to in _REAL:
            _real_type(one)
            if to == "f32" and one.type == "f64" and computed == "f64":
                raise NestError("a cast to float rounds, which is not supported in a nest")
            if isinstance(value, Const):
                return Typed(Const(float(value.value)), to)
            if not one.real:
                return Typed(Call("*", (value, Const(1.0))), to)
            single = to == "f64" and one.type == "f32" == computed
            return Typed(self.widened(value) if single else value, to)
        if one.real:
            raise NestError("a number is cut to a whole one, which is not supported in a nest")
        narrow = one.type in ("i64", "u64") if to == "i32" and one.read else one.type == _WRAPPED
        if to not in _CASTS or narrow:
            raise NestError("a cast to a smaller type is not supported in a nest")
        return Typed(value, NATURAL if to == "u64" and one.natural else to)

    def stored(self, one: Typed, target: str, op: str) -> Expr:
        """A value as `op` assigns it to a variable of type `target`. Raises: NestError."""
        if target == "bool":
            if op != "=":
                raise NestError(f"operator {op} on a bool is not supported in a nest")
            return truth(one.value)
        if target in _REAL:
            _real_type(one)
        elif one.type == _WRAPPED and target != "i32":
            raise _unsigned()
        if target == "f32" or not one.real:
            return one.value
        if target not in _REAL and one.type == "f32" != computed_type(one.value, self._arrays):
            one = replace(one, type="f64")
        return self._in_double(one)

    def widened(self, value: Expr) -> Expr:
        """The value, computed in double."""
        computed = computed_type(value, self._arrays)
        if computed == "f64":
            return value
        if computed not in _REAL:
            return in_double(value)
        return mapped(value, self._widened_leaf)

    def _widened_leaf(self, leaf: Expr) -> Expr:
        single = isinstance(leaf, Read) and self._arrays[leaf.access.array].dtype == "f32"
        return in_double(leaf) if single else leaf

    def _computed(self, *values: Expr) -> str:
        return joined_type([computed_type(value, self._arrays) for value in values])

    def _alike(self, one: Typed, other: Typed) -> tuple[Expr, Expr]:
        """Two operands, in double where the nest would compute one of them in float only."""
        double = _real_type(one, other) == "f64" == self._computed(one.value, other.value)
        return (
            (self._in_double(one), self._in_double(other)) if double else (one.value, other.value)
        )

    def _in_double(self, one: Typed) -> Expr:
        if isinstance(one.value, Const):
            number = one.value.value
            return Const(float(np.float32(number))) if one.type == "f32" else one.value
        single = one.type == "f64" and computed_type(one.value, self._arrays) == "f32"
        return self.widened(one.value) if single else one.value

    def _compared(self, op: str, one: Typed, other: Typed) -> Typed:
        if not (one.real or other.real):
            unlike = {one.type, other.type} & _UNSIGNED and not (one.natural and other.natural)
            if unlike and (op not in ("==", "!=") or _WRAPPED in (one.type, other.type)):
                raise _unsigned()
            return Typed(pair(op, one.value, other.value), "i32")
        left, right = self._alike(one, other)
        single = _real_type(one, other) == "f64" and self._computed(left, right) == "f32"
        if single and not all(part.type == "f32" or _exact(part.value) for part in (one, other)):
            left, right = (
                self.widened(self._in_double(part)) if part.read else self._in_double(part)
                for part in (one, other)
            )
        return Typed(pair(op, left, right), "i32")

    def _whole(self, result: Typed) -> Typed:
        """A result that the nest computes in as many bits as C. Raises: NestError."""
        wide = result.type in ("i64", "u64")
        if wide and result.read and computed_type(result.value, self._arrays) == "i32":
            raise NestError("an int is converted to 64 bits: declare its array as long")
        return result


def _real_type(*operands: Typed) -> str:
    """The type of a real operator. Raises: NestError for operands that a nest has as negative."""
    if any(one.type in ("u64", _WRAPPED) for one in operands):
        raise _unsigned()
    return "f64" if any(one.type == "f64" for one in operands) else "f32"


def _whole_type(op: str, one: Typed, other: Typed) -> str:
    types = {one.type, other.type}
    if not types & _UNSIGNED:
        return "i64" if "i64" in types else "i32"
    if "u64" in types:
        return _WRAPPED if _WRAPPED in types else "u64"
    result = pair(op, one.value, other.value) if op == "-" else Const(0)
    falls = not isinstance(result, Const) or result.value < 0
    return NATURAL if one.natural and other.natural and not falls else _WRAPPED


def _quotient(one: Typed, other: Typed) -> Typed:
    match one.value, other.value:
        case Const(int(left)), Const(int(right)) if right:
            value = Const(divided(left, right))
            return replace(plain(value, ()), type=_whole_type("/", one, other))
    raise NestError("whole numbers are divided, which is not supported in a nest")


def _exact(value: Expr) -> bool:
    """True if float has the value, which C computes in double."""
    match value:
        case Read():
            return True
        case Const(number):
            return float(np.float32(number)) == number
        case Call(op, args):
            return op in _EXACT and all(map(_exact, args))
    return False


def _unsigned() -> NestError:
    return NestError(
        "unsigned numbers may wrap around here, which is not supported in a nest: cast them first, "
        "as in (long)n[i]"
    )
