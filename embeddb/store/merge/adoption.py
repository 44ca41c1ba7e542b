"""How everything that is kept of a stub comes to the pattern that adopts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.records import PatternInfo, Run
from embeddb.store import codec
from embeddb.store.engine import Txn, raise_generation
from embeddb.store.merge.patterns import adopted_info, merge_info, resolved
from embeddb.store.merge.runs import Word, add_runs, renamed
from embeddb.store.withdrawn import renamed_marks

__all__ = ["adopt"]


def adopt(
    txn: Txn, stub: str, info: PatternInfo, runs_of: Callable[[Txn, str], Mapping[bytes, Run]]
) -> int:
    """Move every run of a stub, whoever's word it is, to the real pattern; the number of them.
    `runs_of` gives all runs of a pattern by their keys. Raises: NothingFound, UsageError."""
    key = codec.pattern_key(stub)
    raw = txn.get("pattern", key)
    known = None if raw is None else codec.decode_info(raw)
    if known is None or not known.stub:
        raise NothingFound(f"no stub {stub}")
    target = resolved(txn, codec.pattern_key(info.id))
    if target == key:
        raise UsageError(f"stub {stub} cannot be adopted by itself")
    merge_info(txn, adopted_info(info, known))
    moved = runs_of(txn, stub)
    raws = txn.get_many("run", moved)
    words = {run_key[20:].hex(): _word(row) for run_key, row in raws.items()}
    for run_key in moved:
        txn.delete("run", run_key)
        txn.delete("member", run_key[:20])
    txn.put("alias", key, target)
    txn.delete("pattern", key)
    for name in [name for name, _ in txn.scan("name") if name.endswith(key)]:
        txn.delete("name", name)
        txn.put("name", name[:-16] + target, b"")
    rekeyed = renamed(list(moved.values()), target.hex())
    add_runs(txn, [(r, bytes.fromhex(r.id), words[old]) for old, r in rekeyed.items()])
    new = {old: bytes.fromhex(run.id) for old, run in rekeyed.items()}
    renamed_marks(txn, ((k, k[:4] + target + new[k[20:].hex()]) for k in moved))
    raise_generation(txn)
    return len(moved)


def _word(raw: bytes) -> Word:
    row = codec.decode_row(raw)
    return Word(row.told, row.source)
