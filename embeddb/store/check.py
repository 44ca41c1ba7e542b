"""Whether the tables of a store agree with each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from embeddb.core.config import Config, Op
from embeddb.core.errors import StoreCorrupt
from embeddb.store import codec
from embeddb.store.engine import Engine, Txn, text_of
from embeddb.store.model_table import decode_entry
from embeddb.store.withdrawn import hidden_under, mark_faults

__all__ = ["inconsistencies"]

T = TypeVar("T")


def inconsistencies(engine: Engine) -> list[str]:
    """Values that cannot be decoded, runs that point at nothing, ids that are not those of their
    content."""
    found: list[str] = []
    with engine.read() as txn:
        configs = dict(_decoded(txn, "config", codec.decode_config, found))
        for key, config in configs.items():
            if config.id != key.hex():
                found.append(f"configuration {key.hex()}: its content is another one")
        patterns = dict(_decoded(txn, "pattern", codec.decode_info, found))
        for key, raw in txn.scan("structure"):
            try:
                codec.decode_structure(raw, pattern_id=key.hex(), name="", group="")
            except StoreCorrupt as e:
                found.append(str(e))
        for key, raw in txn.scan("model"):
            try:
                decode_entry(key, raw)
            except StoreCorrupt as e:
                found.append(str(e))
        members = {key for key, _ in txn.scan("member")}
        hidden = hidden_under(txn)
        found += mark_faults(txn)
        partitions = {
            number: text_of("partition", key).split("\0") for key, number in txn.scan("partition")
        }
        for key, row in _decoded(txn, "run", codec.decode_row, found):
            fault = _fault(key, row, configs.get(row.config_id), partitions.get(key[:4]))
            if fault is None and key[4:20] not in patterns:
                fault = "its pattern is missing"
            if fault is None and key[:20] not in members and key not in hidden:
                fault = "its pattern is not listed in the partition"
            if fault is not None:
                found.append(f"run {key[20:].hex()}: {fault}")
    return found


def _fault(
    key: bytes, row: codec.RunRow, config: Config | None, partition: list[str] | None
) -> str | None:
    if config is None:
        return "its configuration is missing"
    if partition is None:
        return "its partition is missing"
    op, platform = partition
    run = row.run(key[4:20].hex(), Op.parse(op), platform, config)
    return None if run.id == key[20:].hex() else "its content is another one"


def _decoded(
    txn: Txn, table: str, decode: Callable[[bytes], T], found: list[str]
) -> Iterator[tuple[bytes, T]]:
    for key, raw in txn.scan(table):
        try:
            yield key, decode(raw)
        except StoreCorrupt as e:
            found.append(f"table {table!r}, key {key.hex()}: {e}")
