"""A configuration of `nest-cpu` as a schedule of one nest: the order of its loops, their blocks,
the parallel loop, and the code of the innermost one.

The parameters name *slots*, the loops of the nest from the outermost: `order_3 = ["2", "1", "3"]`,
`tile_1 = 32`. All block loops come first, in the order of their loops, then one loop a slot.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from embeddb.core.config import Config
from embeddb.nests.nest import Nest
from embeddb.nests.parts import MOST_LOOPS

#: Number of iterations of the second innermost loop that `jam4` runs together.
JAMMED = 4
#: Values of `schedule` and `inner`, and of `parallel` for the loops that can run in parallel.
POLICIES = ("static", "dynamic", "guided")
INNER = ("plain", "simd", "unroll4", "jam4")
PLACES = ("outer", "second")


class Piece(NamedTuple):
    """One loop of the generated code. `loop`: its loop in the nest; `block`: true for the loop over
    blocks; `step`: increment of the index; `trip`: largest trip count."""

    loop: int
    block: bool
    step: int
    trip: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """Shapes: `order` int[depth], loops from the outermost; `tiles` int[depth] by loop, 0: not
    split.

    `parallel` is `none`, `outer` or `second`, counted among the generated loops; `policy` is
    `static`, `dynamic` (by `chunk`) or `guided`; `inner` is `plain`, `simd`, `unroll4` or `jam4`;
    `pack` is `none`, `read1` or `read2`: the array that is copied block by block.
    """

    order: tuple[int, ...]
    tiles: tuple[int, ...]
    parallel: str = "none"
    policy: str = "static"
    chunk: int = 1
    inner: str = "plain"
    pack: str = "none"

    @classmethod
    def of(cls, config: Mapping[str, Any], depth: int) -> Schedule:
        """Schedule of a configuration; missing parameters are as in the identity schedule."""
        order = config.get(f"order_{depth}")
        return cls(
            order=tuple(int(slot) - 1 for slot in order) if order else tuple(range(depth)),
            tiles=tuple(int(config.get(f"tile_{at + 1}", 0)) for at in range(depth)),
            parallel=str(config.get("parallel", "none")),
            policy=str(config.get("schedule", "static")),
            chunk=int(config.get("chunk", 1)),
            inner=str(config.get("inner", "plain")),
            pack=str(config.get("pack", "none")),
        )

    @property
    def config(self) -> Config:
        """Parameters that apply: no policy without parallel loop, a chunk only for `dynamic`."""
        depth = len(self.order)
        values: dict[str, Any] = {f"tile_{at + 1}": t for at, t in enumerate(self.tiles)}
        if depth > 1:
            values[f"order_{depth}"] = tuple(str(at + 1) for at in self.order)
        values |= {"parallel": self.parallel, "inner": self.inner, "pack": self.pack}
        if self.parallel != "none":
            values["schedule"] = self.policy
            if self.policy == "dynamic":
                values["chunk"] = self.chunk
        return Config(values)

    def pieces(self, nest: Nest) -> tuple[Piece, ...]:
        """Generated loops from the outermost."""
        blocks, whole = [], []
        for loop in self.order:
            step, tile, trip = nest.loops[loop].step, self.tiles[loop], nest.trips[loop]
            if tile:
                blocks.append(Piece(loop, True, step * tile, -(-trip // tile)))
            whole.append(Piece(loop, False, step, min(tile, trip) if tile else trip))
        return (*blocks, *whole)

    def parallel_piece(self, nest: Nest) -> Piece | None:
        """The parallel generated loop; None without one."""
        return dict(zip(PLACES, self.pieces(nest), strict=False)).get(self.parallel)

    @property
    def innermost(self) -> int:
        """Loop of the innermost generated loop."""
        return self.order[-1]


def parameters(depth: int) -> frozenset[str]:
    """Parameters that decide the legality of a schedule of so many loops."""
    order = {f"order_{depth}"} if depth > 1 else set()
    tiles = {f"tile_{at + 1}" for at in range(depth)}
    return frozenset({*order, *tiles, "parallel", "inner", "pack"})


#: All parameters of schedules, at any depth.
KNOWN = frozenset(
    {
        "schedule",
        "chunk",
        *(name for depth in range(1, MOST_LOOPS + 1) for name in parameters(depth)),
    }
)


#: Block sizes; one or several loops of a nest are split at the same size.
_BLOCKS = (8, 32, 128)
#: Largest number of orders for a depth; deep nests have too many to run.
_MOST_ORDERS = 24


def designed(depth: int, *, seed: int = 0) -> list[Schedule]:
    """Sampling design: the identity schedule with each kind of innermost loop first, then, shuffled
    by `seed`: every order (of a deep nest some), each order with blocks in each set of loops, other
    policies of the parallel loop, and packed arrays. None of them is checked against a nest."""
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
    counts = range(1, min(depth, 3) + 1)
    sets = [split for count in counts for split in itertools.combinations(range(depth), count)]
    for order in orders:
        for inner in INNER:
            yield Schedule(order, whole, "outer", inner=inner)
        yield Schedule(order, whole, "none")
        yield Schedule(order, whole, "second", inner="simd")
        yield Schedule(order, whole, "outer", policy="dynamic", chunk=8)
        for block in _BLOCKS:
            for loops in sets:
                tiles = tuple(block if at in loops else 0 for at in range(depth))
                for inner, pack in (("plain", "none"), ("simd", "none"), ("simd", "read1")):
                    yield Schedule(order, tiles, "outer", inner=inner, pack=pack)
