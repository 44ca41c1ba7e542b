"""An explanation as HTML: what to run, its confidence, and the evidence, in the order of a
decision."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from embeddb.core.config import Config, Op
from embeddb.core.kinds import kind_of
from embeddb.core.wording import (
    line,
    many_of,
    one_of,
    page_factor,
    page_share,
    plural,
    quoted,
    shown,
    value_text,
)
from embeddb.explain.explanation import best_here
from embeddb.explain.why import corrected
from embeddb.nests.lines import PARALLEL
from embeddb.ranking.order_reason import rank_notes
from embeddb.ui import draw
from embeddb.ui.report import commands
from embeddb.ui.report.page import bars, markup, render
from embeddb.ui.views import (
    Ranking,
    differing,
    drawn_kernel,
    each_source,
    kernel_caption,
    marked_operations,
    occluded_figure,
    occluded_head,
    occluded_part,
    whose_runs,
)

if TYPE_CHECKING:
    from markupsafe import Markup

    from embeddb.explain.explanation import Explanation, NeighbourDetail
    from embeddb.ranking.recommendation import ParameterEffect, Recommendation, SimplerAnswer


#: Largest numbers of items, so that a file stays small.
_MOST_CARDS = 12
_MOST_ROWS = 40
_MOST_REASONS = 12
_MOST_VOTES = 4


def explanation_html(e: Explanation, *, place: str = "DB") -> str:
    """The explanation as an HTML file, UTF-8 when written; `place` names the database."""
    recommendation = e.recommendation
    name = shown(recommendation.subject, 80)
    title = (
        f"{recommendation.op} on {shown(e.platform_name or recommendation.platform, 80)} for {name}"
    )
    return str(render("explanation.html", title=title, body=explanation_body(e, place=place)))


def explanation_body(e: Explanation, *, place: str = "DB") -> Markup:
    """The body of the report, for a page with its own frame; headings start at h2. Needs
    `page_style`; ids starting with `report-` are reserved."""
    recommendation, answer, kind = e.recommendation, e.answer, e.pattern.kind
    elsewhere = {d.feature for d in e.differences}  # in a table of their own
    features = [(name, v) for name, v in e.pattern.features.items() if name not in elsewhere]
    agreement = sorted(e.agreement, key=lambda a: not a.open)  # undecided ones first
    return render(
        "explanation_body.html",
        e=e,
        made=recommendation,
        one=one_of(kind),
        many=many_of(kind),
        first=recommendation.first,
        settings=settings(answer, recommendation.default, e.meaning),
        answer_line=line(answer),
        default_line=line(recommendation.default),
        is_answer=lambda own: Config(own.config) == Config(answer),
        query_spy=_spy(e.pattern.thumbnail, title=f"nonzeros of {_named(e)}", key="query"),
        nests=_nests(e),
        kernel=_kernel(e),
        occluded=_occluded(e),
        occluded_head=occluded_head(recommendation.insight.occluded_by),
        attention=_attention(e),
        features=features[:_MOST_ROWS],
        cards=_cards(e),
        neighbours=e.neighbours[:_MOST_ROWS],
        how_far=partial(_how_far, e),
        corrected=corrected(e),
        agreement=agreement[:_MOST_ROWS] if e.neighbours else [],
        most_votes=_MOST_VOTES,
        against=lambda config: _against(config, answer),
        best_of=partial(best_here, recommendation),
        simpler=[
            (s, _simpler(s), _against(s.config, answer)) for s in recommendation.insight.simpler
        ],
        simpler_bars=_simpler_bars(e),
        ranking=Ranking.of(recommendation),
        most_rows=_MOST_ROWS,
        ties=e.near_ties,
        **remarks(e, place),
        whose_runs=whose_runs,
        each_source=each_source,
        sources=each_source(p for near in e.neighbours for p in near.provenance),
        candidate_bars=_candidates(recommendation),
        next=[(n, _against(n.config, answer)) for n in recommendation.insight.next[:_MOST_ROWS]],
        effects=_effects(e),
        moves=[(m, _against(m.winner, answer)) for m in recommendation.insight.moves[:_MOST_ROWS]],
        rejected=_reasons(recommendation.rejected),
    )


def settings(
    config: Mapping[str, Any], default: Mapping[str, Any], meaning: Mapping[str, str]
) -> list[dict[str, str | None]]:
    """Every parameter of either configuration: its `default` is the default's value if it differs,
    its `meaning` that of the value in the platform file."""
    rows = []
    for name in sorted({*config, *default}):
        value, usual = _text(config.get(name)), _text(default.get(name))
        differs = {"value": value, "default": None if value == usual else usual}
        rows.append({"name": shown(name), **differs, "meaning": shown(meaning.get(name, ""))})
    return rows


def _text(value: object) -> str:
    return shown(value_text(value))


def _named(e: Explanation) -> str:
    return shown(e.pattern.name or e.recommendation.subject)


def _against(config: Mapping[str, Any], answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values that differ from the answer; empty if equal."""
    return [(shown(name), _text(value)) for name, value in differing(config, answer)]


def _occluded(e: Explanation) -> list[Any]:
    """Important parts of a kernel, with their effect as text."""
    insight = e.recommendation.insight
    return [
        (shown(occluded_part(one, e.pattern.kernel)), occluded_figure(one, insight.occluded_by))
        for one in insight.occluded[:_MOST_REASONS]
    ]


_SIMPLER = {
    "default": "the platform's default",
    "static-best": "the best fixed choice for the platform",
    "nearest": "the best of the nearest neighbour",
    "transfer": "neighbours alone",
    "rank": "the cost model alone",
}


def _simpler(answer: SimplerAnswer) -> str:
    words = _SIMPLER.get(answer.method, shown(answer.method))
    there = answer.gain_there
    return words if there is None else f"{words} (measured there: {page_factor(there)})"


def _how_far(e: Explanation, near: NeighbourDetail) -> str:
    """Distance of a neighbour as text, with its percentile."""
    if near.pattern_id == e.recommendation.pattern_id:
        return f"Same {one_of(e.pattern.kind)} (distance {near.distance:.3g})"
    if near.distance == 0.0:
        return "No difference in the statistics (distance 0)"
    if near.percentile is None:
        return f"{near.distance:.3g}"
    if near.percentile >= 0.5:
        return f"{near.distance:.3g}, farther than {page_share(near.percentile)} of neighbours are"
    return f"{near.distance:.3g}, nearer than {page_share(1 - near.percentile)} of neighbours are"


def _reasons(rejected: Mapping[str, str]) -> list[dict[str, Any]]:
    """Reasons of rejection, most frequent first, merged without the values in them, each with the
    number of configurations and an example."""
    counts: Counter[str] = Counter()
    example: dict[str, str] = {}
    for config, reason in rejected.items():
        text = reason.rpartition(": ")[2]
        counts[text] += 1
        example.setdefault(text, config)
    return [
        {"text": shown(text), "configs": count, "example": shown(example[text])}
        for text, count in counts.most_common(_MOST_REASONS)
    ]


#: Ratio of slowest to fastest repeat above which a measurement is uneven.
_UNEVEN = 2.0


def remarks(e: Explanation, place: str) -> dict[str, Any]:
    """Notes and commands by their name in the template; `place` names the database in commands."""
    return {
        "rank_notes": rank_notes(e.recommendation.candidates),
        "uneven": uneven(e),
        "contents": contents(e),
        "to_use": to_use(e),
        "call_it": call_it(e),
        "try_it": commands.try_it(e, place),
        "measure": commands.measure_next(e, place),
        "again": f"embeddb explain {quoted(place)} {quoted(e.recommendation.id)}",
        "placeholders": commands.placeholders(e, place),
    }


def contents(e: Explanation) -> list[tuple[str, str]]:
    """Anchors and short headings of the parts on the page, in order."""
    recommendation, kind = e.recommendation, e.pattern.kind
    insight = recommendation.insight
    parts = [
        ("use", "How to use it", to_use(e)),
        ("novelty", "Novelty", bool(e.novelty)),
        ("pattern", f"Its {one_of(kind)}", True),
        ("neighbours", "Evidence", True),
        ("agreement", "Agreement of neighbours", bool(e.neighbours and e.agreement)),
        ("simpler", "Simpler methods", bool(insight.simpler)),
        ("ranks", "All candidates", bool(recommendation.candidates)),
        ("next", "Measure next", bool(insight.next)),
        ("effects", "Effect of each parameter", bool(insight.effects)),
        ("occluded", "Important parts", bool(insight.occluded)),
        ("moves", "Counterfactuals", bool(insight.deep and kind_of(kind).sparse)),
        ("rejected", "Not legal here", bool(recommendation.rejected)),
        ("provenance", "Provenance", True),
    ]
    return [(anchor, words) for anchor, words, there in parts if there]


def to_use(e: Explanation) -> bool:
    """True if the answer is not the default, or can be checked by a run."""
    return e.runnable or Config(e.answer) != Config(e.recommendation.default)


def call_it(e: Explanation) -> str:
    """Python call that runs the answer; empty if there is none."""
    op, platform = Op.parse(e.recommendation.op), e.recommendation.platform.partition("@")[0]
    if platform != "cpu" or not op.workload.sparse or op.dtype not in ("f32", "f64"):
        return ""
    width = f", k={op.width}" if op.traits.wide else ""
    return f'embeddb.compile(A, "{op.name}"{width}, config="{line(e.answer)}")'


def uneven(e: Explanation) -> float | None:
    """Ratio of the slowest to the fastest repeat of the answer or the default; None if small."""
    ratios = [own.slowest / own.fastest for own in e.own if own.times > 1 and own.fastest > 0]
    return max((r for r in ratios if math.isfinite(r) and r > _UNEVEN), default=None)


def answers_html(
    answers: Sequence[tuple[str, Explanation]], *, title: str, notes: Iterable[str] = ()
) -> str:
    """An HTML file that lists answers with links to their pages, UTF-8 when written; `notes` are
    paragraphs above them."""
    cards = []
    for at, (href, e) in enumerate(answers):
        drawn = _spy(e.pattern.thumbnail, title=f"nonzeros of {_named(e)}", key=f"answer-{at}")
        cards.append({"href": href, "e": e, "spy": drawn, "line": line(e.answer)})
    measured = [e.measured_gain for _, e in answers if e.measured_gain]
    expected = [e.expected_gain for _, e in answers if e.expected_gain]
    subjects = {e.recommendation.pattern_id for _, e in answers}
    return str(
        render(
            "answers.html",
            title=shown(title),
            cards=cards,
            notes=list(notes),
            counted=f"{plural(len(cards), 'answer')} about "
            f"{plural(len(subjects), 'matrix', 'matrices')}",
            measured=_mean(measured),
            all_measured=len(measured) == len(cards),
            expected=_mean(expected),
            machine=next((e.machine for _, e in answers if e.machine), ""),
            simulated=any(e.recommendation.simulated for _, e in answers),
        )
    )


def _mean(gains: Sequence[float]) -> float | None:
    """Geometric mean; None without values."""
    return math.exp(statistics.fmean(map(math.log, gains))) if gains else None


# -- charts ----------------------------------------------------------------------------------------

#: Parameters, and values of a parameter, that are drawn.
_MOST_PARAMETERS = 16
_MOST_VALUES = 24
#: Width of nested boxes: the text of the innermost of six loops fits.
_BOXES = 460
#: A parameter matters from this ratio between its best and worst value.
_MATTERS = 1.02
#: Fewest configurations of a curve.
_FEWEST = 4


def _spy(thumbnail: bytes, *, title: str, key: str, width: float = 168) -> Markup | None:
    if not thumbnail:
        return None
    return markup(draw.spy(thumbnail, title=title, width=width, key=key))


def _nests(e: Explanation) -> list[tuple[str, Markup]]:
    """Pictures of the original nest and of the scheduled one, with captions; none for other
    workloads."""
    nest = e.pattern.nest
    if nest is None:
        return []
    name = shown(e.pattern.name or e.pattern.id)
    parallel = [at for at, line in enumerate(nest.answer) if PARALLEL in line]
    answered = "scheduled by the answer" + ("; a thick frame runs in parallel" if parallel else "")

    pictures = []
    for caption, loops, strong, key in (
        ("as it is written", nest.loops, [], "written"),
        (answered, nest.answer, parallel, "answered"),
    ):
        words = {"title": f"{name} {caption}", "key": key}
        drawn = draw.boxes(loops, nest.body, strong=strong, width=_BOXES, **words)
        pictures.append((caption, markup(drawn)))
    return pictures


def _kernel(e: Explanation) -> tuple[str, Markup] | None:
    """Picture of the tensor kernel, with its caption; None for other workloads or by name only."""
    view, insight = e.pattern.kernel, e.recommendation.insight
    if view is None:
        return None
    title = f"operations of {shown(e.pattern.name or e.pattern.id)}"
    drawn = drawn_kernel(view, title=title, marked=marked_operations(insight))
    return kernel_caption(view, insight), markup(drawn)


def _attention(e: Explanation) -> Markup | None:
    recommendation, side = e.recommendation, e.recommendation.insight.attention_side
    if not (recommendation.insight.attention and side and e.pattern.thumbnail):
        return None
    title = f"occlusion map of {shown(recommendation.subject)}"
    grid: dict[str, Any] = {"attention": recommendation.insight.attention, "side": side}
    drawn = draw.spy(e.pattern.thumbnail, title=title, width=280, key="attention", **grid)
    return markup(drawn)


def _cards(e: Explanation) -> list[dict[str, Any]]:
    cards = []
    for at, near in enumerate(e.neighbours[:_MOST_CARDS]):
        title = f"nonzeros of {_name(near)}"
        drawn = _spy(near.thumbnail, title=title, key=f"near{at}", width=112)
        curve = _curve(near, f"curve{at}")
        cards.append({"near": near, "spy": drawn, "curve": curve, "vote": near.share})
    return cards


def _curve(near: NeighbourDetail, key: str) -> Markup | None:
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


def _simpler_bars(e: Explanation) -> Markup | None:
    """Expected gains of simpler methods beside this answer."""
    answer = e.answer
    rows = [
        draw.Bar(shown(s.method), s.expected_gain, marked=Config(s.config) == Config(answer))
        for s in e.recommendation.insight.simpler
        if s.expected_gain is not None
    ]
    own = [] if e.compared_gain is None else [draw.Bar("this answer", e.compared_gain, marked=True)]
    title, least = "gain over the default, by method", 2 + len(own)
    return bars([*rows, *own], title=title, key="simpler", least=least)


def _candidates(recommendation: Recommendation) -> Markup | None:
    """Expected gain and interval by rank, with measured gains as notes."""
    rows, base = [], recommendation.default_seconds
    for rank, c in enumerate(recommendation.candidates[:_MOST_VALUES], 1):
        if c.expected_gain is not None:
            note = f"measured {page_factor(base / c.seconds)}" if base and c.seconds else ""
            row = (f"rank {rank}", c.expected_gain, c.gain_low, c.gain_high, note, rank == 1)
            rows.append(draw.Bar(*row))
    return bars(rows, title="gain over the default by rank", key="ranks", least=2)


def _effects(e: Explanation) -> list[dict[str, Any]]:
    """Bars of each parameter, those with the largest `spread` first: the best gain of its best
    value over that of its worst."""
    by_name: dict[str, list[ParameterEffect]] = {}
    for effect in e.recommendation.insight.effects:
        by_name.setdefault(effect.parameter, []).append(effect)
    drawn: list[dict[str, Any]] = []
    for at, (name, values) in enumerate(list(by_name.items())[:_MOST_PARAMETERS]):
        ranked = sorted(values, key=lambda x: -x.best_gain)[:_MOST_VALUES]
        rows = [
            draw.Bar(
                shown(x.value, 40),
                x.best_gain,
                note=f"median {page_factor(x.median_gain)} of {x.configs:,}",
                marked=x.value == value_text(e.answer.get(name)),
            )
            for x in ranked
        ]
        spread = ranked[0].best_gain / ranked[-1].best_gain if ranked[-1].best_gain > 0 else 1.0
        title = f"best gain with each value of {shown(name, 80)}"
        picture = {
            "matters": spread >= _MATTERS,
            "bars": bars(rows, title=title, key=f"effect{at}"),
        }
        drawn.append({"parameter": shown(name), "spread": spread, **picture})
    return sorted(drawn, key=lambda one: -one["spread"])
