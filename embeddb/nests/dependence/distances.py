"""Distances between two iterations of a nest that access one element.

Distances of affine accesses with equal coefficients are exact; otherwise each sign of a loop's
distance is excluded where the equations of the indices have no solution within the loops
(`.inequalities`). An index read from an array may have any value, with two exceptions: two elements
of a permutation differ, and so do the iterations of a loop over the rows of a sparse matrix (from
one offset to the next).
"""

from __future__ import annotations

import itertools
import math
from collections import ChainMap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from embeddb.nests.nest import Nest, loop_range
from embeddb.nests.parts import Access, Affine, Index

Row = tuple[int, ...]

#: Default number of inequalities at which an elimination stops and a solution is assumed.
_MOST_ROWS = 60


@dataclass(frozen=True, slots=True)
class System:
    """Solved equations: `fixed` gives variables as rows of the others, `loose` are equations
    without a coefficient of 1. `least` are rows that are at least 0."""

    fixed: dict[int, Row] = field(default_factory=dict)
    loose: tuple[Row, ...] = ()
    least: tuple[Row, ...] = ()

    def joined(self, equal: Iterable[Row], least: Iterable[Row] = ()) -> System | None:
        """The system with more equations and inequalities; None where these have no solution."""
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
        """The only value of a variable, where the equations determine it."""
        row = self.fixed.get(var)
        return None if row is None or any(row[:-1]) else row[-1]

    def feasible(self, most: int = _MOST_ROWS) -> bool:
        """Return true if a solution may exist, by Fourier-Motzkin elimination; also where the
        answer is unknown, since more than `most` rows would be generated."""
        pending: dict[Row, int] = {}
        equal = (row for one in self.loose for row in (one, tuple(-c for c in one)))
        for row in (*self.least, *equal):
            if not _add(pending, row[:-1], row[-1]):
                return False
        while pending:
            var = _cheapest(pending)
            up = [(c, k) for c, k in pending.items() if c[var] > 0]
            down = [(c, k) for c, k in pending.items() if c[var] < 0]
            pending = {c: k for c, k in pending.items() if not c[var]}
            if len(pending) + len(up) * len(down) > most:
                return True
            for plus, least in up:
                for minus, greatest in down:
                    p, m = -minus[var], plus[var]
                    coefs = tuple(p * a + m * b for a, b in zip(plus, minus, strict=True))
                    if not _add(pending, coefs, p * least + m * greatest):
                        return False
        return True


def _add(rows: dict[Row, int], coefs: Row, constant: int) -> bool:
    """Add a row that is at least 0; only the strictest of its direction is kept, in integers.
    Returns false if it cannot hold."""
    divisor = math.gcd(*coefs)
    if not divisor:
        return constant >= 0
    if divisor > 1:
        coefs, constant = tuple(c // divisor for c in coefs), constant // divisor
    rows[coefs] = min(constant, rows.get(coefs, constant))
    return True


def _cheapest(rows: dict[Row, int]) -> int:
    """The variable whose elimination generates the fewest rows."""
    best, least = -1, math.inf
    for var, column in enumerate(zip(*rows, strict=True)):
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
    """The equation divided by the gcd of its coefficients; None without integer solution."""
    divisor = math.gcd(*row[:-1])
    if not divisor:
        return None if row[-1] else row
    if row[-1] % divisor:
        return None
    return row if divisor == 1 else tuple(c // divisor for c in row)


#: Smallest and largest distance by loop, in values of the loop's index.
Vector = tuple[tuple[int, int], ...]

ZERO = (0, 0)
#: Largest number of systems for one pair of accesses and for a nest; beyond, signs stay unknown.
_MOST_SYSTEMS, _MOST_IN_ALL = 80, 800
#: Largest number of pairs of accesses of a nest; beyond, any distance is assumed possible.
_MOST_PAIRS = 5000


class Distances:
    """Distances in one nest, whose iteration space is given by inequalities. Variables: of loop k,
    variable k is the distance in units of `unit[k]`, variable depth + k the position of the source,
    in steps from `base[k]`. Unless `ascending`, offsets of rows have any order."""

    def __init__(self, nest: Nest, *, ascending: bool = True) -> None:
        self.nest, self.depth = nest, nest.depth
        self.base: list[int] = []
        self.scale: list[int] = []
        self.unit: list[int] = []
        self.span: list[int] = []
        for at, loop in enumerate(nest.loops):
            low, high = loop_range(nest.loops, nest.arrays, at)
            fixed = not loop.lower.loops and loop.lower.of is None
            self.base.append(low if fixed else 0)
            self.scale.append(loop.step if fixed else 1)
            self.unit.append(loop.step if fixed else self._unit(at))
            self.span.append(max(0, high - low) // self.unit[-1])
        self._known: dict[tuple[Access, Access], tuple[Vector, ...]] = {}
        self._systems = 0
        #: Affine bounds by loop, and the loops that they couple it with.
        self.bounds = [self._bounds(at) for at in range(self.depth)]
        self.ties: list[set[int]] = [set() for _ in nest.loops]
        for at in range(self.depth):
            for row in self.bounds[at]:
                for other in range(self.depth):
                    if other != at and row[self.depth + other]:
                        self.ties[at].add(other)
                        self.ties[other].add(at)
        rows = ((at, self._row_of(at) if ascending else None) for at in range(self.depth))
        self.rows = {at: row for at, row in rows if row is not None}

    def between(self, first: Access, second: Access) -> tuple[Vector, ...]:
        """Distances from iterations in which `first` accesses an element to those in which `second`
        accesses the same; of any sign."""
        if (first, second) not in self._known:
            if len(self._known) >= _MOST_PAIRS:
                return (tuple((-n * u, n * u) for n, u in zip(self.span, self.unit, strict=True)),)
            self._known[first, second] = tuple(self._between(first, second))
        return self._known[first, second]

    def _between(self, first: Access, second: Access) -> Iterator[Vector]:
        system = System().joined(self._equal(first, second))
        if system is None:
            return
        parts = [self._solutions(system, loops) for loops in self._groups(system)]
        for chosen in itertools.product(*parts):
            merged = ChainMap(*chosen)
            yield tuple((merged[k][0] * u, merged[k][1] * u) for k, u in enumerate(self.unit))

    # -- equations and inequalities ------------------------------------------------------------

    def _unit(self, at: int) -> int:
        """Common divisor of all distances, where the lower bound varies."""
        lower = self.nest.loops[at].lower
        if lower.of is not None:
            return 1
        moves = (c * self.unit[outer] for outer, c in enumerate(lower.affine.coefs))
        return math.gcd(self.nest.loops[at].step, *moves)

    def _value(self, affine: Affine, sink: bool) -> Row:
        row = [0] * (2 * self.depth + 1)
        row[-1] = affine.constant
        for at, coef in enumerate(affine.coefs):
            row[-1] += coef * self.base[at]
            row[self.depth + at] += coef * self.scale[at]
            if sink:
                row[at] += coef * self.unit[at]
        return tuple(row)

    def _equal(self, first: Access, second: Access) -> Iterator[Row]:
        for one, two in zip(first.at, second.at, strict=True):
            if one.of is None and two.of is None:
                source, sink = self._value(one.affine, False), self._value(two.affine, True)
                yield tuple(b - a for a, b in zip(source, sink, strict=True))
            elif self._same_element(one, two):
                assert one.of is not None and two.of is not None
                yield from self._equal(one.of, two.of)

    def _same_element(self, one: Index, two: Index) -> bool:
        """Return true if two indices are equal only where they are read from one element."""
        if one.of is None or two.of is None or one.of.array != two.of.array:
            return False
        fill = self.nest.arrays[one.of.array].fill
        still = not one.affine.loops and one.affine == two.affine
        return still and fill in ("range", "permutation")

    def _bounds(self, at: int) -> list[Row]:
        """Bounds of source and sink; a value read from an array is bounded by the array's fill."""
        loop = self.nest.loops[at]
        low, high = loop_range(self.nest.loops, self.nest.arrays, at)
        lower = loop.lower.affine if loop.lower.of is None else Affine(low)
        upper = loop.upper.affine if loop.upper.of is None else Affine(high + 1)
        least = (Affine.of_loop(at) - lower, upper - Affine.of_loop(at, 1))
        return [self._value(affine, sink) for sink in (False, True) for affine in least]

    def _span(self, at: int) -> list[Row]:
        own = [int(v == at) for v in range(2 * self.depth)]
        return [(*(sign * c for c in own), self.span[at]) for sign in (1, -1)]

    def _row_of(self, at: int) -> Row | None:
        """Distance between the rows that a loop runs over, from one offset to the next: its sign is
        that of the loop's own distance, and it is 0 where that is 0."""
        loop = self.nest.loops[at]
        low, high = loop.lower.of, loop.upper.of
        if low is None or high is None or low.array != high.array or len(low.at) != 1:
            return None
        row, after = low.at[0], high.at[0]
        still = not loop.lower.affine.loops and loop.lower.affine == loop.upper.affine
        ascending = self.nest.arrays[low.array].fill.startswith("offsets")
        ascending = ascending and low.array not in self.nest.written
        following = Affine(row.affine.constant + 1, row.affine.coefs) == after.affine
        if row.of is not None or after.of is not None or not (still and ascending and following):
            return None
        coefs = [row.affine.coef(outer) * self.unit[outer] for outer in range(self.depth)]
        return (*coefs, *(0 for _ in range(self.depth + 1)))

    # -- solutions -----------------------------------------------------------------------------

    def _groups(self, system: System) -> list[tuple[int, ...]]:
        """Loops that equations or bounds couple."""
        ties = [{at, *self.ties[at]} for at in range(self.depth)]
        ties += [
            {at, *(outer for outer in range(self.depth) if row[outer])}
            for at, row in self.rows.items()
        ]
        for var, row in (*system.fixed.items(), *((-1, row) for row in system.loose)):
            used = {v % self.depth for v, c in enumerate(row[:-1]) if c}
            ties.append(used | {var % self.depth} if var >= 0 else used)
        groups: list[set[int]] = []
        for tie in ties:
            apart = [g for g in groups if not g & tie]
            groups = [*apart, tie.union(*(g for g in groups if g & tie))]
        return [tuple(sorted(group)) for group in groups]

    def _solutions(
        self, system: System, loops: tuple[int, ...]
    ) -> list[dict[int, tuple[int, int]]]:
        """Distances of coupled loops, by loop."""
        variables = {v for at in loops for v in (at, self.depth + at)}
        rows = [(v, *_used(row)) for v, row in system.fixed.items() if v in variables]
        rows += [_used(row) for row in system.loose if variables & set(_used(row))]
        values = {at: system.constant(at) for at in loops}
        still = all(value == 0 for value in values.values())
        if still or not any(rows) or self._systems >= _MOST_IN_ALL:
            return [{at: self._range(at, values[at]) for at in loops}]
        tied = {at for at in loops if self.ties[at]}
        tied |= {v - self.depth for row in rows for v in row if v >= self.depth}
        least = [row for at in loops for row in (self.bounds[at] if at in tied else self._span(at))]
        bounded = system.joined((), least)
        assert bounded is not None
        loose = tuple(row for row in bounded.loose if variables & set(_used(row)))
        most = min(_MOST_IN_ALL, self._systems + _MOST_SYSTEMS)
        return list(self._split(System(bounded.fixed, loose, bounded.least), loops, {}, most))

    def _split(
        self, system: System, loops: tuple[int, ...], signs: dict[int, int], most: int
    ) -> Iterator[dict[int, tuple[int, int]]]:
        """Solutions for each sign of every loop that the equations leave open."""
        self._systems += 1
        if not system.feasible():
            return
        at = next((at for at in loops if at not in signs), None)
        if at is None or self._systems > most:
            yield {at: self._range(at, system.constant(at), signs.get(at)) for at in loops}
            return
        value = system.constant(at)
        forced = None if value is None else (value > 0) - (value < 0)
        for sign in (1, 0, -1) if forced is None else (forced,):
            if sign and not self.span[at]:
                continue
            equal, least = self._of_sign(at, sign)
            more = system.joined(equal, least)
            if more is not None:
                yield from self._split(more, loops, {**signs, at: sign}, most)

    def _of_sign(self, at: int, sign: int) -> tuple[list[Row], list[Row]]:
        """Equations and inequalities of a distance with this sign."""
        own = tuple(int(v == at) for v in range(2 * self.depth + 1))
        row = self.rows.get(at)
        if sign == 0:
            return [own] if row is None else [own, row], []
        least = [(*(sign * c for c in own[:-1]), -1)]
        if row is not None:
            least.append(tuple(sign * c for c in row))
        return [], least

    def _range(self, at: int, value: int | None, sign: int | None = None) -> tuple[int, int]:
        """Range of a distance in units, from its value or its sign."""
        if value is not None:
            return value, value
        span = self.span[at]
        return {None: (-span, span), 0: ZERO, 1: (1, span), -1: (-span, -1)}[sign]


def _used(row: Sequence[int]) -> tuple[int, ...]:
    return tuple(v for v, c in enumerate(row[:-1]) if c)
