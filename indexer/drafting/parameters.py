"""The parameters of a drafted platform: their types and values, and the conditions and constraints
that hold in a log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from embeddb.core.config import Value
from embeddb.platforms.space.rules import MAX_TEXT, MAX_VALUES, SYMBOLS
from indexer.readers.base.row import RunRow

#: More numbers than this, or as many as one in so many rows, are results and no choices.
_MOST_CHOICES, _ROWS_PER_VALUE = 32, 10
#: The same of fractions.
_MOST_FRACTIONS, _ROWS_PER_FRACTION = 3, 4
_MOST_PERMUTED = 8
#: Matrices from which on a value that is the same in all rows of one belongs to the matrix.
_MATRICES = 3
_MOST_SUGGESTED = 5

Configs = Sequence[Mapping[str, Value]]


@dataclass(frozen=True, slots=True)
class Drafted:
    """A parameter as the log has it: `kind` and `values` of the platform file, the condition `when`
    it is there; `sometimes`: it is missing in some rows, and no simple condition says which."""

    name: str
    kind: str
    values: tuple[Value, ...]
    when: str = ""
    sometimes: bool = False


def drafted_parameters(
    rows: Sequence[RunRow], names: Iterable[str]
) -> tuple[list[Drafted], dict[str, str]]:
    """The parameters among columns, and of the others why they are none."""
    params: list[Drafted] = []
    others: dict[str, str] = {}
    for name in names:
        reason = _no_choice(rows, name)
        if reason:
            others[name] = reason
        else:
            params.append(_typed(name, _values(rows, name)))
    configs = [row.config for row in rows]
    steady = [p for p in params if all(p.name in config for config in configs)]
    return [p if p in steady else _conditional(p, steady, configs) for p in params], others


def _values(rows: Sequence[RunRow], name: str) -> list[Value]:
    """The different values, in the order in which they come."""
    return list(dict.fromkeys(row.config[name] for row in rows if name in row.config))


def _no_choice(rows: Sequence[RunRow], name: str) -> str:
    """Why a column is no parameter; empty if it may be one."""
    values = _values(rows, name)
    if not values:
        return "empty in every row"
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    fractions = [v for v in numbers if isinstance(v, float)]
    if len(numbers) > _MOST_CHOICES and len(numbers) * _ROWS_PER_VALUE > len(rows):
        return f"{len(numbers):,} different numbers: a result, or a fact of the matrix"
    if len(fractions) > _MOST_FRACTIONS and len(fractions) * _ROWS_PER_FRACTION > len(rows):
        return f"{len(fractions):,} different fractions: a result, or a fact of the matrix"
    matrices = {row.matrix.name for row in rows}
    if len(matrices) >= _MATRICES and len(numbers) * 1.2 > len(rows):
        return "another number in nearly every row: a result, or a fact of the matrix"
    if len(values) > MAX_VALUES:
        return f"{len(values):,} different values"
    if any(isinstance(v, str) and len(v) > MAX_TEXT for v in values):
        return f"texts of more than {MAX_TEXT} characters"
    if len(values) == 1 and all(name in row.config for row in rows):
        return f"always {values[0]}"
    by_matrix: dict[str, set[Value]] = {}
    for row in rows:
        if name in row.config:
            by_matrix.setdefault(row.matrix.name, set()).add(row.config[name])
    alone = all(len(held) == 1 for held in by_matrix.values())
    if alone and len(by_matrix) >= _MATRICES and len(rows) > 2 * len(by_matrix):
        return "the same in all rows of a matrix: a fact of the matrix"
    return ""


def _typed(name: str, values: list[Value]) -> Drafted:
    if all(isinstance(v, bool) for v in values):
        return Drafted(name, "bool", (0, 1))
    values = [int(v) if isinstance(v, bool) else v for v in values]
    if all(isinstance(v, tuple) for v in values):
        items = {frozenset(v) for v in values if isinstance(v, tuple)}
        if len(items) == 1 and len(values[0]) <= _MOST_PERMUTED:  # type: ignore[arg-type]
            return Drafted(name, "permutation", tuple(sorted(next(iter(items)))))
    if any(isinstance(v, tuple) for v in values):
        values = [" ".join(v) if isinstance(v, tuple) else v for v in values]
    whole = [v for v in values if isinstance(v, int)]
    symbols = [v for v in values if v in SYMBOLS]
    if set(whole) == {0, 1} and len(values) == 2:
        return Drafted(name, "bool", (0, 1))
    if len(whole) + len(symbols) == len(values) and whole:
        return Drafted(name, "int", (*sorted(whole), *symbols))
    numbers = sorted(v for v in values if isinstance(v, (int, float)))
    return Drafted(name, "choice", (*numbers, *(v for v in values if isinstance(v, str))))


def _conditional(param: Drafted, steady: Sequence[Drafted], configs: Configs) -> Drafted:
    """With the simplest condition over one parameter, or two, that says in which rows it is."""
    there = [config for config in configs if param.name in config]
    gone = [config for config in configs if param.name not in config]
    found = [text for one in steady if (text := _condition(one, there, gone))]
    if not found:
        found = [
            f"{first} and {second}"
            for one, other in combinations(steady, 2)
            if (first := _narrow(one, there)) and (second := _narrow(other, there))
            if not any(_held(one, there, c) and _held(other, there, c) for c in gone)
        ]
    best = min(found, key=len, default="")
    return replace(param, when=best, sometimes=not best)


def _condition(one: Drafted, there: Configs, gone: Configs) -> str:
    """`flow == 'outer'` where the values of `one` say whether a parameter is there; else empty."""
    with_it = {_plain(config[one.name]) for config in there}
    without = {_plain(config[one.name]) for config in gone}
    if with_it & without or one.kind == "permutation":
        return ""
    if len(with_it) > 1 and len(without) == 1:
        return f"{one.name} != {_quoted(next(iter(without)))}"
    return _narrow(one, there)


def _narrow(one: Drafted, there: Configs) -> str:
    """The condition that `one` has a value that it has in these rows; empty where it has any."""
    values = {_plain(config[one.name]) for config in there}
    if len(values) == len(one.values) or one.kind == "permutation":
        return ""
    if len(values) == 1:
        return f"{one.name} == {_quoted(next(iter(values)))}"
    return f"{one.name} in ({', '.join(sorted(map(_quoted, values)))})"


def _held(one: Drafted, there: Configs, config: Mapping[str, Value]) -> bool:
    return config[one.name] in {other[one.name] for other in there}


def _plain(value: Value) -> Any:
    return int(value) if isinstance(value, bool) else value


def _quoted(value: Any) -> str:
    return "'" + value.replace("'", "\\'") + "'" if isinstance(value, str) else str(value)


def suggested_constraints(params: Sequence[Drafted], rows: Sequence[RunRow]) -> list[str]:
    """Orders and limits of products that hold in every row that ran, and that values which never
    ran together break."""
    numeric = [p for p in params if p.kind == "int" and not p.when and not p.sometimes]
    ran = [row.config for row in rows if row.measurement.ok]
    found: list[str] = []
    for one, other in combinations(numeric, 2):
        seen = {(config[one.name], config[other.name]) for config in ran}
        pairs = [(a, b) for a, b in seen if isinstance(a, int) and isinstance(b, int)]
        every = {(a, b) for a in _ints(one) for b in _ints(other)}
        unseen = every - set(pairs)
        if not unseen or not pairs:
            continue
        most = max(a * b for a, b in pairs)
        if all(a <= b for a, b in pairs) and all(a > b for a, b in unseen):
            found.append(f"{one.name} <= {other.name}")
        elif all(a >= b for a, b in pairs) and all(a < b for a, b in unseen):
            found.append(f"{one.name} >= {other.name}")
        elif all(a * b > most for a, b in unseen):
            found.append(f"{one.name} * {other.name} <= {most}")
    return found[:_MOST_SUGGESTED]


def _ints(param: Drafted) -> list[int]:
    return [v for v in param.values if isinstance(v, int)]
