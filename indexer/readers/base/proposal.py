"""Proposed meanings of a log's columns, from their names and values, for the caller to accept.
Readers themselves guess nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from embeddb.core.errors import ReaderError
from embeddb.core.kinds import operation_of
from embeddb.core.wording import plural
from embeddb.platforms.log_table import LogTable
from embeddb.platforms.platform import Platform
from embeddb.platforms.space.rules import Param
from indexer.readers.base.column_values import (
    MOSTLY,
    Column,
    fits,
    has_durations,
    head_records,
    is_count,
    is_flag,
    is_ok,
    is_rate,
    is_status,
    is_status_column,
    likeness,
    may_be_choice,
    numbers_repeats,
    sentinels,
    statuses_meant,
    time_candidates,
    unit_in,
)
from indexer.readers.base.columns import MATRIX_WORDS, assigned, folded, words_of
from indexer.readers.base.row import ReadOptions
from indexer.readers.base.units import in_cells

#: Similarity above which names match, if the values fit too.
_ALIKE = 0.75
_GROUP_WORDS = {"family", "suite", "collection", "domain"}
_NNZ_WORDS = {"nonzeros", "nonzeroes", "nnzs"}
#: Names of the sizes of a matrix where a log has both.
_SIDES = (("nrows", "ncols"), ("n_rows", "n_cols"), ("nr", "nc"))
#: Words behind which a name is one of a matrix (`user_attrs_matrix`), and not of a fact of it.
_LAST = {"matrix", "mtx", "name", "file", "path", "id"}
#: Roles that tell runs apart, beside the configuration.
_IDENTITY = ("matrix", "m", "n", "nnz", "op", "kernel", "width", "dtype", "instance", "platform")
#: Roles that a log can be read without: no line in `open`.
_OPTIONAL = ("group", "nnz", "m", "n")
_MOST_NAMED = 3
#: Characters of the columns that a message lists.
_MOST_LISTED = 200
#: Share of the rows that may have an unknown word: logs have broken rows.
_STRAY = 0.05


@dataclass(frozen=True, slots=True)
class Guess:
    """A column or a word of the log, its proposed meaning, and the reason."""

    what: str
    taken_for: str
    why: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposed way to read a log: `log` is the platform's table with the guesses in it, `unused`
    the columns without a meaning, `varying` those of them that differ between runs of one matrix
    and configuration and number no repeats, `open` one line for each fact that the log lacks;
    without those of `lacking` no row can be read."""

    log: LogTable
    guesses: tuple[Guess, ...]
    unused: tuple[str, ...]
    open: tuple[str, ...]
    lacking: tuple[str, ...] = ()
    varying: tuple[str, ...] = ()

    @property
    def needed(self) -> bool:
        """True if the log cannot be read without one of the guesses."""
        return any(guess.taken_for not in _OPTIONAL for guess in self.guesses)


def propose(path: Path, reader: str, platform: Platform, options: ReadOptions) -> Proposal | None:
    """Propose meanings for a log's columns and words where names alone do not decide; None where
    nothing is missing and each column is used, or the format has fixed columns. `options` are
    completed: with the platform's parameters and its `[log]` table.

    Raises: ReaderError if the file cannot be read, the caller's own map is wrong, or two columns
    may have one role.
    """
    if reader not in ("csv", "jsonl") or path.is_dir():
        return None
    records = head_records(path, reader)
    cells = Column.all(record for _, record in records)
    names = [name for name in cells if name != "config"]
    try:
        roles, stated, config = assigned(names, options)
    except ReaderError as error:
        raise ReaderError(error.reason, where=error.where or str(path), hint=error.hint) from None
    job = _Guessing(records, cells, platform, options, roles, config)
    job.parameters()
    job.roles_by_name()
    job.time(stated)
    job.statuses()
    unused = tuple(n for n in names if n not in {*job.roles.values(), *job.config.values()})
    if job.open or any(guess.taken_for not in _OPTIONAL for guess in job.guesses):
        job.made_by_command()
        job.operation()
    elif not (unused or job.guesses):
        return None
    return Proposal(
        job.table(),
        tuple(job.guesses),
        unused,
        tuple(job.open),
        tuple(job.lacking),
        tuple(job.varying(unused)),
    )


@dataclass(slots=True)
class _Guessing:
    """Builder of a proposal: `records` have their lines, `roles` and `config` are the columns
    assigned so far, by role and parameter."""

    records: Sequence[tuple[int, Mapping[str, Any]]]
    cells: Mapping[str, Column]
    platform: Platform
    options: ReadOptions
    roles: dict[str, str]
    config: dict[str, str]
    guesses: list[Guess] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    _columns: dict[str, str] = field(default_factory=dict)
    _words: dict[str, str] = field(default_factory=dict)
    _unit: str = ""
    _instance: str = ""

    @property
    def log(self) -> LogTable:
        return self.options.log

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
        """Assign columns to the parameters that have none, the most similar first."""
        params = {} if "config" in self.cells else _params(self.platform, self.options)
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
        if "matrix" not in self.roles and not self.options.matrix:
            self._matrix()
        if "status" not in self.roles:
            able = [c for c in self._free() if is_status_column(c, self.cells[c])]
            if len(able) == 1:
                self._take("status", able[0], "its name")
            elif able:
                both = " and ".join(map(repr, able[:_MOST_NAMED]))
                self._lacks(f"columns {both} may be the status: --map status={able[0]}")
        self._refuse_failures()
        for role, words in (("group", _GROUP_WORDS), ("nnz", _NNZ_WORDS)):
            able = [c for c in self._free() if words & set(words_of(c))]
            if role not in self.roles and len(able) == 1:
                self._take(role, able[0], "its name")
        if not {"m", "n"} & {*self.roles}:
            self._sizes()

    def _sizes(self) -> None:
        """Take two columns for the sizes of the matrix. M and N are no others without dense
        columns, or where K has their number."""
        ran, free = self.options.ran, {*self._free()}
        plain = {folded(name): name for name in free}
        for sides in _SIDES:
            if {*sides} <= plain.keys():
                for role, side in zip(("m", "n"), sides, strict=True):
                    self._take(role, plain[side], "its name")
                return
        if not {"M", "N"} <= free or "K" in free:
            return
        why = "the dense columns are K" if self.roles.get("width") == "K" else ""
        if ran is not None and ran.workload.sparse and not ran.traits.wide:
            why = f"{ran.name} has no dense columns"
        for role in ("m", "n") if why else ():
            if self.cells[role.upper()].part(str.isdecimal) >= MOSTLY:
                self._take(role, role.upper(), why)

    def _refuse_failures(self) -> None:
        """Report runs that the status column calls good and another column calls failed."""
        if "status" not in self.roles or "status" in self.options.columns:
            return
        column = self.roles["status"]
        for other in self._free():
            if not is_flag(other, self.cells[other]):
                continue
            meant = statuses_meant(self.cells[other].values, other, ())
            for _, record in self.records:
                failed = meant.get(str(record.get(other)).strip(), "ok") != "ok"
                if failed and is_ok(str(record.get(column) or ""), self.log.statuses):
                    self._lacks(
                        f"a run is {record.get(column)} by {column!r} and {record.get(other)} by "
                        f"{other!r}: --map status={other}, or --map status={column}"
                    )
                    return

    def _matrix(self) -> None:
        """Assign the column of the matrices; a name that ends in such a word takes precedence."""
        able = [c for c in self._free() if MATRIX_WORDS & set(words_of(c))]
        able = [c for c in able if set(words_of(c)[-1:]) & (MATRIX_WORDS | _LAST)]
        best = [c for c in able if {"matrix", "mtx"} & set(words_of(c))] or able
        if len(best) == 1:
            self._take("matrix", best[0], "its name")
        elif best:
            both = " and ".join(map(repr, best[:_MOST_NAMED]))
            self._lacks(f"columns {both} may be the matrix: --map matrix={best[0]}")
        else:
            names = ", ".join(self._free())[:_MOST_LISTED]
            how = f"--map matrix=COLUMN, one of {names}" if names else "add one, or give --matrix"
            self._lacks(f"no column names the matrix: {how}")

    def time(self, stated: Mapping[str, str]) -> None:
        """Assign the column of the times, and their unit."""
        if "time" not in self.roles and "times" not in self.roles:
            able, not_times = time_candidates(self._free(), self.cells)
            if len(able) != 1:
                self._lacks(self._no_time(list(able), not_times))
                return
            ((best, unit),) = able.items()
            counts = [c for c in self._free() if is_count(c, self.cells[c])]
            if counts and {"total", "sum"} & set(words_of(best)):
                self._lacks(f"{best!r} may be of all {counts[0]!r} together: --map time={best}")
                return
            shown = unit or self.options.unit or self.log.unit or "numbers"
            self._take(
                f"time_{unit}" if unit else "time", best, f"its name, and its values are {shown}"
            )
            stated = {"time": unit}
        else:
            self._refuse_doubt()
        self._sentinels()
        role = "time" if "time" in self.roles else "times"
        column = self.roles[role]
        unit = stated.get(role) or self.options.unit or self.log.unit
        if not unit and ("unit" in self.roles or in_cells(self.cells[column].values)):
            return
        if not unit:
            unit = unit_in(column)
            if not unit:
                self._lacks(f"the unit of {column} is not stated: --unit s, ms, us, ns or cycles")
                return
            self._unit = unit
            self.guesses.append(Guess(column, f"unit {unit}", "its name"))
        if unit == "cycles" and not self.log.clock_ghz:
            self._lacks("cycles need a clock: give `clock_ghz` under [traits]")

    def _no_time(self, names: Sequence[str], not_times: Mapping[str, str]) -> str:
        """Reason why no column is taken for the time, and the candidates."""
        if names:
            both = " and ".join(map(repr, names[:_MOST_NAMED]))
            return f"columns {both} may be the time: --map time={names[0]}"
        numbers = [c for c in self._free() if self._measured(c) and c not in not_times]
        numbers = [c for c in numbers if not numbers_repeats(c)]
        numbers.sort(key=lambda c: self.cells[c].part(str.isdecimal) >= MOSTLY)  # sizes last
        unit = self.options.unit or self.log.unit or "s"
        unused = f"; unused: {', '.join(numbers[:_MOST_NAMED])}" if numbers else ""
        hint = f"--map time={numbers[0]} --unit {unit}?" if numbers else "--map time_ms=COLUMN"
        if len(numbers) > 1:
            hint += " If each is of one configuration, give each a row"
        rising = [name for name, why in not_times.items() if "rises" in why]
        if rising and not numbers:
            hint = f"--map time={rising[0]} if that is the time"
        if rates := [name for name, why in not_times.items() if "rate" in why]:
            hint = f"add a column with the times that {rates[0]} is computed from"
        others = [f"{name} is {why}" for name, why in not_times.items()]
        return "; ".join((f"no column is the time{unused}: {hint}", *others[:_MOST_NAMED]))

    def _measured(self, column: str) -> bool:
        """True if a column has numbers that differ, and not from row to row by one."""
        cells = self.cells[column]
        return bool(time_candidates(["time"], {"time": cells})[0]) and len(cells.values) > 2

    def _refuse_doubt(self) -> None:
        """Report a time column beside which another may be the time, or that may be a clock or a
        date, if there are others."""
        column = self.roles.get("time")
        if column is not None and is_rate(column):
            self.open.append(f"{column!r} is a rate by its name, and is read as a time")
        mapped = {role.partition("_")[0] for role in (*self.options.columns, *self.log.columns)}
        if column is None or {"time", "times"} & mapped:
            return
        if rivals := list(time_candidates(self._free(), self.cells)[0]):
            self._lacks(self._no_time([column, *rivals], {}))
            return
        others = [c for c in self._free() if self._measured(c)]
        if not others:
            return
        choice = f"--map time={others[0]}, or --map time={column} if that is the time"
        if self.cells[column].only_rises:
            self._lacks(f"{column!r} rises from row to row, as a clock does: {choice}")
        elif not has_durations(self.cells[column]):
            self._lacks(f"{column!r} has no times: {choice}")

    def _sentinels(self) -> None:
        """Propose a status for cells in place of a time, where no column has the status of a
        run."""
        if {"status", "error"} & self.roles.keys():
            return
        name = self.roles.get("time") or self.roles["times"]
        column = self.cells[name]
        for text, means in sentinels(column).items():
            if text in self.log.statuses:
                continue
            count = sum(n for cell, n in column.values.items() if cell.lower() == text)
            count = column.empty if text == "empty" else count
            rows = f"{text} ({plural(count, 'row')})"
            if means:
                self._words[text] = means
                self.guesses.append(Guess(rows, f"status {means}", "it is no time"))
            else:
                self._lacks(
                    f"{rows}, line {self._line(name, text)}, may be a failure or too short a time: "
                    f'"{text}" = "crash" in [log.status] of the platform file marks a failure'
                )

    def statuses(self) -> None:
        """Propose meanings of unknown status words."""
        column = self.roles.get("status")
        if column is None:
            return
        words = self.cells[column].values
        new = [word for word in words if not is_status(word, self.log.statuses)]
        time = self.roles.get("time", self.roles.get("times"))
        if words and is_flag(column, self.cells[column]):  # what is true may be `failed`
            new = [word for word in words if word.strip().lower() not in self.log.statuses]
        rows = [(r.get(column), None if time is None else r.get(time)) for _, r in self.records]
        meant = statuses_meant(new, column, rows)
        for word in new:
            shown = f"{word} ({plural(words[word], 'row')})"
            if meant[word]:
                self._words[word.strip().lower()] = meant[word]
                self.guesses.append(Guess(shown, f"status {meant[word]}", "the word"))
            else:
                rows_of = f"{plural(words[word], 'row')}, line {self._line(column, word)},"
                line = f"status {word!r} of {rows_of} is unknown: map it in [log.status]"
                few = words[word] <= _STRAY * sum(words.values())
                (self.open.append if few else self._lacks)(line)

    def _line(self, column: str, text: str) -> int:
        """The first line with a text in a column."""
        cells = ((line, str(record.get(column)).strip()) for line, record in self.records)
        return next((line for line, cell in cells if cell.lower() == text.lower()), 0)

    def made_by_command(self) -> None:
        """File the rows under this machine: a simulator's times are the same wherever it runs, so
        log and command are one source."""
        platform, stated = self.platform, self.options.instance or self.log.instance
        simulated = platform.command is not None and platform.simulated and platform.file
        if simulated and not ("instance" in self.roles or stated or platform.instance):
            self._instance = "this"
            why = "the platform is simulated, and its file has the command"
            self.guesses.append(Guess("all rows", "measured by the platform's command", why))

    def operation(self) -> None:
        if {"op", "kernel"} & self.roles.keys() or self.options.ran is not None:
            return
        beside, name = "width" in self.roles, self.options.op_name
        if name and not beside:
            how = f"--op {name}:WIDTH, or --map width=COLUMN"
            self._lacks(f"no column has the number of dense columns of {name}: {how}")
        elif not name:
            texts = [operation_of(name)[0].example("WIDTH") for name in self.platform.ops]
            each = [f"--op {text.partition(':')[0] if beside else text}" for text in texts]
            self._lacks(f"the operation is not stated: {' or '.join(each)}")

    def varying(self, unused: Sequence[str]) -> list[str]:
        """The unused columns that may be a choice or a machine, and that differ between runs of
        one matrix, operation and configuration."""
        keys = ("config", *self.config.values(), *(self.roles.get(role, "") for role in _IDENTITY))
        able = [c for c in unused if may_be_choice(c, self.cells[c])]
        first: dict[tuple[str, str], Any] = {}
        differ: set[str] = set()
        for _, record in self.records if able else ():
            key = repr([record.get(name) for name in keys])
            for column in able:
                cell = record.get(column, "")
                if cell in ("", None) and len(self.cells[column].values) > 1:
                    continue  # beside a single value, an empty cell is the other one
                cell = "" if cell is None else cell
                if first.setdefault((key, column), cell) != cell:
                    differ.add(column)
        return [column for column in able if column in differ]

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

    def _lacks(self, line: str) -> None:
        self.open.append(line)
        self.lacking.append(line)


def _params(platform: Platform, options: ReadOptions) -> dict[str, Param]:
    """Parameters of the kernel that ran, or of all kernels if the operation is unknown."""
    ran = options.ran
    kernels = [ran.name] if ran is not None and ran.name in platform.ops else platform.ops
    return {p.name: p for kernel in kernels for p in platform.kernel(kernel).space.params}
