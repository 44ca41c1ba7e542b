"""Maps from input to output sites, for each offset of a convolution kernel.

Sites are the stored positions of sparse patterns: `coords` int64[n,3] = (entry, row, column),
unique and in lexicographic order. `entry` is the index of the pattern in a batch. A `Level` is the
sites of one resolution; maps between levels are computed once and shared by all layers.

Offsets of a k x k kernel are numbered with the row fastest (MinkowskiEngine's convention): `o = i +
k * j` is the offset of `i - k//2` rows and `j - k//2` columns for odd k, of `i` rows and `j`
columns for even k, times the stride of the input level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from embeddb.core.errors import InputError

#: Coordinates stay below this, so that the keys of 10^7 sites fit an int64.
MAX_COORDINATE = 2**36

#: Patterns in a batch, for the same reason.
MAX_ENTRIES = 2**20

#: Number of pairs processed together, so that their gathered rows and products stay in the caches.
#: 4,096 is 20 % slower at 32 channels; 65,536 is 5 % slower at 128 and 5 % faster at 32.
CHUNK_PAIRS = 16_384

#: Number of output sites processed together where there are few pairs.
CHUNK_SITES = 16_384


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of output sites and all pairs that end in it, sorted by offset, then output site.

    Shapes: outputs `start` to `stop`; `source` int32[p] input site of each pair, `rows` int32[p]
    output site minus `start`; `offsets` the kernel offsets that occur and `sizes` their numbers of
    pairs. `order` int32[p] lists the pairs by output site; those of output `start + i` are
    `order[bounds[i]:bounds[i + 1]]`, `bounds` int32[stop - start + 1].
    """

    start: int
    stop: int
    source: Tensor
    rows: Tensor
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    order: Tensor
    bounds: Tensor

    @property
    def pairs(self) -> int:
        return int(self.source.shape[0])


@dataclass(frozen=True, slots=True)
class Plan:
    """All chunks of one direction. `centre` is the offset that maps each site onto itself (it is
    in no chunk), or None."""

    chunks: tuple[Chunk, ...]
    centre: int | None

    @property
    def largest(self) -> int:
        """Number of pairs of the largest chunk."""
        return max((chunk.pairs for chunk in self.chunks), default=0)


@dataclass(frozen=True, eq=False)
class KernelMap:
    """Input and output sites of a k x k kernel from level `source` to level `target`."""

    source: Level
    target: Level
    kernel: int

    @property
    def same_sites(self) -> bool:
        """True for a submanifold map, whose outputs are the input sites."""
        return self.source is self.target

    @cached_property
    def plan(self) -> Plan:
        """Plan from inputs to outputs."""
        return _plan(self._table(), self.kernel**2 // 2 if self.same_sites else None)

    @cached_property
    def reverse(self) -> Plan:
        """Plan from outputs to inputs (gradients). Its offset o is offset `mirror[o]` of `plan`."""
        if self.same_sites:
            return self.plan
        table = self._table()
        sites = torch.arange(table.shape[0], dtype=table.dtype, device=table.device)
        back = table.new_full((self.source.sites, table.shape[1]), -1)
        for o in range(table.shape[1]):
            occupied = table[:, o] >= 0
            back[table[occupied, o].long(), o] = sites[occupied]
        return _plan(back, None)

    @property
    def mirror(self) -> tuple[int, ...]:
        area = self.kernel**2
        return tuple(reversed(range(area))) if self.same_sites else tuple(range(area))

    def _table(self) -> Tensor:
        return neighbours(self.target.coords, self.source.coords, self.kernel, self.source.stride)


@dataclass(frozen=True, eq=False)
class Level:
    """The sites of one resolution. Coordinates are in units of the input and multiples of `stride`;
    `entries` is the number of patterns in the batch, those without a site included.

    Shapes: `coords` int64[n,3] = (entry, row, column). Created by `Level.of`, which checks them.
    """

    coords: Tensor
    entries: int
    stride: int = 1
    _cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, coords: Tensor, *, entries: int | None = None) -> Level:
        """Sites at full resolution; `entries` defaults to the largest entry plus one. Raises:
        InputError unless `coords` is int64[n,3], sorted, unique and within bounds."""
        if coords.ndim != 2 or coords.shape[1] != 3 or coords.dtype != torch.int64:
            raise InputError("sites are not an int64[n,3] array of entry, row and column")
        top = coords.amax(0).tolist() if coords.shape[0] else [-1, 0, 0]
        count = top[0] + 1 if entries is None else entries
        if not 0 <= count <= MAX_ENTRIES:
            raise InputError(f"a batch holds 0 to {MAX_ENTRIES} patterns, not {count}")
        if coords.shape[0]:
            if int(coords.min()) < 0 or top[0] >= count or max(top[1:]) >= MAX_COORDINATE:
                raise InputError(
                    f"a site lies outside 0..{count - 1} entries or 0..2^36 rows and columns",
                    hint="reduce the pattern to a grid first",
                )
            if not _ascending(coords):
                raise InputError("sites are not sorted by entry, row and column, or repeat")
        return cls(coords.contiguous(), count)

    @property
    def sites(self) -> int:
        return int(self.coords.shape[0])

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Number of sites of each entry."""
        return tuple(torch.bincount(self.coords[:, 0], minlength=self.entries).tolist())

    def coarser(self, factor: int) -> Level:
        """Every site, once, rounded down to a multiple of `factor` times the stride."""
        if factor == 1:
            return self
        if factor not in self._cache:
            stride = self.stride * factor
            coords = _unique_sites(self.coords, stride)
            self._cache[factor] = Level(coords, self.entries, stride)
        level: Level = self._cache[factor]
        return level

    def kernel_map(self, kernel: int, stride: int = 1) -> KernelMap:
        """The map of a k x k kernel onto this level (stride 1) or onto `coarser(stride)`."""
        key = (kernel, stride)
        if key not in self._cache:
            self._cache[key] = KernelMap(self, self.coarser(stride), kernel)
        cached: KernelMap = self._cache[key]
        return cached


def _ascending(coords: Tensor) -> bool:
    entry, row, column = (coords[1:] - coords[:-1]).unbind(1)
    later = (row > 0) | ((row == 0) & (column > 0))
    return bool(((entry > 0) | ((entry == 0) & later)).all())


def _unique_sites(coords: Tensor, stride: int) -> Tensor:
    if not coords.shape[0]:
        return coords
    entry, row, column = coords.unbind(1)
    # Entries and rows ascend together, so numbering their runs keeps the keys small.
    row, column = (x.div(stride, rounding_mode="floor") for x in (row, column))
    height, width = int(row.max()) + 1, int(column.max()) + 1
    lines, of = torch.unique_consecutive(entry * height + row, return_inverse=True)
    keys = torch.unique(of * width + column)
    entry_rows = lines[keys.div(width, rounding_mode="floor")]
    entry = entry_rows.div(height, rounding_mode="floor")
    return torch.stack((entry, entry_rows % height * stride, keys % width * stride), 1)


def _plan(table: Tensor, centre: int | None) -> Plan:
    """Chunks of int32[n,k*k] input sites per output site and offset, -1 where there is none."""
    if centre is not None:
        table[:, centre] = -1
    counts = (table >= 0).sum(1)
    chunks = [_chunk(table[a:b], a, b) for a, b in _cuts(counts)]
    return Plan(tuple(chunks), centre)


def _cuts(counts: Tensor) -> Sequence[tuple[int, int]]:
    """Runs of output sites of at most CHUNK_PAIRS pairs and CHUNK_SITES sites."""
    total = counts.cumsum(0).cpu()
    n, start, cuts = int(counts.shape[0]), 0, []
    while start < n:
        before = int(total[start - 1]) if start else 0
        stop = int(torch.searchsorted(total, before + CHUNK_PAIRS, right=True))
        stop = max(min(stop, start + CHUNK_SITES, n), start + 1)
        cuts.append((start, stop))
        start = stop
    return cuts


def _chunk(table: Tensor, start: int, stop: int) -> Chunk:
    """Chunk of int32[stop-start,k*k] input sites."""
    n, area = table.shape
    by_offset = table.t().contiguous().view(-1)
    occupied = by_offset >= 0
    at = occupied.nonzero().view(-1)
    sizes: list[int] = occupied.view(area, n).sum(1).tolist()
    # The number of each pair, in the order of output sites, is the order of summation.
    place = occupied.cumsum(0, dtype=torch.int32).sub_(1).view(area, n).t().reshape(-1)
    by_site = table >= 0
    bounds = torch.zeros(n + 1, dtype=torch.int32, device=table.device)
    torch.cumsum(by_site.sum(1), 0, out=bounds[1:])
    return Chunk(
        start=start,
        stop=stop,
        source=by_offset.index_select(0, at),
        rows=(at % n).int(),
        offsets=tuple(o for o, size in enumerate(sizes) if size),
        sizes=tuple(size for size in sizes if size),
        order=place.index_select(0, by_site.view(-1).nonzero().view(-1)),
        bounds=bounds,
    )


# Neighbours of sites: the input site at each kernel offset of each output site. Binary search over
# sorted keys, on any device.

#: Number of sites processed together: bounds the memory to some 10 MB.
SITES = 16_384


def neighbours(targets: Tensor, sources: Tensor, kernel: int, step: int) -> Tensor:
    """int32[n,k*k]: row of `sources` at each offset of each row of `targets`, or -1.

    Shapes: `targets` int64[n,3], `sources` int64[s,3], sorted and unique. `step` is the stride of
    the sources, the unit of offsets.
    """
    reach = kernel * step
    table = torch.full(
        (targets.shape[0], kernel * kernel), -1, dtype=torch.int32, device=targets.device
    )
    if not targets.shape[0] or not sources.shape[0]:
        return table
    partner, line, source_line = _partners(targets, sources, kernel, step)
    # Padding on both sides, so that no offset reaches into the next line.
    width = int(torch.maximum(targets[:, 2].max(), sources[:, 2].max())) + 1 + 2 * reach
    keys = source_line * width + sources[:, 2] + reach
    first = targets[:, 2] + reach + _lowest(kernel) * step
    rows = torch.arange(kernel, device=targets.device)
    for a in range(0, targets.shape[0], SITES):
        b = min(a + SITES, targets.shape[0])
        # int64[k,b-a]: begin of each row of the kernel; before all keys without a partner.
        wanted = partner[:, line[a:b]] * width + first[a:b]
        near = torch.searchsorted(keys, wanted)[:, :, None] + rows
        near.clamp_(max=keys.shape[0] - 1)
        gap = keys[near] - wanted[:, :, None]
        # The last key may occur several times: then the same number is written again.
        hit = (gap >= 0) & (gap <= reach - step)
        i, site, _ = hit.nonzero(as_tuple=True)
        column = gap[hit].div_(step, rounding_mode="floor")
        table[a:b][site, i + kernel * column] = near[hit].int()
    return table


def _lowest(kernel: int) -> int:
    return -(kernel // 2) if kernel % 2 else 0


def _partners(
    targets: Tensor, sources: Tensor, kernel: int, step: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Lines are runs of one entry and row. Returns `partner` int64[k,lines], the line of the
    sources at each row offset or -1, and the line of each site of the targets and the sources."""
    height = int(torch.maximum(targets[:, 1].max(), sources[:, 1].max())) + 1
    height += 2 * kernel * step
    keys, line = _lines(targets, height)
    other, source_line = (keys, line) if targets is sources else _lines(sources, height)
    rows = (torch.arange(kernel, device=keys.device) + _lowest(kernel)) * step
    wanted = keys + rows[:, None]
    place = torch.searchsorted(other, wanted).clamp_(max=other.shape[0] - 1)
    partner = torch.where(other[place] == wanted, place, -1)
    return partner, line, source_line


def _lines(coords: Tensor, height: int) -> tuple[Tensor, Tensor]:
    # The gap of 2 k steps between entries keeps offsets from reaching into the next one.
    lines = coords[:, 0] * height + coords[:, 1]
    keys, line = torch.unique_consecutive(lines, return_inverse=True)
    return keys, line
