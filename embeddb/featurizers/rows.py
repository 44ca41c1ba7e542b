"""Featurizer for stubs whose source has the sizes, the longest row and the spread of the row
lengths."""

from __future__ import annotations

from embeddb.featurizers.base import Featurizer
from embeddb.featurizers.sizes import LogSizes


class Rows(LogSizes):
    """`sizes` plus longest row, its ratio to the mean (the padding of ELL) and std over mean.

    The shortest row is omitted: not every source has it, and it rarely differs.
    """

    name = "rows"
    names = (*LogSizes.names, "row_max", "row_padding", "row_cv")
    dim = len(names)


PLUGIN: type[Featurizer] = Rows
