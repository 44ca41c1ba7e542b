"""Indices of elements as functions of loop variables: affine, or parts of an affine one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

__all__ = ["ZERO", "Form", "Forms", "Part", "Var", "divided", "modulo", "of_var", "whole"]


@dataclass(frozen=True, slots=True)
class Var:
    """A loop variable, from 0 to `extent` - 1."""

    name: str
    extent: int


@dataclass(frozen=True)
class Part:
    """What `form` // `by` (`what` is `/`) or `form` % `by` (`%`) is."""

    what: str
    form: Form
    by: int


@dataclass(frozen=True)
class Form:
    """The sum of `terms`, each a variable or a part times a number, and of `constant`."""

    terms: tuple[tuple[Var | Part, int], ...] = ()
    constant: int = 0

    def __add__(self, other: Form | int) -> Form:
        if isinstance(other, int):
            return Form(self.terms, self.constant + other)
        found = dict(self.terms)
        for var, coef in other.terms:
            found[var] = found.get(var, 0) + coef
        return _form(found, self.constant + other.constant)

    def __mul__(self, by: int) -> Form:
        return _form({var: coef * by for var, coef in self.terms}, self.constant * by)

    @cached_property
    def variables(self) -> frozenset[Var]:
        """Those in its parts too."""
        found: set[Var] = set()
        for var, _ in self.terms:
            found |= {var} if isinstance(var, Var) else var.form.variables
        return frozenset(found)

    @property
    def affine(self) -> bool:
        return all(isinstance(var, Var) for var, _ in self.terms)

    def coef(self, var: Var) -> int | None:
        """How much it grows with a variable; None where that is not the same everywhere."""
        if any(isinstance(v, Part) and var in v.form.variables for v, _ in self.terms):
            return None
        return next((coef for v, coef in self.terms if v == var), 0)

    def range(self) -> tuple[int, int]:
        """The least and the greatest that it can be."""
        low = high = self.constant
        for var, coef in self.terms:
            first, last = _range(var)
            low += coef * (first if coef > 0 else last)
            high += coef * (last if coef > 0 else first)
        return low, high

    def put(self, values: Mapping[Var, Form]) -> Form:
        """With forms in place of variables."""
        found = Form((), self.constant)
        for var, coef in self.terms:
            if isinstance(var, Part):
                inner = var.form.put(values)
                new = divided(inner, var.by) if var.what == "/" else modulo(inner, var.by)
            else:
                new = values.get(var, of_var(var))
            found = found + new * coef
        return found


Forms = tuple[Form, ...]
ZERO = Form()


def of_var(var: Var) -> Form:
    return Form(((var, 1),))


def whole(number: int) -> Form:
    return Form((), number)


def divided(form: Form, by: int) -> Form:
    """`form` // `by`, of a form that is never negative."""
    quotient, rest = _apart(form, by)
    low, high = rest.range()
    if low >= 0 and high < by:
        return quotient
    return quotient + Form(((Part("/", rest, by), 1),))


def modulo(form: Form, by: int) -> Form:
    """`form` % `by`, of a form that is never negative."""
    rest = _apart(form, by)[1]
    low, high = rest.range()
    return rest if low >= 0 and high < by else Form(((Part("%", rest, by), 1),))


def _apart(form: Form, by: int) -> tuple[Form, Form]:
    """What `by` divides, by `by`, and what is left."""
    exact = {var: coef // by for var, coef in form.terms if coef % by == 0}
    rest = {var: coef for var, coef in form.terms if coef % by}
    quotient, left = divmod(form.constant, by)
    return _form(exact, quotient), _form(rest, left)


def _form(terms: Mapping[Var | Part, int], constant: int) -> Form:
    kept = [(var, coef) for var, coef in terms.items() if coef]
    return Form(tuple(sorted(kept, key=lambda term: repr(term[0]))), constant)


def _range(var: Var | Part) -> tuple[int, int]:
    if isinstance(var, Var):
        return 0, var.extent - 1
    if var.what == "%":
        return 0, var.by - 1
    low, high = var.form.range()
    return low // var.by, high // var.by
