"""What the arrays that decide what a nest accesses hold before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from embeddb.core.errors import NothingFound
from embeddb.nests.nest import Nest
from indexer.runners.nest_code.fill import contents
from indexer.runners.nest_counters.work import deciding

__all__ = ["Values", "deciding_values"]

#: By number of the array.
Values = Mapping[int, NDArray[Any]]
MOST_BYTES = 1 << 30


def deciding_values(nest: Nest) -> Values:
    """Raises: NothingFound where they are too large to be looked at."""
    wanted = sorted(deciding(nest))
    if sum(nest.arrays[at].bytes for at in wanted) > MOST_BYTES:
        raise NothingFound(f"the arrays that decide have more than {MOST_BYTES} bytes")
    return {at: contents(nest, at).reshape(nest.arrays[at].shape) for at in wanted}
