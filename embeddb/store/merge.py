"""How facts about one pattern come together, and how a stub's runs move to the real one."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import msgspec

from embeddb.core.records import PatternInfo, Run
from embeddb.store import codec
from embeddb.store.engine import Txn

__all__ = ["adopted_info", "merge_info", "name_key", "renamed", "resolved"]


def name_key(name: str) -> bytes:
    """Prefix of a name's keys in table `name`; the pattern's 16 bytes follow."""
    raw = name.encode("utf-8", "surrogatepass")
    if len(raw) > 400:
        raw = raw[:368] + hashlib.blake2b(raw, digest_size=16).hexdigest().encode()
    return raw + b"\0"


def resolved(txn: Txn, key: bytes) -> bytes:
    """The pattern that a stub was adopted by, else the pattern itself."""
    while (target := txn.get("alias", key)) is not None:
        key = target
    return key


def merge_info(txn: Txn, info: PatternInfo) -> None:
    key = codec.pattern_key(info.id)
    target = resolved(txn, key)
    if target != key:
        info = msgspec.structs.replace(info, id=target.hex(), m=-1, n=-1, nnz=-1)
    if info.name:
        txn.put("name", name_key(info.name) + target, b"")
    raw = txn.get("pattern", target)
    if raw is not None:
        info = _merged(codec.decode_info(raw), info)
    encoded = codec.encode_info(info)
    if encoded != raw:
        txn.put("pattern", target, encoded)


def _merged(old: PatternInfo, new: PatternInfo) -> PatternInfo:
    return msgspec.structs.replace(
        old,
        m=new.m if new.m >= 0 else old.m,
        n=new.n if new.n >= 0 else old.n,
        nnz=new.nnz if new.nnz >= 0 else old.nnz,
        name=old.name or new.name,
        group=old.group or new.group,
        stub=old.stub and new.stub,
        thumbnail=new.thumbnail or old.thumbnail,
        features={**old.features, **new.features},
        about={**old.about, **new.about},
    )


def adopted_info(info: PatternInfo, stub: PatternInfo) -> PatternInfo:
    """The real pattern takes the stub's group: folds must not move when a matrix arrives."""
    return msgspec.structs.replace(
        info,
        group=stub.group or info.group,
        features={**stub.features, **info.features},
        about={**stub.about, **info.about},
    )


def renamed(runs: Sequence[Run], pattern_id: str) -> dict[str, Run]:
    """The same runs on another pattern, by their old ids, with references to each other kept.

    A run's id depends on the id of the one it replaces, so those come first.
    """
    waiting = {run.id: run for run in runs}
    new_ids: dict[str, str] = {}
    moved: dict[str, Run] = {}
    for first in list(waiting):
        chain = [first]
        while chain[-1] in waiting and waiting[chain[-1]].replaces in waiting:
            chain.append(waiting[chain[-1]].replaces)
        for old_id in reversed(chain):
            run = waiting.pop(old_id, None)
            if run is None:
                continue
            replaces = new_ids.get(run.replaces, run.replaces)
            moved[old_id] = dataclasses.replace(run, pattern_id=pattern_id, replaces=replaces)
            new_ids[old_id] = moved[old_id].id
    return moved
