"""Rounding error bounds of a nest's results, computed by a nest of its own.

Each statement gets a companion that adds up the rounded magnitudes of its value: running error
analysis (Higham, "Accuracy and Stability of Numerical Algorithms", 3.3), in units of the rounding
error. An array that is read and never written has no error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from embeddb.kernels.accuracy import relative_error
from embeddb.kernels.nests.expressions import type_of
from embeddb.nests.nest import Nest
from embeddb.nests.parts import Access, Array, Call, Const, Expr, Read, Statement

_COMPARISONS = ("<", "<=", "==", "!=")


@dataclass(frozen=True, slots=True)
class Checked:
    """A nest in double precision that computes the expected results; `errors` maps each written
    array to the array of its magnitudes."""

    nest: Nest
    errors: dict[int, int]


def checked_nest(nest: Nest) -> Checked:
    """The statements of `nest`, each with the statement of its rounding error."""
    errors: dict[int, int] = {}
    arrays = [replace(a, dtype="f64") if a.dtype == "f32" else a for a in nest.arrays]
    for array in sorted(nest.written):
        if any(s.combine != "*=" for s in nest.body if s.target.array == array):
            errors[array] = len(arrays)
            arrays.append(Array("f64", nest.arrays[array].shape, "zero"))
    names = tuple(nest.array_name(a) for a in range(len(nest.arrays)))
    names += tuple(f"error_{a}" for a in errors)
    watch = _Watch(nest, errors)
    body = [one for s in nest.body for one in watch.statements(s)]
    return Checked(replace(nest, arrays=tuple(arrays), body=tuple(body), array_names=names), errors)


def tolerance_of(nest: Nest) -> float:
    """The relative error that rounding explains, for the computing type and the length of
    reductions: it grows as their root while random, linearly beyond. 0: integers."""
    types = {type_of(nest, s.value) for s in nest.body}
    types |= {nest.arrays[s.target.array].dtype for s in nest.body}
    reals = types & {"f32", "f64", "real"}
    if not reals:
        return 0.0
    length = 1
    for statement in nest.body:
        if statement.reduction:
            around = [
                nest.trips[at] for at in range(nest.depth) if at not in statement.target.loops
            ]
            length = max(length, int(np.prod(around, dtype=np.float64)))
    return relative_error("f32" if "f32" in _read(nest) | types else "f64", length)


def _read(nest: Nest) -> set[str]:
    return {nest.arrays[a.array].dtype for _, a, _ in nest.accesses()}


class _Watch:
    """Writer of the statements."""

    def __init__(self, nest: Nest, errors: dict[int, int]) -> None:
        self.nest, self.errors = nest, errors

    def statements(self, s: Statement) -> list[Statement]:
        """The magnitudes first: the value may read the element that the statement then
        overwrites."""
        value = self.rounded(s.value)
        where = None if s.where is None else self.rounded(s.where)
        own = replace(s, value=value, where=where)
        if s.target.array not in self.errors or s.combine == "*=":
            return [own]
        error = Call("+", (Call("abs", (value,)), self.error(value)))
        combine = "max=" if s.combine in ("min=", "max=") else s.combine
        target = Access(self.errors[s.target.array], s.target.at)
        return [Statement(target, combine, error, where), own]

    def rounded(self, expression: Expr, dtype: str = "") -> Expr:
        """The expression with its numbers rounded to the type of the computation."""
        if isinstance(expression, Const):
            single = dtype == "f32" and isinstance(expression.value, float)
            return Const(float(np.float32(expression.value))) if single else expression
        if not isinstance(expression, Call):
            return expression
        if expression.op in _COMPARISONS:
            types = {type_of(self.nest, a) for a in expression.args}
            dtype = "f32" if "f32" in types and "f64" not in types else ""
        else:
            dtype = type_of(self.nest, expression)
        return replace(expression, args=tuple(self.rounded(a, dtype) for a in expression.args))

    def error(self, expression: Expr) -> Expr:
        """The rounded magnitudes in the computation of a value."""
        if isinstance(expression, Read) and expression.access.array in self.errors:
            access = expression.access
            return Read(Access(self.errors[access.array], access.at))
        if not isinstance(expression, Call) or expression.op in _COMPARISONS:
            return Const(0)
        return _plus(self._passed_on(expression), _size(expression))

    def _passed_on(self, call: Call) -> Expr:
        """Propagated errors of the operands."""
        args = call.args
        errors = [self.error(a) for a in args]
        match call.op:
            case "+" | "-" | "min" | "max":
                return _plus(*errors)
            case "neg" | "abs":
                return errors[0]
            case "*":
                pairs = zip(errors, (_size(args[1]), _size(args[0])), strict=True)
                return _plus(*(_times(error, size) for error, size in pairs))
            case "/":
                share = _times(errors[1], Call("/", (_size(call), _size(args[1]))))
                return _plus(_over(errors[0], _size(args[1])), share)
            case "sqrt":
                return _over(errors[0], call)
            case "exp":
                return _times(errors[0], call)
            case "log":
                return _over(errors[0], _size(args[0]))
            case "select":
                return _plus(*errors[1:])
        return errors[0]


def _size(expression: Expr) -> Expr:
    return Call("abs", (expression,))


def _plus(*parts: Expr) -> Expr:
    total: Expr = Const(0)
    for part in parts:
        if part != Const(0):
            total = part if total == Const(0) else Call("+", (total, part))
    return total


def _times(error: Expr, by: Expr) -> Expr:
    return error if error == Const(0) else Call("*", (error, by))


def _over(error: Expr, by: Expr) -> Expr:
    return error if error == Const(0) else Call("/", (error, by))


def may_jump(nest: Nest) -> bool:
    """True if rounding can turn a decision: a comparison of computed reals, or a real number
    truncated to an integer. A few elements may then be arbitrary."""
    for statement in nest.body:
        real = type_of(nest, statement.value) not in ("int", "i32", "i64")
        whole = nest.arrays[statement.target.array].dtype in ("i32", "i64")
        if whole and real and isinstance(statement.value, Call):
            return True
        if any(_jumps(nest, e) for e in (statement.value, statement.where) if e is not None):
            return True
    return False


def _jumps(nest: Nest, expression: Expr) -> bool:
    if not isinstance(expression, Call):
        return False
    if expression.op in _COMPARISONS and any(_is_rounded(nest, a) for a in expression.args):
        return True
    return any(_jumps(nest, a) for a in expression.args)


def _is_rounded(nest: Nest, expression: Expr) -> bool:
    if isinstance(expression, Read):
        array = expression.access.array
        return array in nest.written and nest.arrays[array].dtype in ("f32", "f64")
    return isinstance(expression, Call) and type_of(nest, expression) in ("real", "f32", "f64")
