"""Featurizer for stubs whose source has moments of row and column lengths, as Ginkgo's matrix
features do."""

from __future__ import annotations

from embeddb.featurizers.base import Featurizer
from embeddb.featurizers.sizes import MOMENTS, ORDER, LogSizes

_EACH = (*ORDER, "max", "padding", "cv", *MOMENTS)


class Given(LogSizes):
    """`sizes` plus symmetry, order statistics and moments of row and column lengths."""

    name = "given"
    names = (
        *LogSizes.names,
        "col_mean",
        "psym",
        *(f"{side}_{name}" for side in ("row", "col") for name in _EACH),
    )
    dim = len(names)


PLUGIN: type[Featurizer] = Given
