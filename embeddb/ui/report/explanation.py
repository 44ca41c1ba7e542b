"""An explanation as HTML: what to run, its confidence, and the evidence, in the order of a
decision."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from embeddb.core.config import Config, Op
from embeddb.core.kinds import kind_of
from embeddb.core.wording import (
    line,
    many_of,
    one_of,
    page_factor,
    page_share,
    plural,
    shown,
    value_text,
)
from embeddb.explain.explanation import best_here
from embeddb.explain.why import corrected
from embeddb.ranking.order_reason import order_notes
from embeddb.ui.report import commands, pictures
from embeddb.ui.report.page import render
from embeddb.ui.views import (
    Ranking,
    differing,
    each_source,
    occluded_figure,
    occluded_head,
    occluded_part,
    whose_runs,
)

if TYPE_CHECKING:
    from markupsafe import Markup

    from embeddb.explain.explanation import Explanation, NeighbourDetail
    from embeddb.ranking.recommendation import SimplerAnswer

#: Largest numbers of items, so that a file stays small.
_MOST_CARDS = 12
_MOST_ROWS = 40
_MOST_REASONS = 12
_MOST_VOTES = 4


class Setting(NamedTuple):
    """One parameter of a configuration; `default` is the default's value if it differs, `meaning`
    that of the value in the platform file."""

    name: str
    value: str
    default: str | None
    meaning: str = ""


class Reason(NamedTuple):
    """Reason why configurations are not legal here, their number, and an example."""

    text: str
    configs: int
    example: str


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
        query_spy=pictures.spy(e.pattern.thumbnail, title=f"nonzeros of {_named(e)}", key="query"),
        nests=pictures.nests(e),
        kernel=pictures.kernel(e),
        occluded=_occluded(e),
        occluded_head=occluded_head(recommendation.insight.occluded_by),
        attention=pictures.attention(e),
        features=_features(e),
        cards=pictures.cards(e, _MOST_CARDS),
        neighbours=e.neighbours[:_MOST_ROWS],
        how_far=partial(_how_far, e),
        corrected=corrected(e),
        agreement=_agreement(e),
        most_votes=_MOST_VOTES,
        against=lambda config: _against(config, answer),
        best_of=partial(best_here, recommendation),
        simpler=[
            (s, _simpler(s), _against(s.config, answer)) for s in recommendation.insight.simpler
        ],
        simpler_bars=pictures.simpler(e),
        ranking=Ranking.of(recommendation),
        most_rows=_MOST_ROWS,
        ties=e.near_ties,
        **remarks(e, place),
        whose_runs=whose_runs,
        each_source=each_source,
        sources=each_source(p for near in e.neighbours for p in near.provenance),
        candidate_bars=pictures.candidates(recommendation),
        next=[(n, _against(n.config, answer)) for n in recommendation.insight.next[:_MOST_ROWS]],
        effects=pictures.effects(e),
        moves=[(m, _against(m.winner, answer)) for m in recommendation.insight.moves[:_MOST_ROWS]],
        rejected=_reasons(recommendation.rejected),
    )


def settings(
    config: Mapping[str, Any],
    default: Mapping[str, Any],
    meaning: Mapping[str, str] | None = None,
) -> list[Setting]:
    """Every parameter of either configuration."""
    rows = []
    for name in sorted({*config, *default}):
        value, usual = _text(config.get(name)), _text(default.get(name))
        text = shown((meaning or {}).get(name, ""))
        rows.append(Setting(shown(name), value, None if value == usual else usual, text))
    return rows


def _text(value: object) -> str:
    return shown(value_text(value))


def _named(e: Explanation) -> str:
    recommendation = e.recommendation
    return shown(e.pattern.name or recommendation.subject)


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


def _features(e: Explanation) -> list[tuple[str, float]]:
    """Statistics without a row in the differences."""
    differing_features = {d.feature for d in e.differences}
    return [(k, v) for k, v in e.pattern.features.items() if k not in differing_features][
        :_MOST_ROWS
    ]


def _agreement(e: Explanation) -> list[Any]:
    """Agreement by parameter, undecided ones first."""
    return sorted(e.agreement, key=lambda a: not a.open)[:_MOST_ROWS] if e.neighbours else []


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


def _reasons(rejected: Mapping[str, str]) -> list[Reason]:
    """Reasons of rejection, most frequent first, merged without the values in them."""
    counts: Counter[str] = Counter()
    example: dict[str, str] = {}
    for config, reason in rejected.items():
        text = reason.rpartition(": ")[2]
        counts[text] += 1
        example.setdefault(text, config)
    return [Reason(shown(t), n, shown(example[t])) for t, n in counts.most_common(_MOST_REASONS)]


#: Ratio of slowest to fastest repeat above which a measurement is uneven.
_UNEVEN = 2.0


def remarks(e: Explanation, place: str) -> dict[str, Any]:
    """Notes and commands by their name in the template; `place` names the database in commands."""
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


class _Card(NamedTuple):
    href: str
    e: Explanation
    spy: Markup | None
    line: str


def answers_html(
    answers: Sequence[tuple[str, Explanation]], *, title: str, notes: Iterable[str] = ()
) -> str:
    """An HTML file that lists answers with links to their pages, UTF-8 when written; `notes` are
    paragraphs above them."""
    cards = [_card(href, e, at) for at, (href, e) in enumerate(answers)]
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


def _card(href: str, e: Explanation, at: int) -> _Card:
    name = shown(e.pattern.name or e.recommendation.subject)
    return _Card(
        href=href,
        e=e,
        spy=pictures.spy(e.pattern.thumbnail, title=f"nonzeros of {name}", key=f"answer-{at}"),
        line=line(e.answer),
    )


def _mean(gains: Sequence[float]) -> float | None:
    """Geometric mean; None without values."""
    return math.exp(statistics.fmean(map(math.log, gains))) if gains else None
