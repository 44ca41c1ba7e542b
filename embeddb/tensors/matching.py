"""A tile of one kernel as a tile of another, dimension by dimension.

A dimension of the root is matched by its *role*: the one that lies closest in memory is that of the
columns, the next that of the rows, all further ones the batch, from inside outwards; or by its
place in the shape. The blocks of sums match in either way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from embeddb.core.config import Config
from embeddb.tensors.computation import Computation

__all__ = ["BY", "Carried", "carried", "carried_tile"]

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


def carried(
    tile: Mapping[str, Any], source: Computation, target: Computation, *, by: str = "role"
) -> Iterator[Carried]:
    """The sizes of the target's tile; one as long as its dimension is 0, the whole. A dimension
    that nothing is matched with is taken element by element where the tile does not take all of
    its kernel, so that it stays about as large."""
    there, here = _order(source), _order(target)
    roles = {d: _ROLES[at] if at < len(_ROLES) else "batch" for at, d in enumerate(here)}
    if by == "position":
        there, here = sorted(there), sorted(here)
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


def carried_tile(
    tile: Mapping[str, Any], source: Computation, target: Computation, *, by: str = "role"
) -> Config:
    """The tile that `carried` describes; it need not be legal."""
    found = carried(tile, source, target, by=by)
    return Config({one.parameter: one.size for one in found})


def _order(kernel: Computation) -> list[int]:
    """The dimensions of the root as parameters number them, from the minor to the major one."""
    root, rank = kernel.root, kernel.sizes.symbols["RANK"]
    return list(root.layout) if root.rank == rank else list(reversed(range(rank)))
