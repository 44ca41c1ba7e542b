"""What the terminal says of tensor kernels alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddb.core.errors import TensorError
from embeddb.core.wording import clean, plural
from embeddb.ui.cli.output import say, table
from embeddb.ui.kernel_drawing import occluded_figure, occluded_head, occluded_part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from embeddb.query.diagnostics import Diagnostics
    from embeddb.query.kernels.view import KernelView

__all__ = ["refuse_if_nothing_ran", "show_occluded"]

_MOST = 8


def refuse_if_nothing_ran(count: int, reasons: Mapping[str, str]) -> None:
    """Where of all that was asked for nothing was measured, now or before, as far as it goes wrong:
    `reasons` by name. Raises: TensorError."""
    if count or not reasons:
        return
    name, reason = next(iter(reasons.items()))
    more = f", and {plural(len(reasons) - 1, 'other')}" if len(reasons) > 1 else ""
    raise TensorError("nothing could be measured", hint=f"{name}: {reason}{more}")


def show_occluded(insight: Diagnostics, view: KernelView | None) -> None:
    """Which operations or sizes of a kernel count, where that was found out."""
    if not insight.occluded:
        return
    say()
    say(occluded_head(insight.occluded_by))
    rows = [
        (
            clean(occluded_part(one, view))[:60],
            occluded_figure(one, insight.occluded_by),
        )
        for one in insight.occluded[:_MOST]
    ]
    table(("left out", "then" if insight.occluded_by == "model" else "moves by"), rows, indent="  ")
