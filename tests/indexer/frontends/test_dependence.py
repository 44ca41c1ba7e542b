"""Whether accesses meet at different turns, against every turn tried out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from embeddb.nests.parts import Access, Affine, Index, Loop
from indexer.frontends.distribute import Site, meet_later

SMALL = st.integers(-2, 2)


@st.composite
def loops(draw: st.DrawFn, around: int, many: int) -> tuple[Loop, ...]:
    """Loops below `around` others; bounds may depend on those further out."""
    made = []
    for depth in range(around, around + many):
        coefs = draw(st.lists(st.sampled_from((0, 0, 1)), min_size=depth, max_size=depth))
        start = draw(st.integers(0, 2))
        length = draw(st.integers(1, 4))
        lower = Index(Affine(start, tuple(coefs)))
        upper = Index(Affine(start + length, tuple(coefs)))
        made.append(Loop(lower, upper, draw(st.sampled_from((1, 1, 2)))))
    return tuple(made)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Site, Site, int]:
    shared = draw(st.integers(1, 2))
    common = draw(loops(0, shared))
    dimensions = draw(st.integers(1, 2))
    sites = []
    for _ in range(2):
        around = common + draw(loops(shared, draw(st.integers(0, 1))))
        at = tuple(
            Index(Affine(draw(SMALL), tuple(draw(SMALL) for _ in around)))
            for _ in range(dimensions)
        )
        sites.append(Site(Access(0, at), around))
    return sites[0], sites[1], shared - 1


def value(affine: Affine, at: Sequence[int]) -> int:
    return affine.constant + sum(c * i for c, i in zip(affine.coefs, at, strict=False))


def turns(around: Sequence[Loop], at: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    if len(at) == len(around):
        yield at
        return
    loop = around[len(at)]
    for index in range(value(loop.lower.affine, at), value(loop.upper.affine, at), loop.step):
        yield from turns(around, (*at, index))


def elements(site: Site) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    found = turns(site.loops)
    return [(at, tuple(value(i.affine, at) for i in site.access.at)) for at in found]


def meet(late: Site, early: Site, loop: int) -> bool:
    return any(
        there == here and one[:loop] == other[:loop] and one[loop] < other[loop]
        for one, there in elements(late)
        for other, here in elements(early)
    )


@settings(max_examples=100, deadline=None)
@given(pairs())
def test_what_meets_is_never_missed(pair: tuple[Site, Site, int]) -> None:
    late, early, loop = pair
    if meet(late, early, loop):
        assert meet_later(late, early, loop)


def site(constant: int, coef: int, *more: int) -> Site:
    around = tuple(Loop(Index(), Index(Affine(10)), 1) for _ in range(1 + len(more)))
    return Site(Access(0, (Index(Affine(constant, (coef, *more))),)), around)


def test_what_does_not_meet_is_seen() -> None:
    assert meet_later(site(0, 1), site(-1, 1), 0)  # A[i], then A[i - 1] one turn later
    assert not meet_later(site(-1, 1), site(0, 1), 0)
    assert not meet_later(site(0, 2), site(1, 2), 0)  # even and odd
    assert not meet_later(site(0, 1), site(10, 1), 0)  # further than the loop runs
    assert not meet_later(site(0, 10, 1), site(0, 10, 1), 0)  # rows that do not touch
    assert meet_later(site(0, 9, 1), site(0, 9, 1), 0)
    other = Site(Access(1, (Index(),)), site(0, 1).loops)
    assert not meet_later(other, site(0, 1), 0)
