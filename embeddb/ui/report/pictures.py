"""The drawings of an explanation, as SVG elements to set into a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from embeddb.core.config import Config
from embeddb.core.wording import page_factor, shown, value_text
from embeddb.nests.lines import PARALLEL
from embeddb.ui import draw
from embeddb.ui.kernel_drawing import drawn_kernel, kernel_caption, marked_operations
from embeddb.ui.report.page import markup

if TYPE_CHECKING:
    from markupsafe import Markup

    from embeddb.explain.explanation import Explanation, NeighbourEvidence
    from embeddb.ranking.recommendation import ParameterEffect, Recommendation

#: Parameters and values of one that are drawn.
_MOST_PARAMETERS = 16
_MOST_VALUES = 24
#: Of bars: narrow enough to be read on a small screen.
_WIDTH = 540
#: Of nested boxes: what the innermost of six loops says still has room.
_BOXES = 460
#: Below this ratio between a parameter's best and worst value it does not matter.
_MATTERS = 1.02
#: A curve of fewer configurations tells nothing that the numbers do not.
_FEWEST = 4


class Card(NamedTuple):
    """A neighbour and what is drawn of it."""

    near: NeighbourEvidence
    spy: Markup | None
    curve: Markup | None
    vote: float | None


class EffectPicture(NamedTuple):
    """`spread`: the best gain of the parameter's best value over that of its worst."""

    parameter: str
    spread: float
    matters: bool
    bars: Markup


def spy(thumbnail: bytes, *, title: str, key: str, width: float = 168) -> Markup | None:
    if not thumbnail:
        return None
    return markup(draw.spy(thumbnail, title=title, width=width, key=key))


def nests(e: Explanation) -> list[tuple[str, Markup]]:
    """The nest as it is written and as the answer has it, with what each picture shows; none for
    what is no nest."""
    nest = e.pattern.nest
    if nest is None:
        return []
    name = shown(e.pattern.name or e.pattern.id)
    parallel = [at for at, line in enumerate(nest.answer) if PARALLEL in line]
    answered = "as the answer has it" + ("; a thick frame runs in parallel" if parallel else "")

    def drawn(said: str, loops: list[str], strong: list[int], key: str) -> Markup:
        title = f"{name} {said}"
        return markup(
            draw.boxes(loops, nest.body, title=title, strong=strong, width=_BOXES, key=key)
        )

    return [
        ("as it is written", drawn("as it is written", nest.loops, [], "written")),
        (answered, drawn(answered, nest.answer, parallel, "answered")),
    ]


def kernel(e: Explanation) -> tuple[str, Markup] | None:
    """The tensor kernel, and what the picture shows; None for what is none, or is not known."""
    view, insight = e.pattern.kernel, e.recommendation.insight
    if view is None:
        return None
    title = f"operations of {shown(e.pattern.name or e.pattern.id)}"
    drawn = drawn_kernel(view, title=title, marked=marked_operations(insight), width=_WIDTH)
    return kernel_caption(view, insight), markup(drawn)


def attention(e: Explanation) -> Markup | None:
    made, side = e.recommendation, e.recommendation.insight.attention_side
    if not (made.insight.attention and side and e.pattern.thumbnail):
        return None
    title = f"where {shown(made.subject)} decides its neighbours"
    drawn = draw.spy(
        e.pattern.thumbnail,
        title=title,
        width=280,
        attention=made.insight.attention,
        side=side,
        key="attention",
    )
    return markup(drawn)


def cards(e: Explanation, most: int) -> list[Card]:
    total = sum(n.weight for n in e.neighbours)
    return [
        Card(
            near,
            spy(near.thumbnail, title=f"nonzeros of {_name(near)}", key=f"near{at}", width=112),
            _curve(near, f"curve{at}"),
            near.weight / total if total else None,
        )
        for at, near in enumerate(e.neighbours[:most])
    ]


def _curve(near: NeighbourEvidence, key: str) -> Markup | None:
    """Every configuration that ran there, fastest first."""
    if len(near.ratios) < _FEWEST:
        return None
    marks = {"best": 0, "answer": near.answer_at, "default": near.default_at}
    last = len(near.ratios) - 1
    shown_marks = {name: at for name, at in marks.items() if at is not None}
    drawn = draw.curves(
        [draw.Line("", [100 * i / last for i in range(last + 1)], near.ratios, marks=shown_marks)],
        title=f"time of each configuration on {_name(near)}, over its best",
        x_label="configurations, fastest first (%)",
        y_label="time / best",
        log_y=True,
        size=(300, 190),
        key=key,
    )
    return markup(drawn)


def _name(near: NeighbourEvidence) -> str:
    return shown(near.name or near.pattern_id, 80)


def simpler(e: Explanation) -> Markup | None:
    """What each simpler method's answer is expected to gain, beside this one."""
    answer = e.answer
    rows = [
        draw.Bar(shown(s.method), s.expected_gain, marked=Config(s.config) == Config(answer))
        for s in e.recommendation.insight.simpler
        if s.expected_gain is not None
    ]
    if len(rows) < 2:
        return None
    if e.compared_gain is not None:
        rows.append(draw.Bar("this answer", e.compared_gain, marked=True))
    title = "gain over the default, by method"
    return markup(
        draw.bars(rows, title=title, unit="×", reference=1.0, width=_WIDTH, key="simpler")
    )


def candidates(made: Recommendation) -> Markup | None:
    """Expected gain and interval by rank; what was measured is noted."""
    rows = []
    for rank, c in enumerate(made.candidates[:_MOST_VALUES], 1):
        if c.expected_gain is not None:
            real = made.default_seconds / c.seconds if made.default_seconds and c.seconds else None
            note = "" if real is None else f"measured {page_factor(real)}"
            rows.append(
                draw.Bar(f"rank {rank}", c.expected_gain, c.gain_low, c.gain_high, note, rank == 1)
            )
    if len(rows) < 2:
        return None
    title = "gain over the default by rank"
    return markup(draw.bars(rows, title=title, unit="×", reference=1.0, width=_WIDTH, key="ranks"))


def effects(e: Explanation) -> list[EffectPicture]:
    """By how much a wrong value costs, largest first."""
    by_name: dict[str, list[ParameterEffect]] = {}
    for effect in e.recommendation.insight.effects:
        by_name.setdefault(effect.parameter, []).append(effect)
    found = [
        _effect(name, held, e.answer, f"effect{at}")
        for at, (name, held) in enumerate(list(by_name.items())[:_MOST_PARAMETERS])
    ]
    return sorted(found, key=lambda p: -p.spread)


def _effect(
    name: str, held: Iterable[ParameterEffect], answer: Mapping[str, Any], key: str
) -> EffectPicture:
    ranked = sorted(held, key=lambda x: -x.best_gain)[:_MOST_VALUES]
    chosen = value_text(answer.get(name))
    rows = [
        draw.Bar(
            shown(x.value, 40),
            x.best_gain,
            note=f"median {page_factor(x.median_gain)} of {x.configs:,}",
            marked=x.value == chosen,
        )
        for x in ranked
    ]
    spread = ranked[0].best_gain / ranked[-1].best_gain if ranked[-1].best_gain > 0 else 1.0
    title = f"best gain with each value of {shown(name, 80)}"
    drawn = draw.bars(rows, title=title, unit="×", reference=1.0, width=_WIDTH, key=key)
    return EffectPicture(shown(name), spread, spread >= _MATTERS, markup(drawn))
