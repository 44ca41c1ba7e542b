"""What a model's card says it learned from, read with distrust: cards come from strangers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from embeddb.core.config import Op
from embeddb.core.errors import UsageError
from embeddb.core.wording import many_of, one_of
from embeddb.store.models.table import ModelEntry

__all__ = ["ModelFacts", "facts_of"]

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
