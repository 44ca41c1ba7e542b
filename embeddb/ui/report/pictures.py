"""Charts of an explanation, as SVG elements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from embeddb.core.config import Config
from embeddb.core.wording import page_factor, shown, value_text
from embeddb.nests.lines import PARALLEL
from embeddb.ui import draw
from embeddb.ui.report.page import markup
from embeddb.ui.views import drawn_kernel, kernel_caption, marked_operations

if TYPE_CHECKING:
    from markupsafe import Markup

    from embeddb.explain.explanation import Explanation, NeighbourDetail
    from embeddb.ranking.recommendation import ParameterEffect, Recommendation

#: Parameters, and values of a parameter, that are drawn.
_MOST_PARAMETERS = 16
_MOST_VALUES = 24
#: Width of bars: readable on a small screen.
_WIDTH = 540
#: Width of nested boxes: the text of the innermost of six loops fits.
_BOXES = 460
#: A parameter matters from this ratio between its best and worst value.
_MATTERS = 1.02
#: Fewest configurations of a curve.
_FEWEST = 4


class Card(NamedTuple):
    """A neighbour and its charts."""

    near: NeighbourDetail
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
    """Pictures of the original nest and of the scheduled one, with captions; none for other
    workloads."""
    nest = e.pattern.nest
    if nest is None:
        return []
    name = shown(e.pattern.name or e.pattern.id)
    parallel = [at for at, line in enumerate(nest.answer) if PARALLEL in line]
    answered = "scheduled by the answer" + ("; a thick frame runs in parallel" if parallel else "")

    def drawn(caption: str, loops: list[str], strong: list[int], key: str) -> Markup:
        title = f"{name} {caption}"
        return markup(
            draw.boxes(loops, nest.body, title=title, strong=strong, width=_BOXES, key=key)
        )

    return [
        ("as it is written", drawn("as it is written", nest.loops, [], "written")),
        (answered, drawn(answered, nest.answer, parallel, "answered")),
    ]


def kernel(e: Explanation) -> tuple[str, Markup] | None:
    """Picture of the tensor kernel, with its caption; None for other workloads or by name only."""
    view, insight = e.pattern.kernel, e.recommendation.insight
    if view is None:
        return None
    title = f"operations of {shown(e.pattern.name or e.pattern.id)}"
    drawn = drawn_kernel(view, title=title, marked=marked_operations(insight), width=_WIDTH)
    return kernel_caption(view, insight), markup(drawn)


def attention(e: Explanation) -> Markup | None:
    recommendation, side = e.recommendation, e.recommendation.insight.attention_side
    if not (recommendation.insight.attention and side and e.pattern.thumbnail):
        return None
    title = f"occlusion map of {shown(recommendation.subject)}"
    drawn = draw.spy(
        e.pattern.thumbnail,
        title=title,
        width=280,
        attention=recommendation.insight.attention,
        side=side,
        key="attention",
    )
    return markup(drawn)


def cards(e: Explanation, most: int) -> list[Card]:
    return [
        Card(
            near,
            spy(near.thumbnail, title=f"nonzeros of {_name(near)}", key=f"near{at}", width=112),
            _curve(near, f"curve{at}"),
            near.share,
        )
        for at, near in enumerate(e.neighbours[:most])
    ]


def _curve(near: NeighbourDetail, key: str) -> Markup | None:
    """Times of all configurations on a neighbour, fastest first."""
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


def _name(near: NeighbourDetail) -> str:
    return shown(near.name or near.pattern_id, 80)


def simpler(e: Explanation) -> Markup | None:
    """Expected gains of simpler methods beside this answer."""
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


def candidates(recommendation: Recommendation) -> Markup | None:
    """Expected gain and interval by rank, with measured gains as notes."""
    rows = []
    for rank, c in enumerate(recommendation.candidates[:_MOST_VALUES], 1):
        if c.expected_gain is not None:
            real = (
                recommendation.default_seconds / c.seconds
                if recommendation.default_seconds and c.seconds
                else None
            )
            note = "" if real is None else f"measured {page_factor(real)}"
            rows.append(
                draw.Bar(f"rank {rank}", c.expected_gain, c.gain_low, c.gain_high, note, rank == 1)
            )
    if len(rows) < 2:
        return None
    title = "gain over the default by rank"
    return markup(draw.bars(rows, title=title, unit="×", reference=1.0, width=_WIDTH, key="ranks"))


def effects(e: Explanation) -> list[EffectPicture]:
    """Effect of each parameter, largest first."""
    by_name: dict[str, list[ParameterEffect]] = {}
    for effect in e.recommendation.insight.effects:
        by_name.setdefault(effect.parameter, []).append(effect)
    drawn = [
        _effect(name, values, e.answer, f"effect{at}")
        for at, (name, values) in enumerate(list(by_name.items())[:_MOST_PARAMETERS])
    ]
    return sorted(drawn, key=lambda p: -p.spread)


def _effect(
    name: str, values: Iterable[ParameterEffect], answer: Mapping[str, Any], key: str
) -> EffectPicture:
    ranked = sorted(values, key=lambda x: -x.best_gain)[:_MOST_VALUES]
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
