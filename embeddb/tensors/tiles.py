"""Tiles of a kernel: blocks of its root and of its sums, and their legality.

The tile sizes of "A Learned Performance Model for Tensor Processing Units" (Section 2.3), for
kernels computed by platform `tile-cpu`: everything inside one tile of the largest output is
computed before the next, with reused values in scratch memory.
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

#: Largest number of tiled dimensions of a root, one parameter each.
MOST_RANKS = 6
PARAMETERS = (*(f"t{at + 1}" for at in range(MOST_RANKS)), "tr")
#: Limits on bytes of scratch memory, tiles, and operations of one kernel.
MOST_SCRATCH = 1 << 28
MOST_BLOCKS = 1 << 16
MOST_OPERATIONS = 512


@dataclass(frozen=True, slots=True)
class Tile:
    """Sizes along the dimensions of the root, and the block length of sums along their longest
    dimension; 0 is the whole dimension."""

    sizes: tuple[int, ...]
    reduced: int = 0

    @classmethod
    def of(cls, config: Mapping[str, Any], rank: int) -> Tile:
        """Tile of a configuration; missing sizes are whole dimensions."""
        sizes = tuple(int(config.get(name, 0)) for name in PARAMETERS[:rank])
        return cls(sizes, int(config.get("tr", 0)))

    @property
    def config(self) -> Config:
        named = zip(PARAMETERS, self.sizes, strict=False)
        return Config({**dict(named), "tr": self.reduced})


class TileJudge:
    """The rules of a kernel as one more constraint of a space that has some of `PARAMETERS`: sizes
    below the dimensions, a bounded number of tiles. Scratch memory is limited per kernel: no tile
    needs more than the untiled kernel."""

    def __init__(
        self, kernel: TensorGraph, available: frozenset[str] = frozenset(PARAMETERS)
    ) -> None:
        self.plan, self._refused = _planned(kernel)
        self.names = available & frozenset((*PARAMETERS[: kernel.sizes.symbols["RANK"]], "tr"))
        self.text = f"the tiles of {kernel.name or kernel.id[:12]}"

    def holds(self, env: Mapping[str, Any]) -> bool | None:
        """Return true if the tile is legal; None while one of its sizes is open."""
        if not self.names <= env.keys():
            return None
        return not self.reason(env)

    def seen(self, name: str, value: Value) -> Value:
        """The whole value: the number of tiles depends on all sizes together."""
        return value

    def reason(self, values: Mapping[str, Any]) -> str:
        """Reason why the tile is illegal, in one line; empty where it is legal."""
        plan = self.plan
        if plan is None:
            return self._refused
        tile = Tile.of(values, len(plan.dims))
        for at, (size, dim) in enumerate(zip(tile.sizes, plan.dims, strict=True)):
            if size and not 0 < size < dim:
                return f"t{at + 1}={size}: the dimension has {dim} (0 is the whole)"
        if tile.reduced and not 0 < tile.reduced < plan.reduced:
            return f"tr={tile.reduced}: sums run over {plan.reduced} (0 is the whole)"
        if (blocks := plan.blocks(tile.sizes)) > MOST_BLOCKS:
            return f"{blocks:,} tiles, at most {MOST_BLOCKS:,} are run"
        return ""


def why_not(kernel: TensorGraph) -> str:
    """Reason why a kernel has no tiles, in one line; empty where it has."""
    return _planned(kernel)[1]


def untiled(kernel: TensorGraph) -> Tile:
    """The kernel as one tile."""
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


_ROLES = ("columns", "rows")


class TransferredSize(NamedTuple):
    """One size of the target's tile, `parameter` = `size`, and its origin: `source`, a parameter of
    the source's tile (empty: no match), where the size is `wanted`. `role` is the dimension's."""

    parameter: str
    size: int
    source: str
    wanted: int
    role: str

    @property
    def reason(self) -> str:
        """Reason for a different size; empty for the same one."""
        if not self.source:
            return "no dimension matches it" + (": one at a time" if self.size else "")
        return "" if self.size == self.wanted else f"the whole: {self.wanted} covers the dimension"


def transferred_sizes(
    tile: Mapping[str, Any], source: TensorGraph, target: TensorGraph
) -> Iterator[TransferredSize]:
    """Sizes of the target's tile; a size that covers its dimension is 0, the whole. A dimension
    without a match is taken element by element if the source's tile does not cover its kernel, so
    that tiles stay about as large."""
    there, here = _order(source), _order(target)
    roles = {d: _ROLES[at] if at < len(_ROLES) else "batch" for at, d in enumerate(here)}
    part = int(any(int(tile.get(f"t{d + 1}", 0)) for d in there))
    matched = dict(zip(here, there, strict=False))
    sizes = target.sizes.symbols
    for d in sorted(here):
        name = f"t{matched[d] + 1}" if d in matched else ""
        wanted = int(tile.get(name, 0)) if name else part
        size = wanted if wanted < sizes[f"DIM_{d + 1}"] else 0
        yield TransferredSize(f"t{d + 1}", size, name, wanted, roles[d])
    terms = int(tile.get("tr", 0))
    yield TransferredSize("tr", terms if terms < sizes["REDUCED"] else 0, "tr", terms, "sums")


def transferred_tile(tile: Mapping[str, Any], source: TensorGraph, target: TensorGraph) -> Config:
    """The tile of `transferred_sizes`; it need not be legal."""
    return Config({one.parameter: one.size for one in transferred_sizes(tile, source, target)})


def _order(kernel: TensorGraph) -> list[int]:
    """Dimensions of the root in the numbering of parameters, from the minor to the major one."""
    root, rank = kernel.root, kernel.sizes.symbols["RANK"]
    return list(root.layout) if root.rank == rank else list(reversed(range(rank)))
