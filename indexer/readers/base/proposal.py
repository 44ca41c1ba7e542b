"""What the columns of a stranger's log may mean: proposed from their names and values, for the
caller to accept. Readers themselves guess nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from embeddb.core.config import WIDE
from embeddb.platforms.log_table import LogTable
from embeddb.platforms.platform import Platform
from embeddb.platforms.space.rules import Param
from indexer.readers.base.column_values import (
    MOSTLY,
    UNIT_WORDS,
    columns_of,
    fits,
    is_duration,
    is_status,
    likeness,
    part_of,
    status_meant,
    unit_in,
    words_of,
)
from indexer.readers.base.columns import assigned
from indexer.readers.base.row import ReadOptions

__all__ = ["Guess", "Proposal", "propose"]

#: Names alike by this much are taken for the same, if the values fit too.
_ALIKE = 0.75
_TIME_WORDS = {"time", "runtime", "elapsed", "duration", "latency", "wall", "exec", "kernel"}
_ROLES = {
    "matrix": {"mtx", "file", "filename", "path", "input", "dataset", "graph", "workload"},
    "group": {"family", "suite", "collection", "domain"},
    "status": {"result", "state", "outcome", "verdict", "success", "ok"},
    "nnz": {"nonzeros", "nonzeroes"},
}
#: What a log can be read without: no reason to ask.
_OPTIONAL = ("group", "nnz")


@dataclass(frozen=True, slots=True)
class Guess:
    """A column or a word of the log, what it is taken for, and why."""

    what: str
    taken_for: str
    why: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """How a log may be read: `log` is the platform's table with the guesses in it, `unused` the
    columns that mean nothing, `open` one line for each thing that nothing in the log tells."""

    log: LogTable
    guesses: tuple[Guess, ...]
    unused: tuple[str, ...]
    open: tuple[str, ...]


def propose(path: Path, reader: str, platform: Platform, options: ReadOptions) -> Proposal | None:
    """What to take a log's columns and words for, where names alone do not say; None where nothing
    is missing, or the format has no columns of its own choice. `options` are completed: with the
    platform's parameters and its `[log]` table.

    Raises: ReaderError if the file cannot be read, or the caller's own map is wrong.
    """
    if reader not in ("csv", "jsonl") or path.is_dir():
        return None
    cells = columns_of(path, reader)
    names = [name for name in cells if name != "config"]
    roles, stated, config = assigned(names, options)
    job = _Guessing(cells, platform, options, roles, config, nested="config" in cells)
    job.parameters()
    job.roles_by_name()
    job.time(stated)
    job.statuses()
    if not job.open and all(guess.taken_for in _OPTIONAL for guess in job.guesses):
        return None
    job.made_by_command()
    job.operation()
    unused = [n for n in names if n not in {*job.roles.values(), *job.config.values()}]
    return Proposal(job.table(), tuple(job.guesses), tuple(unused), tuple(job.open))


class _Guessing:
    """A log on its way to a proposal: `roles` and `config` are its columns by role and parameter,
    as they are known."""

    def __init__(
        self,
        cells: Mapping[str, Mapping[str, int]],
        platform: Platform,
        options: ReadOptions,
        roles: dict[str, str],
        config: dict[str, str],
        *,
        nested: bool,
    ) -> None:
        self.cells, self.platform, self.options = cells, platform, options
        self.roles, self.config, self.nested = roles, config, nested
        self.log = options.log
        self.guesses: list[Guess] = []
        self.open: list[str] = []
        self._columns: dict[str, str] = {}
        self._words: dict[str, str] = {}
        self._unit = self._instance = ""

    def table(self) -> LogTable:
        log = self.log
        return replace(
            log,
            columns={**log.columns, **self._columns},
            statuses={**log.statuses, **self._words},
            unit=self._unit or log.unit,
            instance=self._instance or log.instance,
        )

    def parameters(self) -> None:
        """Columns for the parameters that have none, the most alike first."""
        params = {} if self.nested else _params(self.platform, self.options)
        lost = {n: p for n, p in params.items() if n not in self.config}
        pairs = sorted(
            (
                (likeness(name, column), name, column)
                for name, param in lost.items()
                for column in self._free()
                if fits(param, self.cells[column])
            ),
            key=lambda pair: (-pair[0], pair[1:]),
        )
        for alike, name, column in pairs:
            if alike >= _ALIKE and name not in self.config and column in self._free():
                why = "the same name" if alike > 2 else "a similar name, and its values fit"
                self._take(f"config.{name}", column, why)
        for name, param in lost.items():
            able = [c for c in self._free() if fits(param, self.cells[c])]
            if name not in self.config and param.kind == "choice" and len(able) == 1:
                self._take(f"config.{name}", able[0], "its values are those of the parameter")
        gone = [n for n, p in lost.items() if n not in self.config and not p.when]
        if gone:
            self.open.append(f"no column for {', '.join(gone)}: --map config.{gone[0]}=COLUMN")

    def roles_by_name(self) -> None:
        for role, words in _ROLES.items():
            if role in self.roles or (role == "matrix" and self.options.matrix):
                continue
            found = next((c for c in self._free() if words & set(words_of(c))), None)
            if found is not None and (role != "status" or self._is_text(found)):
                self._take(role, found, "its name")
        if "matrix" not in self.roles and not self.options.matrix:
            self.open.append("no column names the matrix: --map matrix=COLUMN")

    def time(self, stated: Mapping[str, str]) -> None:
        """The column of the times, and their unit."""
        if "time" not in self.roles and "times" not in self.roles:
            able = {c: unit_in(c) for c in self._free() if self._is_time(c)}
            best = max(able, key=lambda c: (bool(able[c]), c.lower() in UNIT_WORDS), default=None)
            if best is None:
                self.open.append("no column holds the time: --map time_ms=COLUMN")
                return
            unit = self.options.unit or self.log.unit or able[best]
            role = f"time_{able[best]}" if able[best] else "time"
            self._take(role, best, f"its name, and its values are {unit or 'numbers'}")
            stated = {"time": able[best]}
        role = "time" if "time" in self.roles else "times"
        unit = stated.get(role) or self.options.unit or self.log.unit
        if not unit:
            unit = unit_in(self.roles[role])
            if not unit:
                said = f"the unit of {self.roles[role]} is not told"
                self.open.append(f"{said}: --unit s, ms, us, ns or cycles")
                return
            self._unit = unit
            self.guesses.append(Guess(self.roles[role], f"unit {unit}", "its name"))
        if unit == "cycles" and not self.log.clock_ghz:
            self.open.append("cycles need a clock: give `clock_ghz` under [traits]")

    def statuses(self) -> None:
        """Words for a status that are not known."""
        for word, count in self.cells.get(self.roles.get("status", ""), {}).items():
            if is_status(word, self.log.statuses):
                continue
            means = status_meant(word)
            if means:
                self._words[word.strip().lower()] = means
                self.guesses.append(Guess(f"{word} ({count} rows)", f"status {means}", "the word"))
            else:
                self.open.append(
                    f"status {word!r} of {count} rows is not known: [log.status] says what it is"
                )

    def made_by_command(self) -> None:
        """A simulator's times are the same wherever it runs: log and command are one evidence."""
        made = self.platform.command is not None and self.platform.simulated
        if made and self.platform.file and not ("instance" in self.roles or self._told_instance()):
            self._instance = "this"
            why = "the platform is simulated, and its file names the command"
            self.guesses.append(Guess("all rows", "made by the platform's command", why))

    def operation(self) -> None:
        if not {"op", "kernel"} & self.roles.keys() and self.options.ran is None:
            each = [f"--op {k}:WIDTH" if k in WIDE else f"--op {k}" for k in self.platform.ops]
            self.open.append(f"which operation ran is not told: {' or '.join(each)}")

    def _told_instance(self) -> str:
        return self.options.instance or self.log.instance or self.platform.instance

    def _free(self) -> list[str]:
        taken = {*self.roles.values(), *self.config.values(), "config"}
        return [column for column in self.cells if column not in taken]

    def _take(self, role: str, column: str, why: str) -> None:
        self._columns[role] = column
        self.guesses.append(Guess(column, role, why))
        if role.startswith("config."):
            self.config[role[7:]] = column
        else:
            self.roles[role.partition("_")[0]] = column

    def _is_text(self, column: str) -> bool:
        return part_of(self.cells[column], lambda text: not is_duration(text)) > MOSTLY

    def _is_time(self, column: str) -> bool:
        words = set(words_of(column))
        named = words & _TIME_WORDS or unit_in(column)
        return bool(named) and part_of(self.cells[column], is_duration) > MOSTLY


def _params(platform: Platform, options: ReadOptions) -> dict[str, Param]:
    """Those of the kernel that ran, or of all where that is not told."""
    ran = options.ran
    kernels = [ran.kernel] if ran is not None and ran.kernel in platform.ops else platform.ops
    return {p.name: p for kernel in kernels for p in platform.kernel(kernel).space.params}
