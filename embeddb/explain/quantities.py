"""The derived quantities of an answer beside those of the default."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.errors import StoreCorrupt
from embeddb.core.row_lengths import STORED_AS, RowLengths, from_vector
from embeddb.core.sizes import Sizes
from embeddb.platforms.derived import DerivedQuantities
from embeddb.platforms.platform import Platform, builtin_platforms, load_platform

if TYPE_CHECKING:
    from embeddb.store import Store


class QuantityView(msgspec.Struct, frozen=True, kw_only=True):
    """One derived quantity of the answer and of the default; None where it does not apply, or needs
    the lengths of the rows and these are not stored."""

    name: str
    answer: float | None
    default: float | None
    meaning: str = ""

    @property
    def answer_text(self) -> str:
        """The answer's number for people, `-` for none."""
        return _text(self.answer)

    @property
    def default_text(self) -> str:
        """The default's number for people, `-` for none."""
        return _text(self.default)


def quantity_views(
    platform: Platform,
    op: Op,
    configs: tuple[Mapping[str, Any], Mapping[str, Any]],
    sizes: Sizes,
    lengths: RowLengths | None,
) -> list[QuantityView]:
    """The quantities of an answer and the default that apply to either, in declared order. Raises:
    UsageError if the platform does not run this kernel."""
    space = platform.space(op, sizes)
    derived = DerivedQuantities(platform, op, [space.canonical(Config(c)) for c in configs])
    answer, default = derived.values(sizes, lengths).tolist()
    meaning = _meaning(platform)
    return [
        QuantityView(
            name=name, answer=_number(a), default=_number(b), meaning=meaning.get(name, "")
        )
        for name, a, b in zip(derived.names, answer, default, strict=True)
        if not math.isnan(a) or not math.isnan(b)
    ]


def stored_lengths(store: Store, pattern_id: str, sizes: Sizes) -> RowLengths | None:
    """The row lengths that are stored of a matrix of these sizes."""
    try:
        vector = store.vectors.get(*STORED_AS, [pattern_id]).get(pattern_id)
    except StoreCorrupt:  # the rest can be explained all the same
        return None
    return None if vector is None else from_vector(vector, sizes.m, sizes.nnz)


def _meaning(platform: Platform) -> Mapping[str, str]:
    """Meanings of the quantities by name; a stored platform without them has those of the shipped
    one."""
    shipped = platform.name in builtin_platforms()
    return {**(load_platform(platform.name).meaning if shipped else {}), **platform.meaning}


def _text(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 or value.is_integer() else f"{value:.3g}"


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
