"""Drawing of a tensor kernel: operations as boxes, arrows from operand to user; for one with too
many operations, bars with the count of each opcode."""

from __future__ import annotations

import math
from collections.abc import Mapping

from embeddb.core.wording import factor
from embeddb.ranking.kernels.view import KernelView
from embeddb.ranking.recommendation import Diagnostics, Occluded
from embeddb.ui import draw
from embeddb.ui.feature_words import feature_words

#: Most important operations that are marked.
_MOST_MARKED = 3
_MOST_LOG = 60.0
_HEADS = {
    "model": "important operations: predicted gain of the best tile if the model does not see one",
    "operations": "important operations: how far the embedding moves if one is hidden",
    "sizes": "important sizes: how far the embedding moves if one is replaced by its average",
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
    """Caption of the drawing, one sentence without its full stop."""
    if not view.operations:
        return f"count of each opcode among its {view.count:,} operations, too many to draw"
    caption = "its operations; a thick frame marks outputs"
    if insight is not None and marked_operations(insight):
        return f"{caption}, a bar at the side marks those most important for the answer"
    return caption


def marked_operations(insight: Diagnostics) -> dict[int, str]:
    """A note on each of the most important operations, by place; empty without diagnostics."""
    important = [one for one in insight.occluded[:_MOST_MARKED] if one.place >= 0 and one.moved]
    return {one.place: occluded_figure(one, insight.occluded_by) for one in important}


def occluded_head(by: str) -> str:
    """Heading of the list `Diagnostics.occluded`."""
    return _HEADS.get(by, by)


def occluded_part(one: Occluded, view: KernelView | None) -> str:
    """The occluded part: an operation with its shape and place, or a statistic in words."""
    if one.place < 0:
        return feature_words(one.what)
    operations = view.operations if view is not None else []
    shape = f" {operations[one.place].shape}" if one.place < len(operations) else ""
    return f"{one.what}{shape}, at {one.place}"


def occluded_figure(one: Occluded, by: str) -> str:
    """Effect of an occlusion: a factor on the predicted gain, or a distance."""
    return (
        factor(math.exp(min(one.moved, _MOST_LOG)), sign="×")
        if by == "model"
        else f"{one.moved:.2g}"
    )
