"""Whether two accesses of a program may meet when the loops around them are at different turns.

Conservative: bounds and subscripts are taken as a system of linear constraints over the indices of
both sides, which is shown to have no solution by Fourier-Motzkin elimination with integer
tightening (Pugh, "The Omega test", 1991, Section 2); what that cannot show may meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from embeddb.nests.parts import Access, Affine, Loop

__all__ = ["Site", "meet_later"]

#: Constraints beyond which elimination is given up, and the answer is "may meet".
_MOST = 600


@dataclass(frozen=True, slots=True)
class Site:
    """An access, and all the loops around it from the outermost."""

    access: Access
    loops: tuple[Loop, ...]


#: A linear form over unknowns: by unknown its coefficient, and the constant under -1.
_Form = dict[int, int]


def meet_later(late: Site, early: Site, loop: int) -> bool:
    """Whether `early` may touch in a later turn of a loop what `late` touches in an earlier one.

    `loop` counts the loops around both; those further out are at the same turn. Where `late` stands
    below `early` in the text, this is what makes it illegal to run all of `early` first.
    """
    if late.access.array != early.access.array:
        return False
    sides = (_Side(late, loop, 0), _Side(early, loop, 100))
    equal: list[_Form] = []
    at_least: list[_Form] = [form for side in sides for form in side.bounds()]
    step = late.loops[loop].step
    apart = {sides[1].unknown(loop): 1, sides[0].unknown(loop): -1, -1: -step}
    at_least.append(apart)
    for one, other in zip(late.access.at, early.access.at, strict=True):
        if one.of is None and other.of is None:
            form = sides[0].form(one.affine)
            _add(form, sides[1].form(other.affine), -1)
            equal.append(form)
    return _solvable(equal, at_least)


@dataclass(frozen=True, slots=True)
class _Side:
    """The unknowns of one side: the shared loops come first, its own start at `first`."""

    site: Site
    shared: int
    first: int

    def unknown(self, loop: int) -> int:
        return loop if loop < self.shared else 10 + self.first + loop

    def form(self, affine: Affine) -> _Form:
        made = {self.unknown(at): coef for at, coef in enumerate(affine.coefs) if coef}
        made[-1] = affine.constant
        return made

    def bounds(self) -> list[_Form]:
        """`lower <= index` and `index <= upper - 1`, where these are no elements of arrays."""
        found: list[_Form] = []
        for at, loop in enumerate(self.site.loops):
            index = {self.unknown(at): 1}
            if loop.lower.of is None:
                form = dict(index)
                _add(form, self.form(loop.lower.affine), -1)
                found.append(form)
            if loop.upper.of is None:
                form = self.form(loop.upper.affine)
                _add(form, {**index, -1: 1}, -1)
                found.append(form)
        return found


def _add(form: _Form, other: _Form, times: int) -> None:
    for unknown, coef in other.items():
        form[unknown] = form.get(unknown, 0) + times * coef
        if not form[unknown]:
            del form[unknown]


def _solvable(equal: list[_Form], at_least: list[_Form]) -> bool:
    """Whether `form = 0` and `form >= 0` may hold at once; True too where that is hard to say."""
    while equal:
        form = equal.pop()
        divisor = gcd(*(c for u, c in form.items() if u >= 0), 0)
        if not divisor:
            if form.get(-1, 0):
                return False
            continue
        if form.get(-1, 0) % divisor:
            return False
        form = {u: c // divisor for u, c in form.items()}
        unit = next((u for u, c in form.items() if u >= 0 and abs(c) == 1), None)
        if unit is None:
            at_least += [form, {u: -c for u, c in form.items()}]
            continue
        for other in (*equal, *at_least):
            if unit in other:
                _add(other, form, -other[unit] * form[unit])
    return _inequalities_solvable(at_least)


def _inequalities_solvable(forms: Sequence[_Form]) -> bool:
    left = {_tight(form) for form in forms}
    while True:
        unknowns = {u for form in left for u, _ in form if u >= 0}
        if any(not [u for u, _ in form if u >= 0] and dict(form).get(-1, 0) < 0 for form in left):
            return False
        if not unknowns or len(left) > _MOST:
            return True
        sides = {u: ([], []) for u in unknowns}  # type: dict[int, tuple[list[_Form], list[_Form]]]
        for form in left:
            for u, c in form:
                if u >= 0:
                    sides[u][c < 0].append(dict(form))
        out = min(unknowns, key=lambda u: len(sides[u][0]) * len(sides[u][1]))
        kept = {form for form in left if out not in dict(form)}
        for above in sides[out][0]:
            for below in sides[out][1]:
                made = {u: c * -below[out] for u, c in above.items()}
                _add(made, below, above[out])
                kept.add(_tight(made))
        left = kept


def _tight(form: _Form) -> tuple[tuple[int, int], ...]:
    """A form >= 0 divided by what its coefficients share, its constant rounded down."""
    divisor = gcd(*(c for u, c in form.items() if u >= 0), 0) or 1
    return tuple(sorted((u, c // divisor) for u, c in form.items() if c // divisor))
