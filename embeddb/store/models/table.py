"""The registry of models: what each one that this database used, or heard of, was trained on.

An entry is keyed by the model's version, the digest of its file. It is made once and its card never
changes, so an answer can be explained after its model was trained again and the file is gone.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from embeddb.core.errors import ModelError, StoreCorrupt
from embeddb.core.files.model_file import KINDS
from embeddb.store.engine import Engine, Txn

__all__ = ["MOST_CARD_BYTES", "ModelEntry", "ModelTable", "checked", "decode_entry", "in_use"]

_TABLE = "model"
#: Of a card as JSON: a hundred times that of the largest model here.
MOST_CARD_BYTES = 1 << 18
#: Levels of a card: deeper ones would end the recursion of whoever writes them out.
_MOST_LEVELS = 16
_MOST_NAME = 255
_VERSION = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model by its `version`, 16 hex digits. `card` is its file's, written by anybody: nothing in
    it is checked but that it is small JSON of a known kind. `file` is the name below `models/`
    (empty: there was none of it here), `registered` seconds since the epoch, and `used` counts
    every time a file came into use: the highest of one file name is the model in use."""

    version: str
    card: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""
    registered: float = 0.0
    used: int = 0


class ModelTable:
    """Entries by version; nothing is ever removed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def get(self, version: str) -> ModelEntry | None:
        """Raises: StoreCorrupt for an entry that cannot be read."""
        if not _VERSION.fullmatch(version):
            return None
        with self._engine.read() as txn:
            raw = txn.get(_TABLE, version.encode())
        return None if raw is None else decode_entry(version.encode(), raw)

    def entries(self) -> list[ModelEntry]:
        """Those that can be read, by version; `db check` names the others."""
        with self._engine.read() as txn:
            return _readable(txn)

    def register(self, entries: Iterable[ModelEntry], *, gone: Iterable[str] = ()) -> list[str]:
        """Add what is not there yet, in one transaction; the versions that were added.

        An entry with a file is that file's model from now on, where several have one the last;
        files in `gone` have none any more. The card of a known version stays as it is, unless it
        came without the file.
        Raises: ModelError for a version or card that cannot be kept.
        """
        given, lost = [checked(entry) for entry in entries], frozenset(gone)

        def body(txn: Txn) -> list[str]:
            known = {entry.version: entry for entry in _readable(txn)}
            before = dict(known)
            for entry in known.values():
                if entry.used and entry.file in lost:
                    known[entry.version] = replace(entry, used=0)
            for entry in given:
                known[entry.version] = _merged(known, entry)
            for version, entry in known.items():
                if before.get(version) != entry:
                    txn.put(_TABLE, version.encode(), _encoded(entry))
            return [version for version in known if version not in before]

        return self._engine.write(body) if given or lost else []


def in_use(entries: Iterable[ModelEntry]) -> dict[str, ModelEntry]:
    """The model in use by file name."""
    found: dict[str, ModelEntry] = {}
    for entry in entries:
        last = found.get(entry.file)
        if entry.used and (last is None or entry.used > last.used):
            found[entry.file] = entry
    return found


def _merged(known: Mapping[str, ModelEntry], new: ModelEntry) -> ModelEntry:
    old = known.get(new.version)
    # Of a version that only an export told of, its file knows better.
    kept = replace(new, used=0) if old is None or (new.file and not old.file) else old
    now = in_use(known.values()).get(new.file)
    if not new.file or (now is not None and now.version == new.version):
        return kept
    return replace(kept, file=new.file, used=1 + max((e.used for e in known.values()), default=0))


def checked(entry: ModelEntry) -> ModelEntry:
    """As it will be kept: with the moment, where it has none. Raises: ModelError if it cannot."""
    found = replace(entry, registered=entry.registered or time.time())
    try:
        return decode_entry(entry.version.encode(), _encoded(found))
    except (StoreCorrupt, ValueError, TypeError, RecursionError) as e:
        said = " ".join(str(e).split())[:200]
        raise ModelError(f"cannot be registered: {said}", where=entry.file[:_MOST_NAME]) from None


def _encoded(entry: ModelEntry) -> bytes:
    body = {name: getattr(entry, name) for name in ("file", "registered", "used")}
    body["card"] = dict(entry.card)
    text = json.dumps(body, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return text.encode()


def decode_entry(key: bytes, raw: bytes) -> ModelEntry:
    """Raises: StoreCorrupt, in one line, for what no registration of ours can have written."""
    version = key.decode("ascii", "replace")
    where = f"registered model {version[:16]!r}"
    if not _VERSION.fullmatch(version):
        raise StoreCorrupt(f"{where}: no version of a model")
    if len(raw) > MOST_CARD_BYTES:
        raise StoreCorrupt(f"{where}: {len(raw)} bytes, more than the {MOST_CARD_BYTES} of a card")
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise StoreCorrupt(f"{where}: not JSON") from None
    fault = _fault(body)
    if fault:
        raise StoreCorrupt(f"{where}: {fault}")
    return ModelEntry(version, body["card"], body["file"], body["registered"], body["used"])


def _fault(body: Any) -> str:
    """What is wrong with the value of an entry; empty if nothing."""
    card = body.get("card") if isinstance(body, dict) else None
    if not isinstance(card, dict):
        return "has no card"
    if card.get("kind") not in KINDS[:-1]:
        return "its card is of no kind of model"
    if not _plain(card):
        return f"its card is nested deeper than {_MOST_LEVELS} levels or holds text that is none"
    file, registered, used = (body.get(name) for name in ("file", "registered", "used"))
    if not isinstance(file, str) or len(file) > _MOST_NAME:
        return "has no name of a file"
    if type(registered) not in (int, float) or not 0 <= registered < 1e12:
        return "has no moment of registration"
    return "" if type(used) is int and 0 <= used < 1 << 53 else "has no count of uses"


def _plain(card: Any) -> bool:
    """Whether anybody can write it out again: not too deep, and all text is UTF-8."""
    level, texts = [card], list[str]()
    for _ in range(_MOST_LEVELS):
        tables = [value for value in level if isinstance(value, dict)]
        lists = [value for value in level if isinstance(value, list)]
        texts += [value for value in level if isinstance(value, str)]
        texts += [name for table in tables for name in table]
        level = [v for table in tables for v in table.values()] + [v for row in lists for v in row]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return not level


def _readable(txn: Txn) -> list[ModelEntry]:
    found = []
    for key, raw in txn.scan(_TABLE):
        try:
            found.append(decode_entry(key, raw))
        except StoreCorrupt:
            continue
    return found
