"""How facts about one pattern come together, and those of a platform that is stored again."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from embeddb.core.errors import StoreCorrupt, StoreError
from embeddb.core.records import WorkloadInfo
from embeddb.platforms.platform import Platform
from embeddb.store import codec
from embeddb.store.engine import Txn

V = TypeVar("V")
#: Of the fields that a contradiction lists by name.
_MOST_NAMED = 6
#: Features travel as float32: closer ones are the same.
_SAME = 1e-6


@dataclass(frozen=True, slots=True)
class Contradiction:
    """What an import says against what is known. `what` it is about; `refused`: nothing of it was
    taken, otherwise only what it contradicts stays as it was."""

    what: str
    reason: str
    refused: bool = False


def kept(what: str, names: Sequence[str]) -> Contradiction | None:
    """Fields that stay as they are known, by their names; None where there is none."""
    if not names:
        return None
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    named = ", ".join(name[:80] for name in names[:_MOST_NAMED])
    return Contradiction(what, f"stays as it is known: {named}{more}")


def differing(known: Mapping[str, V], told: Mapping[str, V]) -> list[str]:
    """Names that both have, with another value."""
    both = ((name, known[name], told[name]) for name in told if name in known)
    return [name for name, a, b in both if not _same(a, b)]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=_SAME) or (math.isnan(a) and math.isnan(b))
    return bool(a == b) or repr(a) == repr(b)


def name_key(name: str) -> bytes:
    """Prefix of a name's keys in table `name`; the pattern's 16 bytes follow."""
    raw = name.encode("utf-8", "surrogatepass")
    if len(raw) > 400:
        raw = raw[:368] + hashlib.blake2b(raw, digest_size=16).hexdigest().encode()
    return raw + b"\0"


def resolved(txn: Txn, key: bytes) -> bytes:
    """The pattern that a stub was adopted by, else the pattern itself.

    Raises: StoreCorrupt where stubs adopted each other in a circle, which no adoption makes.
    """
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
    """Ask at once for what will be asked of each: an engine may be far away."""
    keys = dict.fromkeys(codec.pattern_key(info.id) for info in infos)
    aliases = txn.get_many("alias", keys).values()
    txn.get_many("pattern", [*keys, *aliases])


def merge_infos(txn: Txn, infos: Collection[WorkloadInfo]) -> None:
    """`merge_info` of each."""
    look_ahead(txn, infos)
    for info in infos:
        merge_info(txn, info)


def merge_info(txn: Txn, info: WorkloadInfo) -> None:
    """Own facts: where they differ from what is known, they are newer."""
    target, info = _addressed(txn, info)
    if info.name:
        txn.put("name", name_key(info.name) + target, b"")
    raw = txn.get("pattern", target)
    if raw is not None:
        info = _merged(codec.decode_info(raw), info)
    encoded = codec.encode_info(info)
    if encoded != raw:
        txn.put("pattern", target, encoded)


def _addressed(txn: Txn, info: WorkloadInfo) -> tuple[bytes, WorkloadInfo]:
    """The pattern that facts belong to; a stub's sizes say nothing of the one that adopted it."""
    key = codec.pattern_key(info.id)
    target = resolved(txn, key)
    if target != key:
        info = msgspec.structs.replace(info, id=target.hex(), m=-1, n=-1, nnz=-1, named={})
    return target, info


def complete_info(txn: Txn, info: WorkloadInfo) -> Contradiction | None:
    """Facts that an import tells: they fill what is empty. Of a pattern whose structure is here its
    features are not taken at all, for they follow from it."""
    target, info = _addressed(txn, info)
    raw, structure = txn.get("pattern", target), txn.get("structure", target)
    if not info.sizes.possible:
        return Contradiction(f"pattern {info.id}", f"{info.sizes} is impossible", refused=True)
    known = info if raw is None else codec.decode_info(raw)
    if (info.kind, info.named or known.named) != (known.kind, known.named or info.named):
        says = f"says {info.kind} of {info.sizes}, it is known as {known.kind} of {known.sizes}"
        return Contradiction(f"pattern {info.id}", says, refused=True)
    sizes = known.sizes if structure is None else codec.structure_sizes(structure)
    if any(a != b for a, b in zip(info.sizes, sizes, strict=True) if a >= 0 and b >= 0):
        kind = "it is known as" if structure is None else "its structure is"
        says = f"says {info.sizes}, {kind} {sizes}"
        return Contradiction(f"pattern {info.id}", says, refused=True)
    full, other = info, list[str]()
    if raw is not None:
        full, other = _completed(known, info, structured=structure is not None)
    encoded = codec.encode_info(full)
    if encoded != raw:
        txn.put("pattern", target, encoded)
        if full.name and (raw is None or not known.name):
            txn.put("name", name_key(full.name) + target, b"")
    return kept(f"pattern {info.id}", other)


def _completed(
    known: WorkloadInfo, told: WorkloadInfo, *, structured: bool
) -> tuple[WorkloadInfo, list[str]]:
    """What is known with its gaps filled, and the names of what is told otherwise."""
    fields = ("name", "group", "thumbnail")
    have: dict[str, Any] = {name: getattr(known, name) for name in fields}
    give: dict[str, Any] = {name: getattr(told, name) for name in fields}
    other = [name for name in fields if have[name] and give[name] and have[name] != give[name]]
    other += [f"features.{name}" for name in differing(known.features, told.features)]
    other += [f"about.{name}" for name in differing(known.about, told.about)]
    full = msgspec.structs.replace(
        known,
        **{name: have[name] or give[name] for name in fields},
        **{n: new if size < 0 else size for n, size, new in _sizes(known, told)},
        features=known.features if structured else {**told.features, **known.features},
        about={**told.about, **known.about},
        named=known.named or told.named,
    )
    return full, other


def _sizes(known: WorkloadInfo, told: WorkloadInfo) -> Iterable[tuple[str, int, int]]:
    return zip(("m", "n", "nnz"), known.sizes, told.sizes, strict=True)


def _merged(old: WorkloadInfo, new: WorkloadInfo) -> WorkloadInfo:
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
        kind=new.kind if old.workload.sparse else old.kind,
        named=new.named or old.named,
    )


def adopted_info(info: WorkloadInfo, stub: WorkloadInfo) -> WorkloadInfo:
    """The real pattern takes the stub's group: folds must not move when a matrix arrives."""
    return msgspec.structs.replace(
        info,
        group=stub.group or info.group,
        features={**stub.features, **info.features},
        about={**stub.about, **info.about},
    )


_OTHER_SPACE = "its configuration space differs from the stored one"
_OTHER_UNIT = "its times are in cycles in one of the two and in seconds in the other"
#: Of its file: what can be named. Anything else is its text.
_DECLARED = (
    "title", "version", "simulated", "portable", "runner", "cost_per_sample", "open_choices",
)  # fmt: skip
#: What the runs stored before are taken for.
_MEANING = ("simulated", "portable")


def refuse_other_space(known: Platform | None, platform: Platform) -> None:
    """Raises: StoreError if the stored runs would mean something else."""
    reason = "" if known is None else _incompatible(known, platform)
    if reason:
        raise StoreError(
            f"platform {platform.id}: {reason}",
            hint="give the changed platform another name, or keep it in another database",
        )


def _incompatible(known: Platform, platform: Platform) -> str:
    """Why runs of the two cannot lie under one name; empty if they can. The order of parameters
    does not matter: that of the stored file stays, in which models read them."""
    if known.digest != platform.digest and not known.is_reordered(platform):
        return _OTHER_SPACE
    return _OTHER_UNIT if known.counts_cycles != platform.counts_cycles else ""


def changed_meaning(known: Platform | None, platform: Platform) -> list[str]:
    """A line for each word of an edited file that gives the runs stored before another meaning."""
    return [
        f"platform {platform.id}: {name} was {_word(known, name)}, is now {_word(platform, name)}"
        for name in (_MEANING if known is not None else ())
        if getattr(known, name) != getattr(platform, name)
    ]


def _word(platform: Platform | None, name: str) -> str:
    return str(getattr(platform, name)).lower()


def told_otherwise(known: Platform, told: Platform) -> Contradiction | None:
    """What an import says of a stored platform that is not so here."""
    what = f"platform {told.id}"
    if reason := _incompatible(known, told):
        return Contradiction(what, reason, refused=True)
    names = [name for name in _DECLARED if getattr(known, name) != getattr(told, name)]
    if known.text != told.text and not names:
        names = ["text"]
    facts = differing(known.environment, told.environment)
    return kept(what, [*names, *(f"environment.{name}" for name in facts)])
