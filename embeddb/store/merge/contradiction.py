"""What an import says against what is known.

Own writes may correct what is known. An import may not: whoever told something first is believed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["Contradiction", "differing", "kept"]

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
