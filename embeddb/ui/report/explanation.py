"""An explanation as HTML: what to run, how sure that is, and the evidence, in the order in which
somebody who must decide wants it."""

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
from embeddb.explain.explanation import (
    best_here,
)
from embeddb.ranking.order_reason import order_notes
from embeddb.ui.kernel_drawing import occluded_figure, occluded_head, occluded_part
from embeddb.ui.report import commands, pictures
from embeddb.ui.report.page import render
from embeddb.ui.views import Ranking, differing, each_source, whose_runs

if TYPE_CHECKING:
    from markupsafe import Markup

    from embeddb.explain.explanation import Explanation, NeighbourEvidence
    from embeddb.ranking.recommendation import SimplerAnswer

#: Shown of each, so that a file stays small whatever a database holds.
_MOST_CARDS = 12
_MOST_ROWS = 40
_MOST_REASONS = 12
_MOST_VOTES = 4


class Setting(NamedTuple):
    """One parameter of a configuration; `default` is the default's value where it is another,
    `meaning` what the value means, where the platform file tells it."""

    name: str
    value: str
    default: str | None
    meaning: str = ""


class Reason(NamedTuple):
    """Why some configurations are not legal here, how many, and one of them."""

    text: str
    configs: int
    example: str


def explanation_html(e: Explanation, *, place: str = "DB") -> str:
    """A whole file, UTF-8 when written; `place` is how its commands name the database."""
    made = e.recommendation
    name = shown(made.subject, 80)
    title = f"{made.op} on {shown(e.platform_name or made.platform, 80)} for {name}"
    return str(render("explanation.html", title=title, body=explanation_body(e, place=place)))


def explanation_body(e: Explanation, *, place: str = "DB") -> Markup:
    """The parts of the file between its frame, for a page that has its own; headings start at h2.
    It needs `page_style`, and ids starting with `report-` are taken."""
    made, answer, kind = e.recommendation, e.answer, e.pattern.kind
    return render(
        "explanation_body.html",
        e=e,
        made=made,
        one=one_of(kind),
        many=many_of(kind),
        first=made.first,
        settings=settings(answer, made.default, e.meaning),
        answer_line=line(answer),
        default_line=line(made.default),
        is_answer=lambda own: Config(own.config) == Config(answer),
        query_spy=pictures.spy(e.pattern.thumbnail, title=f"nonzeros of {_named(e)}", key="query"),
        nests=pictures.nests(e),
        kernel=pictures.kernel(e),
        occluded=_occluded(e),
        occluded_head=occluded_head(made.insight.occluded_by),
        attention=pictures.attention(e),
        features=_features(e),
        cards=pictures.cards(e, _MOST_CARDS),
        neighbours=e.neighbours[:_MOST_ROWS],
        how_far=partial(_how_far, e),
        votes=sum(n.weight for n in e.neighbours),
        agreement=_agreement(e),
        most_votes=_MOST_VOTES,
        against=lambda config: _against(config, answer),
        best_of=partial(best_here, made),
        simpler=[(s, _simpler(s), _against(s.config, answer)) for s in made.insight.simpler],
        simpler_bars=pictures.simpler(e),
        ranking=Ranking.of(made),
        most_rows=_MOST_ROWS,
        ties=e.near_ties,
        **remarks(e, place),
        whose_runs=whose_runs,
        each_source=each_source,
        sources=each_source(p for near in e.neighbours for p in near.provenance),
        candidate_bars=pictures.candidates(made),
        next=[(n, _against(n.config, answer)) for n in made.insight.next[:_MOST_ROWS]],
        effects=pictures.effects(e),
        moves=[(m, _against(m.winner, answer)) for m in made.insight.moves[:_MOST_ROWS]],
        rejected=_reasons(made.rejected),
    )


def settings(
    config: Mapping[str, Any],
    default: Mapping[str, Any],
    meaning: Mapping[str, str] | None = None,
) -> list[Setting]:
    """Every parameter that either of them uses."""
    found = []
    for name in sorted({*config, *default}):
        value, usual = _text(config.get(name)), _text(default.get(name))
        told = shown((meaning or {}).get(name, ""))
        found.append(Setting(shown(name), value, None if value == usual else usual, told))
    return found


def _text(value: object) -> str:
    return shown(value_text(value))


def _named(e: Explanation) -> str:
    made = e.recommendation
    return shown(e.pattern.name or made.subject)


def _against(config: Mapping[str, Any], answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values in which a configuration is not the answer; empty: it is."""
    return [(shown(name), _text(value)) for name, value in differing(config, answer)]


def _occluded(e: Explanation) -> list[Any]:
    """What of a kernel counts, with how it is told."""
    insight = e.recommendation.insight
    return [
        (shown(occluded_part(one, e.pattern.kernel)), occluded_figure(one, insight.occluded_by))
        for one in insight.occluded[:_MOST_REASONS]
    ]


def _features(e: Explanation) -> list[tuple[str, float]]:
    """Statistics that no difference row shows already."""
    told = {d.feature for d in e.differences}
    return [(k, v) for k, v in e.pattern.features.items() if k not in told][:_MOST_ROWS]


def _agreement(e: Explanation) -> list[Any]:
    """Open choices first: they are what may still be gained."""
    return sorted(e.agreement, key=lambda a: not a.open)[:_MOST_ROWS] if e.neighbours else []


_SIMPLER = {
    "default": "the platform's default",
    "static-best": "the best fixed choice for the platform",
    "nearest": "the best of the nearest neighbour",
    "transfer": "the neighbours' vote alone",
    "rank": "the cost model alone",
}


def _simpler(answer: SimplerAnswer) -> str:
    words = _SIMPLER.get(answer.method, shown(answer.method))
    there = answer.gain_there
    return words if there is None else f"{words} (measured there: {page_factor(there)})"


def _how_far(e: Explanation, near: NeighbourEvidence) -> str:
    """The distance of a neighbour, and how that compares."""
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
    """Reasons by how many configurations they rule out, the first parts of them being values."""
    counts: Counter[str] = Counter()
    example: dict[str, str] = {}
    for config, reason in rejected.items():
        text = reason.rpartition(": ")[2]
        counts[text] += 1
        example.setdefault(text, config)
    return [Reason(shown(t), n, shown(example[t])) for t, n in counts.most_common(_MOST_REASONS)]


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
    return f'embeddb.compile(A, "{op.name}"{width}, config="{line(e.answer)}")'


def uneven(e: Explanation) -> float | None:
    """How many times the fastest repeat of the answer, or of the default, the slowest took; None
    where that is no doubt."""
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
    """A whole file over answers and the addresses of their pages beside it, UTF-8 when written;
    `notes` are paragraphs above them."""
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
    """Geometric; None of nothing."""
    return math.exp(statistics.fmean(map(math.log, gains))) if gains else None
