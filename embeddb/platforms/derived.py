"""The derived quantities of configurations on a workload, as models and explanations read them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddb.core.config import Op
from embeddb.core.row_lengths import RowLengths
from embeddb.core.sizes import Sizes
from embeddb.platforms.platform import Platform
from embeddb.platforms.space.derived import QuantityTable, Workload
from embeddb.platforms.space.quantity import FACT, EncodedConfigs

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: `as_inputs` is logarithmic above it and linear below.
_FINEST = 2.0**-10


class DerivedQuantities:
    """The q derived quantities of c canonical, legal configurations of an op on a platform,
    prepared once for any number of workloads. `names` is empty where the platform's file defines
    none; `digest` changes with a definition."""

    def __init__(
        self, platform: Platform, op: Op, configs: Sequence[Mapping[str, Any]] | EncodedConfigs
    ) -> None:
        """Raises: UsageError if the platform does not run this kernel."""
        if not isinstance(configs, EncodedConfigs):
            configs = EncodedConfigs(configs)
        quantities = platform.quantities(op)
        self.names, self.digest = quantities.names, quantities.digest
        self._table: QuantityTable = quantities.of(configs)
        self._op, self._count = op, len(configs)
        self._facts = _facts(platform)

    def values(self, sizes: Sizes, lengths: RowLengths | None = None) -> NDArray[np.float64]:
        """float64[c,q] on one workload, from 0 to 2^64; nan where a quantity does not apply, is
        negative, or reads an unknown size or unknown row lengths."""
        if not self.names:
            return np.zeros((self._count, 0))
        symbols = {**sizes.symbols, "WIDTH": self._op.width}
        return self._table.values(Workload(symbols, lengths, self._facts))

    def inputs(self, sizes: Sizes, lengths: RowLengths | None = None) -> NDArray[np.float32]:
        """float32[c,q] as models read them, by `as_inputs`."""
        return as_inputs(self.values(sizes, lengths))


def as_inputs(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """log2(1 + 1024 x), at most 74; 0 for 0 and where a quantity does not apply. A logarithm from
    about a thousandth up, so that it resolves both shares and counts of millions."""
    return np.log2(1 + np.nan_to_num(values) / _FINEST).astype(np.float32)


def _facts(platform: Platform) -> dict[str, float]:
    """The numeric traits of a platform and facts of its machine; a fact overrides a trait."""
    facts = {}
    for name, value in {**platform.traits, **platform.environment}.items():
        try:
            number = float(value)
        except ValueError:
            continue
        if math.isfinite(number):
            facts[FACT + name] = number
    return facts
