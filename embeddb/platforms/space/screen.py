"""`ConfigSpace.reason` for many configurations at once: each rule is evaluated once per distinct
combination of the values that it reads."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.platforms.space.expression import Expression
from embeddb.platforms.space.quantity import Column, EncodedConfigs, combinations
from embeddb.platforms.space.rules import Judge
from embeddb.platforms.space.space import ConfigSpace

Rows = NDArray[np.int64]
Marks = NDArray[np.bool_]


def screened(space: ConfigSpace, table: EncodedConfigs) -> tuple[Rows, dict[int, str]]:
    """The places int64[r], ascending, of the configurations that have the parameters required by
    the space's structural sizes (a configuration of a nest of another depth has not); and by place
    the `ConfigSpace.reason` of those that are not legal."""
    return _Screen(space, table).run()


class _Screen:
    """One table against one space, with columns of canonical values."""

    def __init__(self, space: ConfigSpace, table: EncodedConfigs) -> None:
        self.space, self.configs = space, table.configs
        self.columns = {name: table.column(name) for name in table.names}
        for param in () if space.rules.plain else space.params:
            if (column := self.columns.get(param.name)) is not None:
                self.columns[param.name] = column.mapped(partial(space.stored, param))

    def run(self) -> tuple[Rows, dict[int, str]]:
        shaped = np.ones(len(self.configs), dtype=np.bool_)
        for name in self.space.needed:
            shaped &= self._has(name)
        for name in self.space.barred:
            shaped &= ~self._has(name)
        rows = np.flatnonzero(shaped)
        fits = self._well_formed()[rows]
        refused = {at: self.space.reason(self.configs[at]) or "" for at in rows[~fits].tolist()}
        left = rows[fits]
        for rule in self.space.judging:
            firsts, kinds = combinations(self._read_by(rule), left)
            reasons = [self._broken(rule, at) for at in left[firsts].tolist()]
            broken = np.array([bool(text) for text in reasons], dtype=np.bool_)[kinds]
            pairs = zip(left[broken].tolist(), kinds[broken].tolist(), strict=True)
            refused.update((at, reasons[kind]) for at, kind in pairs)
            left = left[~broken]
        return rows, refused

    def _has(self, name: str) -> Marks:
        """bool[c]: the configurations with the parameter."""
        column = self.columns.get(name)
        return np.zeros(len(self.configs), np.bool_) if column is None else column.codes >= 0

    def _well_formed(self) -> Marks:
        """bool[c]: the configurations with the right parameters and legal values of each."""
        good = np.ones(len(self.configs), dtype=np.bool_)
        for name in self.columns.keys() - self.space.rules.by_name.keys():
            good &= ~self._has(name)
        for name, allowed, when in self.space.checks:
            present = self._has(name)
            if when is None:
                good &= present
            else:
                required, undecided = self._under(when)
                good &= np.where(present, required | undecided, ~required)
            if name in self.columns:
                values, codes = self.columns[name]
                fits = [not self.space.refusal(name, allowed, value) for value in values]
                good &= np.array([*fits, True], dtype=np.bool_)[codes]
        return good

    def _under(self, when: Expression) -> tuple[Marks, Marks]:
        """bool[c] each: where a condition holds, and where it depends on an unknown size."""
        firsts, kinds = combinations(self._read_by(when), np.arange(len(self.configs)))
        envs = [self.space.environment(self._stored(at)) for at in firsts.tolist()]
        holds = np.array([when.holds(env) is True for env in envs], dtype=np.bool_)
        undecided = np.array([self.space.undecided(when, env) for env in envs], dtype=np.bool_)
        return holds[kinds], undecided[kinds]

    def _broken(self, rule: Expression | Judge, at: int) -> str:
        seen = {name: v for name, v in self._stored(at).items() if name in rule.names}
        return self.space.broken(rule, seen, self.space.environment(seen))

    def _stored(self, at: int) -> Config:
        return self.space.canonical(self.configs[at])

    def _read_by(self, rule: Expression | Judge) -> list[Column]:
        """The columns that a rule reads."""
        columns = {name: self.columns[name] for name in rule.names if name in self.columns}
        if isinstance(rule, Expression):
            return list(columns.values())
        return [column.mapped(partial(rule.seen, name)) for name, column in columns.items()]
