"""A tensor kernel drawn: its operations as boxes, arrows where one takes what another gives; of one
with too many operations for that how often each opcode is among them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from embeddb.core.wording import factor
from embeddb.ranking.kernels.view import KernelView
from embeddb.ranking.recommendation import Diagnostics, Occluded
from embeddb.ui import draw
from embeddb.ui.feature_words import feature_words

#: Operations that are marked as those that count most.
_MOST_MARKED = 3
_MOST_LOG = 60.0
_HEADS = {
    "model": "which operations count: what the best tile promises if one is hidden from the model",
    "operations": "which operations count: how far the kernel moves if one is hidden",
    "sizes": "which sizes count: how far the kernel moves if one is as it is on average",
}


def drawn_kernel(
    view: KernelView,
    *,
    title: str,
    marked: Mapping[int, str] | None = None,
    width: float = 540,
    key: str = "kernel",
) -> str:
    """An SVG element; `marked` has a note for operations by their places."""
    notes = marked or {}
    if not view.operations:
        rows = [draw.Bar(opcode, count) for opcode, count in view.opcodes.items()]
        return draw.bars(rows, title=title, width=width, key=key)
    nodes = [
        draw.Node(
            op.opcode,
            f"{notes[at]}, {op.shape}" if at in notes else op.shape,
            tuple(op.operands),
            strong=op.given,
            marked=at in notes,
        )
        for at, op in enumerate(view.operations)
    ]
    return draw.graph(nodes, title=title, width=width, key=key)


def kernel_caption(view: KernelView, insight: Diagnostics | None = None) -> str:
    """What the picture shows, in one sentence without its full stop."""
    if not view.operations:
        return f"how often each opcode is among its {view.count:,} operations, too many to draw"
    told = "its operations; a thick frame is what it gives"
    if insight is not None and marked_operations(insight):
        return f"{told}, a bar at the side marks what counts most for the answer"
    return told


def marked_operations(insight: Diagnostics) -> dict[int, str]:
    """A note for those that count most, by place; none where nothing was found out."""
    said = [one for one in insight.occluded[:_MOST_MARKED] if one.place >= 0 and one.moved]
    return {one.place: occluded_figure(one, insight.occluded_by) for one in said}


def occluded_head(by: str) -> str:
    """What `Diagnostics.occluded` lists, as a heading."""
    return _HEADS.get(by, by)


def occluded_part(one: Occluded, view: KernelView | None) -> str:
    """What was left out: an operation with its shape and place, or a statistic in words."""
    if one.place < 0:
        return feature_words(one.what)
    known = view.operations if view is not None else []
    shape = f" {known[one.place].shape}" if one.place < len(known) else ""
    return f"{one.what}{shape}, at {one.place}"


def occluded_figure(one: Occluded, by: str) -> str:
    """By how much: a factor on what is promised, or a distance."""
    return (
        factor(math.exp(min(one.moved, _MOST_LOG)), sign="×")
        if by == "model"
        else f"{one.moved:.2g}"
    )
