"""Configuration spaces: parameters, their values, conditions and constraints.

A space is a product of independent *parts*: groups of parameters tied together by conditions and
constraints. Counting, sampling and searching work part by part, so that a space of millions of
configurations is never enumerated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from embeddb.core.config import Config, Value
from embeddb.core.errors import SpaceError, UsageError
from embeddb.platforms.space.expression import Expression
from embeddb.platforms.space.parts import FEW, Assignment, Part, product_of
from embeddb.platforms.space.rules import SYMBOLS, Judge, Param, Rules, join, show

if TYPE_CHECKING:
    import numpy as np

#: `size()` counts up to here.
COUNT_LIMIT = 1_000_000
#: Most widths with a cached space, and draws in a row that find nothing new and end a sample.
_MOST_WIDTHS, _FRUITLESS = 16, 10_000


class ConfigSpace:
    """The legal configurations of one kernel on one platform, perhaps for one matrix.

    A value may be a *symbol*, a size of the matrix: `NUM_MATRIX_ROWS`, `NUM_MATRIX_COLS`, `NNZ`
    or `WIDTH` (dense columns). The configuration keeps the symbol's **name** as its value, since
    `column_panels=NUM_MATRIX_COLS` is the same choice on every matrix while its number is not.
    In a space whose symbols are resolved

    - `canonical` turns the number into the name, unless the number is itself among the values
      (then the name becomes the number): equal choices on one matrix have one configuration;
      evidence of several matrices has the form that others ran (`embeddb.index.scopes`),
    - `reason` and `check` judge the canonical form, so they accept both name and number,
    - `numeric` turns names into numbers, for runners,
    - `enumerate`, `sample`, `neighbours` and `nearest` give canonical configurations only,
    - conditions and constraints see the numbers.

    A constraint that mentions an unresolved symbol, or a parameter absent from the configuration,
    counts as satisfied; under a condition that mentions one, a parameter may be given or not.
    Values larger than the matrix stay legal unless a constraint says so.

    A choice may be *open*: `reason` and `check` take values that it does not list, while
    `enumerate`, `sample` and `nearest` give listed ones only, and `neighbours` no other new value
    than the one it starts from.
    `without` gives a space that some legal configurations are left out of.

    `prefer` are values (a default configuration) taken where `nearest` has no other wish.
    Instances are immutable.

    Raises: SpaceError for an inconsistent space: duplicate or unknown names, a cycle among
    conditions, an expression that compares a parameter with a value it cannot have.
    """

    def __init__(
        self,
        params: Iterable[Param],
        constraints: Iterable[str] = (),
        *,
        prefer: Mapping[str, Value] | None = None,
        kind: str = "matrix",
    ) -> None:
        rules = Rules(tuple(params), tuple(constraints), kind=kind)
        self._setup(rules, {}, dict(prefer or {}))

    def _setup(
        self, rules: Rules, symbols: Mapping[str, int], prefer: Mapping[str, Value]
    ) -> ConfigSpace:
        self.rules = rules
        self.symbols = dict(symbols)
        self.prefer = prefer
        self._wider: ConfigSpace | None = None
        self._by_width: dict[int, ConfigSpace] = {}
        self.params = rules.params
        own = (c for c in rules.constraints if c is not rules.judge)
        self.constraints = tuple(c.text for c in own if c.text not in rules.reasons)
        decided = {
            name: when.holds(self.symbols)
            for name, when in rules.whens.items()
            if when.names <= self.symbols.keys() & rules.workload.structural
        }
        # Parameters that every configuration has here, and those that none has.
        self.needed = frozenset(name for name, holds in decided.items() if holds)
        self.barred = decided.keys() - self.needed
        # By parameter: its values (None: a permutation), and its undecided condition.
        self.checks = [
            (
                p.name,
                None if p.kind == "permutation" else frozenset(p.values),
                None if p.name in decided else rules.whens.get(p.name),
            )
            for p in rules.params
            if p.name not in self.barred
        ]
        # A constraint on a parameter that no configuration has here counts as satisfied.
        self.judging = [c for c in rules.constraints if self.barred.isdisjoint(c.names)]
        return self

    def __repr__(self) -> str:
        return f"ConfigSpace({', '.join(p.name for p in self.params)})"

    # --- symbols ---------------------------------------------------------------------------

    @property
    def unresolved(self) -> tuple[str, ...]:
        """Symbols that values or constraints mention and that have no number yet."""
        return tuple(sorted(self.rules.symbols - self.symbols.keys()))

    @property
    def shaped_by(self) -> tuple[str, ...]:
        """Unresolved structural symbols in conditions: until they have numbers, `size` counts
        configurations without the parameters that depend on them."""
        names = set[str]().union(*(when.names for when in self.rules.whens.values()))
        return tuple(sorted(names & self.rules.workload.structural - self.symbols.keys()))

    def bind(self, symbols: Mapping[str, int]) -> ConfigSpace:
        """The space with the numbers of some symbols; others stay unresolved."""
        numbers = {s: int(symbols[s]) for s in self.rules.symbols if s in symbols}
        if not numbers:
            return self
        own = numbers.keys() == {"WIDTH"} or not numbers.keys().isdisjoint(self.symbols)
        space = ConfigSpace.__new__(ConfigSpace)
        space._setup(self.rules, {**self.symbols, **numbers}, self.prefer)
        space._wider = None if own else self._at_width(numbers.get("WIDTH"))
        return space

    def _at_width(self, width: int | None) -> ConfigSpace:
        """The space with the width alone, shared by all matrices."""
        if width is None:
            return self
        space = self._by_width.get(width)
        if space is None:
            space = self.bind({"WIDTH": width})
            others = self._by_width if len(self._by_width) < _MOST_WIDTHS else {}
            self._by_width = {**others, width: space}
        return space

    def without(self, conditions: Sequence[str], reason: str) -> ConfigSpace:
        """The space less the configurations for which one of the conditions is true, with their
        `reason`; its `constraints` stay the same. Raises: SpaceError for an invalid expression, or
        one without a parameter."""
        refused = {f"not ({condition})": reason for condition in conditions}
        return self._by(
            Rules(
                self.params,
                self.constraints,
                {**self.rules.reasons, **refused},
                kind=self.rules.workload.name,
                judge=self.rules.judge,
            )
        )

    def judged(self, judge: Judge) -> ConfigSpace:
        """The space less the configurations that a subject's own rules refuse; its `constraints`
        stay the same. Raises: SpaceError if the rules read no parameter of this space."""
        if not judge.names & self.rules.by_name.keys():
            raise SpaceError(f"{judge.text} look at no parameter of this space")
        return self._by(self.rules.judged(judge))

    def _by(self, rules: Rules) -> ConfigSpace:
        return ConfigSpace.__new__(ConfigSpace)._setup(rules, self.symbols, self.prefer)

    def canonical(self, config: Mapping[str, Any]) -> Config:
        """The stored form of a configuration: aliases and true/false replaced, numbers that
        stand for a symbol replaced by it. Unknown names and values pass unchanged."""
        if self.rules.plain and isinstance(config, Config):
            return config
        by_name = self.rules.by_name
        stored = {n: self.stored(by_name[n], v) if n in by_name else v for n, v in config.items()}
        unchanged = isinstance(config, Config) and all(v is config[n] for n, v in stored.items())
        return config if unchanged else Config(stored)  # type: ignore[return-value]  # a Config

    def numeric(self, config: Mapping[str, Any]) -> dict[str, Value]:
        """The configuration with symbols replaced by their numbers. Raises: SpaceError for a symbol
        that is not resolved."""
        numbers = {n: self.number(n, v) for n, v in config.items()}
        for name, value in numbers.items():
            if value is None:
                raise SpaceError(f"parameter {name!r}: no value for {config[name]}")
        return numbers

    def number(self, name: str, value: Any) -> Any:
        """The value an expression sees; None for an unresolved symbol."""
        if name in self.rules.symbolic and value in SYMBOLS:
            return self.symbols.get(value)
        return value

    def stored(self, param: Param, value: Any) -> Any:
        """A value in its stored form; one that the parameter cannot have passes unchanged."""
        if param.aliases and isinstance(value, (str, int)):
            value = self.rules.aliases[param.name].get(str(value), value)
        if param.kind == "bool" and isinstance(value, bool):
            return int(value)
        if param.name not in self.rules.symbolic or not isinstance(value, (int, str)):
            return value
        number = self.symbols.get(value, value) if isinstance(value, str) else value
        if number in param.values:
            return number
        return next((s for s in param.values if self.symbols.get(str(s)) == number), value)

    @cached_property
    def twice(self) -> dict[str, tuple[str, int]]:
        """The symbol, by parameter, whose number is here among the values too, and that number."""
        return {
            p.name: (str(symbol), self.symbols[str(symbol)])
            for p in self.params
            if p.name in self.rules.symbolic
            for symbol in p.values
            if self.symbols.get(str(symbol)) in p.values
        }

    def with_symbols(self, config: Config) -> Config:
        """The other form of a canonical configuration, with symbols for numbers (`twice`)."""
        named = {n: symbol for n, (symbol, number) in self.twice.items() if config.get(n) == number}
        return Config({**config, **named}) if named else config

    def new_values(self, config: Mapping[str, Any]) -> dict[str, Value]:
        """The values of a legal configuration, by parameter, that an open choice does not list."""
        stored = self.canonical(config) if self.rules.open else {}
        params = self.rules.open
        return {n: v for n, v in stored.items() if n in params and v not in params[n].values}

    # --- legality --------------------------------------------------------------------------

    def reason(self, config: Mapping[str, Any]) -> str | None:
        """The first of `reasons`; None if the configuration is legal."""
        return next(self.reasons(config), None)

    def reason_of_step(self, config: Mapping[str, Any], name: str) -> str | None:
        """The `reason` against a canonical configuration that was legal before the value of
        parameter `name` was replaced by another of its values: checks only what reads it."""
        if any(name in when.names for when in self.rules.whens.values()):
            return self.reason(config)
        values = dict(config)
        env = self.environment(values)
        reading = (rule for rule in self.judging if name in rule.names)
        return next(filter(None, (self.broken(rule, values, env) for rule in reading)), None)

    def reasons(self, config: Mapping[str, Any]) -> Iterator[str]:
        """The reasons against the canonical form of a configuration, one line each: wrong values
        with the allowed ones, else the constraints that it breaks."""
        try:
            values = dict(config if self.rules.plain else self.canonical(config))
        except UsageError as error:
            yield str(error)
            return
        env, fine = self.environment(values), True
        for reason in self._wrong_values(values, env):
            fine = False
            yield reason
        if fine:
            yield from filter(None, (self.broken(r, values, env) for r in self.judging))

    def _wrong_values(self, values: Mapping[str, Any], env: Mapping[str, Any]) -> Iterator[str]:
        """The reasons against single parameters: what is there first, then what is missing."""
        if not self.barred.isdisjoint(values):
            name = next(n for n in values if n in self.barred)
            yield f"parameter {name!r} may only be given when {self.rules.whens[name].text}"
        seen, missing = 0, list[str]()
        for name, allowed, when in self.checks:
            seen += name in values
            if when is not None and when.holds(env) is not True:
                if name in values and not self.undecided(when, env):
                    yield f"parameter {name!r} may only be given when {when.text}"
                    continue
                if name not in values:
                    continue
            if name not in values:
                when = self.rules.whens.get(name)
                condition = f" (it is needed when {when.text})" if when else ""
                missing.append(f"parameter {name!r} is missing{condition}")
                continue
            refusal = self.refusal(name, allowed, values[name])
            if refusal:
                yield refusal
        if seen != len(values) and self.barred.isdisjoint(values):
            unknown = ", ".join(map(repr, sorted(values.keys() - self.rules.by_name.keys())))
            names = join(p.name for p in self.params)
            yield f"unknown parameter {unknown}; parameters: {names}"
        yield from missing

    def refusal(self, name: str, allowed: frozenset[Value] | None, value: Any) -> str:
        """The reason against a value of a parameter with these values in `checks`; "" for one of
        them, and for a new value of an open choice."""
        if allowed is None:
            fits = self.rules.is_permutation(name, value)
        else:
            fits = type(value) is not bool and type(value) is not tuple and value in allowed
        if fits:
            return ""
        param = self.rules.by_name[name]
        order = f"is not an order of {join(map(show, param.values))}"
        refusal = order if allowed is None else param.refusal(value)
        return f"parameter {name!r}: {show(value)} {refusal}" if refusal else ""

    def broken(
        self, rule: Expression | Judge, values: Mapping[str, Any], env: Mapping[str, Any]
    ) -> str:
        """The reason why a canonical configuration with its `environment` breaks one of the rules
        `judging`, or ""; it depends on the values of the rule's `names` alone."""
        if rule.holds(env) is not False:
            return ""
        if rule is self.rules.judge:
            return self.rules.judge.reason(values)
        if rule.text in self.rules.reasons:
            return self.rules.reasons[rule.text]
        named = [n for n in values if n in rule.names]
        sizes = [s for s in self.rules.sizes if s in rule.names and s in self.symbols]
        operands = [f"{n}={show(values[n])}" for n in named]
        operands += [f"{s}={self.symbols[s]}" for s in sizes]
        return f"{', '.join(operands)}: breaks the constraint {rule.text}"

    def undecided(self, when: Expression, env: Mapping[str, Any]) -> bool:
        """True if a condition depends on an unknown size, so that the parameter is optional."""
        return when.holds(env) is None and bool(when.names & set(self.unresolved))

    def check(self, config: Mapping[str, Any]) -> None:
        """Raises: SpaceError with its `reason` if the configuration is not legal."""
        reason = self.reason(config)
        if reason is not None:
            raise SpaceError(reason)

    def cure(self, config: Mapping[str, Any]) -> str:
        """A hint for a default that breaks a constraint; empty if it breaks none, or one on orders
        alone."""
        values = self.canonical(config)
        env = self.environment(values)
        for constraint in self.rules.constraints:
            named = [n for n in values if n in constraint.names and type(values[n]) is not tuple]
            if constraint.holds(env) is False and named:
                value = values[named[0]]
                written = repr(value) if value not in SYMBOLS else value
                cure = f"{constraint.text} or {named[0]} == {written}"
                return f'allow it, as by "{cure}", or choose another default'
        return ""

    def environment(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The environment of expressions for a canonical configuration: numbers, and sizes."""
        if not self.rules.symbolic:
            return {**self.symbols, **values} if self.symbols else dict(values)
        seen = {n: self.number(n, v) for n, v in values.items()}
        return {**self.symbols, **{n: v for n, v in seen.items() if v is not None}}

    # --- the whole space -------------------------------------------------------------------

    def size(self, most: int = COUNT_LIMIT) -> int | None:
        """The number of legal configurations; None above `most`: a small one is fast."""
        total = self._total(most) if self._cached is None else len(self._cached)
        return total if total is not None and total <= min(most, COUNT_LIMIT) else None

    def enumerate(self) -> Iterator[Config]:
        """All legal configurations, in an order that depends on the declaration only."""
        return self._enumerated() if self._cached is None else iter(self._cached)

    @cached_property
    def _cached(self) -> tuple[Config, ...] | None:
        """All legal configurations; None if they are too many, or not a subset of those of the
        space before the last `bind`, as they are if only constraints mention the new sizes."""
        wider = self._wider
        if wider is None:
            total = self._total(FEW)
            return tuple(self._enumerated()) if total is not None and total <= FEW else None
        new = self.symbols.keys() - wider.symbols.keys()
        shaped = set().union(*(when.names for when in self.rules.whens.values()))
        if self.rules.symbolic or new & shaped or wider._cached is None:
            return None
        narrowing = [rule for rule in self.judging if not new.isdisjoint(rule.names)]
        return tuple(c for c in wider._cached if self._all_hold(narrowing, c))

    def _all_hold(self, rules: Sequence[Expression | Judge], config: Config) -> bool:
        env = self.environment(config)
        return all(rule.holds(env) is not False for rule in rules)

    def _enumerated(self) -> Iterator[Config]:
        listed_first = sorted(self.parts, key=lambda part: part.listed is None)
        return map(Config, product_of({}, listed_first))

    def sample(self, count: int, *, rng: np.random.Generator) -> list[Config]:
        """`count` distinct legal configurations (all of a smaller space), in random order.

        Uniform, except within a part too large to list: there each value is drawn independently and
        illegal draws are rejected.
        """
        total = self._total()
        if total is not None and total <= max(COUNT_LIMIT, count):
            if not total:
                return []
            drawn = rng.choice(total, size=min(count, total), replace=False)
            return [self._at(int(i)) for i in drawn]
        configs, newest = dict[str, Config](), 0
        for attempt in range(100 * count + 1000):
            if len(configs) == count or attempt - newest > _FRUITLESS:
                break
            draws = [part.draw(rng) for part in self.parts]
            if all(d is not None for d in draws):
                config = Config({n: v for d in draws if d is not None for n, v in d.items()})
                newest = newest if config.json in configs else attempt
                configs[config.json] = config
        return list(configs.values())

    def _total(self, most: int = COUNT_LIMIT) -> int | None:
        """The product of the sizes of all parts; None where one is not listed, or above `most`."""
        sizes = [part.count(most) for part in self.parts]
        if 0 in sizes:
            return 0
        return None if None in sizes else math.prod(s for s in sizes if s is not None)

    def _at(self, index: int) -> Config:
        values: Assignment = {}
        for part in reversed(self.parts):
            listed = part.listed or ()
            index, place = divmod(index, len(listed))
            values.update(listed[place])
        return Config(values)

    # --- around one configuration ----------------------------------------------------------

    def neighbours(self, config: Mapping[str, Any]) -> list[Config]:
        """Legal configurations one step away: an int moves to the next value up or down, a
        choice to any other, a permutation swaps two adjacent names. Where the step alone is not
        legal, the parameters tied to it move as little as needed.

        Raises: SpaceError if `config` is not legal.
        """
        start = self.canonical(config)
        self.check(start)
        steps: dict[str, Config] = {}
        for param in self.params:
            if param.name not in start:
                continue
            for value in self._steps(param, start[param.name]):
                step = self._moved(start, param, value)
                if step is not None and step != start:
                    steps.setdefault(step.json, step)
        return list(steps.values())

    def nearest(self, values: Mapping[str, Any]) -> Config | None:
        """The legal configuration closest to an assignment that may be partial or come from
        another space (unknown names and new values of an open choice are ignored); None if a
        million tries find nothing legal.

        The distance adds up, per parameter: |log2 a - log2 b| over the range of an int, 1 for a
        different choice, the share of inverted pairs for a permutation.
        """
        wish = self.canonical({n: v for n, v in values.items() if n in self.rules.by_name})
        new = self.new_values(wish)
        wish = Config({n: v for n, v in wish.items() if n not in new}) if new else wish
        if self.reason(wish) is None:
            return wish
        legal: Assignment = {}
        for part in self.parts:
            best = part.nearest(wish)
            if best is None:
                return None
            legal.update(best)
        return Config(legal)

    def _moved(self, start: Config, param: Param, value: Value) -> Config | None:
        changed = start.replace(**{param.name: value})
        if self.reason(changed) is None:
            return changed
        part = next(p for p in self.parts if param.name in p.names)
        moved = part.nearest(start, pinned=(param.name, value))
        if moved is None:
            return None
        return Config({**{n: v for n, v in start.items() if n not in part.names}, **moved})

    def _steps(self, param: Param, value: Value) -> list[Value]:
        if param.kind == "permutation" and isinstance(value, tuple):
            swaps = range(len(value) - 1)
            return [(*value[:i], value[i + 1], value[i], *value[i + 2 :]) for i in swaps]
        domain = list(self.domain(param))
        if param.kind != "int":
            return [v for v in domain if v != value]
        numbers = [self.number(param.name, v) for v in domain]
        if None not in numbers:
            domain = [v for _, v in sorted(zip(numbers, domain, strict=True))]
        at = domain.index(value)
        return domain[max(at - 1, 0) : at] + domain[at + 1 : at + 2]

    # --- parts -----------------------------------------------------------------------------

    def domain(self, param: Param) -> Sequence[Value]:
        """The canonical values of one parameter, in declared order."""
        if param.kind == "permutation":
            return list(itertools.permutations(str(v) for v in param.values))
        return [v for v in param.values if self.stored(param, v) == v]

    @cached_property
    def parts(self) -> list[Part]:
        """The independent parts; a configuration is one assignment of each."""
        return [Part(self, names) for names in self.rules.groups]
