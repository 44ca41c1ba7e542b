"""Pairs of input and output sites in the two orders that a layer reads them in.

By offset, for one matrix product per offset; by output site, for summing the products. Two builders
give the same arrays: numba counts and places in two passes, torch runs on any device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from embeddb.featurizers.network.site_table import compiled, numba_pays

Arranged = tuple[Tensor, Tensor, list[int], Tensor, Tensor]


def arrange(table: Tensor) -> Arranged:
    """From int32[n,k*k] input sites per output site and offset, -1 where there is none:

    `source` int32[p] and `rows` int32[p], input and output site of the pairs by offset, then output
    site; how many pairs each offset has; `order` int32[p], the pairs by output site, then offset;
    `bounds` int32[n+1], where in `order` each output site begins.
    """
    if numba_pays(table):
        try:
            return arrange_numba(table)
        except ImportError:
            pass
    return arrange_torch(table)


def arrange_torch(table: Tensor) -> Arranged:
    """See `arrange`."""
    n, area = table.shape
    by_offset = table.t().contiguous().view(-1)
    found = by_offset >= 0
    at = found.nonzero().view(-1)
    sizes: list[int] = found.view(area, n).sum(1).tolist()
    # The number of each pair, read by output site, is the order in which to sum.
    place = found.cumsum(0, dtype=torch.int32).sub_(1).view(area, n).t().reshape(-1)
    by_site = table >= 0
    order = place.index_select(0, by_site.view(-1).nonzero().view(-1))
    bounds = torch.zeros(n + 1, dtype=torch.int32, device=table.device)
    torch.cumsum(by_site.sum(1), 0, out=bounds[1:])
    return by_offset.index_select(0, at), (at % n).int(), sizes, order, bounds


def arrange_numba(table: Tensor) -> Arranged:
    """See `arrange`; on the CPU. Raises: ImportError without numba."""
    place = compiled(_place)
    counts = (table >= 0).sum(0)
    next_of = counts.cumsum(0) - counts
    source, rows, order = torch.empty(3, int(counts.sum()), dtype=torch.int32).unbind(0)
    bounds = torch.empty(table.shape[0] + 1, dtype=torch.int32)
    arrays = (table.contiguous(), source, rows, order, bounds, next_of)
    place(*(array.numpy() for array in arrays))
    return source, rows, counts.tolist(), order, bounds


def _place(table: Any, source: Any, rows: Any, order: Any, bounds: Any, next_of: Any) -> None:
    """`next_of` int64[k*k] holds where the pairs of each offset begin, and is used up."""
    at = 0
    for site in range(table.shape[0]):
        bounds[site] = at
        for offset in range(table.shape[1]):
            found = table[site, offset]
            if found >= 0:
                pair = next_of[offset]
                source[pair] = found
                rows[pair] = site
                order[at] = pair
                next_of[offset] = pair + 1
                at += 1
    bounds[table.shape[0]] = at
