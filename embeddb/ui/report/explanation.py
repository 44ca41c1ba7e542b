"""An explanation as HTML: what to run, how sure that is, and the evidence, in the order in which
somebody who must decide wants it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from embeddb.core.config import Config
from embeddb.core.wording import line, many_of, one_of, page_factor, page_share, shown, value_text
from embeddb.explain.explanation import (
    best_here,
)
from embeddb.ui.kernel_drawing import occluded_figure, occluded_head, occluded_part
from embeddb.ui.report import pictures
from embeddb.ui.report.page import render
from embeddb.ui.report.remarks import remarks
from embeddb.ui.views import Ranking, differing
from embeddb.ui.whose_runs import each_source, whose_runs

if TYPE_CHECKING:
    from markupsafe import Markup

    from embeddb.explain.explanation import Explanation, NeighbourEvidence
    from embeddb.ranking.recommendation import SimplerAnswer

__all__ = ["Setting", "explanation_body", "explanation_html", "settings"]

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
    title = f"{made.op} on {shown(made.platform, 80)} for {name}"
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
