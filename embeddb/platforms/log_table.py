"""The `[log]` table of a platform file: the columns, units and statuses of its run logs."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from embeddb.core.config import Op
from embeddb.core.errors import UsageError
from embeddb.core.kinds import operation_of
from embeddb.core.records import CYCLES_PER_S, STATUSES
from embeddb.platforms.kernel import Table
from embeddb.platforms.space.rules import join, show

#: Units that times of a log may have; cycles become seconds by the platform's clock.
LOG_UNITS = ("s", "ms", "us", "ns", "cycles")
_MOST_ENTRIES = 256
_MOST_TEXT = 200


@dataclass(frozen=True, slots=True)
class LogTable:
    """Defaults and names for reading a platform's run logs.

    `columns` map roles (`indexer.readers.base.columns.ROLES`, `config.NAME`) to column names, for
    logs that have such a column; `unit` is the unit of times without one; `statuses` map the log's
    words, in lower case, to ours; `op` is the operation of logs that do not name it, `op_name` its
    name alone where a column has its number of dense columns; `instance` is a device's label, or
    `this` for logs of the platform's own command. `clock_ghz` turns cycles into seconds (0: the
    file has none). With `counts_cycles` the file has none and every time is a number of cycles;
    `clock_ghz` is then that of `CYCLES_PER_S`.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    unit: str = ""
    statuses: Mapping[str, str] = field(default_factory=dict)
    op: Op | None = None
    op_name: str = ""
    instance: str = ""
    clock_ghz: float = 0.0
    counts_cycles: bool = False

    def __repr__(self) -> str:
        """Equal for equal tables: it is a key in the journal of readings."""
        names = (sorted(self.columns.items()), self.unit, sorted(self.statuses.items()))
        op = str(self.op or self.op_name)
        return f"LogTable{(*names, op, self.instance, self.clock_ghz)!r}"

    def here(self, names: Collection[str]) -> dict[str, str]:
        """The columns that a file has."""
        return {role: column for role, column in self.columns.items() if column in names}

    @property
    def toml(self) -> str:
        """The table as TOML, without the clock."""
        texts = {"unit": self.unit, "instance": self.instance, "op": str(self.op or self.op_name)}
        lines = ["[log]", *(f"{name} = {json.dumps(text)}" for name, text in texts.items() if text)]
        for name, entries in (("columns", self.columns), ("status", self.statuses)):
            if entries:
                lines += ["", f"[log.{name}]"]
                lines += [f"{_key(k)} = {json.dumps(v)}" for k, v in entries.items()]
        return "\n".join(lines)


def _key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else json.dumps(text)


def read_log(
    table: Table, kernels: Collection[str], traits: Mapping[str, Any], *, command_unit: str = ""
) -> LogTable:
    """Read the `[log]` table; `command_unit` is the unit of the command's times, if there is one.
    Raises: PlatformError naming file and key, also if only one of the two units is cycles and there
    is no clock."""
    cycles = table.tried(lambda: _counts_cycles(table, traits, command_unit), False)
    op, op_name = table.tried(lambda: _op(table, kernels), (None, ""))
    log = LogTable(
        columns=table.tried(lambda: _texts(table.table("columns")), MappingProxyType({})),
        unit=table.data.get("unit", ""),
        statuses=table.tried(lambda: _statuses(table), MappingProxyType({})),
        op=op,
        op_name=op_name,
        instance=table.tried(lambda: _instance(table), ""),
        clock_ghz=CYCLES_PER_S / 1e9 if cycles else clock_of(traits),
        counts_cycles=cycles,
    )
    table.done()
    return log


def _counts_cycles(table: Table, traits: Mapping[str, Any], command_unit: str) -> bool:
    """True if the unit of the log or of the command's times is cycles and there is no clock."""
    unit = table.take("unit", str, "")
    if unit and unit not in LOG_UNITS:
        raise table.fault("unit", f"{unit!r} is not one of {join(LOG_UNITS)}")
    cycles = {one == "cycles" for one in (unit, command_unit) if one}
    if True in cycles:
        refuse_bad_clock(table, traits)
    if len(cycles) > 1 and not clock_of(traits):
        units = f"{unit} here and {command_unit} in `command.time`"
        raise table.fault("unit", f"{units} need a clock: give `clock_ghz` under [traits]")
    return True in cycles and not clock_of(traits)


def _statuses(table: Table) -> Mapping[str, str]:
    statuses = _texts(table.table("status"))
    for word, status in statuses.items():
        if status not in STATUSES:
            raise table.fault(f"status.{word}", f"{status!r} is not one of {join(STATUSES)}")
    return MappingProxyType({word.lower(): status for word, status in statuses.items()})


def clock_of(traits: Mapping[str, Any]) -> float:
    """`clock_ghz` of a platform's traits; 0 without a valid one."""
    clock = traits.get("clock_ghz", 0)
    number = isinstance(clock, (int, float)) and not isinstance(clock, bool)
    return float(clock) if number and 1e-6 <= clock <= 1e6 else 0.0


def refuse_bad_clock(table: Table, traits: Mapping[str, Any]) -> None:
    """Raises: PlatformError for an invalid `clock_ghz`, which a `unit` of cycles needs."""
    if "clock_ghz" in traits and not clock_of(traits):
        clock = show(traits["clock_ghz"])
        raise table.fault(
            "unit",
            f"cycles become seconds by `clock_ghz` under [traits], and {clock} is no number above "
            "0 (in GHz, at most 1e6)",
            hint="correct it, or leave it out: times then stay cycles",
        )


def _op(table: Table, kernels: Collection[str]) -> tuple[Op | None, str]:
    """The operation and "", or None and the name alone of one with dense columns."""
    text = table.take("op", str, "")
    if not text:
        return None, ""
    if text in kernels and operation_of(text)[0].wide:
        return None, text
    try:
        op = Op.parse(text)
    except UsageError as error:
        raise table.fault("op", str(error), hint=error.hint) from None
    if op.name not in kernels:
        raise table.fault("op", f"the platform has no {op.name}: {join(kernels)}")
    return op, ""


def _instance(table: Table) -> str:
    label = table.take("instance", str, "")
    if label and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}", label):
        raise table.fault("instance", "letters, digits and . _ + - only, at most 64")
    return label


def _texts(table: Table) -> Mapping[str, str]:
    """All entries of a table of texts."""
    texts = {name: table.take(name, str) for name in list(table.data)}
    if len(texts) > _MOST_ENTRIES:
        raise table.fault(next(iter(texts)), f"{len(texts)} entries, at most {_MOST_ENTRIES}")
    for name, text in texts.items():
        if not text or max(len(text), len(name)) > _MOST_TEXT:
            raise table.fault(name[:40], f"must be a text of 1 to {_MOST_TEXT} characters")
    return MappingProxyType(texts)
