"""HTML report of a database."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from embeddb.core.config import Op
from embeddb.core.server_url import redacted
from embeddb.core.wording import (
    counted,
    many_of,
    one_of,
    page_factor,
    page_share,
    shown,
    value_text,
)
from embeddb.ui import draw
from embeddb.ui.report.page import markup, render

if TYPE_CHECKING:
    from markupsafe import Markup

    from embeddb.ui.report.contributors import Contributor
    from embeddb.ui.report.facts import DatabaseFacts, Judged
    from embeddb.ui.report.scopes import Place, ScopeFacts
    from embeddb.ui.report.winners import Preference

#: Scopes with full details, and with a map, so that a file stays small; tables have the rest.
_MOST_SCOPES = 24
_MOST_MAPS = 8
#: Width of bars: readable on a small screen.
_WIDTH = 540
#: Values of the parameter with their own mark on a map; rarer ones are `other`.
_MOST_KINDS = 5


class _Scope(NamedTuple):
    """A scope and its charts: `one` and `many` name its workloads. `judged` are rows of its
    evaluation."""

    facts: ScopeFacts
    one: str
    many: str
    anchor: str
    judged: list[Judged]
    judged_bars: Markup | None
    class_bars: Markup | None
    map: Markup | None
    map_parameter: str
    likes: list[Preference]
    settled: list[Preference]


def database_html(facts: DatabaseFacts) -> str:
    """The report as an HTML file, UTF-8 when written."""
    judged = _by_scope(facts.judged)
    scopes = [
        _scope(s, at, judged.get((s.platform, s.op), []))
        for at, s in enumerate(facts.scopes[:_MOST_SCOPES])
    ]
    kinds = [(kind, list(gaps)) for kind, gaps in groupby(facts.gaps, key=attrgetter("kind"))]
    return str(
        render(
            "database.html",
            title=f"Report of {shown(facts.place, 80)}",
            f=facts,
            many=many_of(*facts.kinds),
            one=one_of(*facts.kinds),
            of_what=counted(facts.kinds) if facts.kinds else "0 matrices",
            scopes=scopes,
            anchors={(s.facts.platform, s.facts.op): s.anchor for s in scopes},
            ops=sorted({s.op for s in facts.scopes}, key=_by_number),
            platforms=sorted({s.platform for s in facts.scopes}),
            cells={(s.platform, s.op): s for s in facts.scopes},
            gaps=kinds,
            quality_bars=_quality(facts.scopes),
        )
    )


def source_html(contributors: Sequence[Contributor], *, place: str) -> str:
    """The report of one source as an HTML file, UTF-8 when written; `place` is the user's name of
    the database."""
    name = contributors[0].name
    title = f"Contributions of {shown(name, 80)}"
    parts = {"held": contributors, "name": name, "place": redacted(place), "made": time.time()}
    return str(render("source.html", title=title, **parts))


def _by_number(op: str) -> list[tuple[int, str]]:
    """Sort key that orders `spmm:32` before `spmm:128`."""
    return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"(\d+)", op)]


def _by_scope(rows: Sequence[Judged]) -> dict[tuple[str, str], list[Judged]]:
    rows_of_scope: dict[tuple[str, str], list[Judged]] = {}
    for row in rows:
        rows_of_scope.setdefault((row.platform, row.op), []).append(row)
    return rows_of_scope


def _scope(s: ScopeFacts, at: int, judged: list[Judged]) -> _Scope:
    parameter = _telling(s)
    drawn = at < _MOST_MAPS and len(s.map) > 1
    kind = Op.parse(s.op).kind
    return _Scope(
        s,
        one_of(kind),
        many_of(kind),
        f"report-scope-{at}",
        judged,
        _judged(judged, f"judged{at}"),
        _classes(s, f"classes{at}"),
        _map(s, parameter, f"map{at}") if drawn else None,
        shown(parameter),
        sorted((p for p in s.preferences if not p.settled), key=lambda p: max(p.shares.values())),
        [p for p in s.preferences if p.settled],
    )


def _telling(s: ScopeFacts) -> str:
    """The parameter whose values are most evenly distributed over few kinds of winners."""

    def evenness(shares: Mapping[str, float]) -> float:
        return 1.0 - sum(w * w for w in list(shares.values())[:_MOST_KINDS])

    few = [p for p in s.preferences if not p.others and len(p.shares) <= _MOST_KINDS]
    best = max(few or s.preferences, key=lambda p: evenness(p.shares), default=None)
    return best.parameter if best is not None else ""


def _map(s: ScopeFacts, parameter: str, key: str) -> Markup:
    shares = next((p.shares for p in s.preferences if p.parameter == parameter), {})
    kinds = list(shares)[:_MOST_KINDS]
    points = [draw.Dot(p.x, p.y, _kind(p, parameter, kinds), shown(p.name, 80)) for p in s.map]
    many = many_of(Op.parse(s.op).kind)
    title = f"{many} of {s.op} on {shown(s.platform, 80)} by {shown(parameter, 80) or 'place'}"
    return markup(draw.dots(points, title=title, width=640, height=400, key=key))


def _kind(place: Place, parameter: str, kinds: Sequence[str]) -> str:
    if not place.winner or not parameter:
        return "measured"
    text = value_text(place.winner.get(parameter))
    return shown(text, 40) if text in kinds else "other"


def _classes(s: ScopeFacts, key: str) -> Markup | None:
    """Bars of the gain of the best fixed choice in each class, beside that of the best."""
    rows = [
        draw.Bar(
            _class_name(c.kind, c.name),
            c.gain,
            note=f"of {page_factor(c.headroom)} possible",
            marked=c.kind == "all",
        )
        for c in s.classes
        if c.gain is not None
    ]
    if not rows:
        return None
    title = f"gain of the best fixed choice by class, {s.op} on {shown(s.platform, 80)}"
    return markup(draw.bars(rows, title=title, unit="×", reference=1.0, width=_WIDTH, key=key))


def _class_name(kind: str, name: str) -> str:
    return f"{name} a row" if kind == "row length" else shown(name, 40)


def _quality(scopes: Sequence[ScopeFacts]) -> Markup | None:
    rows, several = [], len({s.platform for s in scopes}) > 1
    for s in scopes[:_MOST_SCOPES]:
        reached = max(
            [v for v in (s.of_optimum, *s.model_of_optimum.values()) if v is not None], default=None
        )
        if reached is not None:
            note = f"one fixed choice {_plain(page_share(s.static_best))}"
            label = f"{s.op} on {shown(s.platform, 40)}" if several else s.op
            rows.append(draw.Bar(label, 100 * reached, note=note))
    if not rows:
        return None
    title = "share of the optimum in cross-validation"
    return markup(draw.bars(rows, title=title, unit=" %", width=_WIDTH, key="quality"))


def _plain(text: str) -> str:
    """Text with ordinary spaces only, for charts."""
    return text.replace("\u00a0", " ")


def _judged(rows: Sequence[Judged], key: str) -> Markup | None:
    shown_rows = [
        draw.Bar(shown(r.method, 40), 100 * r.of_optimum, marked=r.method == "embeddb")
        for r in rows
        if r.of_optimum is not None
    ]
    if not shown_rows:
        return None
    title = "share of the optimum by method"
    return markup(draw.bars(shown_rows, title=title, unit=" %", width=_WIDTH, key=key))
