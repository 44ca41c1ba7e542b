"""The checked declaration of a configuration space: parameters, conditions, constraints."""

from __future__ import annotations

import graphlib
import keyword
import re
from collections.abc import Iterable, Mapping, Set
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, get_args

from embeddb.core.config import Value
from embeddb.core.errors import SpaceError
from embeddb.core.kinds import kind_of
from embeddb.core.sizes import MATRIX_SYMBOLS
from embeddb.platforms.space.expression import FUNCTIONS, Expression

#: Sizes that a value of a parameter may stand for.
SYMBOLS = MATRIX_SYMBOLS

Kind = Literal["int", "choice", "bool", "permutation"]

MAX_PARAMS = 64
MAX_VALUES = 1000
MAX_PERMUTED = 8
MAX_TEXT = 64
MAX_NUMBER = 2**53
#: New texts of an open choice: strict, so that a broken row does not become a value.
NEW_TEXT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+:/-]*")
#: Upper bound of `Param.longest`.
MAX_NEW_TEXT = 1024


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter.

    `values` are in order, small to large for an int (usually powers of two); the names to be
    ordered for a permutation; `(0, 1)` for a bool, as run logs write it. An int may also take
    symbols. With `when`, the parameter is part of a configuration only where that expression over
    other parameters is true. `aliases` are other spellings in run logs, as (text, value). An `open`
    choice also accepts new values from runs, texts of at most `longest` characters; enumeration,
    sampling and search propose listed values only.

    Raises: SpaceError naming the field.
    """

    name: str
    kind: Kind
    values: tuple[Value, ...]
    when: str = ""
    aliases: tuple[tuple[str, Value], ...] = ()
    open: bool = False
    longest: int = MAX_TEXT

    def __post_init__(self) -> None:
        reserved = keyword.iskeyword(self.name) or self.name in FUNCTIONS or self.name in SYMBOLS
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", self.name) or reserved:
            raise _fault(self, "", f"{self.name!r} cannot be the name of a parameter")
        if self.kind not in get_args(Kind):
            raise _fault(self, "type", f"{self.kind!r} is not one of {join(get_args(Kind))}")
        if not self.values:
            raise _fault(self, "values", "there are no values")
        limit = MAX_PERMUTED if self.kind == "permutation" else MAX_VALUES
        if len(self.values) > limit:
            raise _fault(self, "values", f"{len(self.values)} values, at most {limit} are allowed")
        for value in self.values:
            self._check_value(value)
        if len(set(self.values)) != len(self.values):
            twice = next(v for v in self.values if self.values.count(v) > 1)
            raise _fault(self, "values", f"{show(twice)} is there twice")
        for text, value in self.aliases:
            if value not in self.values or self.kind == "permutation":
                raise _fault(self, "aliases", f"{text!r} stands for {show(value)}, not a value")
        if self.open and self.kind != "choice":
            raise _fault(self, "open", f"only a choice can be open, not type {self.kind!r}")
        if self.longest != MAX_TEXT and not self.open:
            raise _fault(self, "longest", "is about new values: only an open choice has any")
        if not 1 <= self.longest <= MAX_NEW_TEXT:
            raise _fault(self, "longest", f"must be from 1 to {MAX_NEW_TEXT}")

    def refusal(self, value: Any) -> str:
        """The reason against a value that is not listed; "" for a new value of an open choice."""
        texts = [v for v in self.values if isinstance(v, str)]
        if not self.open:
            return f"is not one of {join(map(show, self.values))}"
        if isinstance(value, str) and texts:
            same = next((v for v in texts if v.lower() == value.lower()), None)
            if same is not None:
                return f"differs from {same} in capitals only: give it as an alias of {same}"
            fits = len(value) <= self.longest and NEW_TEXT.fullmatch(value)
            if fits and value not in SYMBOLS:
                return ""
            return f"cannot be a new value: at most {self.longest} letters, digits and _ . + - : /"
        if type(value) in (int, float) and len(texts) < len(self.values):
            return "" if abs(value) <= MAX_NUMBER else "is too large"
        return f"is of another type than {join(map(show, self.values))}"

    def _check_value(self, value: Value) -> None:
        is_int = isinstance(value, int) and not isinstance(value, bool)
        is_text = isinstance(value, str) and 0 < len(value) <= MAX_TEXT
        fits = {
            "int": is_int or value in SYMBOLS,
            "bool": is_int and value in (0, 1),
            "choice": is_int or isinstance(value, float) or (is_text and value not in SYMBOLS),
            "permutation": is_text,
        }[self.kind]
        if not fits:
            raise _fault(self, "values", f"{show(value)} is not a value for type {self.kind!r}")
        if isinstance(value, (int, float)) and not -MAX_NUMBER <= value <= MAX_NUMBER:
            raise _fault(self, "values", f"{value} is too large")


class Judge(Protocol):
    """The rules of one subject for whole configurations, beside the platform's file; `names` are
    the parameters that they read."""

    @property
    def names(self) -> frozenset[str]: ...

    @property
    def text(self) -> str: ...

    def holds(self, env: Mapping[str, Any]) -> bool | None:
        """Return True if the configuration is legal, None if `env` lacks a parameter."""

    def seen(self, name: str, value: Value) -> Value:
        """The part of a parameter's value that the rules read: equal parts, equal judgement."""

    def reason(self, values: Mapping[str, Any]) -> str:
        """The reason against an illegal configuration, in one line."""


class Rules:
    """The declaration of a space, checked and compiled once, shared by all its resolutions.

    `sizes` are the names that constraints may mention beside parameters; conditions may mention the
    structural ones. `judge` is one more constraint. `reasons` maps further constraints to the
    reason against a configuration that breaks one.
    """

    def __init__(
        self,
        params: tuple[Param, ...],
        constraints: tuple[str, ...],
        reasons: Mapping[str, str] | None = None,
        *,
        kind: str = "matrix",
        judge: Judge | None = None,
    ) -> None:
        self.params = params
        self.reasons = dict(reasons or {})
        self.workload, self.judge = kind_of(kind), judge
        self.sizes = self.workload.symbols
        self.by_name = {p.name: p for p in params}
        self._check_names()
        self.symbolic = {
            p.name for p in params if p.kind == "int" and any(v in SYMBOLS for v in p.values)
        }
        self._check_symbols()
        self.whens = {
            p.name: self.expression(p.when, f"params.{p.name}.when", condition=True)
            for p in params
            if p.when
        }
        self.constraints: list[Expression | Judge] = [
            self.expression(text, f"constraints[{i}]")
            for i, text in enumerate((*constraints, *self.reasons))
        ]
        self._check_constraints()
        used = {v for p in params for v in p.values if p.name in self.symbolic and v in SYMBOLS}
        for expression in (*self.constraints, *self.whens.values()):
            used |= expression.names & set(self.sizes)
        self.symbols = {str(s) for s in used}
        if judge is not None:
            self.constraints.append(judge)
        self.aliases = {p.name: dict(p.aliases) for p in params if p.aliases}
        self.open = {p.name: p for p in params if p.open}
        self.plain = not self.symbolic and all(p.kind != "bool" and not p.aliases for p in params)
        self._order = self._ordered()
        self._items = {p.name: frozenset(p.values) for p in params if p.kind == "permutation"}

    def _check_names(self) -> None:
        if not self.params and all(op.tunable for op in self.workload.operations):
            raise SpaceError("a space needs at least one parameter", where="params")
        if len(self.params) > MAX_PARAMS:
            raise SpaceError(
                f"{len(self.params)} parameters, at most {MAX_PARAMS} are allowed", where="params"
            )
        for name in self.by_name.keys() & set(self.sizes):
            raise SpaceError(f"{name!r} is a size, not the name of a parameter", where="params")
        if len(self.by_name) != len(self.params):
            names = [p.name for p in self.params]
            twice = next(n for n in names if names.count(n) > 1)
            raise SpaceError(f"parameter {twice!r} is declared twice", where="params")

    def _check_symbols(self) -> None:
        for param in self.params:
            strange = [v for v in param.values if v in SYMBOLS and v not in self.sizes]
            if strange and param.name in self.symbolic:
                text = f"{strange[0]!r} is no size of a {self.workload.name}"
                raise SpaceError(text, where=f"params.{param.name}")

    def _check_constraints(self) -> None:
        for i, constraint in enumerate(self.constraints):
            if not constraint.names & self.by_name.keys():
                raise SpaceError(
                    f"{constraint.text!r} mentions no parameter", where=f"constraints[{i}]"
                )

    def judged(self, judge: Judge) -> Rules:
        """A copy with a judge, without compiling again."""
        rules = copy(self)
        rules.judge = judge
        rules.constraints = [c for c in self.constraints if c is not self.judge] + [judge]
        rules.__dict__.pop("groups", None)
        return rules

    @cached_property
    def groups(self) -> list[tuple[str, ...]]:
        """The names of the independent parts, each after the names in its condition."""
        ties = [{n, *(e.names & self.by_name.keys())} for n, e in self.whens.items()]
        ties += [set(c.names) & self.by_name.keys() for c in self.constraints]
        parts = [{name} for name in self._order]
        for tie in ties:
            joined = tie.union(*(part for part in parts if part & tie))
            parts = [*(part for part in parts if not part & tie), joined]
        groups = [tuple(name for name in self._order if name in part) for part in parts]
        return sorted(groups, key=lambda names: self._order.index(names[0]))

    def is_permutation(self, name: str, value: Any) -> bool:
        items = self._items[name]
        return isinstance(value, tuple) and len(value) == len(items) and frozenset(value) == items

    def expression(self, text: Any, where: str, *, condition: bool = False) -> Expression:
        """Parse an expression over these parameters; a condition may use structural sizes only, so
        that the data never decide which parameters there are. Raises: SpaceError at `where`."""
        if not isinstance(text, str):
            raise SpaceError("an expression is written as text", where=where)
        try:
            parsed = Expression(text)
        except SpaceError as error:
            raise SpaceError(error.reason, where=where) from None
        self.check_names(parsed, where, condition=condition)
        if condition and parsed.names & self.symbolic:
            name = sorted(parsed.names & self.symbolic)[0]
            raise SpaceError(
                f"a condition cannot use {name!r}, whose values depend on the matrix", where=where
            )
        return parsed

    def check_names(
        self,
        parsed: Expression,
        where: str,
        *,
        condition: bool = False,
        further: frozenset[str] = frozenset(),
    ) -> None:
        """Raises: SpaceError for an unknown name that is not in `further` either, and for a
        comparison with a value that the parameter cannot have."""
        text = parsed.text
        sizes = {s for s in self.sizes if not condition or s in self.workload.structural}
        for name in sorted(parsed.names - self.by_name.keys() - sizes - further):
            note = "a condition cannot use" if name in self.sizes else "there is no parameter"
            raise SpaceError(f"{note} {name!r} (in {text!r})", where=where)
        for name, value in parsed.compared:
            param = self.by_name.get(name)
            if param is not None and param.kind != "permutation" and value not in param.values:
                values = join(map(show, param.values))
                raise SpaceError(
                    f"{show(value)} is not a value of {name!r}: {values} (in {text!r})", where=where
                )

    def _ordered(self) -> list[str]:
        graph: dict[str, Set[str]] = dict.fromkeys(self.by_name, frozenset())
        graph |= {name: when.names & self.by_name.keys() for name, when in self.whens.items()}
        ready = readers_last(graph, "conditions", "params.{}.when")
        # Keep the declared order within a depth, so that listings are predictable.
        depth: dict[str, int] = {}
        for name in ready:
            depth[name] = 1 + max((depth[n] for n in graph[name]), default=-1)
        declared = {p.name: i for i, p in enumerate(self.params)}
        return sorted(declared, key=lambda n: (depth[n], declared[n]))


def readers_last(graph: Mapping[str, Set[str]], what: str, where: str) -> list[str]:
    """Sort names topologically: each after the names that it reads. Raises: SpaceError for a cycle,
    with `what` in its message and the first name in its `where`."""
    try:
        return list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        cycle = list(reversed(error.args[1]))
        text = f"{what} go round in a circle: {' -> '.join(cycle)}"
        raise SpaceError(text, where=where.format(cycle[0])) from None


def show(value: Any) -> str:
    """Format a value for a message."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return "[" + " ".join(map(str, value)) + "]"
    return str(value) if len(str(value)) <= MAX_TEXT else f"{str(value)[:MAX_TEXT]}..."


def join(texts: Iterable[str], limit: int = 30) -> str:
    """A comma-separated list that stays on one line."""
    listed = list(texts)
    more = f", ... ({len(listed)} in all)" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more


def _fault(param: Param, key: str, message: str) -> SpaceError:
    name = param.name if isinstance(param.name, str) else "?"
    return SpaceError(message, where=f"params.{name}.{key}".rstrip("."))
