"""Copy a whole database to another folder or server, row by row.

Until the last row and model file are there, the target is marked as an unfinished copy, and only
another `copy_database` opens it. That one compares every row and writes missing and different ones,
so a copy continues wherever it was interrupted, also if the source was written to meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from embeddb.core.errors import StoreError
from embeddb.core.files.model_file import MAX_BYTES, digest
from embeddb.core.files.safe_write import OwnFolder
from embeddb.core.reports import Progress, Report, ignore_progress
from embeddb.store import is_database, open_engine
from embeddb.store.engine import COPYING, TABLES, Engine, Txn, refuse_other_schema
from embeddb.store.failures import translating
from embeddb.store.model_files import MODELS, MOST_SHARED, NOTE
from embeddb.store.store import Store

Row = tuple[bytes, bytes]

#: Approximate number of rows, and of bytes, in one transaction.
_MOST_ROWS = 10_000
_MOST_BYTES = 8 << 20
#: Prefixes of notes of files beside a database, which are rebuilt or copied with the models.
_LEFT = (b"partition/", b"atlas/", b"policy/", NOTE.encode())


@dataclass(slots=True)
class CopyReport(Report):
    """Result of a copy: `rows` by table, now in both places; rows `written` by this call; rows
    `removed` because the source no longer has them since an interrupted copy; model files."""

    source: str
    database: str
    rows: dict[str, int] = field(default_factory=dict)
    written: int = 0
    removed: int = 0
    models: int = 0
    continued: bool = False
    seconds: float = 0.0


def copy_database(source: Store, place: str, *, progress: Progress | None = None) -> CopyReport:
    """Make `place` a copy of an open database, of its state when the copy begins. Raises:
    StoreError where something exists already; an interrupted copy of the same source is continued.
    StoreCorrupt for a damaged source; StoreReadOnly, StoreFull, StoreLocked as every write."""
    started = time.monotonic()
    source.refuse_damage()
    there = is_database(place)
    target = open_engine(place, create=not there)
    try:
        report = CopyReport(source.place, target.place, continued=_begun(source, target))
        with source.engine.read() as txn:
            _copy(txn, target, report, progress or ignore_progress)
            report.models = _copy_models(source, txn, target)
            _finish(txn, target)
    finally:
        target.close()
    report.seconds = time.monotonic() - started
    return report


def _begun(source: Store, target: Engine) -> bool:
    """Mark the target as unfinished; return true if an earlier copy of the same source had marked
    it. Raises: StoreError for a target that is a database of its own."""
    name = os.fsencode(source.place)
    with target.read() as txn:
        refuse_other_schema(txn.get("meta", b"schema"), target.place)
        mark = txn.get("meta", COPYING)
        if mark is not None and mark != name:
            raise StoreError(
                f"{target.place}: a copy of {mark.decode(errors='replace')} was begun there",
                hint="continue that copy, or choose another place",
            )
        if mark is None and any(txn.count(table) for table in TABLES if table != "meta"):
            raise StoreError(
                f"{target.place}: a database is there already",
                hint="`embeddb db push` adds runs to a database, `db copy` makes a new one",
            )
    if mark is None:
        target.write(lambda txn: txn.put("meta", COPYING, name))
    return mark is not None


def _copy(source: Txn, target: Engine, report: CopyReport, progress: Progress) -> None:
    """Copy the tables of one snapshot of a source, but `meta`, into a target."""
    total, done = sum(source.count(table) for table in TABLES), 0
    for table in TABLES:
        if table == "meta":
            continue
        copied, rows = 0, source.scan(table)
        if table == "note":
            rows = (row for row in rows if not row[0].startswith(_LEFT))
        for batch in _batches(rows):
            report.written += target.write(partial(_put, table=table, rows=batch))
            copied += len(batch)
            progress(f"copy {table}", done + copied, total)
        with target.read() as txn:
            extra = txn.count(table) - copied
        if extra:
            report.removed += _remove(source, target, table)
        report.rows[table] = copied
        done += copied


def _finish(source: Txn, target: Engine) -> None:
    """Copy `meta`, and with it mark the target as whole."""
    meta = [row for row in source.scan("meta") if row[0] != COPYING]

    def body(txn: Txn) -> None:
        for key, value in meta:
            txn.put("meta", key, value)
        txn.delete("meta", COPYING)

    target.write(body)


def _remove(source: Txn, target: Engine, table: str) -> int:
    """Remove rows that an earlier copy wrote and that are no longer in the source; return their
    number."""
    with target.read() as txn:
        keys = iter([key for key, _ in txn.scan(table)])
    removed = 0
    while piece := list(islice(keys, _MOST_ROWS)):
        there = source.get_many(table, piece)
        gone = [key for key in piece if key not in there]
        if gone:
            target.write(partial(_drop, table=table, keys=gone))
        removed += len(gone)
    return removed


def _put(txn: Txn, table: str, rows: list[Row]) -> int:
    """Write the rows that differ from those in the target; return their number."""
    there = txn.get_many(table, [key for key, _ in rows])
    other = [row for row in rows if there.get(row[0]) != row[1]]
    for key, value in other:
        txn.put(table, key, value)
    return len(other)


def _drop(txn: Txn, table: str, keys: list[bytes]) -> None:
    txn.get_many(table, keys)
    for key in keys:
        txn.delete(table, key)


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += len(row[0]) + len(row[1])
        if len(batch) >= _MOST_ROWS or size >= _MOST_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _copy_models(source: Store, rows: Txn, target: Engine) -> int:
    """Copy the model files, to a server also those that the source's `rows` register; returns their
    number."""
    if source.path is None or target.path is None:
        return 0
    old, new = OwnFolder(source.path, MODELS), OwnFolder(target.path, MODELS)
    names = [name for name in old.files() if name.endswith(".safetensors")]
    for name in names:
        with translating(old.path / name, OSError):
            data = old.read(name, MAX_BYTES)
        with translating(target.path, OSError):
            new.write(name, data)
        version = digest(data)
        if target.shared and len(data) <= MOST_SHARED and rows.get("model", version.encode()):
            note = f"{NOTE}{version}".encode()
            target.write(partial(_put, table="note", rows=[(note, data)]))
    return len(names)
