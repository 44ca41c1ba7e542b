"""The tiles of a kernel: blocks of its root and of what it sums over; which of them can be run.

The tile sizes of "A Learned Performance Model for Tensor Processing Units" (Section 2.3), for
kernels that platform `tile-cpu` computes: everything inside one tile of the largest output is
computed before the next, with what is needed twice in scratch memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from embeddb.core.config import Config, Value
from embeddb.core.errors import TensorError
from embeddb.tensors.tensor_graph import TensorGraph
from embeddb.tensors.tiling.plan import Plan, plan_of

#: Dimensions of a root that can be tiled: as many as there are parameters.
MOST_RANKS = 6
PARAMETERS = (*(f"t{at + 1}" for at in range(MOST_RANKS)), "tr")
#: Bytes of scratch memory, tiles, and operations of one kernel.
MOST_SCRATCH = 1 << 28
MOST_BLOCKS = 1 << 16
MOST_OPERATIONS = 512


@dataclass(frozen=True, slots=True)
class Tile:
    """Sizes along the dimensions of the root, and of the blocks in which sums run over their
    longest dimension; 0 is all of it."""

    sizes: tuple[int, ...]
    reduced: int = 0

    @classmethod
    def of(cls, config: Mapping[str, Any], rank: int) -> Tile:
        """What is not given is whole."""
        sizes = tuple(int(config.get(name, 0)) for name in PARAMETERS[:rank])
        return cls(sizes, int(config.get("tr", 0)))

    @property
    def config(self) -> Config:
        named = zip(PARAMETERS, self.sizes, strict=False)
        return Config({**dict(named), "tr": self.reduced})


class TileJudge:
    """The rules of a kernel as one more constraint of a space that has some of `PARAMETERS`: sizes
    below the dimensions, a bounded number of tiles. Scratch memory bounds kernels: no tile needs
    more than the kernel as it stands."""

    def __init__(self, kernel: TensorGraph, given: frozenset[str] = frozenset(PARAMETERS)) -> None:
        self.plan, self._refused = _planned(kernel)
        self.names = given & frozenset((*PARAMETERS[: kernel.sizes.symbols["RANK"]], "tr"))
        self.text = f"the tiles of {kernel.name or kernel.id[:12]}"

    def holds(self, env: Mapping[str, Any]) -> bool | None:
        """Whether the tile is legal; None while one of its sizes is open."""
        if not self.names <= env.keys():
            return None
        return not self.reason(env)

    def seen(self, name: str, value: Value) -> Value:
        """Everything: how many tiles there are depends on the sizes together."""
        return value

    def reason(self, values: Mapping[str, Any]) -> str:
        """Why not, in one line; empty where it is legal."""
        if self.plan is None:
            return self._refused
        return _reason(self.plan, Tile.of(values, len(self.plan.dims)))


def why_not(kernel: TensorGraph) -> str:
    """Why a kernel has no tiles here, in one line; empty where it has."""
    return _planned(kernel)[1]


def untiled(kernel: TensorGraph) -> Tile:
    """The kernel as it stands: one tile."""
    return Tile((0,) * int(kernel.sizes.symbols["RANK"]))


@lru_cache(maxsize=256)
def _planned(kernel: TensorGraph) -> tuple[Plan | None, str]:
    count = len(kernel.operations)
    if count > MOST_OPERATIONS:
        return None, f"{count} operations, at most {MOST_OPERATIONS} are computed in one kernel"
    try:
        plan = plan_of(kernel)
    except TensorError as error:
        return None, error.reason
    if len(plan.dims) > MOST_RANKS:
        return None, f"{len(plan.dims)} dimensions, at most {MOST_RANKS} are tiled"
    if plan.scratch > MOST_SCRATCH:
        return None, f"{plan.scratch:,} bytes of scratch memory, at most {MOST_SCRATCH:,} are taken"
    return plan, ""


def _reason(plan: Plan, tile: Tile) -> str:
    for at, (size, dim) in enumerate(zip(tile.sizes, plan.dims, strict=True)):
        if size and not 0 < size < dim:
            return f"t{at + 1}={size}: the dimension has {dim}, of which 0 is the whole"
    if tile.reduced and not 0 < tile.reduced < plan.reduced:
        return f"tr={tile.reduced}: sums run over {plan.reduced}, of which 0 is the whole"
    if (blocks := plan.blocks(tile.sizes)) > MOST_BLOCKS:
        return f"{blocks:,} tiles, at most {MOST_BLOCKS:,} are run"
    return ""


#: How dimensions are matched.
BY = ("role", "position")
_ROLES = ("columns", "rows")


class Carried(NamedTuple):
    """One size of the target's tile, `parameter` = `size`, and of what it came: `source`, a
    parameter of the other tile (empty: none is matched), of which `wanted` is the size there.
    `role` is the dimension's."""

    parameter: str
    size: int
    source: str
    wanted: int
    role: str

    @property
    def reason(self) -> str:
        """Why the size is another; empty where it is not."""
        if not self.source:
            return "no dimension is matched with it" + (": one at a time" if self.size else "")
        return "" if self.size == self.wanted else f"all of it: {self.wanted} is as long"


def carried(tile: Mapping[str, Any], source: TensorGraph, target: TensorGraph) -> Iterator[Carried]:
    """The sizes of the target's tile; one as long as its dimension is 0, the whole. A dimension
    that nothing is matched with is taken element by element where the tile does not take all of
    its kernel, so that it stays about as large."""
    there, here = _order(source), _order(target)
    roles = {d: _ROLES[at] if at < len(_ROLES) else "batch" for at, d in enumerate(here)}
    part = int(any(int(tile.get(f"t{d + 1}", 0)) for d in there))
    matched = dict(zip(here, there, strict=False))
    sizes = target.sizes.symbols
    for d in sorted(here):
        name = f"t{matched[d] + 1}" if d in matched else ""
        wanted = int(tile.get(name, 0)) if name else part
        size = wanted if wanted < sizes[f"DIM_{d + 1}"] else 0
        yield Carried(f"t{d + 1}", size, name, wanted, roles[d])
    terms = int(tile.get("tr", 0))
    yield Carried("tr", terms if terms < sizes["REDUCED"] else 0, "tr", terms, "sums")


def carried_tile(tile: Mapping[str, Any], source: TensorGraph, target: TensorGraph) -> Config:
    """The tile that `carried` describes; it need not be legal."""
    return Config({one.parameter: one.size for one in carried(tile, source, target)})


def _order(kernel: TensorGraph) -> list[int]:
    """The dimensions of the root as parameters number them, from the minor to the major one."""
    root, rank = kernel.root, kernel.sizes.symbols["RANK"]
    return list(root.layout) if root.rank == rank else list(reversed(range(rank)))
