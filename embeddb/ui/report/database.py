"""Report of a database: its data, and their HTML."""

from __future__ import annotations

import re
import time
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from embeddb.core import __version__
from embeddb.core.config import Op
from embeddb.core.reports import Progress, ignore_progress
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
from embeddb.index.scopes import scopes as scopes_of
from embeddb.platforms.machines import described
from embeddb.store import SCHEMA
from embeddb.ui import draw
from embeddb.ui.report.commands import stand_ins
from embeddb.ui.report.contributors import Contributor, contributors_of
from embeddb.ui.report.gaps import Gap, gaps_of
from embeddb.ui.report.page import bars, markup, render
from embeddb.ui.report.scopes import ScopeFacts, scope_facts

if TYPE_CHECKING:
    from markupsafe import Markup

    from embeddb.core.records import WorkloadInfo
    from embeddb.database import Database

#: Scopes with full details, and with a map, so that a file stays small; tables have the rest.
_MOST_SCOPES = 24
_MOST_MAPS = 8
#: Values of the parameter with their own mark on a map; rarer ones are `other`.
_MOST_KINDS = 5


def database_html(facts: DatabaseFacts) -> str:
    """The report as an HTML file, UTF-8 when written."""
    judged: dict[tuple[str, str], list[Judged]] = {}
    for row in facts.judged:
        judged.setdefault((row.platform, row.op), []).append(row)
    scopes = [
        _scope(s, at, [judged[place, s.op] for place in s.places if (place, s.op) in judged])
        for at, s in enumerate(facts.scopes[:_MOST_SCOPES])
    ]
    kinds = [(kind, list(gaps)) for kind, gaps in groupby(facts.gaps, key=attrgetter("kind"))]

    def numbers_first(op: str) -> list[tuple[int, str]]:
        """Sort key that orders `spmm:32` before `spmm:128`."""
        return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"(\d+)", op)]

    return str(
        render(
            "database.html",
            title=f"Report of {shown(facts.place, 80)}",
            f=facts,
            many=many_of(*facts.kinds),
            one=one_of(*facts.kinds),
            of_what=counted(facts.kinds) if facts.kinds else "0 matrices",
            scopes=scopes,
            anchors={(s["facts"].platform, s["facts"].op): s["anchor"] for s in scopes},
            ops=sorted({s.op for s in facts.scopes}, key=numbers_first),
            platforms=sorted({s.platform for s in facts.scopes}),
            cells={(s.platform, s.op): s for s in facts.scopes},
            gaps=kinds,
            stand_ins=stand_ins([gap.command for gap in facts.gaps if gap.command]),
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


def _scope(s: ScopeFacts, at: int, judged: list[list[Judged]]) -> dict[str, Any]:
    """A scope with its charts and the rows of its evaluations, each of one machine or of all."""
    # The parameter whose values are most evenly distributed over few kinds of winners.
    few = [p for p in s.preferences if not p.others and len(p.shares) <= _MOST_KINDS]
    squares = {p.parameter: [w * w for w in p.shares.values()][:_MOST_KINDS] for p in s.preferences}
    parameters = [p.parameter for p in few or s.preferences]
    parameter = max(parameters, key=lambda name: 1.0 - sum(squares[name]), default="")
    drawn = at < _MOST_MAPS and len(s.map) > 1
    kind = Op.parse(s.op).kind
    open_ones = [p for p in s.preferences if not p.settled]
    return {
        "facts": s,
        "one": one_of(kind),
        "many": many_of(kind),
        "anchor": f"report-scope-{at}",
        "judged": [
            {"rows": rows, "where": rows[0].platform, "bars": _methods(rows, f"judged{at}-{n}")}
            for n, rows in enumerate(judged)
        ],
        "class_bars": _classes(s, f"classes{at}"),
        "map": _map(s, parameter, f"map{at}") if drawn else None,
        "map_parameter": shown(parameter),
        "likes": sorted(open_ones, key=lambda p: max(p.shares.values())),
        "settled": [p for p in s.preferences if p.settled],
    }


def _methods(judged: list[Judged], key: str) -> Markup | None:
    methods = [
        draw.Bar(shown(r.method, 40), 100 * r.of_optimum, marked=r.method == "embeddb")
        for r in judged
        if r.of_optimum is not None
    ]
    return bars(methods, title="share of the optimum by method", unit=" %", key=key)


def _map(s: ScopeFacts, parameter: str, key: str) -> Markup:
    shares = next((p.shares for p in s.preferences if p.parameter == parameter), {})
    kinds = list(shares)[:_MOST_KINDS]
    points = []
    for place in s.map:
        kind = "measured"
        if place.winner and parameter:
            text = value_text(place.winner.get(parameter))
            kind = shown(text, 40) if text in kinds else "other"
        points.append(draw.Dot(place.x, place.y, kind, shown(place.name, 80)))
    many = many_of(Op.parse(s.op).kind)
    title = f"{many} of {s.op} on {shown(s.platform, 80)} by {shown(parameter, 80) or 'place'}"
    return markup(draw.dots(points, title=title, width=640, height=400, key=key))


def _classes(s: ScopeFacts, key: str) -> Markup | None:
    """Bars of the gain of the best fixed choice in each class, beside that of the best."""
    rows = [
        draw.Bar(
            f"{c.name} a row" if c.kind == "row length" else shown(c.name, 40),
            c.gain,
            note=f"of {page_factor(c.headroom)} possible",
            marked=c.kind == "all",
        )
        for c in s.classes
        if c.gain is not None
    ]
    title = f"gain of the best fixed choice by class, {s.op} on {shown(s.platform, 80)}"
    return bars(rows, title=title, key=key)


def _quality(scopes: Sequence[ScopeFacts]) -> Markup | None:
    rows, several = [], len({s.platform for s in scopes}) > 1
    for s in scopes[:_MOST_SCOPES]:
        reached = max(
            [v for v in (s.of_optimum, *s.model_of_optimum.values()) if v is not None], default=None
        )
        if reached is not None:
            fixed = page_share(s.static_best).replace("\u00a0", " ")  # a chart breaks no lines
            label = f"{s.op} on {shown(s.platform, 40)}" if several else s.op
            rows.append(draw.Bar(label, 100 * reached, note=f"one fixed choice {fixed}"))
    return bars(rows, title="share of the optimum in cross-validation", unit=" %", key="quality")


# -- data: every run is read once ------------------------------------------------------------------

#: Lower bounds of the size classes of matrices.
NNZ_FROM = (0, 10_000, 100_000, 1_000_000, 10_000_000)
PER_ROW_FROM = (0, 4, 16, 64, 256)


class SizeMap(msgspec.Struct, frozen=True, kw_only=True):
    """Matrices by size: `counts[i][j]` have at least `nnz_from[i]` nonzeros and at least
    `per_row_from[j]` in a mean row, and fewer than the next bound; `unknown` have no sizes."""

    nnz_from: tuple[int, ...] = NNZ_FROM
    per_row_from: tuple[int, ...] = PER_ROW_FROM
    counts: list[list[int]]
    unknown: int


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `embeddb eval --json`, as docs/explanation/evaluation.md defines its figures."""

    platform: str
    op: str
    method: str
    matrices: int
    speedup: float | None = msgspec.field(name="speedup@1")
    median_speedup: float | None = msgspec.field(name="speedup_q50@1", default=None)
    most_speedup: float | None = msgspec.field(name="speedup_max@1", default=None)
    of_optimum: float | None = msgspec.field(name="of_optimum@1")
    of_optimum_5: float | None = msgspec.field(name="of_optimum@5")
    slower_than_default: float | None = None
    spread: float | None = None


class DatabaseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A database at one moment. `place` is the user's name of it, `counts` rows by table, `kinds`
    patterns by kind, `statuses` and `sources` count runs, `judged` are rows of an `eval`, if given.
    `machines` describes each instance; `contributors` are the sources, if any were pushed."""

    place: str
    made: float
    version: str
    schema: int
    generation: int
    bytes: int
    counts: dict[str, int]
    statuses: dict[str, int]
    sources: dict[str, int]
    sizes: SizeMap
    kinds: dict[str, int]
    scopes: list[ScopeFacts]
    judged: list[Judged]
    gaps: list[Gap]
    machines: dict[str, list[tuple[str, str]]] = {}
    contributors: list[Contributor] = []


def database_facts(
    db: Database,
    *,
    place: str = "",
    judged: Sequence[Judged] = (),
    progress: Progress = ignore_progress,
) -> DatabaseFacts:
    """Read everything once and summarise it; `progress` reports runs read, of all.

    Raises: StoreCorrupt if something cannot be read.
    """
    counts, read = db.store.counts(), 0
    infos = {info.id: info for info in db.store.patterns()}
    scopes: list[ScopeFacts] = []

    def report(before: int, of_scope: int) -> None:
        progress("read", before + of_scope, counts["run"])

    for scope in scopes_of(db.store):
        scopes.append(scope_facts(db, scope, infos, partial(report, read)))
        read += scopes[-1].runs
    ids = sorted({i for scope in scopes for i in scope.instances})
    machines = map(db.store.sound_platform, ids)
    name = redacted(place) or (db.store.path.name if db.store.path else "DB")
    return DatabaseFacts(
        place=name,
        made=time.time(),
        version=__version__,
        schema=SCHEMA,
        generation=db.store.generation,
        bytes=db.store.size_bytes(),
        counts=counts,
        statuses=_summed(s.statuses for s in scopes),
        sources=_summed(s.sources for s in scopes),
        sizes=_sizes(infos),
        kinds=dict(Counter(info.kind for info in infos.values()).most_common()),
        scopes=scopes,
        judged=list(judged),
        gaps=gaps_of(db, scopes, infos, name),
        machines={p.id: described(p.environment) for p in machines if p and p.environment},
        contributors=contributors_of(db, progress=progress),
    )


def _summed(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    return dict(sum(map(Counter, parts), Counter()).most_common())


def _sizes(infos: Mapping[str, WorkloadInfo]) -> SizeMap:
    counts = [[0] * len(PER_ROW_FROM) for _ in NNZ_FROM]
    unknown = 0
    for info in infos.values():
        if not info.workload.sparse:
            continue
        if info.m <= 0 or info.nnz < 0:
            unknown += 1
            continue
        row, column = bisect(NNZ_FROM, info.nnz), bisect(PER_ROW_FROM, info.nnz / info.m)
        counts[row - 1][column - 1] += 1
    return SizeMap(counts=counts, unknown=unknown)
