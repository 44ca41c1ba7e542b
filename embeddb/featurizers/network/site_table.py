"""Neighbours of sites: the input site at each kernel offset of each output site, and the pairs of
both in the two orders used by layers. Binary search over sorted keys, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

#: Number of sites processed together: bounds the memory to some 10 MB.
SITES = 16_384

Arranged = tuple[Tensor, Tensor, list[int], Tensor, Tensor]


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


def arrange(table: Tensor) -> Arranged:
    """Arrange int32[n,k*k] input sites per output site and offset, -1 for none:

    `source` int32[p] and `rows` int32[p], input and output site of the pairs by offset, then output
    site; number of pairs of each offset; `order` int32[p], the pairs by output site, then offset;
    `bounds` int32[n+1], begin of each output site in `order`.
    """
    n, area = table.shape
    by_offset = table.t().contiguous().view(-1)
    occupied = by_offset >= 0
    at = occupied.nonzero().view(-1)
    sizes: list[int] = occupied.view(area, n).sum(1).tolist()
    # The number of each pair, in the order of output sites, is the order of summation.
    place = occupied.cumsum(0, dtype=torch.int32).sub_(1).view(area, n).t().reshape(-1)
    by_site = table >= 0
    order = place.index_select(0, by_site.view(-1).nonzero().view(-1))
    bounds = torch.zeros(n + 1, dtype=torch.int32, device=table.device)
    torch.cumsum(by_site.sum(1), 0, out=bounds[1:])
    return by_offset.index_select(0, at), (at % n).int(), sizes, order, bounds
