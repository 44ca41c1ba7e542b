"""Several answers on one page: what each says to run, what that gains, a link to its own page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from embeddb.core.wording import line, plural, shown
from embeddb.ui.report import pictures
from embeddb.ui.report.page import render

if TYPE_CHECKING:
    from markupsafe import Markup

    from embeddb.explain.explanation import Explanation

__all__ = ["answers_html"]


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
