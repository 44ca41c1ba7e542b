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
from embeddb.platforms.space.expression import Compiled
from embeddb.platforms.space.quantity import (
    FACT,
    LENGTH,
    Column,
    EncodedConfigs,
    combinations,
    holds_texts,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Places = NDArray[np.int64]

#: Larger values count as it.
_LARGEST = 2.0**64
#: Elements of an aggregate in one batch.
_AT_ONCE = 1 << 20
#: `as_inputs` is logarithmic above it and linear below.
_FINEST = 2.0**-10


class DerivedQuantities:
    """The q derived quantities of c canonical, legal configurations of an op on a platform,
    prepared once for any number of workloads. `names` is empty where the platform's file defines
    none. Each quantity, and each aggregate within it, is computed once per distinct combination of
    the parameters that it reads."""

    def __init__(
        self, platform: Platform, op: Op, configs: Sequence[Mapping[str, Any]] | EncodedConfigs
    ) -> None:
        """Raises: UsageError if the platform does not run this kernel."""
        if not isinstance(configs, EncodedConfigs):
            configs = EncodedConfigs(configs)
        quantities = platform.quantities(op)
        self.names = quantities.names
        self._op, self._count, self._order = op, len(configs), quantities.order
        self.facts = _facts(platform)
        self._reads: dict[str, frozenset[str]] = {}
        for quantity in self._order:
            self._reads[quantity.name] = self._read_by(quantity.names)
        used = frozenset[str]().union(*self._reads.values())
        params = quantities.params
        self.texts = {p.name for p in params if holds_texts(p)}
        self.columns = {p.name: configs.column(p.name) for p in params if p.name in used}
        self._groups: dict[frozenset[str], tuple[Places, Places]] = {}

    def values(self, sizes: Sizes, lengths: RowLengths | None = None) -> NDArray[np.float64]:
        """float64[c,q] on one workload, from 0 to 2^64; nan where a quantity does not apply, is
        negative, or reads an unknown size or unknown row lengths."""
        if not self.names:
            return np.zeros((self._count, 0))
        symbols = {**sizes.symbols, "WIDTH": self._op.width}
        computed: dict[str, Floats] = {}
        with np.errstate(all="ignore"):
            for quantity in self._order:
                first, group = self.groups(quantity.names)
                value = quantity.value(_View(self, symbols, lengths, computed, first))
                each = np.broadcast_to(np.asarray(value, dtype=np.float64), first.shape)
                computed[quantity.name] = each[group]
            table = np.stack([computed[name] for name in self.names], axis=1)
            return np.where(table >= 0, np.minimum(table, _LARGEST), np.nan)

    def inputs(self, sizes: Sizes, lengths: RowLengths | None = None) -> NDArray[np.float32]:
        """float32[c,q] as models read them, by `as_inputs`."""
        return as_inputs(self.values(sizes, lengths))

    def _read_by(self, names: frozenset[str]) -> frozenset[str]:
        """These names, and the names that the quantities among them read."""
        return names.union(*(self._reads[name] for name in names if name in self._reads))

    def groups(self, names: frozenset[str]) -> tuple[Places, Places]:
        """`combinations` of the parameters that these names read."""
        names = self._read_by(names).intersection(self.columns)
        if names not in self._groups:
            columns = [self.columns[name] for name in sorted(names)]
            self._groups[names] = combinations(columns, np.arange(self._count))
        return self._groups[names]


class _View(Mapping[str, Any]):
    """Environment of expressions: the configurations at places int64[...] of a table on one
    workload; within an aggregate also the `LENGTH` of rows."""

    def __init__(
        self,
        table: DerivedQuantities,
        symbols: Mapping[str, int],
        lengths: RowLengths | None,
        computed: Mapping[str, Floats],
        at: Places,
        length: Floats | None = None,
    ) -> None:
        self._table, self._symbols, self._lengths = table, symbols, lengths
        self._computed, self._at, self._length = computed, at, length

    def __getitem__(self, name: str) -> Any:
        table = self._table
        if name in self._computed:
            return self._computed[name][self._at]
        if name in table.columns:
            values, codes = table.columns[name]
            column = Column(values, codes[self._at])
            if name in table.texts:
                return column
            return column.looked_up(lambda value: _number(value, self._symbols))
        if name == LENGTH:
            return self._length
        return float(self._symbols.get(name, np.nan))

    def get(self, name: str, default: Any = None) -> Any:
        """A fact."""
        return self._table.facts.get(name, default)

    def __iter__(self) -> Any:
        return iter(self._table.columns)

    def __len__(self) -> int:
        return len(self._table.columns)

    def over_rows(self, names: frozenset[str], each: Compiled, *, largest: bool) -> Any:
        """The sum or maximum over the rows of the matrix of an expression in these names."""
        lengths = self._lengths
        if lengths is None:
            return np.nan
        first, group = self._table.groups(names)
        rows, times = lengths.values, lengths.times
        totals, step = np.zeros(len(first)), max(1, _AT_ONCE // max(len(rows), 1))
        for start in range(0, len(first), step):
            at = first[start : start + step, None]
            view = _View(self._table, self._symbols, lengths, self._computed, at, rows[None, :])
            of_rows = np.broadcast_to(each(view), (len(at), len(rows))).astype(np.float64)
            total = of_rows.max(axis=1, initial=0.0) if largest else of_rows @ times
            totals[start : start + step] = total
        return totals[group[self._at]]


def _number(value: Any, symbols: Mapping[str, int]) -> float:
    """The number of a value; nan without one."""
    if isinstance(value, str):
        return float(symbols.get(value, np.nan))
    return np.nan if value is None else float(value)


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
