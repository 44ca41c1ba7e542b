"""One `[[space]]` section of a platform file: parameters, default and loop-nest mapping."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, TypeVar

from embeddb.core.config import Config, Value
from embeddb.core.errors import PlatformError, SpaceError, UsageError
from embeddb.core.kinds import is_foreign, operation_of
from embeddb.core.kinds import operations as known_operations
from embeddb.platforms.loopnest import LoopNest, complete_order
from embeddb.platforms.space.expression import Expression
from embeddb.platforms.space.quantity import Quantities, Quantity
from embeddb.platforms.space.rules import MAX_TEXT, Param, Rules, join, show
from embeddb.platforms.space.space import ConfigSpace

#: Why a configuration is left out of a reproducible space, and of an exact one.
VARYING = "sums in varying order"
INEXACT = "computes at reduced precision"

_T = TypeVar("_T")
_D = TypeVar("_D")
_SPLITS = ("I", "J", "K", "K2")


class Table:
    """A table of a TOML file with its place in the file, which records the keys that are read.

    All tables of a file collect its faults in one list, `faults`: `tried` goes on after a fault,
    `refuse` raises those collected.

    Raises: PlatformError naming file and key, from every method but `tried`.
    """

    def __init__(
        self, data: Any, where: str, key: str, faults: list[PlatformError] | None = None
    ) -> None:
        self.where, self.key = where, key
        self.faults: list[PlatformError] = [] if faults is None else faults
        if not isinstance(data, dict):
            raise PlatformError(f"{key}: must be a table", where=where)
        self.data: dict[str, Any] = data
        self._read: list[str] = []

    def path(self, name: str) -> str:
        return f"{self.key}.{name}" if self.key else name

    def fault(self, name: str, message: str, *, hint: str = "") -> PlatformError:
        return PlatformError(f"{self.path(name)}: {message}", where=self.where, hint=hint)

    def tried(self, read: Callable[[], _T], instead: _D) -> _T | _D:
        """The value of `read`, or `instead` after its fault was collected."""
        try:
            return read()
        except PlatformError as fault:
            self.faults.append(fault)
            return instead

    def refuse(self) -> None:
        """Raises: PlatformError, the first fault collected, whose `problems` are those of all."""
        if self.faults:
            lines = dict.fromkeys(line for fault in self.faults for line in fault.problems)
            first = self.faults[0]
            raise PlatformError(
                first.reason, where=first.where, hint=first.hint, problems=list(lines)
            )

    def take(self, name: str, kind: type[_T], default: _T | None = None) -> _T:
        """The value of a key, of this type; required if there is no default."""
        self._read.append(name)
        value = self.data.get(name, default)
        if value is None:
            raise self.fault(name, "is missing")
        if kind is float and type(value) is int:
            try:
                value = float(value)
            except OverflowError:
                raise self.fault(name, "is too large a number") from None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.fault(name, f"must be {_KINDS[kind]}, not {show(value)}")
        return value

    def table(self, name: str, *, required: bool = False) -> Table:
        value: dict[str, Any] = self.take(name, dict, None if required else {})
        return self.part(value, name)

    def part(self, data: Any, name: str) -> Table:
        """A table inside this one."""
        return Table(data, self.where, self.path(name), self.faults)

    def texts(self, name: str) -> list[str]:
        values: list[Any] = self.take(name, list, [])
        if not all(isinstance(v, str) for v in values):
            raise self.fault(name, "must be a list of texts")
        return values

    def done(self) -> None:
        """Collect a fault for each key that was not read, and raise the last."""
        unknown = [self._unknown(name) for name in self.data if name not in self._read]
        if unknown:
            self.faults += unknown[:-1]
            raise unknown[-1]

    def _unknown(self, name: str) -> PlatformError:
        close = difflib.get_close_matches(name, self._read, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"keys: {join(self._read)}"
        return self.fault(name, "unknown key", hint=hint)


_KINDS: dict[type, str] = {
    str: "a text",
    bool: "true or false",
    float: "a number",
    list: "a list",
    dict: "a table",
    object: "a number, a text or a list",
}


@dataclass(frozen=True, slots=True)
class LoopMapping:
    """Mapping of a configuration to a loop nest: split sizes and order (phi and pi)."""

    splits: Mapping[str, Expression | int]
    cases: tuple[tuple[Expression | None, tuple[int, ...]], ...]
    permutation: str
    loops: Mapping[str, str]

    def names(self) -> set[str]:
        """Parameters and symbols the mapping reads."""
        parts = [*self.splits.values(), *(when for when, _ in self.cases)]
        names = (part.names for part in parts if isinstance(part, Expression))
        return set[str]().union([self.permutation] if self.permutation else [], *names)

    def nest(self, values: Mapping[str, Any], params: Collection[str]) -> LoopNest:
        """Raises: SpaceError if a size of the matrix is needed and unknown, or a split is no
        whole number of at least 1."""
        splits = tuple(self._split(name, values, params) for name in _SPLITS)
        if self.permutation:
            if self.permutation not in values:
                raise SpaceError(f"parameter {self.permutation!r} is missing: it orders the loops")
            order = complete_order([self.loops[item] for item in values[self.permutation]])
        else:
            order = next(o for when, o in self.cases if when is None or when.holds(values))
        return LoopNest((splits[0], splits[1], splits[2], splits[3]), order)

    def _split(self, name: str, values: Mapping[str, Any], params: Collection[str]) -> int:
        size = self.splits.get(name, 1)
        if isinstance(size, int):
            return size
        try:
            value = size.value(values)
        except KeyError as error:
            # A parameter that does not apply splits nothing; a size is required.
            if error.args[0] in params:
                return 1
            raise SpaceError(f"split {name} needs {error.args[0]}, a size of the matrix") from None
        except SpaceError as error:
            raise SpaceError(f"split {name} = {error.reason}") from None
        return value  # type: ignore[no-any-return]  # LoopNest checks that it is an int


@dataclass(eq=False)
class KernelSpace:
    """The space, default and mapping of the kernels of one section. `varying` are conditions of
    configurations whose order of summation varies from call to call, `inexact` of those that round
    operands to a shorter type (None: not stated); `left_out` has the reasons for which
    configurations were removed from the space: `VARYING`, `INEXACT`."""

    kernels: tuple[str, ...]
    space: ConfigSpace
    default: Config
    mapping: LoopMapping | None
    heterogeneous: tuple[str, ...]
    quantities: Quantities
    varying: tuple[str, ...] | None = None
    inexact: tuple[str, ...] | None = None
    left_out: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        used = self.mapping.names() if self.mapping else set()
        self.homogeneous = tuple(p.name for p in self.space.params if p.name in used)
        self._bound = lru_cache(maxsize=256)(lambda symbols: self.space.bind(dict(symbols)))

    def bind(self, symbols: Mapping[str, int]) -> ConfigSpace:
        """The space with these sizes, cached by those that it uses."""
        used = self.space.unresolved
        return self._bound(tuple((s, symbols[s]) for s in used if s in symbols))

    def nest(self, config: Mapping[str, Any], symbols: Mapping[str, int]) -> LoopNest | None:
        if self.mapping is None:
            return None
        values = {**symbols, **self.bind(symbols).environment(config)}
        for name in self.homogeneous:
            if name in config and name not in values:
                raise SpaceError(f"parameter {name!r}: no value for {config[name]}")
        return self.mapping.nest(values, self.space.rules.by_name)

    def without(self, conditions: Sequence[str], reason: str) -> KernelSpace:
        """A copy without the configurations for which one of these conditions holds."""
        space = self.space.without(conditions, reason)
        return replace(self, space=space, left_out=self.left_out | {reason})

    def is_exact(self, config: Mapping[str, Any]) -> bool:
        """True if a legal configuration computes at the full precision of its operands' type."""
        return not self.inexact or self._exact_space.reason(config) != INEXACT

    @cached_property
    def _exact_space(self) -> ConfigSpace:
        return self.space.without(self.inexact or (), INEXACT)

    def digest_form(self) -> dict[str, Any]:
        """The input of `Platform.digest`, as plain data: everything that changes the meaning of a
        stored configuration, so neither open choices, `varying`, `inexact` nor quantities."""
        mapping = self.mapping
        return {
            "kernels": sorted(self.kernels),
            "params": [[p.name, p.kind, p.values, p.when] for p in self.space.params],
            "constraints": self.space.constraints,
            "default": self.default.json,
            "heterogeneous": self.heterogeneous,
            "loopnest": mapping
            and {
                "splits": {n: getattr(e, "text", e) for n, e in sorted(mapping.splits.items())},
                "cases": [[when.text if when else "", order] for when, order in mapping.cases],
                "permutation": [mapping.permutation, sorted(mapping.loops.items())],
            },
        }


def leave_out_foreign(data: dict[str, Any]) -> bool:
    """Remove the sections whose kernels only a missing plug-in has; return true if there are
    some."""
    sections = data.get("space")
    if not isinstance(sections, list):
        return False
    data["space"] = [section for section in sections if not _is_foreign(section)]
    return len(data["space"]) < len(sections)


def _is_foreign(section: Any) -> bool:
    kernels = section.get("kernels") if isinstance(section, dict) else None
    if not isinstance(kernels, list) or not kernels:
        return False
    return all(isinstance(kernel, str) and is_foreign(kernel) for kernel in kernels)


def read_space(table: Table) -> KernelSpace:
    """Read the space of a section. Faults of single parameters, constraints and defaults are
    collected in the table, for `Table.refuse`. Raises: PlatformError naming file and key, for a
    section that cannot be read further."""
    kernels = table.texts("kernels")
    try:
        operations = [operation_of(kernel) for kernel in kernels]
    except UsageError:
        operations = []
    if not operations or len(set(kernels)) != len(kernels):
        names = [operation.name for operation in known_operations()]
        raise table.fault("kernels", f"must list some of {join(names)}, each once")
    kinds = {kind.name for _, kind in operations}
    if len(kinds) > 1:
        raise table.fault("kernels", "of several kinds: each needs a [[space]], for sizes differ")
    declared = table.table("params", required=True)
    if not declared.data and any(operation.tunable for operation, _ in operations):
        raise table.fault("params", "a space needs at least one parameter")
    constraints = table.texts("constraints")
    chosen = table.table("default", required=True)
    reading = _Reading(table, declared)
    default = reading.default(chosen)
    space = reading.space(constraints, default, kinds.pop())
    mapping = None
    if "loopnest" in table.data:
        mapping = reading.tried(
            lambda: _read_mapping(table.table("loopnest"), space.rules), "loopnest", None
        )
    default = space.canonical(default)
    reading.check_default(space, default)
    heterogeneous = table.tried(lambda: _heterogeneous(table, space, mapping), ())
    varying = table.tried(lambda: _conditions(table, space, "varying"), None)
    inexact = table.tried(lambda: _conditions(table, space, "inexact"), None)
    quantities = table.tried(lambda: reading.quantities(space), None)
    table.tried(table.done, None)
    return KernelSpace(
        tuple(kernels),
        space,
        default,
        mapping,
        heterogeneous,
        quantities or Quantities((), space.rules),
        varying,
        inexact,
    )


class _Reading:
    """Reader of the parameters of a section and of the parts that use them. An unreadable parameter
    is replaced by an open choice and is in `lost`: further faults about it are not reported."""

    def __init__(self, table: Table, declared: Table) -> None:
        self.table = table
        self.lost: set[str] = set()
        self.params = [p for name in declared.data if (p := self._param(declared, name))]

    def _param(self, declared: Table, name: str) -> Param | None:
        data = declared.data[name]
        param = self.tried(lambda: _read_param(declared.part(data, name), name), "params", None)
        if param is None:
            self.lost.add(name)
            with suppress(SpaceError):  # its name may be what is wrong
                return Param(name, "choice", (0,), open=True)
        return param

    def tried(self, read: Callable[[], _T], key: str, instead: _D) -> _T | _D:
        """The value of `read`, or `instead` after its fault was collected, at `key` unless the
        fault names a place."""
        try:
            return read()
        except PlatformError as fault:
            self._add(fault)
        except SpaceError as error:
            self._add(self.table.fault(error.where or key, error.reason))
        except UsageError as error:
            self._add(self.table.fault(key, str(error)))
        return instead

    def _add(self, fault: PlatformError) -> None:
        if not any(f"'{name}'" in fault.reason for name in self.lost):
            self.table.faults.append(fault)

    def default(self, chosen: Table) -> Config:
        return self.tried(lambda: Config(_plain(chosen)), "default", Config({}))

    def space(self, constraints: Sequence[str], default: Config, kind: str) -> ConfigSpace:
        """The space without faulty conditions and constraints. Raises: PlatformError for a fault of
        another part, after which nothing else can be read."""
        left = dict(enumerate(constraints))
        while True:
            try:
                return ConfigSpace(self.params, left.values(), prefer=default, kind=kind)
            except SpaceError as error:
                part, _, at = error.where.partition("[")
                name = error.where.removeprefix("params.").removesuffix(".when")
                fault = self.table.fault(error.where or "params", error.reason)
                if part == "constraints":
                    position = list(left)[int(at.rstrip("]"))]
                    del left[position]
                    where = f"constraints[{position}]"
                    self._add(self.table.fault(where, error.reason))
                elif error.where.endswith(".when"):
                    self._add(fault)
                    self.lost.add(name)
                    self.params = [
                        replace(p, when="") if p.name == name else p for p in self.params
                    ]
                else:
                    raise fault from None

    def quantities(self, space: ConfigSpace) -> Quantities | None:
        """The derived quantities; None after a fault in one of them."""
        part, read = self.table.table("derived"), list[Quantity]()
        for name in part.data:
            one = self.tried(partial(_read_quantity, part, name), f"derived.{name}", None)
            read += [] if one is None else [one]
        if len(read) < len(part.data):
            return None
        return self.tried(lambda: Quantities(read, space.rules), "derived", None)

    def check_default(self, space: ConfigSpace, default: Config) -> None:
        """Collect a fault for each reason why the default is not legal."""
        for reason in space.reasons(default):
            hint = space.cure(default)
            self._add(self.table.fault("default", f"is not legal: {reason}", hint=hint))


def _read_quantity(table: Table, name: str) -> Quantity:
    return Quantity(name, table.take(name, str))


def _read_param(table: Table, name: str) -> Param:
    kind = table.take("type", str)
    values: list[Any] = table.take("values", list, [0, 1] if kind == "bool" else None)
    if not all(isinstance(v, (int, float, str)) for v in values):
        raise table.fault("values", "must be numbers or texts")
    if any(isinstance(v, bool) or (isinstance(v, float) and not math.isfinite(v)) for v in values):
        raise table.fault("values", 'must be numbers or texts; for true and false use type "bool"')
    whole = [int(v) if isinstance(v, float) and v.is_integer() else v for v in values]
    aliases = table.table("aliases").data
    when = table.take("when", str, "")
    opened = table.take("open", bool, False)
    longest = table.take("longest", int, MAX_TEXT)
    table.done()
    return Param(name, kind, tuple(whole), when, tuple(aliases.items()), opened, longest)  # type: ignore[arg-type]  # Param checks the kind


def _read_mapping(table: Table, rules: Rules) -> LoopMapping:
    splits: dict[str, Expression | int] = {}
    for name in _SPLITS:
        if name in table.data:
            size = table.take(name, object)
            whole = isinstance(size, int) and size >= 1
            where = f"loopnest.{name}"
            splits[name] = size if whole else rules.expression(size, where)  # type: ignore[assignment]  # narrowed by `whole`
    order = table.take("order", object)
    loops = table.table("loops").data
    table.done()
    if isinstance(order, str):
        param = rules.by_name.get(order)
        if param is None or param.kind != "permutation":
            raise table.fault("order", f"{order!r} is not a permutation parameter")
        if set(loops) != set(param.values):
            raise table.fault(
                "loops", f"must name a loop for each of {join(map(str, param.values))}"
            )
        _order(table, list(loops.values()))
        return LoopMapping(splits, (), order, loops)
    if not isinstance(order, list) or not order or loops:
        raise table.fault("order", "must be a list of loops, a list of cases, or a permutation")
    if all(isinstance(o, str) for o in order):
        return LoopMapping(splits, ((None, _order(table, order)),), "", {})
    cases = []
    for i, item in enumerate(order):
        case = table.part(item, f"order[{i}]")
        named = _order(table, case.texts("loops"))
        when = case.take("when", str, "")
        case.done()
        if bool(when) != (i < len(order) - 1):
            raise table.fault("order", "every case but the last needs a `when`, the last has none")
        where = f"loopnest.order[{i}].when"
        cases.append((rules.expression(when, where, condition=True) if when else None, named))
    return LoopMapping(splits, tuple(cases), "", {})


def _order(table: Table, loops: list[Any]) -> tuple[int, ...]:
    try:
        return complete_order(loops)
    except SpaceError as error:
        raise table.fault("order", error.reason) from None


def _heterogeneous(
    table: Table, space: ConfigSpace, mapping: LoopMapping | None
) -> tuple[str, ...]:
    names = [p.name for p in space.params]
    used = mapping.names() if mapping else set()
    if "heterogeneous" not in table.data:
        return tuple(n for n in names if n not in used)
    listed = table.texts("heterogeneous")
    for name in listed:
        if name not in names:
            raise table.fault("heterogeneous", f"there is no parameter {name!r}")
    for name in names:
        if name not in listed and name not in used:
            raise table.fault("heterogeneous", f"{name!r} is neither here nor in the loop nest")
    return tuple(n for n in names if n in listed)


def _conditions(table: Table, space: ConfigSpace, key: str) -> tuple[str, ...] | None:
    """Conditions on the parameters of a space; None where the section does not have the key."""
    conditions = table.texts(key)
    if key not in table.data:
        return None
    params = {param.name for param in space.params}
    for i, text in enumerate(conditions):
        where = f"{key}[{i}]"
        try:
            names = space.rules.expression(text, where, condition=True).names
        except SpaceError as error:
            raise table.fault(error.where or where, error.reason) from None
        if not names & params:
            raise table.fault(where, f"{text!r} mentions no parameter")
    return tuple(conditions)


def _plain(table: Table) -> dict[str, Value]:
    for name, value in table.data.items():
        texts = isinstance(value, list) and all(isinstance(v, str) for v in value)
        if not texts and not isinstance(value, (int, float, str)):
            raise table.fault(name, "must be a number, a text or a list of texts")
    return table.data
