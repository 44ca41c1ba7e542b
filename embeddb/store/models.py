"""Registry of models, and facts about their training from their cards.

Cards may come from untrusted files, so every field is checked.
"""

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
from embeddb.core.wording import many_of, one_of, plural
from embeddb.store.engine import Engine, Txn

_TABLE = "model"
#: Largest size of a card as JSON, in bytes: a hundred times that of the largest model here.
MOST_CARD_BYTES = 1 << 18
#: Largest nesting of a card: deeper ones would exceed the recursion limit of a writer.
_MOST_LEVELS = 16
_MOST_NAME = 255
_VERSION = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model by its `version`, 16 hex digits. `card` is that of its file, from anywhere: only
    checked to be small JSON of a known kind. `file` is the name below `models/` (empty: no file
    here), `registered` seconds since the epoch, and `used` rises every time a file comes into use:
    the highest of one file name is the model in use."""

    version: str
    card: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""
    registered: float = 0.0
    used: int = 0


class ModelTable:
    """Entries by version; none is ever removed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def get(self, version: str) -> ModelEntry | None:
        """The entry of a version. Raises: StoreCorrupt if it cannot be read."""
        if not _VERSION.fullmatch(version):
            return None
        with self._engine.read() as txn:
            raw = txn.get(_TABLE, version.encode())
        return None if raw is None else decode_entry(version.encode(), raw)

    def entries(self) -> list[ModelEntry]:
        """Readable entries, by version; `db check` lists the others."""
        with self._engine.read() as txn:
            return _readable(txn)

    def register(self, entries: Iterable[ModelEntry], *, gone: Iterable[str] = ()) -> list[str]:
        """Add entries that do not exist yet, in one transaction; returns their versions.

        An entry with a file becomes that file's model in use, the last one where several have the
        same file; files in `gone` have none any more. The card of a known version is not changed,
        unless it came without the file. Raises: ModelError for a version or card that cannot be
        stored.
        """
        new_entries, lost = [checked(entry) for entry in entries], frozenset(gone)

        def body(txn: Txn) -> list[str]:
            by_version = {entry.version: entry for entry in _readable(txn)}
            before = dict(by_version)
            for entry in by_version.values():
                if entry.used and entry.file in lost:
                    by_version[entry.version] = replace(entry, used=0)
            for entry in new_entries:
                by_version[entry.version] = _merged(by_version, entry)
            for version, entry in by_version.items():
                if before.get(version) != entry:
                    txn.put(_TABLE, version.encode(), _encoded(entry))
            return [version for version in by_version if version not in before]

        return self._engine.write(body) if new_entries or lost else []


def in_use(entries: Iterable[ModelEntry]) -> dict[str, ModelEntry]:
    """The model in use by file name."""
    latest: dict[str, ModelEntry] = {}
    for entry in entries:
        last = latest.get(entry.file)
        if entry.used and (last is None or entry.used > last.used):
            latest[entry.file] = entry
    return latest


def _merged(by_version: Mapping[str, ModelEntry], new: ModelEntry) -> ModelEntry:
    old = by_version.get(new.version)
    # The card of a file takes precedence over one that came with an export.
    entry = replace(new, used=0) if old is None or (new.file and not old.file) else old
    now = in_use(by_version.values()).get(new.file)
    if not new.file or (now is not None and now.version == new.version):
        return entry
    return replace(
        entry, file=new.file, used=1 + max((e.used for e in by_version.values()), default=0)
    )


def checked(entry: ModelEntry) -> ModelEntry:
    """The entry as it will be stored, with a time stamp. Raises: ModelError if it is invalid."""
    stamped = replace(entry, registered=entry.registered or time.time())
    try:
        return decode_entry(entry.version.encode(), _encoded(stamped))
    except (StoreCorrupt, ValueError, TypeError, RecursionError) as e:
        reason = " ".join(str(e).split())[:200]
        raise ModelError(f"cannot be registered: {reason}", where=entry.file[:_MOST_NAME]) from None


def _encoded(entry: ModelEntry) -> bytes:
    body = {name: getattr(entry, name) for name in ("file", "registered", "used")}
    body["card"] = dict(entry.card)
    text = json.dumps(body, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return text.encode()


def decode_entry(key: bytes, raw: bytes) -> ModelEntry:
    """Decode an entry. Raises: StoreCorrupt for anything that `register` cannot have written."""
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
    """Fault of the value of an entry; empty if there is none."""
    card = body.get("card") if isinstance(body, dict) else None
    if not isinstance(card, dict):
        return "has no card"
    if card.get("kind") not in KINDS[:-1]:
        return "its card has an unknown kind of model"
    if not _plain(card):
        return f"its card is nested deeper than {_MOST_LEVELS} levels or has text that is not UTF-8"
    file, registered, used = (body.get(name) for name in ("file", "registered", "used"))
    if not isinstance(file, str) or len(file) > _MOST_NAME:
        return "has no valid file name"
    if type(registered) not in (int, float) or not 0 <= registered < 1e12:
        return "has no valid time of registration"
    return "" if type(used) is int and 0 <= used < 1 << 53 else "has no valid count of uses"


def _plain(card: Any) -> bool:
    """Return true if a card can be written again: not nested too deeply, all text UTF-8."""
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
    entries = []
    for key, raw in txn.scan(_TABLE):
        try:
            entries.append(decode_entry(key, raw))
        except StoreCorrupt:
            continue
    return entries


#: Number of characters of a text, and of entries of a list, that are read.
_MOST_TEXT, _MOST_LISTED = 80, 32
_MOST_COUNT = 1 << 53


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a registered model; empty, or None, where its card does not have them.

    `runs` of `matrices` in `groups` are its training data (none for a featurizer), `space` the
    digest of the configuration space, `data` that of the training data. `held_out` is the fraction
    of the optimum at 1 by op and method with groups held out, `parent` the initial model, `trained`
    the card's own date and `registered` seconds since the epoch.
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
        """Kind of the training workloads."""
        with suppress(UsageError):
            return Op.parse(self.ops[0]).kind if self.ops else "matrix"
        return "matrix"

    @property
    def training_summary(self) -> str:
        """Training data in one line."""
        first = "" if self.simulated is None else ("simulated " if self.simulated else "measured ")
        counts = (
            (self.runs, f"{first}run", f"{first}runs"),
            (self.matrices, one_of(self.subjects), many_of(self.subjects)),
        )
        texts = (plural(count, one, many) for count, one, many in counts if count is not None)
        summary = " of ".join(texts) or "not stated in its card"
        if self.groups is not None:
            summary += f" in {plural(self.groups, 'group')}"
        where = " on ".join(text for text in (", ".join(self.ops), self.platform) if text)
        # No number first: a table would align the whole line as one.
        summary = f"{where or 'structures'}: {summary}"
        return summary + (f"; begun with {self.parent}" if self.parent else "")


def facts_of(entry: ModelEntry) -> ModelFacts:
    """Valid fields of a card; invalid ones count as missing."""
    card = _of_units(entry.card) if entry.card.get("kind") == "towers" else entry.card
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


def _of_units(card: Mapping[str, Any]) -> dict[str, Any]:
    """The card of towers with the fields of other cards, which it has for each operation on a
    platform."""
    units = [unit for unit in _listed(card, "units") if isinstance(unit, dict)]
    names = list(dict.fromkeys(_text(unit, "platform") for unit in units))
    held_out = {}
    for unit in units:
        where = f" on {_text(unit, 'platform')}" if len(names) > 1 else ""
        held_out[_text(unit, "op") + where] = {"towers": _table(unit, "held_out")}
    groups = [len(part) for part in _listed(card, "folds") if isinstance(part, list)]
    return {
        **card,
        "ops": list(dict.fromkeys(_text(unit, "op") for unit in units)),
        "platform": {"name": names[0] if len(names) == 1 else ""},
        "samples": card.get("runs"),
        "patterns": card.get("matrices"),
        "groups": sum(groups) if groups else None,
        "held_out": held_out,
    }


def _held_out(by_op: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    by_name = {}
    for op in list(by_op)[:_MOST_LISTED]:
        methods = _table(by_op, op)
        shares = {
            name[:_MOST_TEXT]: float(at_1)
            for name in list(methods)[:_MOST_LISTED]
            if isinstance(at_1 := _table(methods, name).get("of_optimum@1"), (int, float))
            and 0 <= at_1 <= 1
        }
        if shares:
            by_name[op[:_MOST_TEXT]] = shares
    return by_name


def _table(card: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = card.get(name)
    return value if isinstance(value, dict) else {}


def _text(card: Mapping[str, Any], name: str) -> str:
    value = card.get(name)
    return value[:_MOST_TEXT] if isinstance(value, str) else ""


def _texts(card: Mapping[str, Any], name: str) -> list[str]:
    listed = _listed(card, name)[:_MOST_LISTED]
    return [text[:_MOST_TEXT] for text in listed if isinstance(text, str)]


def _listed(card: Mapping[str, Any], name: str) -> list[Any]:
    value = card.get(name)
    return value if isinstance(value, list) else []


def _count(card: Mapping[str, Any], name: str) -> int | None:
    value = card.get(name)
    return value if type(value) is int and 0 <= value < _MOST_COUNT else None
