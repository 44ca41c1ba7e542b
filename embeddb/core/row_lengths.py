"""How many entries the rows of a matrix have, as derived quantities and models read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class RowLengths(NamedTuple):
    """A histogram. Shapes: `values` float64[k], the entries of a row, or the mean of those of a
    bin, ascending; `times` float64[k], so many rows have them, never 0."""

    values: NDArray[np.float64]
    times: NDArray[np.float64]
