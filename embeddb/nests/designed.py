"""Schedules that are worth a try on any nest of a depth: the same ones for all, so that what ran on
one nest can be compared with what ran on another."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from embeddb.nests.schedule import Schedule

__all__ = ["designed"]

#: Sizes of blocks; a nest may be split in one or several of its loops at the same size.
_BLOCKS = (8, 32, 128)
#: Orders that are tried of a depth; deeper nests have more than anybody will run.
_MOST_ORDERS = 24


def designed(depth: int, *, seed: int = 0) -> list[Schedule]:
    """The nest as it stands with each kind of innermost loop first, then, shuffled by `seed`: every
    order (of a deep nest some), each order with blocks in each set of loops, other ways to share
    the parallel loop out, and arrays packed. None of them is checked against a nest.
    """
    stands = tuple(range(depth))
    first = [
        Schedule(stands, (0,) * depth, "outer", inner=inner)
        for inner in ("plain", "simd", "unroll4")
    ]
    rest = list(dict.fromkeys(_rest(_orders(depth, seed))))
    random.Random(seed).shuffle(rest)
    return [*first, *(schedule for schedule in rest if schedule not in first)]


def _orders(depth: int, seed: int) -> list[tuple[int, ...]]:
    every = list(itertools.permutations(range(depth)))
    if len(every) <= _MOST_ORDERS:
        return every
    return [every[0], *random.Random(seed).sample(every[1:], _MOST_ORDERS - 1)]


def _rest(orders: list[tuple[int, ...]]) -> Iterator[Schedule]:
    depth = len(orders[0])
    whole = (0,) * depth
    for order in orders:
        for inner in ("plain", "simd", "unroll4", "jam4"):
            yield Schedule(order, whole, "outer", inner=inner)
        yield Schedule(order, whole, "none")
        yield Schedule(order, whole, "second", inner="simd")
        yield Schedule(order, whole, "outer", policy="dynamic", chunk=8)
        for block in _BLOCKS:
            for loops in _sets(depth):
                tiles = tuple(block if at in loops else 0 for at in range(depth))
                for inner, pack in (("plain", "none"), ("simd", "none"), ("simd", "read1")):
                    yield Schedule(order, tiles, "outer", inner=inner, pack=pack)


def _sets(depth: int) -> Iterator[tuple[int, ...]]:
    for count in range(1, min(depth, 3) + 1):
        yield from itertools.combinations(range(depth), count)
