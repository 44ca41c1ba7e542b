"""What the page of an answer says beside its figures: what is on it, how the answer is used, why
figures look odd."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from embeddb.core.config import Config, Op
from embeddb.core.kinds import kind_of
from embeddb.core.wording import line, one_of
from embeddb.ranking.order_reason import order_notes
from embeddb.ui.report import commands

if TYPE_CHECKING:
    from embeddb.explain.explanation import Explanation

__all__ = ["call_it", "contents", "remarks", "to_use", "uneven"]

#: A repeat that took so many times the fastest is a doubt.
_UNEVEN = 2.0


def remarks(e: Explanation, place: str) -> dict[str, Any]:
    """By the names that the page has for them; `place` is how commands name the database."""
    return {
        "order_notes": order_notes(e.recommendation.candidates),
        "uneven": uneven(e),
        "contents": contents(e),
        "to_use": to_use(e),
        "call_it": call_it(e),
        "try_it": commands.try_it(e, place),
        "measure": commands.measure_next(e, place),
        "again": commands.again(e.recommendation.id, place),
        "placeholders": commands.placeholders(e, place),
    }


def contents(e: Explanation) -> list[tuple[str, str]]:
    """Anchors and short headings of the parts that the page has, in its order."""
    made, kind = e.recommendation, e.pattern.kind
    insight = made.insight
    parts = [
        ("use", "How to use it", to_use(e)),
        ("novelty", "How new it is", bool(e.novelty)),
        ("pattern", f"Its {one_of(kind)}", True),
        ("neighbours", "What it rests on", True),
        ("agreement", "What neighbours agree on", bool(e.neighbours and e.agreement)),
        ("simpler", "Simpler methods", bool(insight.simpler)),
        ("ranks", "The other proposals", bool(made.candidates)),
        ("next", "Measure next", bool(insight.next)),
        ("effects", "What each parameter does", bool(insight.effects)),
        ("occluded", "What counts", bool(insight.occluded)),
        ("moves", "What would change it", bool(insight.deep and kind_of(kind).sparse)),
        ("rejected", "Not legal here", bool(made.rejected)),
        ("provenance", "Provenance", True),
    ]
    return [(anchor, words) for anchor, words, there in parts if there]


def to_use(e: Explanation) -> bool:
    """Whether there is something to use: another configuration than the default, or a check."""
    return e.runnable or Config(e.answer) != Config(e.recommendation.default)


def call_it(e: Explanation) -> str:
    """How a program calls the answer; empty where none can."""
    op, platform = Op.parse(e.recommendation.op), e.recommendation.platform.partition("@")[0]
    if platform != "cpu" or not op.workload.sparse or op.dtype not in ("f32", "f64"):
        return ""
    width = f", k={op.width}" if op.traits.wide else ""
    return f'embeddb.compile(A, "{op.kernel}"{width}, config="{line(e.answer)}")'


def uneven(e: Explanation) -> float | None:
    """How many times the fastest repeat of the answer, or of the default, the slowest took; None
    where that is no doubt."""
    ratios = [own.slowest / own.fastest for own in e.own if own.times > 1 and own.fastest > 0]
    return max((r for r in ratios if math.isfinite(r) and r > _UNEVEN), default=None)
