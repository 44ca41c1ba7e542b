"""The registry of models, and what their cards report of what they learned from.

Cards come from strangers, and are read with distrust."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from embeddb.core.config import Op
from embeddb.core.errors import ModelError, StoreCorrupt, UsageError
from embeddb.core.files.model_file import KINDS
from embeddb.core.wording import many_of, one_of
from embeddb.store.engine import Engine, Txn

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


#: Characters of a text, and entries of a list, that are taken over.
_MOST_TEXT, _MOST_LISTED = 80, 32
_MOST_COUNT = 1 << 53


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A registered model in figures; empty, or None, is what its card does not say.

    `runs` of `matrices` in `groups` are what it learned from (a featurizer from no runs), `space`
    the digest of the configuration space, `data` of what was learned from. `held_out` is the share
    of the optimum at 1 by op and method when groups were held out, `parent` the model it began
    with, `trained` the card's own date and `registered` seconds since the epoch.
    """

    version: str
    kind: str = ""
    kernel: str = ""
    file: str = ""
    platform: str = ""
    space: str = ""
    ops: list[str] = []
    featurizer: str = ""
    predictor: str = ""
    runs: int | None = None
    matrices: int | None = None
    groups: int | None = None
    simulated: bool | None = None
    held_out: dict[str, dict[str, float]] = {}
    data: str = ""
    parent: str = ""
    trained: str = ""
    registered: float = 0.0

    @property
    def subjects(self) -> str:
        """The kind of what it learned from."""
        with suppress(UsageError):
            return Op.parse(self.ops[0]).kind if self.ops else "matrix"
        return "matrix"

    @property
    def lesson(self) -> str:
        """What it learned from, in one line of words."""
        first = "" if self.simulated is None else ("simulated " if self.simulated else "measured ")
        counts = (
            _counted(self.runs, f"{first}run", f"{first}runs"),
            _counted(self.matrices, one_of(self.subjects), many_of(self.subjects)),
        )
        told = " of ".join(text for text in counts if text) or "nothing that its card says"
        if self.groups is not None:
            told += f" in {_counted(self.groups, 'group', 'groups')}"
        where = " on ".join(text for text in (", ".join(self.ops), self.platform) if text)
        # Not a figure first: a table would take the whole line for one.
        told = f"{where or 'structures'}: {told}"
        return told + (f"; begun with {self.parent}" if self.parent else "")


def _counted(count: int | None, one: str, many: str) -> str:
    return "" if count is None else f"{count:,} {one if count == 1 else many}"


def facts_of(entry: ModelEntry) -> ModelFacts:
    """Whatever of the card makes sense; anything else is as if it were not there."""
    card = entry.card
    platform, featurizer = _table(card, "platform"), _table(card, "featurizer")
    settings, simulated = _table(card, "settings"), card.get("simulated")
    network = _text(_table(card, "network"), "name")
    reads = _text(featurizer, "name"), _text(featurizer, "version")
    return ModelFacts(
        version=entry.version,
        kind=_text(card, "kind"),
        kernel=_text(card, "kernel"),
        file=entry.file,
        platform=_text(platform, "name"),
        space=_text(platform, "space"),
        ops=_texts(card, "ops"),
        featurizer=" ".join(text for text in reads if text),
        predictor=_text(settings, "predictor") or network,
        runs=_count(card, "samples"),
        matrices=_count(card, "patterns"),
        groups=_count(card, "groups"),
        simulated=simulated if isinstance(simulated, bool) else None,
        held_out=_held_out(_table(card, "held_out")),
        data=_text(card, "data"),
        parent=_text(card, "parent"),
        trained=_text(card, "created"),
        registered=float(entry.registered),
    )


def _held_out(by_op: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    found = {}
    for op in list(by_op)[:_MOST_LISTED]:
        methods = _table(by_op, op)
        shares = {
            name[:_MOST_TEXT]: float(at_1)
            for name in list(methods)[:_MOST_LISTED]
            if isinstance(at_1 := _table(methods, name).get("of_optimum@1"), (int, float))
            and 0 <= at_1 <= 1
        }
        if shares:
            found[op[:_MOST_TEXT]] = shares
    return found


def _table(card: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = card.get(name)
    return found if isinstance(found, dict) else {}


def _text(card: Mapping[str, Any], name: str) -> str:
    found = card.get(name)
    return found[:_MOST_TEXT] if isinstance(found, str) else ""


def _texts(card: Mapping[str, Any], name: str) -> list[str]:
    found = card.get(name)
    listed = found[:_MOST_LISTED] if isinstance(found, list) else []
    return [text[:_MOST_TEXT] for text in listed if isinstance(text, str)]


def _count(card: Mapping[str, Any], name: str) -> int | None:
    found = card.get(name)
    return found if type(found) is int and 0 <= found < _MOST_COUNT else None
