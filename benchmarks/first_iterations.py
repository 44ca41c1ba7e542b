"""Four numbers of the first iterations of a nest in a simple cache: the paper's baseline of reuse
distances ("Performance Embeddings", Section 4), against which embeddings are compared."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from embeddb.nests.nest import Nest
from indexer.runners.nest_counters.caches import PLAIN, Caches
from indexer.runners.nest_counters.trace import Trace, outer_turns
from indexer.runners.nest_counters.values import deciding_values

__all__ = ["FIRST", "ITERATIONS", "first_iterations"]

#: What `first_iterations` tells: misses per access; bytes from and to memory; floating operations
#: per byte moved.
FIRST = ("miss_ratio", "bytes_read", "bytes_written", "intensity")
ITERATIONS = 500
#: Accesses per iteration beyond which the rest is not looked at.
_MOST_EACH = 1000


def first_iterations(
    nest: Nest, *, iterations: int = ITERATIONS, caches: Caches = PLAIN
) -> NDArray[np.float32]:
    """float32[4], in the order of `FIRST`: the first so many turns of the innermost loop, in a
    fully associative cache of the size of L1 that is empty before and written back behind.

    Raises: NothingFound where the arrays that decide are too large to be looked at.
    """
    values = deciding_values(nest)
    trace = Trace(nest, values)
    capacity = caches.l1.sets * caches.l1.ways
    held: OrderedDict[int, bool] = OrderedDict()
    accesses, misses, written = 0, 0, 0
    touches = trace.touches(0, outer_turns(nest, values))
    for touch in islice(touches, iterations * _MOST_EACH):
        if trace.points >= iterations:
            break
        line = touch.address // caches.line_bytes
        accesses += 1
        misses += line not in held
        held[line] = held.pop(line, False) or touch.store
        if len(held) > capacity:
            written += held.popitem(last=False)[1]
    written += sum(held.values())
    moved = (misses + written) * caches.line_bytes
    told = (
        misses / accesses if accesses else 0.0,
        misses * caches.line_bytes,
        written * caches.line_bytes,
        trace.operations.flops / moved if moved else 0.0,
    )
    return np.array(told, dtype=np.float32)
