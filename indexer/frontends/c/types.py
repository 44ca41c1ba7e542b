"""Values with their types in C, and the conversions between these.

A nest computes a number in the text in the type of the arrays beside it, and `2.0` is `2` there.
Where C's result could differ by more than rounding, operands are converted to double by a factor of
1/1, which is real and of 64 bits in a nest; a conversion that a nest cannot express is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pycparser import c_ast

from embeddb.core.errors import NestError
from embeddb.kernels.nests.expressions import joined_type, type_of
from embeddb.nests.nest import loop_range
from embeddb.nests.parts import (
    COMPARISONS,
    Array,
    Call,
    Const,
    Expr,
    Loop,
    LoopIndex,
    Read,
    mapped,
    reads,
)
from indexer.frontends.scalars import chosen, computed_type, in_double, pair, single
from indexer.frontends.tree import Scope, divided

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
#: Unsigned values that are not negative if they are read as signed, as that of a loop's index, of
#: 64 and of 32 bits, and one of which only the low 32 bits are the same.
NATURAL, _NATURAL_32, _WRAPPED = "natural", "natural32", "wrapped"
#: Types of a loop's index by those of its declaration.
NATURALS = {"u32": _NATURAL_32, "u64": NATURAL}
_UNSIGNED = {*NATURALS.values(), _WRAPPED, "u64"}
#: Numbers of this size may not fit the integers in which a nest computes.
_LARGE = 1 << 31
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
    return NATURALS.get(own, NATURAL if "unsigned" in names else own)


@dataclass(frozen=True, slots=True)
class Typed:
    """A value of the nest, and its type in C. `large`: an exponential or a power of doubles, which
    may be beyond the range of float."""

    value: Expr
    type: str
    large: bool = False

    @property
    def real(self) -> bool:
        return self.type in _REAL

    @property
    def natural(self) -> bool:
        """True if signed and unsigned numbers agree on it."""
        positive = isinstance(self.value, Const) and self.value.value >= 0
        return self.type in NATURALS.values() or positive

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
        wide = "l" in suffix or value >= 1 << 32
        return Typed(Const(value), NATURAL if wide else _NATURAL_32)
    return Typed(Const(value), "i64" if "l" in suffix or value >= 1 << 31 else "i32")


def plain(value: Expr, arrays: Sequence[Array]) -> Typed:
    """A value that has the type of its operands."""
    own = type_of(value, arrays)
    return Typed(value, {"int": "i32", "real": "f64"}.get(own, own))


class Operators:
    """Operators of C on the values of one program. `loops` are those around."""

    def __init__(self, arrays: Sequence[Array], loops: Sequence[Loop] = ()) -> None:
        self._arrays = arrays
        self._loops = loops

    def pair(self, op: str, one: Typed, other: Typed) -> Typed:
        """An arithmetic operator or a comparison. Raises: NestError."""
        if op in ("<", ">", "<=", ">=", "==", "!="):
            return self._compared(op, one, other)
        if one.real or other.real:
            real = _real_type(one, other)
            left, right = self._alike(self._in_range(one), self._in_range(other))
            if op != "/" and self._computed(left, right) not in _REAL:
                left, right = self._varying_widened(left), self._varying_widened(right)
            return Typed(pair(op, left, right), real)
        if op == "/":
            match one.value, other.value:
                case Const(int(dividend)), Const(int(divisor)) if divisor:
                    quotient = Const(divided(dividend, divisor))
                    return Typed(quotient, self._whole_type("/", one, other, quotient))
            raise NestError("whole numbers are divided, which is not supported in a nest")
        result = pair(op, one.value, other.value)
        return self._whole(Typed(result, self._whole_type(op, one, other, result)))

    def truth(self, one: Typed) -> Expr:
        """1 where C has a value as true, else 0."""
        if isinstance(one.value, Call) and one.value.op in COMPARISONS:
            return one.value
        return self._compared("!=", one, _ZERO).value

    def opposite(self, one: Typed) -> Expr:
        """1 where C has a value as false, else 0."""
        return self._compared("==", one, _ZERO).value

    def negated(self, one: Typed, value: Expr) -> Typed:
        """`value`, the negative of `one`."""
        own = _WRAPPED if one.type in NATURALS.values() else one.type
        return self._whole(replace(one, value=value, type=own))

    def chosen(self, condition: Typed, one: Typed, other: Typed) -> Typed:
        left, right, joined = self.joined(one, other)
        large = joined == "f64" and (one.large or other.large)
        return Typed(chosen(self.truth(condition), left, right), joined, large)

    def joined(self, one: Typed, other: Typed) -> tuple[Expr, Expr, str]:
        """Two values of which one is chosen, and the type of the result."""
        if one.real or other.real:
            return *self._alike(one, other), _real_type(one, other)
        if one.type == other.type == _NATURAL_32:
            return one.value, other.value, _NATURAL_32
        return one.value, other.value, self._whole_type("+", one, other, Const(0))

    def converted(self, args: Sequence[Typed], to: str, *, whole: bool) -> list[Expr]:
        """Operands of a function of doubles or floats; `whole`: of whole numbers, the nest would
        compute it in these."""
        args = [self._in_range(one) for one in args]
        computed = self._computed(*(one.value for one in args))
        values = []
        for one in args:
            _real_type(one)
            if to == "f32" and one.type == "f64" and computed == "f64" and one.read:
                raise NestError("a function of floats gets a double: use that of doubles")
            value = self._in_double(one) if to == computed else one.value
            values.append(self._varying_widened(value) if whole else value)
        return values

    def cast(self, one: Typed, to: str) -> Typed:
        """Raises: NestError where a number would be cut or rounded."""
        value, computed = one.value, computed_type(one.value, self._arrays)
        if to in _REAL:
            _real_type(one)
            if to == "f32" and one.type == "f64" and computed == "f64":
                raise NestError("a cast to float rounds, which is not supported in a nest")
            if to == "f64" and one.type == "f32" and one.read and computed not in ("f32", "real"):
                raise _rounded()
            if isinstance(value, Const):
                return Typed(Const(float(value.value)), to)
            if not one.real:
                return Typed(Call("*", (value, Const(1.0))), to)
            narrow = to == "f64" and one.type == "f32" == computed
            return Typed(self.widened(value) if narrow else value, to, one.large and to == "f64")
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
            return self.truth(one)
        if target in _REAL:
            _real_type(one)
        elif one.type == _WRAPPED and target != "i32":
            raise _unsigned()
        one = one if op == "=" else self._in_range(one)
        if target == "f32" or not one.real:
            return one.value
        if target not in _REAL and one.type == "f32" != computed_type(one.value, self._arrays):
            if not isinstance(one.value, Const):
                raise _rounded()
            one = replace(one, type="f64")
        return self._in_double(one)

    def widened(self, value: Expr) -> Expr:
        """The value, computed in double."""
        computed = computed_type(value, self._arrays)
        if computed == "f64":
            return value
        if computed not in _REAL:
            return in_double(value)

        def wide(leaf: Expr) -> Expr:
            narrow = isinstance(leaf, Read) and self._arrays[leaf.access.array].dtype == "f32"
            return in_double(leaf) if narrow else leaf

        return mapped(value, wide)

    def _in_range(self, operand: Typed) -> Typed:
        """An operand that is not computed in float where that has a smaller range than C's type."""
        return replace(operand, value=self.widened(operand.value)) if operand.large else operand

    def _varying_widened(self, value: Expr) -> Expr:
        """The value in double, if a nest would compute it in integers and it is no number."""
        whole = computed_type(value, self._arrays) not in _REAL
        return in_double(value) if whole and not isinstance(value, Const) else value

    def _computed(self, *values: Expr) -> str:
        return joined_type([computed_type(value, self._arrays) for value in values])

    def _alike(self, one: Typed, other: Typed) -> tuple[Expr, Expr]:
        """Two operands, in double where the nest would compute one of them in float only."""
        parts, computed = (one.value, other.value), self._computed(one.value, other.value)
        if _real_type(one, other) == "f64" == computed:
            return self._in_double(one), self._in_double(other)
        if computed not in _REAL and any(
            isinstance(part, Const) and abs(part.value) >= _LARGE for part in parts
        ):
            return self._varying_widened(parts[0]), self._varying_widened(parts[1])
        return parts

    def _in_double(self, one: Typed) -> Expr:
        if isinstance(one.value, Const):
            number = one.value.value
            return Const(single(number)) if one.type == "f32" else one.value
        narrow = one.type == "f64" and computed_type(one.value, self._arrays) == "f32"
        return self.widened(one.value) if narrow else one.value

    def _compared(self, op: str, one: Typed, other: Typed) -> Typed:
        if not (one.real or other.real):
            unlike = {one.type, other.type} & _UNSIGNED and not (one.natural and other.natural)
            if unlike and (op not in ("==", "!=") or _WRAPPED in (one.type, other.type)):
                raise _unsigned()
            return Typed(pair(op, one.value, other.value), "i32")
        left, right = self._alike(one, other)
        narrow = _real_type(one, other) == "f64" and self._computed(left, right) == "f32"
        if narrow and not all(part.type == "f32" or _exact(part.value) for part in (one, other)):
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

    def _whole_type(self, op: str, one: Typed, other: Typed, result: Expr) -> str:
        """The type of `result`, which `op` computes."""
        types = {one.type, other.type}
        if not types & _UNSIGNED:
            return "i64" if "i64" in types else "i32"
        if types & {"u64", _WRAPPED}:
            return _WRAPPED if _WRAPPED in types else "u64"
        falls = op == "-" and not (isinstance(result, Const) and result.value >= 0)
        if not (one.natural and other.natural) or falls:
            return _WRAPPED
        if types - {_NATURAL_32, "i32"}:
            return NATURAL
        most = self._most(result)
        return _WRAPPED if most is None or most >> 32 else _NATURAL_32

    def _most(self, value: Expr) -> int | None:
        """A bound of sums and products of numbers and loops, whose factors are not negative except
        for numbers; None for others."""
        match value:
            case Const(int(number)):
                return number
            case LoopIndex(loop) if loop < len(self._loops):
                with suppress(NestError):
                    return loop_range(self._loops, self._arrays, loop)[1]
            case Call("+" | "*" as op, (left, right)):
                one, other = self._most(left), self._most(right)
                if one is not None and other is not None:
                    return one + other if op == "+" else max(0, one * other)
        return None


_ZERO = Typed(Const(0), "i32")


def _real_type(*operands: Typed) -> str:
    """The type of a real operator. Raises: NestError for operands that a nest has as negative."""
    if any(one.type in ("u64", _WRAPPED) for one in operands):
        raise _unsigned()
    return "f64" if any(one.type == "f64" for one in operands) else "f32"


def _exact(value: Expr) -> bool:
    """True if float has the value, which C computes in double."""
    match value:
        case Read():
            return True
        case Const(number):
            return single(number) == number
        case Call(op, args):
            return op in _EXACT and all(map(_exact, args))
    return False


def _rounded() -> NestError:
    return NestError("whole numbers are rounded to float, which is not supported in a nest")


def _unsigned() -> NestError:
    return NestError(
        "unsigned numbers may wrap around here, which is not supported in a nest: cast them first, "
        "as in (long)n[i]"
    )
