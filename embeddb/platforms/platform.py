"""Platforms: operations with their configuration spaces and defaults, read from a TOML file.

The built-in ones are in `embeddb/platforms`; docs/howto/new-platform.md explains the form.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache, cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from embeddb.core import plugins
from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError, PlatformError, RunnerUnavailable, UsageError
from embeddb.core.files.safe_read import read_bounded, refusing
from embeddb.core.sizes import UNKNOWN, Sizes
from embeddb.core.wording import value_text
from embeddb.platforms.command import CommandSpec, read_command, read_unit
from embeddb.platforms.kernel import (
    INEXACT,
    VARYING,
    KernelSpace,
    Table,
    leave_out_foreign,
    read_space,
)
from embeddb.platforms.log_table import LogTable, read_log
from embeddb.platforms.loopnest import LoopNest
from embeddb.platforms.machines import display_name, machine_words
from embeddb.platforms.space.quantity import Quantities
from embeddb.platforms.space.rules import join, show
from embeddb.platforms.space.space import ConfigSpace
from embeddb.platforms.toml_text import MAX_BYTES, read_toml

_FOLDER = Path(__file__).parent
_INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,47}")


@dataclass(frozen=True)
class Platform:
    """One platform, or one instance of it (a device, a machine with its compiler).

    `ops` are the kernels it runs. `simulated`: times come from a simulator. `portable`: relative
    gains measured on other instances count as evidence here. `runner`: the plug-in that can
    measure it, or "". `cost_per_sample` is the price of one measurement relative to a CPU run
    (beta in COGNATE, Appendix A.2). `command` is the program that a `command` runner starts, `log`
    describes run logs. `text` is the TOML source; `file` is the path it was read from, and empty
    for a platform from a database or a plan, whose command is not run. `meaning` explains a
    parameter (`order`) or a value (`order=ijk`) in a line. `extends` are earlier versions whose
    configurations mean the same here. Two platforms are equal when text and instance are.

    Raises: UsageError, from methods that take an op, if the platform does not run its kernel.
    """

    text: str
    name: str = field(compare=False)
    version: str = field(compare=False)
    title: str = field(compare=False)
    kernels: Mapping[str, KernelSpace] = field(compare=False, repr=False)
    instance: str = ""
    simulated: bool = field(default=False, compare=False)
    portable: bool = field(default=False, compare=False)
    runner: str = field(default="", compare=False)
    cost_per_sample: float = field(default=1.0, compare=False)
    command: CommandSpec | None = field(default=None, compare=False, repr=False)
    log: LogTable = field(default_factory=LogTable, compare=False, repr=False)
    file: str = field(default="", compare=False)
    traits: Mapping[str, Any] = field(default_factory=dict, compare=False)
    meaning: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, compare=False)
    extends: tuple[str, ...] = field(default=(), compare=False)

    @property
    def id(self) -> str:
        """`name`, or `name@instance`."""
        return f"{self.name}@{self.instance}" if self.instance else self.name

    @property
    def ops(self) -> tuple[str, ...]:
        return tuple(self.kernels)

    @cached_property
    def digest(self) -> str:
        """blake2b-128 hex of spaces, defaults and mappings: changes when the meaning of stored
        configurations does, not with comments, titles, traits or open choices."""
        canonical = json.dumps(self._forms(), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()

    def _forms(self) -> list[dict[str, Any]]:
        return [self.kernels[k].digest_form() for k in sorted(self.kernels)]

    def is_reordered(self, other: Platform) -> bool:
        """True if the spaces differ from another platform's in the order of parameters alone, the
        order of encoded configurations."""
        here, there = self._forms(), other._forms()
        for form in (*here, *there):
            form["params"] = sorted(form["params"], key=lambda param: str(param[0]))
            form["heterogeneous"] = sorted(form["heterogeneous"])
        return self.digest != other.digest and here == there

    @property
    def counts_cycles(self) -> bool:
        """True if times are numbers of cycles, without a clock to convert them to seconds."""
        return self.log.counts_cycles

    @property
    def time_unit(self) -> str:
        """`s` or `cycles` (`embeddb.core.wording.duration`)."""
        return "cycles" if self.counts_cycles else "s"

    @property
    def what(self) -> str:
        """A short description: the machine of an instance, else the title."""
        return machine_words(self.environment) or self.title

    @property
    def display_name(self) -> str:
        """The name for people (`embeddb.platforms.machines.display_name`)."""
        return display_name(self.id, self.environment)

    def meanings(self, config: Mapping[str, Any]) -> dict[str, str]:
        """The meanings of a configuration's values by parameter, else of the parameters; those
        without a meaning in the file are left out."""
        own = {n: self.meaning.get(f"{n}={value_text(v)}") for n, v in config.items()}
        lines = {n: line or self.meaning.get(n, "") for n, line in own.items()}
        return {n: line for n, line in lines.items() if line}

    @property
    def open_choices(self) -> frozenset[tuple[str, str]]:
        """Kernel and parameter of every choice that takes new values."""
        spaces = ((kernel, part.space) for kernel, part in self.kernels.items())
        return frozenset((kernel, name) for kernel, space in spaces for name in space.rules.open)

    def kernel(self, op: Op | str) -> KernelSpace:
        """The section of a kernel."""
        kernel = op if isinstance(op, str) else op.name
        if kernel not in self.kernels:
            raise UsageError(
                f"platform {self.id} has no {kernel}", hint=f"its kernels: {join(self.ops)}"
            )
        return self.kernels[kernel]

    def space(self, op: Op, sizes: Sizes = UNKNOWN, **named: int) -> ConfigSpace:
        """The space of one operation for a workload of these sizes, some perhaps by name (`m=9`);
        unknown sizes stay unresolved."""
        return self.kernel(op).bind(_symbols(op, sizes.with_sizes(named)))

    def restricted(self, op: Op, *, reproducible: bool = False, exact: bool = False) -> Platform:
        """A copy without some configurations of a kernel: with `reproducible` those whose order of
        summation varies from call to call, with `exact` the `inexact` ones (the others compute at
        the full precision of the operands' type; where none are stated, nothing is left out). A
        stored platform of an older file uses the conditions of the built-in one. Raises: UsageError
        where a file does not state which configurations vary."""
        if not (reproducible or exact):
            return self
        part = self.kernel(op)
        if reproducible:
            varying = part.varying
            if varying is None and (current := self._shipped_version()):
                varying = current.kernel(op).varying
            if varying is None:
                raise UsageError(
                    f"platform {self.id} does not say which configurations of {op.name} sum in "
                    "varying order",
                    hint=f"its file needs `varying = [...]` in the [[space]] of {op.name}: "
                    "conditions as in `constraints`, [] if none does",
                )
            part = part.without(varying, VARYING)
        if exact:
            inexact = self._stating_precision(op).inexact
            part = replace(part, inexact=inexact).without(inexact or (), INEXACT)
        return replace(self, kernels={**self.kernels, op.name: part})

    def is_exact(self, op: Op, config: Mapping[str, Any]) -> bool:
        """True if a legal configuration computes at the full precision of its operands' type."""
        return self._stating_precision(op).is_exact(config)

    def _stating_precision(self, op: Op) -> KernelSpace:
        """The section of a kernel; that of the built-in platform for one that states no precision,
        as of an older file. Where that has no statement either, none of its kernels round."""
        part = self.kernel(op)
        current = self._shipped_version() if part.inexact is None else None
        return replace(part, inexact=current.kernel(op).inexact or ()) if current else part

    def default(self, op: Op, sizes: Sizes = UNKNOWN, **named: int) -> Config:
        """The canonical default for a matrix of these sizes, or the nearest legal configuration."""
        space = self.space(op, sizes, **named)
        declared = space.canonical(self.kernel(op).default)
        return declared if space.reason(declared) is None else space.nearest(declared) or declared

    def loopnest(
        self, op: Op, config: Mapping[str, Any], sizes: Sizes = UNKNOWN, **named: int
    ) -> LoopNest | None:
        """The common loop nest of a legal configuration; None where the platform has none. Raises:
        SpaceError if it needs an unknown size of the matrix."""
        return self.kernel(op).nest(config, _symbols(op, sizes.with_sizes({**named, "nnz": -1})))

    def quantities(self, op: Op) -> Quantities:
        """The derived quantities of a kernel. A stored platform of an older file, which defines
        none, uses those of the built-in one."""
        own = self.kernel(op).quantities
        current = None if own else self._shipped_version()
        return current.kernel(op).quantities if current else own

    def _shipped_version(self) -> Platform | None:
        """The built-in platform with the same name and spaces, if there is one."""
        current = _builtin(self.name) if self.name in builtin_platforms() else None
        return current if current is not None and current.digest == self.digest else None

    def at(self, instance: str = "", environment: Mapping[str, str] | None = None) -> Platform:
        """The instance on one device or machine: its label, else 8 hex digits of the environment's
        digest; the platform itself without both. Raises: PlatformError for a label that cannot be
        part of an id."""
        facts = {str(k): str(v) for k, v in sorted((environment or {}).items())}
        if not instance and facts:
            canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"))
            instance = hashlib.blake2b(canonical.encode(), digest_size=4).hexdigest()
        if instance and not _INSTANCE.fullmatch(instance):
            raise PlatformError(
                f"{instance!r} cannot name an instance of {self.name}",
                hint="letters, digits and . _ + - only, at most 64",
            )
        return replace(self, instance=instance, environment=MappingProxyType(facts))


class Sized(Protocol):
    """A workload, or its stored facts."""

    @property
    def sizes(self) -> Sizes: ...


def space_of(platform: Platform, op: Op, subject: Sized) -> ConfigSpace:
    """The legal configurations for a subject: the space without those that its own rules forbid.

    The dependences of a nest restrict it where its code is stored and the platform has parameters
    of a schedule (`embeddb.nests.schedule`); the shape of a kernel restricts the tiles that our own
    runner computes; a program restricts `cut`.

    Raises: UsageError if the platform does not run this kernel.
    """
    space = platform.space(op, subject.sizes)
    params = frozenset(param.name for param in space.params)
    judge = op.workload.judge(op, subject, params, platform.runner)
    return space if judge is None else space.judged(judge)


def default_of(platform: Platform, op: Op, subject: Sized) -> Config:
    """The canonical default for a subject: for a nest completed by its original loops, or the
    nearest legal configuration. Raises: UsageError if the platform does not run this kernel."""
    natural = op.workload.natural(subject)
    if natural is None:
        return platform.default(op, subject.sizes)
    space = space_of(platform, op, subject)
    names = {param.name for param in space.params}
    original = {name: value for name, value in natural.items() if name in names}
    wished = {**original, **platform.kernel(op).default}
    for values in (wished, original):
        config = space.canonical(Config(values))
        if space.reason(config) is None:
            return config
    return space.nearest(wished) or space.canonical(Config(wished))


@cache
def builtin_platforms() -> Sequence[str]:
    """Names of the platforms that ship with embeddb, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def load_platform(source: str | Path) -> Platform:
    """Load a platform by built-in name (`cpu`) or path to a TOML file, either perhaps followed by
    `@instance`. Raises: PlatformError if there is none, or naming file and key of a fault."""
    text = str(source)
    base, at, instance = text.rpartition("@")
    if not at or isinstance(source, Path) or text.endswith(".toml"):
        base, instance = text, ""
    elif not instance:
        raise PlatformError(f"{text!r} names no instance after the @")
    if isinstance(source, Path) or base.endswith(".toml") or "/" in base:
        platform = _read_file(Path(base))
    elif base in builtin_platforms():
        platform = _builtin(base)
    else:
        raise PlatformError(f"no platform {base!r}", hint=platform_hint(base))
    return platform.at(instance) if instance else platform


def platform_hint(text: str, stored: Sequence[str] = ()) -> str:
    """The hint of an error about an unknown platform; `stored` are the platforms of a database."""
    built_in = builtin_platforms()
    close = get_close_matches(text, [*(p.partition("@")[0] for p in stored), *built_in], 1)
    meant = f"did you mean {close[0]}? " if close else ""
    here = f"known here: {join(stored)}; " if stored else ""
    return f"{meant}{here}built in: {join(built_in)}; or give the path of a TOML file"


def parse_platform(text: str, *, where: str = "", known_only: bool = False) -> Platform:
    """Parse a platform file; `where` names it in messages. With `known_only` the spaces of kernels
    that only a missing plug-in has are left out, perhaps all. Raises: PlatformError naming file and
    key, on one line."""
    with refusing(PlatformError, where=where):
        return _parsed(text, where, known_only)


def _parsed(text: str, where: str, known_only: bool) -> Platform:
    table = Table(read_toml(text, where=where), where, "")
    tried, partly = table.tried, known_only and leave_out_foreign(table.data)
    name = tried(lambda: _read_name(table), "")
    cost = tried(lambda: _read_cost(table), 1.0)
    kernels: dict[str, KernelSpace] = tried(lambda: _read_kernels(table, partly), {})
    traits: dict[str, Any] = tried(lambda: _read_traits(table.table("traits")), {})
    runner = tried(lambda: table.take("runner", str, ""), "")
    command, log, meaning, before = None, LogTable(), dict[str, str](), len(table.faults)
    if kernels:
        command = tried(lambda: _read_command(table, runner, kernels, traits), None)
        unit = command.time.unit if command is not None else ""
        if partly and command is None and runner == "command":
            unit = tried(lambda: read_unit(table.table("command"), traits), "")
        log = tried(lambda: read_log(table.table("log"), kernels, traits, command_unit=unit), log)
        meaning = tried(lambda: _read_meaning(table.table("meaning"), kernels), {})
    if partly:  # these tables may name parameters of a space that was left out
        del table.faults[before:]
    platform = Platform(
        text=text,
        name=name,
        version=tried(lambda: table.take("version", str), ""),
        title=tried(lambda: table.take("title", str), ""),
        simulated=tried(lambda: table.take("simulated", bool, False), False),
        portable=tried(lambda: table.take("portable", bool, False), False),
        runner=runner,
        cost_per_sample=cost,
        command=command,
        log=log,
        traits=MappingProxyType(traits),
        meaning=MappingProxyType(meaning),
        kernels=MappingProxyType(kernels),
        extends=tried(lambda: tuple(table.texts("extends")), ()),
    )
    if kernels:
        tried(table.done, None)
    table.refuse()
    return platform


def _read_name(table: Table) -> str:
    name = table.take("name", str)
    if not _NAME.fullmatch(name):
        raise table.fault("name", f"{name!r} must be lower-case letters, digits and -")
    return name


def _read_cost(table: Table) -> float:
    cost = table.take("cost_per_sample", float, 1.0)
    if not (math.isfinite(cost) and cost > 0):
        raise table.fault("cost_per_sample", "must be larger than 0")
    return cost


def refuse_without_runner(platform: Platform) -> None:
    """Check that a platform names a runner, which need not be ready here. Raises:
    RunnerUnavailable."""
    if not platform.runner:
        raise RunnerUnavailable(
            f"platform {platform.id} has no runner: it cannot be measured from here",
            hint="measure it with your own tools and `embeddb ingest` the log",
        )


def runner_for(platform: Platform) -> Any:
    """The runner of a platform, ready to run here: of several platforms by its class method
    `for_platform`. Raises: RunnerUnavailable naming the missing part, or the fault of a plug-in."""
    refuse_without_runner(platform)
    name = platform.runner
    try:
        plugin = plugins.load("runner", name)
        many = hasattr(plugin, "for_platform")
        runner = plugin.for_platform(platform) if many else plugins.created("runner", name)
        problem = plugins.result_of(runner, "available", str | None)
    except EmbeddbError as e:
        if plugins.shipped("runner", name):
            raise
        raise RunnerUnavailable(str(e), hint=e.hint) from e
    if problem:
        raise RunnerUnavailable(problem)
    return runner


def platform_here(runner: Any, *, threads: int = 0, facts: bool = True) -> Platform:
    """The instance of a runner's platform on this machine, with all `facts` that the runner can
    measure, which may take seconds. Raises: RunnerUnavailable if it cannot be measured here."""
    if facts and hasattr(runner, "facts"):
        plugins.result_of(runner, "facts", Mapping, threads=threads)
    here: Platform = plugins.result_of(runner, "platform", Platform, threads=threads)
    return here


def this_machine(platform: Platform, *, threads: int = 0) -> tuple[Any, Platform]:
    """The runner of a platform, and its instance on this machine with so many threads (0: all).
    Raises: RunnerUnavailable if it cannot be measured here; UsageError for another machine's
    instance."""
    runner = runner_for(platform)
    here = platform_here(runner, threads=threads)
    if here.name != platform.name:
        raise RunnerUnavailable(f"runner {platform.runner} has {here.name}, not {platform.name}")
    if platform.instance and platform.id != here.id:
        what = f"{platform.id} is not this machine, which is {here.id}"
        raise UsageError(what, hint=f"--platform {platform.name}")
    return runner, here


def _read_kernels(table: Table, partly: bool) -> dict[str, KernelSpace]:
    """The space of each kernel; empty after a fault in a section, for then no other table can be
    checked. `partly`: sections were left out."""
    sections: list[Any] = table.take("space", list)
    kernels: dict[str, KernelSpace] = {}
    if not sections and not partly:
        raise table.fault("space", "is missing")
    whole = True
    for i, section in enumerate(sections):
        read = table.tried(partial(_read_section, table, section, f"space[{i}]", kernels), None)
        whole = whole and read is not None
        kernels |= dict.fromkeys(read.kernels, read) if read is not None else {}
    return kernels if whole else {}


def _read_section(
    table: Table, section: Any, key: str, kernels: Mapping[str, KernelSpace]
) -> KernelSpace:
    part = table.part(section, key)
    read = read_space(part)
    for kernel in read.kernels:
        if kernel in kernels:
            raise part.fault("kernels", f"{kernel} already has a space")
    return read


def _read_command(
    table: Table, runner: str, kernels: Mapping[str, KernelSpace], traits: Mapping[str, Any]
) -> CommandSpec | None:
    part = table.table("command", required=runner == "command")
    if runner == "command":
        return read_command(part, kernels, traits)
    if part.data:
        here = plugins.available("runner")
        none = "" if runner in here else f", and there is no such runner here: {join(here)}"
        what = f"which is {runner!r}{none}" if runner else "which is missing"
        raise table.fault("command", f'is only read with runner = "command" at the top, {what}')
    return None


def _read_traits(table: Table) -> dict[str, Any]:
    for name, value in table.data.items():
        if not isinstance(value, (str, int, float)):
            table.faults.append(table.fault(name, f"must be a number or a text, not {show(value)}"))
    return dict(table.data)


def _read_meaning(table: Table, kernels: Mapping[str, KernelSpace]) -> dict[str, str]:
    params = [param for part in kernels.values() for param in part.space.params]
    there = {param.name for param in params}
    there |= {name for part in kernels.values() for name in part.quantities.names}
    there |= {f"{param.name}={value_text(value)}" for param in params for value in param.values}
    for name, line in table.data.items():
        if not isinstance(line, str) or not line.strip() or "\n" in line:
            table.faults.append(table.fault(name, "must be a text of one line"))
        elif name not in there:
            what = "is no parameter, and no PARAMETER=VALUE, of this platform"
            table.faults.append(table.fault(name, what))
    return dict(table.data)


def _symbols(op: Op, sizes: Sizes) -> dict[str, int]:
    return {**sizes.symbols, "WIDTH": op.width}


@cache
def _builtin(name: str) -> Platform:
    return _read_file(_FOLDER / f"{name}.toml")


def _read_file(path: Path) -> Platform:
    where = str(path)
    with refusing(PlatformError, where=where):
        try:
            text = read_bounded(path, MAX_BYTES).decode()
        except OSError as error:
            raise PlatformError(f"cannot be read: {error.strerror}", where=where) from None
        except UnicodeDecodeError:
            raise PlatformError("is not UTF-8 text", where=where) from None
        return replace(parse_platform(text, where=where), file=str(path.resolve()))
