"""Neighbours of sites: the input site at each kernel offset of each output site.

Two builders give the same table. numba merges sorted rows in O(n k^2) without hashing or keys;
torch searches sorted keys and runs on any device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

#: Sites from which loading numba for one pattern pays.
NUMBA_FROM = 100_000

#: Sites that the torch builder handles together: bounds its memory to some 10 MB.
TORCH_SITES = 16_384


def neighbours(targets: Tensor, sources: Tensor, kernel: int, step: int) -> Tensor:
    """int32[n,k*k]: the row of `sources` that lies at each offset of each row of `targets`, or -1.

    Shapes: `targets` int64[n,3], `sources` int64[s,3], sorted and unique. `step` is the stride of
    the sources, in which offsets count.
    """
    if numba_pays(targets):
        try:
            return table_numba(targets, sources, kernel, step)
        except ImportError:
            pass
    return table_torch(targets, sources, kernel, step)


def numba_pays(sites: Tensor) -> bool:
    """Whether to try numba for this many rows: loading it takes half a second, once."""
    return sites.device.type == "cpu" and (len(sites) >= NUMBA_FROM or "numba" in sys.modules)


def table_torch(targets: Tensor, sources: Tensor, kernel: int, step: int) -> Tensor:
    """See `neighbours`."""
    reach = kernel * step
    table = torch.full(
        (targets.shape[0], kernel * kernel), -1, dtype=torch.int32, device=targets.device
    )
    if not targets.shape[0] or not sources.shape[0]:
        return table
    partner, line, _, source_line, _ = _partners(targets, sources, kernel, step)
    # Room on both sides, so that no offset reaches into the next line.
    width = int(torch.maximum(targets[:, 2].max(), sources[:, 2].max())) + 1 + 2 * reach
    keys = source_line * width + sources[:, 2] + reach
    first = targets[:, 2] + reach + _lowest(kernel) * step
    rows = torch.arange(kernel, device=targets.device)
    for a in range(0, targets.shape[0], TORCH_SITES):
        b = min(a + TORCH_SITES, targets.shape[0])
        # int64[k,b-a]: where a row of the kernel begins; without a partner, before all keys.
        wanted = partner[:, line[a:b]] * width + first[a:b]
        near = torch.searchsorted(keys, wanted)[:, :, None] + rows
        near.clamp_(max=keys.shape[0] - 1)
        gap = keys[near] - wanted[:, :, None]
        # The last key may come up several times: then the same number is written again.
        hit = (gap >= 0) & (gap <= reach - step)
        i, site, _ = hit.nonzero(as_tuple=True)
        column = gap[hit].div_(step, rounding_mode="floor")
        table[a:b][site, i + kernel * column] = near[hit].int()
    return table


def table_numba(targets: Tensor, sources: Tensor, kernel: int, step: int) -> Tensor:
    """See `neighbours`; on the CPU. Raises: ImportError without numba."""
    merge = compiled(_merge_lines)
    table = torch.full((targets.shape[0], kernel * kernel), -1, dtype=torch.int32)
    if not targets.shape[0] or not sources.shape[0]:
        return table
    partner, _, starts, _, source_starts = _partners(targets, sources, kernel, step)
    merge(
        table.numpy(),
        targets[:, 2].contiguous().numpy(),
        starts.numpy(),
        sources[:, 2].contiguous().numpy(),
        source_starts.numpy(),
        partner.numpy(),
        step,
    )
    return table


def _lowest(kernel: int) -> int:
    return -(kernel // 2) if kernel % 2 else 0


def _partners(
    targets: Tensor, sources: Tensor, kernel: int, step: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Lines are runs of one entry and row. Returns `partner` int64[k,lines], the line of the
    sources at each row offset or -1; then line of each site and starts of the lines, of the
    targets and of the sources."""
    height = int(torch.maximum(targets[:, 1].max(), sources[:, 1].max())) + 1
    height += 2 * kernel * step
    keys, line, starts = _lines(targets, height)
    other, source_line, source_starts = (
        (keys, line, starts) if targets is sources else _lines(sources, height)
    )
    rows = (torch.arange(kernel, device=keys.device) + _lowest(kernel)) * step
    wanted = keys + rows[:, None]
    place = torch.searchsorted(other, wanted).clamp_(max=other.shape[0] - 1)
    partner = torch.where(other[place] == wanted, place, -1)
    return partner, line, starts, source_line, source_starts


def _lines(coords: Tensor, height: int) -> tuple[Tensor, Tensor, Tensor]:
    # The gap of 2 k steps between entries keeps offsets from reaching into the next one.
    keys, line, counts = torch.unique_consecutive(
        coords[:, 0] * height + coords[:, 1], return_inverse=True, return_counts=True
    )
    starts = torch.zeros(keys.shape[0] + 1, dtype=torch.int64, device=coords.device)
    torch.cumsum(counts, 0, out=starts[1:])
    return keys, line, starts


def _merge_lines(
    table: Any,
    columns: Any,
    starts: Any,
    source_columns: Any,
    source_starts: Any,
    partner: Any,
    step: int,
) -> None:
    kernel = partner.shape[0]
    lowest = -(kernel // 2) * step if kernel % 2 else 0
    reach = (kernel - 1) * step
    for line in range(starts.size - 1):
        for i in range(kernel):
            other = partner[i, line]
            if other < 0:
                continue
            at, end = source_starts[other], source_starts[other + 1]
            for site in range(starts[line], starts[line + 1]):
                first = columns[site] + lowest
                while at < end and source_columns[at] < first:
                    at += 1
                near = at
                while near < end and source_columns[near] <= first + reach:
                    table[site, i + kernel * ((source_columns[near] - first) // step)] = near
                    near += 1


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Raises: ImportError without numba."""
    from numba import njit

    try:
        made: Callable[..., Any] = njit(cache=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        made = njit(function)
    return made
