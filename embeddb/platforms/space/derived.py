"""The derived quantities of a space: checked as a whole, and computed for many configurations."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from embeddb.core.errors import SpaceError
from embeddb.core.row_lengths import RowLengths
from embeddb.core.sizes import MATRIX_SYMBOLS
from embeddb.platforms.space.expression import Compiled
from embeddb.platforms.space.quantity import (
    LENGTH,
    Column,
    EncodedConfigs,
    Quantity,
    combinations,
    holds_texts,
)
from embeddb.platforms.space.rules import Param, Rules, readers_last

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Places = NDArray[np.int64]

MAX_QUANTITIES = 32
#: Larger values count as it.
LARGEST_VALUE = 2.0**64
#: Elements of an aggregate in one batch.
_AT_ONCE = 1 << 20
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


class Quantities:
    """Derived quantities of a space in declared order, perhaps none. Raises: SpaceError whose
    `where` is the quantity at fault."""

    def __init__(self, quantities: Sequence[Quantity], rules: Rules) -> None:
        self.quantities = tuple(quantities)
        self.names = tuple(quantity.name for quantity in quantities)
        self.params = rules.params
        by_name = {quantity.name: quantity for quantity in quantities}
        if len(by_name) > MAX_QUANTITIES:
            raise SpaceError(
                f"{len(by_name)} quantities, at most {MAX_QUANTITIES} are allowed", where="derived"
            )
        for quantity in quantities:
            _check(quantity, rules, frozenset(by_name))
        reads = {name: one.names & by_name.keys() for name, one in by_name.items()}
        order = readers_last(reads, "quantities", "derived.{}")
        self._order = [by_name[name] for name in order]

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def digest(self) -> str:
        """16 hex digits that change with a definition, or "": stored with models trained on the
        values."""
        text = "\n".join(f"{quantity.name} = {quantity.text}" for quantity in self.quantities)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest() if text else ""

    def of(self, configs: EncodedConfigs) -> QuantityTable:
        """Prepare c configurations, canonical and legal, for any number of workloads."""
        return QuantityTable(self._order, self.names, self.params, configs)


class Workload(NamedTuple):
    """The inputs of quantities beside configurations: sizes by symbol, row lengths (None: unknown),
    and facts of the machine by name."""

    symbols: Mapping[str, int]
    lengths: RowLengths | None = None
    facts: Mapping[str, float] = {}


class QuantityTable:
    """The quantities of c configurations on any workload. Each quantity, and each aggregate within
    it, is computed once per distinct combination of the parameters that it reads."""

    def __init__(
        self,
        order: Sequence[Quantity],
        names: Sequence[str],
        params: Sequence[Param],
        configs: EncodedConfigs,
    ) -> None:
        self._order, self._names = order, names
        self._count = len(configs)
        self._reads: dict[str, frozenset[str]] = {}
        for quantity in order:
            self._reads[quantity.name] = self._read_by(quantity.names)
        used = frozenset[str]().union(*self._reads.values())
        self.texts = {p.name for p in params if holds_texts(p)}
        self.columns = {p.name: configs.column(p.name) for p in params if p.name in used}
        self._groups: dict[frozenset[str], tuple[Places, Places]] = {}

    def values(self, workload: Workload) -> Floats:
        """float64[c,q] on one workload, from 0 to `LARGEST_VALUE`; nan where a quantity does not
        apply, is negative, or needs an unknown size or unknown row lengths."""
        computed: dict[str, Floats] = {}
        with np.errstate(all="ignore"):
            for quantity in self._order:
                first, group = self.groups(quantity.names)
                value = quantity.value(_View(self, workload, computed, first))
                each = np.broadcast_to(np.asarray(value, dtype=np.float64), first.shape)
                computed[quantity.name] = each[group]
            table = np.stack([computed[name] for name in self._names], axis=1)
            return np.where(table >= 0, np.minimum(table, LARGEST_VALUE), np.nan)

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
        table: QuantityTable,
        workload: Workload,
        computed: Mapping[str, Floats],
        at: Places,
        length: Floats | None = None,
    ) -> None:
        self._table, self._workload, self._computed = table, workload, computed
        self._at, self._length = at, length

    def __getitem__(self, name: str) -> Any:
        table, workload = self._table, self._workload
        if name in self._computed:
            return self._computed[name][self._at]
        if name in table.columns:
            values, codes = table.columns[name]
            column = Column(values, codes[self._at])
            if name in table.texts:
                return column
            return column.looked_up(lambda value: _number(value, workload.symbols))
        if name == LENGTH:
            return self._length
        return float(workload.symbols.get(name, np.nan))

    def get(self, name: str, default: Any = None) -> Any:
        """A fact."""
        return self._workload.facts.get(name, default)

    def __iter__(self) -> Any:
        return iter(self._table.columns)

    def __len__(self) -> int:
        return len(self._table.columns)

    def over_rows(self, names: frozenset[str], each: Compiled, *, largest: bool) -> Any:
        """The sum or maximum over the rows of the matrix of an expression in these names."""
        lengths = self._workload.lengths
        if lengths is None:
            return np.nan
        first, group = self._table.groups(names)
        rows, times = lengths.values, lengths.times
        totals, step = np.zeros(len(first)), max(1, _AT_ONCE // max(len(rows), 1))
        for start in range(0, len(first), step):
            at = first[start : start + step, None]
            view = _View(self._table, self._workload, self._computed, at, rows[None, :])
            of_rows = np.broadcast_to(each(view), (len(at), len(rows))).astype(np.float64)
            total = of_rows.max(axis=1, initial=0.0) if largest else of_rows @ times
            totals[start : start + step] = total
        return totals[group[self._at]]


def _check(quantity: Quantity, rules: Rules, names: frozenset[str]) -> None:
    """Raises: SpaceError."""
    name, where = quantity.name, f"derived.{quantity.name}"
    if not _NAME.fullmatch(name):
        raise SpaceError(f"{name!r} cannot be the name of a quantity", where=where)
    if name in rules.by_name or name in rules.sizes or name in (*MATRIX_SYMBOLS, LENGTH):
        raise SpaceError(f"{name!r} is the name of a parameter or a size already", where=where)
    rules.check_names(quantity, where, further=names)
    if quantity.over_rows and not rules.workload.learned:
        raise SpaceError(f"a {rules.workload.name} has no rows to sum over", where=where)
    if quantity.over_rows and LENGTH in rules.by_name:
        raise SpaceError(f"{LENGTH} is the name of a parameter here", where=where)
    try:
        quantity.check_aggregates()
        quantity.check_kinds(rules.by_name)
    except SpaceError as error:
        raise SpaceError(error.reason, where=where) from None


def _number(value: Any, symbols: Mapping[str, int]) -> float:
    """The number of a value; nan without one."""
    if isinstance(value, str):
        return float(symbols.get(value, np.nan))
    return np.nan if value is None else float(value)
