"""How runs come to those that are there, and how a stub's move to the real pattern."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from embeddb.core.config import Op
from embeddb.core.records import Run
from embeddb.store import codec
from embeddb.store.engine import Txn, raise_generation
from embeddb.store.merge.contradiction import Contradiction
from embeddb.store.merge.patterns import resolved

__all__ = ["AppendResult", "Keyed", "add_runs", "renamed"]

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
    """Add what is not there yet. Told runs are only taken of patterns that are known, and retire
    no run, whatever they say that they replace; `against` collects both."""
    seen = added = 0
    heads: dict[tuple[str, Op, str], tuple[bytes, str]] = {}
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
            if run.replaces and not told and codec.decode_row(raw).told:
                txn.put("run", key, codec.encode_row(codec.RunRow.of(run)))  # now it is our word
                touched.add(head)
            continue
        row = codec.RunRow.of(run, told=told)
        if row.told and txn.get("run", head + _bytes(run.replaces)) is not None:
            _object(against, run, f"would replace run {run.replaces}, which is known and stays")
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
    empty where runs that are only told have no pattern."""
    pattern = resolved(txn, codec.pattern_key(run.pattern_id))
    if told and txn.get("pattern", pattern) is None:
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
