"""The file that ships: the tables of a store, packed, and such a file into a store.

It holds what an import of the runs and `embed` left, so that nothing is read, checked or computed
a second time: it is made by this program from exports that were (`indexer.shipped.__main__`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import msgspec

from embeddb.core.errors import StoreCorrupt, UsageError
from embeddb.core.files.gate import read_bounded, refusing
from embeddb.core.files.own_files import whole_file
from embeddb.store import codec
from embeddb.store.engine import SCHEMA, TABLES, Engine, Txn
from indexer.shipped.casting import config_id, run_rows
from indexer.shipped.columns import PackedRuns, Row
from indexer.shipped.numbers import inflated
from indexer.shipped.packing import pack_runs

__all__ = ["pack", "unpack"]

_MAGIC = b"embeddb rows 1\n"
_DIGEST = 16
_HINT = "install embeddb anew"
#: Of a file, and of a table but that of the runs.
_MOST_BYTES = 1 << 28
#: Tables whose rows are told in another way, and that of models, which ship as files.
_APART = ("run", "config", "model")

T = TypeVar("T")


class _Packed(msgspec.Struct, frozen=True):
    """`tables` are rows by table, `configs` the stored configurations, in the order of their
    numbers: each packed by msgpack and deflated."""

    schema: int
    tables: dict[str, bytes]
    configs: bytes
    runs: PackedRuns


def pack(engine: Engine, to: Path) -> None:
    """Write the tables of a store to a file. The same tables give the same bytes.

    Raises: UsageError if they hold what would come back as something else.
    """
    with engine.read() as txn:
        tables = {name: list(txn.scan(name)) for name in TABLES if name not in _APART}
        configs = sorted(txn.scan("config"), key=lambda row: row[1])
        rows = list(txn.scan("run"))
    tables["meta"] = [row for row in tables["meta"] if row[0] != b"schema"]
    numbers = {key: at for at, (key, _) in enumerate(configs)}
    packed = _Packed(
        SCHEMA,
        {name: _deflated(held) for name, held in tables.items() if held},
        _deflated([raw for _, raw in configs]),
        pack_runs(rows, numbers),
    )
    if not _same(packed, rows, configs):
        raise UsageError(f"{engine.place}: a run or configuration would come back as another")
    body = msgspec.msgpack.encode(packed)
    with whole_file(to) as out:
        out.write(_MAGIC + blake2b(body, digest_size=_DIGEST).digest() + body)


def _same(packed: _Packed, rows: list[Row], configs: list[Row]) -> bool:
    found = [row for piece in _runs(packed) for row in piece]
    return sorted(found + packed.runs.plain) == rows and _configs(packed) == sorted(configs)


def unpack(file: Path, engine: Engine) -> Iterator[int]:
    """Put the tables of a file into a store that has none of these rows; how many runs are there,
    after each transaction.

    Raises: StoreCorrupt if the file is damaged or of another program; as every write does.
    """
    packed = _read(file)
    with refusing(StoreCorrupt, where=str(file), hint=_HINT):
        engine.write(partial(_add_tables, packed=packed))
        done = 0
        for piece in _runs(packed):
            engine.write(partial(_add_runs, rows=piece))
            done += len(piece)
            yield done
        engine.write(partial(_add_plain, packed=packed))


def _add_tables(txn: Txn, packed: _Packed) -> None:
    for name, raw in packed.tables.items():
        for key, value in _inflated(raw, list[Row]):
            txn.put(name, key, value)
    for key, value in _configs(packed):
        txn.put("config", key, value)


def _add_runs(txn: Txn, rows: list[Row]) -> None:
    txn.put_sorted("run", rows)


def _add_plain(txn: Txn, packed: _Packed) -> None:
    for key, value in packed.runs.plain:
        txn.put("run", key, value)


def _runs(packed: _Packed) -> Iterator[list[Row]]:
    held = dict(_inflated(packed.tables.get("partition", _NONE), list[Row]))
    places = {
        number: (str(op), platform)
        for key, number in held.items()
        for op, platform in [codec.decode_partition(key, number)]
    }
    return run_rows(packed.runs, _inflated(packed.configs, list[bytes]), places)


def _configs(packed: _Packed) -> list[Row]:
    return sorted((config_id(raw), raw) for raw in _inflated(packed.configs, list[bytes]))


def _read(file: Path) -> _Packed:
    with refusing(StoreCorrupt, where=str(file), hint=_HINT):
        raw = read_bounded(file, _MOST_BYTES)
        body = raw[len(_MAGIC) + _DIGEST :]
        sound = _MAGIC + blake2b(body, digest_size=_DIGEST).digest()
        if not raw.startswith(sound):
            raise StoreCorrupt(f"{file}: damaged, or of another program", hint=_HINT)
        packed = msgspec.msgpack.decode(body, type=_Packed)
        if packed.schema != SCHEMA or not packed.tables.keys() <= set(TABLES).difference(_APART):
            raise StoreCorrupt(
                f"{file}: of schema {packed.schema}; this program knows {SCHEMA}", hint=_HINT
            )
        return packed


def _deflated(rows: list[Row] | list[bytes]) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(rows), 9)


#: No rows.
_NONE = _deflated(list[bytes]())


def _inflated(raw: bytes, kind: type[T]) -> T:
    return msgspec.msgpack.decode(inflated(raw, _MOST_BYTES), type=kind)
