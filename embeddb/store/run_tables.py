"""Tables of runs: one of each op on each platform, by number."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from embeddb.core.config import Op
from embeddb.core.errors import PluginWarning, UsageError
from embeddb.core.kinds import is_foreign
from embeddb.core.wording import plural
from embeddb.store.codec import decode_partition
from embeddb.store.engine import Engine, Txn


@dataclass(frozen=True, slots=True)
class RunTable:
    """Key of all runs of one op on one platform; `number` is their key prefix."""

    number: int
    op: Op
    platform: str

    @property
    def prefix(self) -> bytes:
        return self.number.to_bytes(4, "big")


@dataclass(slots=True)
class RunTables:
    """Reads the tables. Those of a kind of workload whose plug-in is not here are left out, with
    one warning: a database is shared with colleagues who do not have it."""

    warned: bool = False

    def read(self, txn: Txn) -> list[RunTable]:
        """The tables with runs that are not withdrawn. Raises: StoreCorrupt."""
        rows = list(txn.scan("partition"))
        if txn.count("withdrawn"):
            rows = [row for row in rows if any(txn.scan("member", row[1]))]
        places = {int.from_bytes(raw, "big"): decode_partition(key, raw) for key, raw in rows}
        foreign = [f"{op} on {where}" for op, where in places.values() if isinstance(op, str)]
        if foreign and not self.warned:
            self.warned = True
            more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
            warnings.warn(
                f"runs of {foreign[0]}{more} are left out: no kind of workload here has that "
                "operation; EMBEDDB_PLUGINS names the folder of its plug-in",
                PluginWarning,
                stacklevel=4,
            )
        return [RunTable(n, op, where) for n, (op, where) in places.items() if isinstance(op, Op)]


def tables_with(txn: Txn, pattern: bytes) -> list[RunTable]:
    """The tables with runs of a workload, also with withdrawn ones alone. Raises: UsageError for
    one of a kind of workload whose plug-in is not here; StoreCorrupt."""
    rows = [row for row in txn.scan("partition") if any(txn.scan("run", row[1] + pattern))]
    tables = []
    for key, raw in rows:
        op, platform = decode_partition(key, raw)
        if isinstance(op, str):
            raise UsageError(
                f"pattern {pattern.hex()}: its runs of {op} on {platform} cannot be moved without "
                "the plug-in of that operation",
                hint="EMBEDDB_PLUGINS names the folder of the plug-in",
            )
        tables.append(RunTable(int.from_bytes(raw, "big"), op, platform))
    return tables


def foreign_tables(txn: Txn) -> Iterator[tuple[str, str, bytes]]:
    """Op, platform and key prefix of the tables that `RunTables` leaves out."""
    foreign = cache(is_foreign)  # one search for plug-ins for each name
    for key, prefix in txn.scan("partition"):
        op, _, platform = key.decode(errors="replace").partition("\0")
        if platform and foreign(op.partition(":")[0]):
            yield op, platform, prefix


def unchecked_runs(engine: Engine) -> list[str]:
    """A line for each table of which a check can only count the runs."""
    with engine.read() as txn:
        return [
            f"{plural(txn.count_under('run', prefix), 'run')} of {op} on {platform} cannot be "
            "checked without the plug-in of that operation"
            for op, platform, prefix in foreign_tables(txn)
        ]
