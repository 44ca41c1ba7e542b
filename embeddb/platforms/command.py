"""The `[command]` table of a platform file: the program that measures it, and the parsing of times.

Reading the table runs and opens nothing, since stored platforms may come from strangers. The runner
decides who may run the command, see docs/explanation/decisions.md.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from embeddb.core.records import CYCLES_PER_S, STATUSES
from embeddb.platforms.kernel import KernelSpace, Table
from embeddb.platforms.log_table import clock_of, refuse_bad_clock
from embeddb.platforms.machines import is_interpreter
from embeddb.platforms.space.rules import join

MATRIX_FORMATS = ("mtx", "npz", "smtx")
_STREAMS = ("stdout", "stderr", "output")
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_FIXED = ("matrix", "output", "threads", "repeats", "op.kernel", "op.width", "op.dtype")
#: Limits of the effort, which do not change the meaning of a time: no part of the instance.
_EFFORT = ("timeout_s", "retries", "max_output_bytes", "max_memory_mib")
#: Suffixes of scripts.
_SCRIPTS = (".py", ".sh", ".pl", ".rb", ".js", ".jl", ".lua", ".R", ".tcl")
_MAX_ARGUMENTS = 256
_MAX_TEXT = 4096
_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of the command: literal texts, and placeholders as (name, default or None)."""

    parts: tuple[str | tuple[str, str | None], ...]

    @property
    def names(self) -> set[str]:
        return {part[0] for part in self.parts if not isinstance(part, str)}

    @property
    def literal(self) -> str | None:
        """The text of an argument without placeholders, else None."""
        return "".join(map(str, self.parts)) if not self.names else None

    def expand(self, values: Mapping[str, str]) -> str:
        """The argument with values in place of placeholders; values are not expanded again.
        Raises: KeyError for a placeholder that has neither value nor default."""
        return "".join(p if isinstance(p, str) else _value(p, values) for p in self.parts)


def _value(placeholder: tuple[str, str | None], values: Mapping[str, str]) -> str:
    name, default = placeholder
    return values[name] if default is None or name in values else default


@dataclass(frozen=True, slots=True)
class TimeSpec:
    """Place of the times: in `stream`, matched by `regex` (one group) or at `path` of a JSON
    document. One `unit` is `unit_s` seconds; `clock_ghz` is 0 unless it defines `unit_s`."""

    stream: str
    regex: re.Pattern[str] | None
    path: tuple[str, ...]
    unit: str
    unit_s: float
    clock_ghz: float


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A checked `[command]` table.

    `exits` maps exit codes to statuses, `statuses` are (status, regex) in declared order.
    `timeout_s` 0 means the limit of the caller, `max_memory_mib` 0 no limit. `digest` is blake2b-64
    hex of everything that a time depends on.
    """

    run: tuple[Argument, ...]
    version: tuple[str, ...]
    matrix: str
    values: str
    time: TimeSpec
    exits: Mapping[int, str]
    statuses: tuple[tuple[str, re.Pattern[str]], ...]
    env: tuple[str, ...]
    timeout_s: float
    retries: int
    max_output_bytes: int
    max_memory_mib: int
    digest: str

    @property
    def names(self) -> set[str]:
        """The placeholders in the command."""
        return set().union(*(argument.names for argument in self.run))


def missing_program(spec: CommandSpec, folder: Path) -> str:
    """The key and the name of a program, or of the script of an interpreter, that is not here; ""
    if all are. A path with a / and a script are looked for beside the platform file; a name that
    is neither may be a module, a class or a program, which only the interpreter can find."""
    for key, program in (("run", spec.run[0].literal), ("version", (*spec.version, "")[0])):
        if program and program_path(program, folder) is None:
            return f"{key}[0]: no program {program!r} that can be run"
    interpreter, script, *_ = (*(argument.literal or "" for argument in spec.run), "")
    name, suffix = PurePath(interpreter).name, PurePath(script).suffix
    runs = is_interpreter(name) and not name.startswith(("env", "java"))
    file = not script.startswith("-") and ("/" in script or suffix in _SCRIPTS)
    if runs and file and not Path(folder, script).exists():
        return f"run[1]: no file {script!r} beside the platform file"
    return ""


def program_path(name: str, folder: Path) -> str | None:
    """The path of a program: beside the platform file if its name has a /, else on the PATH."""
    return shutil.which(str(folder / name) if "/" in name else name)


def read_command(
    table: Table, kernels: Mapping[str, KernelSpace], traits: Mapping[str, Any]
) -> CommandSpec:
    """Read the table and collect its faults. Raises: PlatformError, the last of them, naming file
    and key."""
    before, tried = len(table.faults), table.tried
    run = tried(lambda: _read_run(table, kernels), ())
    used: set[str] = set().union(*(argument.names for argument in run))
    nowhere = TimeSpec("", None, (), "", 0.0, 0.0)
    spec = CommandSpec(
        run=run,
        version=tried(lambda: _read_version(table), ()),
        matrix=tried(lambda: _one_of(table, "matrix", MATRIX_FORMATS, "mtx"), ""),
        values=tried(lambda: _one_of(table, "values", ("ones", "random"), "ones"), ""),
        time=tried(lambda: _read_time(table.table("time", required=True), traits), nowhere),
        exits=tried(lambda: _read_exits(table.table("exit")), {}),
        statuses=tried(lambda: _read_statuses(table.table("status")), ()),
        env=tried(lambda: _read_variables(table), ()),
        timeout_s=tried(lambda: _number(table, "timeout_s", 0.0, 604_800), 0.0),
        retries=tried(lambda: _whole(table, "retries", 0, (0, 10)), 0),
        max_output_bytes=tried(lambda: _whole(table, "max_output_bytes", 1 << 20, (1, 1 << 26)), 1),
        max_memory_mib=tried(lambda: _whole(table, "max_memory_mib", 0, (0, 1 << 30)), 0),
        digest=_digest(table.data),
    )
    tried(table.done, None)
    if run and spec.time.stream == "output" and "output" not in used:
        what = "is the output file, but `run` has no {output}"
        table.faults.append(table.fault("time.from", what))
    if len(table.faults) > before:
        raise table.faults.pop()
    return spec


def read_unit(table: Table, traits: Mapping[str, Any]) -> str:
    """The unit of the times, where another part of the table cannot be read. Raises: PlatformError
    naming file and key."""
    return _read_time(table.table("time", required=True), traits).unit


def _read_version(table: Table) -> tuple[str, ...]:
    version = table.texts("version")
    for at, text in enumerate(version):
        _check_text(table, f"version[{at}]", text)
    return tuple(version)


def _read_run(table: Table, kernels: Mapping[str, KernelSpace]) -> tuple[Argument, ...]:
    texts = table.texts("run")
    if not texts:
        raise table.fault("run", "must list the program and its arguments")
    if len(texts) > _MAX_ARGUMENTS:
        raise table.fault("run", f"{len(texts)} arguments, at most {_MAX_ARGUMENTS} are allowed")
    required, params = _parameters(kernels)
    before = len(table.faults)
    run = tuple(
        table.tried(partial(_argument, table, f"run[{i}]", text, required, params), Argument(()))
        for i, text in enumerate(texts)
    )
    if len(table.faults) > before:
        raise table.faults.pop()  # the checks below need all arguments
    if not run[0].literal:
        raise table.fault("run[0]", "is the program: a name or a path, without placeholders")
    used = set().union(*(argument.names for argument in run))
    if "matrix" not in used:
        raise table.fault("run", "has no {matrix}: the program would not see the matrix")
    unseen = [
        table.fault(
            "run",
            f"has no {{config.{name}}}: the program would not see that parameter",
            hint="pass it on, or take it out of the space",
        )
        for name in sorted(params)
        if f"config.{name}" not in used
    ]
    if unseen:
        table.faults += unseen[:-1]
        raise unseen[-1]
    return run


def _parameters(kernels: Mapping[str, KernelSpace]) -> tuple[set[str], set[str]]:
    """Parameters that every configuration of every kernel has, and all parameters."""
    required = [{p.name for p in k.space.params if not p.when} for k in kernels.values()]
    params = {p.name for k in kernels.values() for p in k.space.params}
    return set.intersection(*required), params


def _argument(
    table: Table, key: str, text: str, required: Collection[str], params: Collection[str]
) -> Argument:
    _check_text(table, key, text)
    parts: list[str | tuple[str, str | None]] = []
    end = 0
    for token in _TOKEN.finditer(text):
        parts.append(text[end : token.start()])
        end = token.end()
        if token[0] in ("{{", "}}"):
            parts.append(token[0][0])
        elif token[1] is None:
            raise table.fault(key, f"a lone {token[0]}", hint="write {{ or }} for a brace")
        else:
            parts.append(_placeholder(table, key, token[1], required, params))
    parts.append(text[end:])
    return Argument(tuple(part for part in parts if part))


def _placeholder(
    table: Table, key: str, text: str, required: Collection[str], params: Collection[str]
) -> tuple[str, str | None]:
    name, has_default, default = text.partition(":-")
    group, _, param = name.partition(".")
    if group == "config" and param in params:
        if not has_default and param not in required:
            raise table.fault(
                key,
                f"parameter {param!r} is not part of every configuration",
                hint=f"say what stands for its absence: {{{name}:-0}}",
            )
        return name, default if has_default else None
    if name not in _FIXED:
        raise table.fault(
            key,
            f"unknown placeholder {{{name}}}",
            hint=f"there are {join(_FIXED)} and config.NAME for {join(sorted(params))}",
        )
    if has_default:
        raise table.fault(key, f"{{{name}}} is always known and takes no default")
    return name, None


def _read_time(table: Table, traits: Mapping[str, Any]) -> TimeSpec:
    pattern, field = table.take("regex", str, ""), table.take("json", str, "")
    stream = _one_of(table, "from", _STREAMS, "stdout")
    unit = _one_of(table, "unit", (*_SECONDS, "cycles"), None)
    table.done()
    if bool(pattern) == bool(field):
        raise table.fault("regex", "a time is read by `regex` or by `json`, by one of the two")
    regex = _regex(table, "regex", pattern) if pattern else None
    if regex is not None and regex.groups != 1:
        raise table.fault(
            "regex",
            f"has {regex.groups} groups; it needs exactly one, around the number",
            hint="write (?:...) for the others",
        )
    path = tuple(field.split(".")) if field else ()
    if not all(path):
        raise table.fault("json", f"{field!r} is no path such as stats.cycles")
    if unit != "cycles":
        return TimeSpec(stream, regex, path, unit, _SECONDS[unit], 0.0)
    refuse_bad_clock(table, traits)
    clock = clock_of(traits)
    return TimeSpec(stream, regex, path, unit, 1e-9 / clock if clock else 1 / CYCLES_PER_S, clock)


def _read_exits(table: Table) -> dict[int, str]:
    exits = {0: "ok"}
    for code in list(table.data):
        if not re.fullmatch(r"\d{1,3}", code, re.ASCII) or int(code) > 255:
            raise table.fault(code, "is no exit code: 0 to 255")
        exits[int(code)] = _one_of(table, code, STATUSES, None)
    return exits


def _read_statuses(table: Table) -> tuple[tuple[str, re.Pattern[str]], ...]:
    patterns = []
    for status in list(table.data):
        if status not in STATUSES or status == "ok":
            raise table.fault(status, f"is no failure: {join(STATUSES[1:])}")
        patterns.append((status, _regex(table, status, table.take(status, str))))
    return tuple(patterns)


def _read_variables(table: Table) -> tuple[str, ...]:
    names = table.texts("env")
    for at, name in enumerate(names):
        if not _VARIABLE.fullmatch(name):
            raise table.fault(f"env[{at}]", f"{name!r} is no name of an environment variable")
    return tuple(names)


def _regex(table: Table, key: str, text: str) -> re.Pattern[str]:
    _check_text(table, key, text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return re.compile(text, re.MULTILINE)
    except (re.error, Warning, RecursionError, OverflowError) as error:
        raise table.fault(key, f"not a regular expression: {error}") from None


def _check_text(table: Table, key: str, text: str) -> None:
    if "\0" in text or len(text) > _MAX_TEXT:
        raise table.fault(key, f"must have at most {_MAX_TEXT} characters and no NUL")


def _one_of(table: Table, key: str, allowed: Collection[str], default: str | None) -> str:
    value = table.take(key, str, default)
    if value not in allowed:
        raise table.fault(key, f"{value!r} is not one of {join(allowed)}")
    return value


def _number(table: Table, key: str, default: float, most: float) -> float:
    value = table.take(key, float, default)
    if key in table.data and not 0 < value <= most:
        raise table.fault(key, f"must be more than 0 and at most {most:g}")
    return value


def _whole(table: Table, key: str, default: int, limits: tuple[int, int]) -> int:
    value = table.take(key, float, float(default))
    low, high = limits
    if not (low <= value <= high and value.is_integer()):
        raise table.fault(key, f"must be a whole number, {low} to {high}")
    return int(value)


def _digest(data: Mapping[str, Any]) -> str:
    """blake2b-64 hex of all that a time depends on; an interpreter counts by name, not by path."""
    meant = {key: value for key, value in data.items() if key not in _EFFORT}
    program, *arguments = data.get("run") or [""]
    if isinstance(program, str) and is_interpreter(PurePath(program).name):
        meant["run"] = [PurePath(program).name, *arguments]
    canonical = json.dumps(meant, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.blake2b(canonical.encode(), digest_size=8).hexdigest()
