"""Consistency check of the tables of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError, StoreCorrupt
from embeddb.core.files.safe_read import refusing
from embeddb.core.kinds import kind_exists, kinds
from embeddb.core.records import WorkloadInfo
from embeddb.store import codec
from embeddb.store.engine import Engine, Txn
from embeddb.store.merge_facts import name_key, resolved
from embeddb.store.models import decode_entry
from embeddb.store.platform_rows import read_platform
from embeddb.store.withdrawn import hidden_under, mark_faults

T = TypeVar("T")


def inconsistencies(engine: Engine) -> list[str]:
    """Values that cannot be decoded, sizes that are impossible or differ from the structure's,
    dangling references, and ids that do not match their content."""
    faults: list[str] = []
    with engine.read() as txn:
        configs = dict(_decoded(txn, "config", codec.decode_config, faults))
        faults += [
            f"configuration {key.hex()}: its content does not match its id"
            for key, config in configs.items()
            if config.id != key.hex()
        ]
        patterns = dict(_decoded(txn, "pattern", codec.decode_info, faults))
        faults += _of_patterns(patterns)
        faults += _of_content(txn, patterns)
        faults += _of_names(txn, patterns)
        faults += _of_aliases(txn, patterns)
        faults += _of_models(txn)
        faults += _of_platforms(txn)
        faults += _of_runs(txn, configs, patterns)
    return faults


def _of_patterns(patterns: Mapping[bytes, WorkloadInfo]) -> Iterator[str]:
    for key, info in patterns.items():
        if info.id != key.hex():
            yield f"pattern {key.hex()}: its facts are those of pattern {info.id[:40]!r}"
        if kind_exists(info.kind) and not info.sizes.possible:
            yield f"pattern {key.hex()}: {info.sizes} is impossible"


def _of_content(txn: Txn, patterns: Mapping[bytes, WorkloadInfo]) -> Iterator[str]:
    tables = {kind.table: kind for kind in reversed(kinds())}
    names = sorted(tables, key=lambda name: (not tables[name].sparse, name))
    for table, key, raw in ((name, *row) for name in names for row in txn.scan(name)):
        info = patterns.get(key)
        if info is not None and not kind_exists(info.kind):
            continue  # only its plug-in can read it
        kind = info.workload if info is not None and info.workload.table == table else tables[table]
        try:
            workload = kind.decode(raw, pattern_id=key.hex(), name="", group="")
        except StoreCorrupt as e:
            yield str(e)
            continue
        if info is None:
            yield f"{table} {key.hex()}: its pattern is missing"
        elif kind.sparse:
            if any(a not in (-1, b) for a, b in zip(info.sizes, workload.sizes, strict=True)):
                yield f"pattern {key.hex()}: says {info.sizes}, its {table} is {workload.sizes}"
        elif (info.kind, info.named) != (workload.kind, dict(workload.sizes.named)):
            says = f"says {info.kind} of {info.sizes}, its {workload.kind} is {workload.sizes}"
            yield f"pattern {key.hex()}: {says}"


def _of_names(txn: Txn, patterns: Mapping[bytes, WorkloadInfo]) -> Iterator[str]:
    """Names without an entry in table `name`, the only one that is searched."""
    for key, info in patterns.items():
        if info.name and txn.get("name", name_key(info.name) + key) is None:
            yield f"pattern {key.hex()}: its name {info.name[:80]!r} does not find it"
    for name, _ in txn.scan("name"):
        if name[-17:-16] != b"\0" or name[-16:] not in patterns:
            yield f"name {name[:-17].decode(errors='replace')[:80]!r}: its pattern is missing"


def _of_aliases(txn: Txn, patterns: Mapping[bytes, WorkloadInfo]) -> Iterator[str]:
    for key, _ in txn.scan("alias"):
        try:
            if resolved(txn, key) not in patterns:
                yield f"stub {key.hex()}: the pattern that adopted it is missing"
        except StoreCorrupt as e:
            yield str(e)


def _of_models(txn: Txn) -> Iterator[str]:
    for key, raw in txn.scan("model"):
        try:
            decode_entry(key, raw)
        except StoreCorrupt as e:
            yield str(e)


def _of_platforms(txn: Txn) -> Iterator[str]:
    for key, raw in txn.scan("platform"):
        name = key.decode(errors="replace")
        try:
            with refusing(StoreCorrupt):
                read_platform(key.decode(), raw)
        except EmbeddbError as e:
            yield f"platform {name[:80]!r}: {e}"


def _of_runs(
    txn: Txn, configs: Mapping[bytes, Config], patterns: Mapping[bytes, WorkloadInfo]
) -> list[str]:
    faults: list[str] = []
    members = {key for key, _ in txn.scan("member")}
    hidden = hidden_under(txn)
    faults += mark_faults(txn)
    partitions = _partitions(txn, faults)
    for key, row in _decoded(txn, "run", codec.decode_row, faults):
        fault = _fault(key, row, configs.get(row.config_id), partitions.get(key[:4]))
        if fault is None and key[4:20] not in patterns:
            fault = "its pattern is missing"
        if fault is None and key[:20] not in members and key not in hidden:
            fault = "its pattern is not listed in the partition"
        if fault is not None:
            faults.append(f"run {key[20:].hex()}: {fault}")
    return faults


def _partitions(txn: Txn, faults: list[str]) -> dict[bytes, tuple[Op | str, str]]:
    """Op and platform by number."""
    partitions = {}
    for key, number in txn.scan("partition"):
        try:
            partitions[number] = codec.decode_partition(key, number)
        except StoreCorrupt as e:
            faults.append(str(e))
    return partitions


def _fault(
    key: bytes, row: codec.RunRow, config: Config | None, partition: tuple[Op | str, str] | None
) -> str | None:
    if config is None:
        return "its configuration is missing"
    if partition is None:
        return "its partition is missing"
    op, platform = partition
    if isinstance(op, str):
        return None  # only its plug-in can tell
    try:
        run_id = row.run(key[4:20].hex(), op, platform, config).id
    except EmbeddbError as e:
        return str(e)
    return None if run_id == key[20:].hex() else "its content does not match its id"


def _decoded(
    txn: Txn, table: str, decode: Callable[[bytes], T], faults: list[str]
) -> Iterator[tuple[bytes, T]]:
    for key, raw in txn.scan(table):
        try:
            yield key, decode(raw)
        except StoreCorrupt as e:
            faults.append(f"table {table!r}, key {key.hex()}: {e}")
