"""Values of an answer that text, page and notebook format."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from embeddb.core.config import Config
from embeddb.core.sizes import Sizes
from embeddb.core.wording import factor, shown, when
from embeddb.explain.explanation import fails, paid_off
from embeddb.ranking.kernel_view import KernelView
from embeddb.ranking.order_reason import rests_on
from embeddb.ranking.recommendation import Diagnostics, Occluded, Recommendation
from embeddb.store.provenance import HERE, Provenance
from embeddb.ui import draw
from embeddb.ui.feature_words import feature_words


class RankRow(NamedTuple):
    """A candidate at its `rank` from 1, or the default (None). Gains are factors over the default,
    `low` to `high` is the 10..90 % interval; `seconds` and `measured_gain` are of runs for this
    answer."""

    rank: int | None
    config: dict[str, Any]
    gain: float | None
    low: float | None = None
    high: float | None = None
    rests_on: str = "default"
    fails: str = "-"
    pays_off: str = "-"
    seconds: float | None = None
    status: str = ""
    measured_gain: float | None = None


class Ranking(NamedTuple):
    """The candidates of an answer, and the default as `last` row if it is none of them. The flags
    say which columns have values."""

    rows: list[RankRow]
    last: list[RankRow]
    measured: bool
    fails: bool
    pays_off: bool

    @property
    def every(self) -> list[RankRow]:
        return self.rows + self.last

    @classmethod
    def of(cls, answer: Recommendation) -> Ranking:
        candidates, base = answer.candidates, answer.default_seconds
        rows = [
            RankRow(
                rank,
                c.config,
                c.expected_gain,
                c.gain_low,
                c.gain_high,
                rests_on(c, answer.default),
                fails(c),
                paid_off(c.break_even_calls),
                c.seconds,
                c.status or "",
                base / c.seconds if base and c.seconds else None,
            )
            for rank, c in enumerate(candidates, 1)
        ]
        own = RankRow(None, answer.default, 1.0, seconds=base, measured_gain=base and 1.0)
        return cls(
            rows,
            [] if answer.default in [c.config for c in candidates] else [own],
            any(c.status for c in candidates),
            any(c.failure is not None for c in candidates),
            any(c.break_even_calls is not None for c in candidates),
        )


def differing(config: Mapping[str, Any], answer: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Parameters whose value differs from the answer's, with the value; None: not used."""
    # A stored answer has lists for permutations: as configurations the two compare.
    there, here = Config(config), Config(answer)
    return [(n, there.get(n)) for n in sorted({*there, *here}) if there.get(n) != here.get(n)]


def subject_line(name: str, sizes: Sizes) -> str:
    """A workload's name and sizes: `G14: 800 x 800, 4,694 nonzeros`."""
    if sizes.named:
        return f"{name}: {sizes}"
    if min(sizes) < 0:
        return f"{name} (sizes unknown)"
    return f"{name}: {sizes.m:,} x {sizes.n:,}, {sizes.nnz:,} nonzeros"


_MOST_NAME = 40


def whose_runs(provenance: Sequence[Provenance]) -> str:
    """Number of runs by source: `ann@cluster7 12, run or read in here 3`."""
    return ", ".join(f"{shown(p.source or HERE, _MOST_NAME)} {p.runs:,}" for p in provenance)


def each_source(provenance: Iterable[Provenance]) -> list[str]:
    """A line for each source and machine: number of runs, users who pushed them, dates."""
    every: dict[tuple[str, str], list[Provenance]] = {}
    for one in provenance:
        every.setdefault((one.source, one.machine), []).append(one)
    lines = []
    for _, group in sorted(every.items()):
        whens = [moment for one in group for moment in (one.first, one.last) if moment > 0]
        days = sorted({when(min(whens))[:10], when(max(whens))[:10]}) if whens else []
        both = msgspec.structs.replace(group[0], runs=sum(one.runs for one in group))
        lines.append(shown(both.words + (f", measured {' to '.join(days)}" if days else ""), 400))
    return lines


# -- drawing of a tensor kernel --------------------------------------------------------------------

#: Most important operations that are marked.
_MOST_MARKED = 3
_MOST_LOG = 60.0
_HEADS = {
    "model": "important operations: predicted gain of the best tile if the model does not see one",
    "operations": "important operations: how far the embedding moves if one is hidden",
    "sizes": "important sizes: how far the embedding moves if one is replaced by its average",
}


def drawn_kernel(
    view: KernelView, *, title: str, marked: Mapping[int, str] = {}, key: str = "kernel"
) -> str:
    """An SVG element; `marked` has a note for operations by their places."""
    if not view.operations:
        rows = [draw.Bar(opcode, count) for opcode, count in view.opcodes.items()]
        return draw.bars(rows, title=title, width=540, key=key)
    nodes = [
        draw.Node(
            op.opcode,
            f"{marked[at]}, {op.shape}" if at in marked else op.shape,
            tuple(op.operands),
            strong=op.is_output,
            marked=at in marked,
        )
        for at, op in enumerate(view.operations)
    ]
    return draw.graph(nodes, title=title, key=key)


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
    if by == "model":
        return factor(math.exp(min(one.moved, _MOST_LOG)), sign="×")
    return f"{one.moved:.2g}"
