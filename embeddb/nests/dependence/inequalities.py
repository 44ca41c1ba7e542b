"""Whether linear equations and inequalities have a solution: what dependences are decided by.

A row is the coefficients of the variables, then a constant. Equations are solved in whole numbers
as far as a variable with coefficient 1 or -1 allows, the rest by their common divisor; inequalities
by elimination (Fourier and Motzkin), each rounded to whole numbers (Pugh, "The Omega test", 1991,
Section 2). "No solution" is therefore always true, and "a solution" may be one of fractions only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Row", "System", "feasible"]

Row = tuple[int, ...]

#: Inequalities at which an elimination is given up, where nobody says: a solution is then taken for
#: granted.
_MOST_ROWS = 60


@dataclass(frozen=True, slots=True)
class System:
    """Equations, solved: `fixed` gives variables as rows of the others, `loose` are equations
    without a coefficient of 1. `least` are rows that are at least 0."""

    fixed: dict[int, Row]
    loose: tuple[Row, ...]
    least: tuple[Row, ...]

    @classmethod
    def empty(cls) -> System:
        return cls({}, (), ())

    def joined(self, equal: Iterable[Row], least: Iterable[Row] = ()) -> System | None:
        """With more equations and inequalities; None where the equations have no solution."""
        fixed = dict(self.fixed)
        rows = [*self.loose, *(_replaced(row, fixed) for row in equal)]
        more = [_replaced(row, fixed) for row in least]
        loose: list[Row] = []
        met: dict[int, Row] = {}
        while rows:
            row = _divided(rows.pop())
            if row is None:
                return None
            var = next((v for v, c in enumerate(row[:-1]) if c in (1, -1)), None)
            if var is None:
                if any(row):
                    loose.append(row)
                continue
            value = tuple(-c * row[var] for c in row)
            met = {var: (*value[:var], 0, *value[var + 1 :])}
            rows = [_replaced(r, met) for r in (*rows, *loose)]
            loose = []
            fixed = {v: _replaced(r, met) for v, r in fixed.items()} | met
            more = [_replaced(r, met) for r in more]
        if not met:
            return System(fixed, tuple(loose), (*self.least, *more))
        return System(fixed, tuple(loose), (*(_replaced(r, fixed) for r in self.least), *more))

    def constant(self, var: int) -> int | None:
        """The one value of a variable, where the equations leave one."""
        row = self.fixed.get(var)
        return None if row is None or any(row[:-1]) else row[-1]

    def feasible(self, most: int = _MOST_ROWS) -> bool:
        """Whether there may be a solution; see the function of that name."""
        both = [(row, tuple(-c for c in row)) for row in self.loose]
        return feasible([*self.least, *(row for pair in both for row in pair)], most)


def feasible(rows: Iterable[Row], most: int = _MOST_ROWS) -> bool:
    """Whether all rows can be at least 0; True also where that is not known, as where more than
    `most` would have to be kept."""
    known: dict[Row, int] = {}
    for row in rows:
        if not _add(known, row[:-1], row[-1]):
            return False
    while known:
        var = _cheapest(known)
        up = [(c, k) for c, k in known.items() if c[var] > 0]
        down = [(c, k) for c, k in known.items() if c[var] < 0]
        known = {c: k for c, k in known.items() if not c[var]}
        if len(known) + len(up) * len(down) > most:
            return True
        for plus, least in up:
            for minus, greatest in down:
                p, m = -minus[var], plus[var]
                coefs = tuple(p * a + m * b for a, b in zip(plus, minus, strict=True))
                if not _add(known, coefs, p * least + m * greatest):
                    return False
    return True


def _add(known: dict[Row, int], coefs: Row, constant: int) -> bool:
    """Whether the row can be at least 0; kept in whole numbers, the strictest of its kind."""
    divisor = math.gcd(*coefs)
    if not divisor:
        return constant >= 0
    if divisor > 1:
        coefs, constant = tuple(c // divisor for c in coefs), constant // divisor
    known[coefs] = min(constant, known.get(coefs, constant))
    return True


def _cheapest(known: dict[Row, int]) -> int:
    """The variable whose elimination makes the fewest rows."""
    best, least = -1, math.inf
    for var, column in enumerate(zip(*known, strict=True)):
        up, down = sum(c > 0 for c in column), sum(c < 0 for c in column)
        if up + down and up * down - up - down < least:
            best, least = var, up * down - up - down
    return best


def _replaced(row: Row, values: dict[int, Row]) -> Row:
    for var, value in values.items():
        by = row[var]
        if by:
            own = tuple(a + by * b for a, b in zip(row, value, strict=True))
            row = (*own[:var], 0, *own[var + 1 :])
    return row


def _divided(row: Row) -> Row | None:
    """The equation by the common divisor of its coefficients; None where it has no solution in
    whole numbers."""
    divisor = math.gcd(*row[:-1])
    if not divisor:
        return None if row[-1] else row
    if row[-1] % divisor:
        return None
    return row if divisor == 1 else tuple(c // divisor for c in row)
