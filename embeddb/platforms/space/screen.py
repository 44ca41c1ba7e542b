"""Many configurations judged at once, as `ConfigSpace.reason` judges one: what a rule says is found
once for each combination of the values it looks at, however many configurations share them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Value
from embeddb.platforms.space.expression import Expression
from embeddb.platforms.space.rules import Judge
from embeddb.platforms.space.space import ConfigSpace

Rows = NDArray[np.int64]
Marks = NDArray[np.bool_]

#: Combinations of values are numbered up to here; where there could be more, those that occur are
#: numbered anew.
_MOST_KINDS = 1 << 62


class Column(NamedTuple):
    """One parameter of c configurations: its distinct `values`, and `codes` int64[c], the place
    among them of each configuration's; -1: it has none."""

    values: tuple[Value, ...]
    codes: Rows

    @classmethod
    def of(cls, cells: Iterable[Value | None]) -> Column:
        """None stands for no value."""
        # True equals 1 for a dictionary, and does not for a space.
        places: dict[tuple[type, Value], int] = {}
        codes = [
            -1 if value is None else places.setdefault((type(value), value), len(places))
            for value in cells
        ]
        return cls(tuple(value for _, value in places), np.array(codes, dtype=np.int64))

    def mapped(self, change: Callable[[Value], Value]) -> Column:
        """With other values; what becomes equal is one value."""
        joined = Column.of(map(change, self.values))
        return Column(joined.values, np.append(joined.codes, -1)[self.codes])


class ConfigTable:
    """Configurations, and by name the `columns` of their parameters. Immutable."""

    def __init__(self, configs: Sequence[Config]) -> None:
        self.configs = configs
        names = sorted({name for config in configs for name in config})
        self.columns = {name: Column.of(config.get(name) for config in configs) for name in names}


def screened(space: ConfigSpace, table: ConfigTable) -> tuple[Rows, dict[int, str]]:
    """The places int64[r], ascending, of the configurations that have the parameters the space's
    structural sizes call for (one of a nest of another depth has not); and by place the reason of
    each of these that is not legal (`ConfigSpace.reason`)."""
    return _Screen(space, table).run()


class _Screen:
    """One table against one space; its columns are of values as the space stores them."""

    def __init__(self, space: ConfigSpace, table: ConfigTable) -> None:
        self.space, self.configs = space, table.configs
        self.columns: Mapping[str, Column] = table.columns
        if not space.rules.plain:
            self.columns = {name: self._canonical(name) for name in table.columns}

    def _canonical(self, name: str) -> Column:
        param = self.space.rules.by_name.get(name)
        column = self.columns[name]
        return column if param is None else column.mapped(partial(self.space.stored, param))

    def run(self) -> tuple[Rows, dict[int, str]]:
        shaped = np.ones(len(self.configs), dtype=np.bool_)
        for name in self.space.needed:
            shaped &= self._given(name)
        for name in self.space.barred:
            shaped &= ~self._given(name)
        rows = np.flatnonzero(shaped)
        fits = self._well_formed()[rows]
        refused = {at: self.space.reason(self.configs[at]) or "" for at in rows[~fits].tolist()}
        left = rows[fits]
        for rule in self.space.judging:
            kinds, firsts = _alike(self._seen_by(rule), left)
            told = [self._broken(rule, at) for at in left[firsts].tolist()]
            against = np.array([bool(text) for text in told], dtype=np.bool_)[kinds]
            texts = zip(left[against].tolist(), kinds[against].tolist(), strict=True)
            refused.update((at, told[kind]) for at, kind in texts)
            left = left[~against]
        return rows, refused

    def _given(self, name: str) -> Marks:
        """bool[c]: which configurations have the parameter."""
        column = self.columns.get(name)
        return np.zeros(len(self.configs), np.bool_) if column is None else column.codes >= 0

    def _well_formed(self) -> Marks:
        """bool[c]: which have the right parameters, and these the right values."""
        good = np.ones(len(self.configs), dtype=np.bool_)
        for name in self.columns.keys() - self.space.rules.by_name.keys():
            good &= ~self._given(name)
        for name, allowed, when in self.space.checks:
            given = self._given(name)
            if when is None:
                good &= given
            else:
                wanted, waits = self._under(when)
                good &= np.where(given, wanted | waits, ~wanted)
            if name in self.columns:
                values, codes = self.columns[name]
                fits = [not self.space.refusal(name, allowed, value) for value in values]
                good &= np.array([*fits, True], dtype=np.bool_)[codes]
        return good

    def _under(self, when: Expression) -> tuple[Marks, Marks]:
        """bool[c] each: where a condition holds, and where it waits for a size."""
        kinds, firsts = _alike(self._seen_by(when), np.arange(len(self.configs)))
        envs = [self.space.environment(self._stored(at)) for at in firsts.tolist()]
        held = np.array([when.holds(env) is True for env in envs], dtype=np.bool_)
        waits = np.array([self.space.undecided(when, env) for env in envs], dtype=np.bool_)
        return held[kinds], waits[kinds]

    def _broken(self, rule: Expression | Judge, at: int) -> str:
        seen = {name: v for name, v in self._stored(at).items() if name in rule.names}
        return self.space.broken(rule, seen, self.space.environment(seen))

    def _stored(self, at: int) -> Config:
        return self.space.canonical(self.configs[at])

    def _seen_by(self, rule: Expression | Judge) -> list[Column]:
        """What a rule looks at."""
        columns = {name: self.columns[name] for name in rule.names if name in self.columns}
        if isinstance(rule, Expression):
            return list(columns.values())
        return [column.mapped(partial(rule.seen, name)) for name, column in columns.items()]


def _alike(columns: Iterable[Column], rows: Rows) -> tuple[Rows, Rows]:
    """Of configurations int64[r] that are alike in these columns: the kind of each int64[r], and by
    kind the first of them, as a place among the rows."""
    key, count = np.zeros(len(rows), dtype=np.int64), 1
    for values, codes in columns:
        if count > _MOST_KINDS // (len(values) + 1):
            met, key = np.unique(key, return_inverse=True)
            count = len(met)
        key = key * (len(values) + 1) + codes[rows] + 1
        count *= len(values) + 1
    _, firsts, kinds = np.unique(key, return_index=True, return_inverse=True)
    return kinds, firsts
