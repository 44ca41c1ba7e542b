"""Merge rules for facts about a workload, and for a platform that is stored again."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from embeddb.core.errors import StoreCorrupt, StoreError
from embeddb.core.records import WorkloadInfo
from embeddb.platforms.platform import Platform, builtin_platforms, load_platform
from embeddb.store import codec
from embeddb.store.engine import Txn, raise_generation

V = TypeVar("V")
#: Largest number of fields that a contradiction lists by name.
_MOST_NAMED = 6
#: Features are exchanged as float32: closer values are equal.
_SAME = 1e-6


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Conflict of an import with stored facts. `what` it is about; `refused`: nothing of it was
    stored, otherwise only the conflicting fields keep their stored values."""

    what: str
    reason: str
    refused: bool = False


def _keeps_fields(what: str, names: Sequence[str]) -> Contradiction | None:
    """Conflict in these fields, which keep their stored values; None for no fields."""
    if not names:
        return None
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    named = ", ".join(name[:80] for name in names[:_MOST_NAMED])
    return Contradiction(what, f"keeps its stored values: {named}{more}")


def _differing(stored: Mapping[str, V], new: Mapping[str, V]) -> list[str]:
    """Names in both mappings with different values."""
    both = ((name, stored[name], new[name]) for name in new if name in stored)
    return [name for name, a, b in both if not _same(a, b)]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=_SAME) or (math.isnan(a) and math.isnan(b))
    return bool(a == b) or repr(a) == repr(b)


def name_key(name: str) -> bytes:
    """Prefix of a name's keys in table `name`; the workload's 16 bytes follow."""
    raw = name.encode("utf-8", "surrogatepass")
    if len(raw) > 400:
        raw = raw[:368] + hashlib.blake2b(raw, digest_size=16).hexdigest().encode()
    return raw + b"\0"


def resolved(txn: Txn, key: bytes) -> bytes:
    """The workload that adopted a stub, else the workload itself. Raises: StoreCorrupt for a cycle
    of adoptions."""
    passed = set[bytes]()
    while (target := txn.get("alias", key)) is not None:
        passed.add(key)
        if target in passed or len(target) != 16:
            raise StoreCorrupt(
                f"stub {key.hex()} was adopted by no pattern",
                hint="`embeddb db check` lists what is damaged; restore the folder from a copy",
            )
        key = target
    return key


def look_ahead(txn: Txn, infos: Iterable[WorkloadInfo]) -> None:
    """Prefetch the rows that merging these facts will read: an engine may be remote."""
    keys = dict.fromkeys(codec.pattern_key(info.id) for info in infos)
    aliases = txn.get_many("alias", keys).values()
    txn.get_many("pattern", [*keys, *aliases])


def merge_infos(txn: Txn, infos: Collection[WorkloadInfo]) -> None:
    """Store our own facts: where they differ from stored ones, they are newer."""
    look_ahead(txn, infos)
    _count_changed(txn, [key for info in infos if (key := _merge(txn, info))])


def _merge(txn: Txn, info: WorkloadInfo) -> bytes:
    target, info = _addressed(txn, info)
    if info.name:
        txn.put("name", name_key(info.name) + target, b"")
    raw = txn.get("pattern", target)
    stored = info if raw is None else codec.decode_info(raw)
    full = info if raw is None else _merged(stored, info)
    return _put_info(txn, target, raw, stored, full)


def _put_info(
    txn: Txn, key: bytes, raw: bytes | None, stored: WorkloadInfo, info: WorkloadInfo
) -> bytes:
    """Store facts in place of `raw`, which is of `stored`; return the key if the family or a size
    changed, else nothing."""
    encoded = codec.encode_info(info)
    if encoded != raw:
        txn.put("pattern", key, encoded)
    return key if (stored.family, stored.sizes) != (info.family, info.sizes) else b""


def _count_changed(txn: Txn, keys: Sequence[bytes]) -> None:
    """Count workloads as changed wherever they ran: votes are fitted by families, and a default may
    depend on sizes."""
    if keys:
        tables = [number for _, number in txn.scan("partition")]
        ran = txn.get_many("member", [number + key for number in tables for key in keys])
        if ran:
            raise_generation(txn, ran)


def _addressed(txn: Txn, info: WorkloadInfo) -> tuple[bytes, WorkloadInfo]:
    """The workload that facts belong to; a stub's sizes do not apply to the one that adopted it."""
    key = codec.pattern_key(info.id)
    target = resolved(txn, key)
    if target != key:
        info = msgspec.structs.replace(info, id=target.hex(), m=-1, n=-1, nnz=-1, named={})
    return target, info


def complete_infos(txn: Txn, infos: Collection[WorkloadInfo]) -> list[Contradiction]:
    """Store facts of an import: they only fill empty fields. If the structure of a workload is
    stored, its imported features are ignored, since they follow from the structure."""
    look_ahead(txn, infos)
    done = [_complete(txn, info) for info in infos]
    _count_changed(txn, [key for key, _ in done if key])
    return [against for _, against in done if against is not None]


def _complete(txn: Txn, info: WorkloadInfo) -> tuple[bytes, Contradiction | None]:
    target, info = _addressed(txn, info)
    raw, structure = txn.get("pattern", target), txn.get("structure", target)
    if not info.sizes.possible:
        return b"", Contradiction(f"pattern {info.id}", f"{info.sizes} is impossible", refused=True)
    stored = info if raw is None else codec.decode_info(raw)
    if (info.kind, info.named or stored.named) != (stored.kind, stored.named or info.named):
        says = f"says {info.kind} of {info.sizes}, stored as {stored.kind} of {stored.sizes}"
        return b"", Contradiction(f"pattern {info.id}", says, refused=True)
    sizes = stored.sizes if structure is None else codec.structure_sizes(structure)
    if any(a != b for a, b in zip(info.sizes, sizes, strict=True) if a >= 0 and b >= 0):
        kind = "stored as" if structure is None else "its structure is"
        says = f"says {info.sizes}, {kind} {sizes}"
        return b"", Contradiction(f"pattern {info.id}", says, refused=True)
    full, other = info, list[str]()
    if raw is not None:
        full, other = _completed(stored, info, structured=structure is not None)
    if full.name and (raw is None or not stored.name):
        txn.put("name", name_key(full.name) + target, b"")
    changed = _put_info(txn, target, raw, stored, full)
    return changed, _keeps_fields(f"pattern {info.id}", other)


def _completed(
    stored: WorkloadInfo, incoming: WorkloadInfo, *, structured: bool
) -> tuple[WorkloadInfo, list[str]]:
    """Stored facts with their gaps filled, and the names of conflicting fields."""
    pairs = (
        ("name", stored.name, incoming.name),
        ("group", _own_group(stored), _own_group(incoming)),
        ("thumbnail", stored.thumbnail, incoming.thumbnail),
    )
    other = [name for name, own, new in pairs if own and new and own != new]
    other += [f"features.{name}" for name in _differing(stored.features, incoming.features)]
    other += [f"about.{name}" for name in _differing(stored.about, incoming.about)]
    features = {"features": stored.features} if structured else {}
    return msgspec.structs.replace(stored, **{**_filled(stored, incoming), **features}), other


def _own_group(info: WorkloadInfo) -> str:
    """The group; empty where it is the name, which is the group of a file without one."""
    return info.group if info.group != info.name else ""


def _group(first: WorkloadInfo, second: WorkloadInfo) -> str:
    """The group of the first that has one of its own."""
    return _own_group(first) or _own_group(second) or first.group or second.group


def _filled(first: WorkloadInfo, second: WorkloadInfo) -> dict[str, Any]:
    """Fields of the first, those of the second in place of its empty ones."""
    sizes = zip(("m", "n", "nnz"), first.sizes, second.sizes, strict=True)
    texts = ("name", "thumbnail", "named")
    return {
        **{name: b if a < 0 else a for name, a, b in sizes},
        **{name: getattr(first, name) or getattr(second, name) for name in texts},
        "group": _group(first, second),
        "features": {**second.features, **first.features},
        "about": {**second.about, **first.about},
    }


def _merged(old: WorkloadInfo, new: WorkloadInfo) -> WorkloadInfo:
    own = {
        "name": old.name or new.name,
        "group": _group(old, new),
        "stub": old.stub and new.stub,
        "kind": new.kind if old.workload.sparse else old.kind,
    }
    return msgspec.structs.replace(old, **{**_filled(new, old), **own})


def adopted_info(info: WorkloadInfo, stub: WorkloadInfo) -> WorkloadInfo:
    """Facts of the real workload in the stub's group: its arrival must not change folds."""
    return msgspec.structs.replace(
        info,
        group=stub.group or info.group,
        features={**stub.features, **info.features},
        about={**stub.about, **info.about},
    )


_OTHER_SPACE = "its configuration space differs from the stored one"
_OTHER_UNIT = "its times are in cycles in one of the two and in seconds in the other"
_LATER = "it extends the stored version: index or measure with its file first"
#: Attributes of a platform's file that a conflict names. All else is its text.
_DECLARED = (
    "title", "version", "simulated", "portable", "runner", "cost_per_sample", "open_choices",
)  # fmt: skip
#: Attributes that change the meaning of the runs stored before.
_MEANING = ("simulated", "portable")


def extends(later: Platform, earlier: Platform) -> bool:
    """True if a file says that it has every configuration of an earlier version of its platform."""
    return earlier.version in later.extends and earlier.version != later.version


def latest(platforms: Iterable[Platform], files: Iterable[Platform]) -> list[Platform]:
    """The platforms, each with the file of the latest version among `files` that extends its own,
    directly or through others."""
    later = list({one.text: one for one in files if one.extends}.values())
    return [_latest(platform, later * len(later)) for platform in platforms]


def _latest(platform: Platform, later: Sequence[Platform]) -> Platform:
    for one in later:
        if one.name == platform.name and extends(one, platform):
            platform = one.at(platform.instance, platform.environment)
    return platform


def is_builtin(platform: Platform) -> bool:
    """True if a platform has the file that ships, not an edited or an earlier one."""
    name = platform.name
    return name in builtin_platforms() and load_platform(name).text == platform.text


def stays(stored: Platform, platform: Platform) -> bool:
    """True if the stored file is kept where a platform is stored again: if it is the later version,
    has the parameters in another order, or has choices that runs may have opened."""
    reordered = stored.is_reordered(platform)
    return (
        extends(stored, platform) or reordered or not stored.open_choices <= platform.open_choices
    )


def refuse_other_space(stored: Platform | None, platform: Platform) -> None:
    """Check that a platform is compatible with the stored one of its name. Raises: StoreError."""
    if stored is not None and (reason := _incompatible(stored, platform)):
        raise StoreError(
            f"platform {platform.id}: {reason}",
            hint="give the changed platform another name, or keep it in another database; if every "
            f'stored run is legal there, another version and extends = ["{stored.version}"]',
        )


def _incompatible(stored: Platform, platform: Platform) -> str:
    """Reason why runs of the two platforms cannot be stored under one name; empty if they can, as
    those of a version that the other extends. The order of parameters is irrelevant: that of the
    stored file stays, in which models read them."""
    if not (extends(platform, stored) or extends(stored, platform)):
        if stored.digest != platform.digest and not stored.is_reordered(platform):
            return _OTHER_SPACE
        if stored.version != platform.version:
            one, other = stored.version, platform.version
            return f"its runs are of version {one}, this file is version {other}"
    return _OTHER_UNIT if stored.counts_cycles != platform.counts_cycles else ""


def changed_meaning(stored: Platform | None, platform: Platform) -> list[str]:
    """A line for each edited attribute that changes the meaning of the runs stored before."""
    return [
        f"platform {platform.id}: {name} was {_word(stored, name)}, is now {_word(platform, name)}"
        for name in (_MEANING if stored is not None else ())
        if getattr(stored, name) != getattr(platform, name)
    ]


def _word(platform: Platform | None, name: str) -> str:
    return str(getattr(platform, name)).lower()


def platform_conflict(stored: Platform, new: Platform) -> Contradiction | None:
    """Conflict of an imported platform with the stored one."""
    what = f"platform {new.id}"
    reason = _LATER if extends(new, stored) else _incompatible(stored, new)
    if reason:
        return Contradiction(what, reason, refused=True)
    names = [name for name in _DECLARED if getattr(stored, name) != getattr(new, name)]
    if stored.text != new.text and not names:
        names = ["text"]
    if extends(stored, new):
        names = []
    facts = _differing(stored.environment, new.environment)
    return _keeps_fields(what, [*names, *(f"environment.{name}" for name in facts)])
