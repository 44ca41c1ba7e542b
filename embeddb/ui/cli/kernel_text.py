"""Terminal output for tensor kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddb.core.errors import TensorError
from embeddb.core.wording import clean, duration, factor, plural, short_time
from embeddb.tensors.tensor_graph import TensorGraph
from embeddb.ui.cli.output import say, table
from embeddb.ui.kernel_drawing import occluded_figure, occluded_head, occluded_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from embeddb.core.config import Op
    from embeddb.core.records import WorkloadInfo
    from embeddb.core.workload import Workload
    from embeddb.database import Database
    from embeddb.ranking.kernels.fused_seconds import FusedSeconds
    from embeddb.ranking.kernels.view import KernelView
    from embeddb.ranking.recommendation import Diagnostics

_MOST = 8


def refuse_if_nothing_ran(count: int, reasons: Mapping[str, str]) -> None:
    """Fail if no requested kernel was measured, now or before; `reasons` by kernel name.

    Raises: TensorError."""
    if count or not reasons:
        return
    name, reason = next(iter(reasons.items()))
    more = f", and {plural(len(reasons) - 1, 'other')}" if len(reasons) > 1 else ""
    raise TensorError("nothing could be measured", hint=f"{name}: {reason}{more}")


def show_occluded(insight: Diagnostics, view: KernelView | None) -> None:
    """Table of the operations or sizes of a kernel that matter, if deep diagnostics ran."""
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


def fused_seconds(db: Database, subject: Workload | WorkloadInfo, op: Op) -> Sequence[FusedSeconds]:
    """Measured and predicted seconds of a kernel, by machine; only for op `fused`."""
    if op.name != "fused":
        return ()
    from embeddb.ranking.kernels.fused_seconds import fused_seconds_of

    kernel = subject if isinstance(subject, TensorGraph) else db.store.tensor(subject.id)
    return () if kernel is None else fused_seconds_of(db.index, kernel)


def show_fused_seconds(took: Iterable[FusedSeconds]) -> None:
    """Seconds of a fused kernel, a line for each machine."""
    for one in took:
        measured = "not measured" if one.measured is None else f"{time_of(one.measured)} measured"
        prediction = ""
        if one.model is not None and one.predicted is not None:
            call = "" if one.call is None else f", its call {time_of(one.call)}"
            disagreement = (
                f" (trees and network: {factor(one.apart)} apart)" if (one.apart or 1) > 1 else ""
            )
            prediction = f", {time_of(one.predicted)} by model {one.model[:8]}{disagreement}{call}"
        say(f"{one.platform}: {measured}{prediction}")


def time_of(seconds: float) -> str:
    """`12.3 µs`, or a longer time with its own unit."""
    return short_time(seconds, micro="µs") or duration(seconds)
