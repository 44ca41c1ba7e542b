"""How runs come to those that are there, and how a stub's move to the real pattern."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from embeddb.core.config import Op
from embeddb.core.records import Run
from embeddb.store import codec
from embeddb.store.engine import Txn, raise_generation
from embeddb.store.merge.contradiction import Contradiction
from embeddb.store.merge.patterns import resolved

__all__ = ["AppendResult", "Keyed", "add_runs", "counting", "renamed"]

#: A run, its id, and whether an import told it.
Keyed = tuple[Run, bytes, bool]


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Runs that were stored, and runs that were there already."""

    added: int = 0
    duplicates: int = 0


def add_runs(
    txn: Txn, keyed: Iterable[Keyed], against: list[Contradiction] | None = None
) -> AppendResult:
    """Add what is not there yet. Told runs are only taken of patterns that are known, retire no
    run, whatever they say that they replace, and stand back for what was run here; `against`
    collects all three."""
    seen = added = 0
    heads: dict[tuple[str, Op, str], tuple[bytes, str]] = {}
    own: dict[bytes, set[bytes]] = {}
    touched: set[bytes] = set()
    configs: set[str] = set()
    for run, run_id, told in keyed:
        seen += 1
        place = run.pattern_id, run.op, run.platform
        head, pattern_id = heads.get(place) or heads.setdefault(place, _head(txn, run, told=told))
        if pattern_id != run.pattern_id:
            if not pattern_id:
                seen -= 1
                _object(against, run, f"pattern {run.pattern_id} was not taken", refused=True)
                continue
            run = dataclasses.replace(run, pattern_id=pattern_id)
            run_id = bytes.fromhex(run.id)
        key = head + run_id
        if (raw := txn.get("run", key)) is not None:
            if not told and codec.decode_row(raw).told:
                txn.put("run", key, codec.encode_row(codec.RunRow.of(run)))  # now it is our word
                touched.add(head)
            continue
        row = codec.RunRow.of(run, told=told)
        if told and against is not None:
            if head not in own:
                own[head] = _run_here(txn, head)
            if run.replaces and txn.get("run", head + _bytes(run.replaces)) is not None:
                _object(against, run, f"would replace run {run.replaces}, which is known and stays")
            elif row.config_id in own[head]:
                _object(against, run, "its configuration was run here, which counts")
        if run.config.json not in configs:
            configs.add(run.config.json)
            if txn.get("config", row.config_id) is None:
                txn.put("config", row.config_id, run.config.json.encode())
        txn.put("run", key, codec.encode_row(row))
        touched.add(head)
        added += 1
    if touched:
        raise_generation(txn, touched)
    return AppendResult(added, seen - added)


def _run_here(txn: Txn, head: bytes) -> set[bytes]:
    """Ids of the configurations that were run here, of one partition and pattern."""
    rows = (codec.decode_row(raw) for _, raw in txn.scan("run", head))
    return {row.config_id for row in rows if not row.told}


def counting(rows: Mapping[bytes, codec.RunRow]) -> dict[bytes, codec.RunRow]:
    """The runs of one partition and pattern that count, by their keys, which end in their ids: none
    that another one replaced, and of a configuration that was run here none that was only told."""
    gone = {row.replaces for row in rows.values() if not row.told}
    told = any(row.told for row in rows.values())
    own = {row.config_id for row in rows.values() if not row.told} if told else set()
    if gone <= {""} and not own:
        return dict(rows)
    return {
        key: row
        for key, row in rows.items()
        if key[20:].hex() not in gone and not (row.told and row.config_id in own)
    }


def _object(
    against: list[Contradiction] | None, run: Run, reason: str, *, refused: bool = False
) -> None:
    if against is not None:
        against.append(Contradiction(f"run {run.id}", reason, refused))


def _bytes(run_id: str) -> bytes:
    try:
        return bytes.fromhex(run_id)
    except ValueError:
        return b""


def _head(txn: Txn, run: Run, *, told: bool) -> tuple[bytes, str]:
    """The key prefix for the runs of a partition and pattern, and the pattern's own id; that is
    empty where runs that are only told have no pattern, or one of another kind."""
    pattern = resolved(txn, codec.pattern_key(run.pattern_id))
    if told:
        raw = txn.get("pattern", pattern)
        if raw is None or codec.decode_info(raw).kind != run.op.kind:
            return b"-", ""
    key = f"{run.op}\0{run.platform}".encode()
    number = txn.get("partition", key)
    if number is None:
        number = (txn.count("partition") + 1).to_bytes(4, "big")
        txn.put("partition", key, number)
    return number + pattern, pattern.hex()


def renamed(runs: Sequence[Run], pattern_id: str) -> dict[str, Run]:
    """The same runs on another pattern, by their old ids, with references to each other kept.

    A run's id depends on the id of the one it replaces, so those come first.
    """
    waiting = {run.id: run for run in runs}
    moved: dict[str, Run] = {}
    for first in list(waiting):
        chain = [first]
        while chain[-1] in waiting and waiting[chain[-1]].replaces in waiting:
            chain.append(waiting[chain[-1]].replaces)
        for old_id in reversed(chain):
            run = waiting.pop(old_id, None)
            if run is None:
                continue
            old = moved.get(run.replaces)
            replaces = run.replaces if old is None else old.id
            moved[old_id] = dataclasses.replace(run, pattern_id=pattern_id, replaces=replaces)
    return moved
