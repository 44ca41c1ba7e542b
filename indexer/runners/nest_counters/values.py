"""What the arrays that decide what a nest accesses hold before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import NothingFound
from embeddb.nests.nest import Nest
from embeddb.nests.parts import Array
from indexer.runners.nest_counters.work import deciding

__all__ = ["Values", "deciding_values"]

#: By number of the array.
Values = Mapping[int, NDArray[Any]]
MOST_BYTES = 1 << 30
_TYPES = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64}


def deciding_values(nest: Nest) -> Values:
    """Raises: NothingFound where they are too large to be looked at."""
    wanted = sorted(deciding(nest))
    if sum(nest.arrays[at].bytes for at in wanted) > MOST_BYTES:
        raise NothingFound(f"the arrays that decide have more than {MOST_BYTES} bytes")
    return {at: _filled(nest.arrays[at], at) for at in wanted}


def _filled(array: Array, at: int) -> NDArray[Any]:
    kind, *told = array.fill.split(":")
    rng = np.random.default_rng(at)
    count, dtype = array.elements, _TYPES[array.dtype]
    flat: NDArray[Any]
    match kind:
        case "zero":
            flat = np.zeros(count)
        case "uniform":
            flat = rng.random(count)
        case "range":
            flat = np.arange(count)
        case "permutation":
            flat = rng.permutation(count)
        case "below":
            flat = rng.integers(0, int(told[0]), count)
        case _:
            flat = np.linspace(0, int(told[0]), count)
    return flat.astype(dtype).reshape(array.shape)
