"""HTML of an object in a notebook: a small self-contained fragment without script.

Names are untrusted: all text is escaped and truncated, and unprintable characters (escape
sequences, direction marks) become `?`.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from embeddb.core.config import Config
from embeddb.core.errors import EmbeddbError
from embeddb.core.pattern import Pattern
from embeddb.core.records import WorkloadInfo
from embeddb.core.thumbnail import SIDE, thumbnail
from embeddb.core.wording import clean, factor, one_of, page_seconds
from embeddb.tensors.tensor_graph import TensorGraph

if TYPE_CHECKING:
    from embeddb.database import Database
    from embeddb.explain.explanation import Explanation
    from embeddb.ranking.kernel_view import KernelView
    from embeddb.ranking.recommendation import Recommendation
    from embeddb.store.rows import Rows

_MOST_LETTERS, _MOST_ROWS = 200, 20
_LEFT = " style='text-align:left'"
_SIMULATED = "simulated or modelled: no time is of real hardware"
_factor = partial(factor, none="")


def html_of(thing: object) -> str:
    """HTML of a pattern, a tensor kernel, an answer, an explanation, rows or a database.

    Raises: TypeError for others.
    """
    from embeddb.database import Database
    from embeddb.explain.explanation import Explanation
    from embeddb.ranking.recommendation import Recommendation
    from embeddb.store.rows import Rows

    forms: dict[Any, Callable[[Any], str]] = {
        Pattern | WorkloadInfo: pattern_html,
        TensorGraph: kernel_html,
        Recommendation: recommendation_html,
        Explanation: explanation_html,
        Rows: rows_html,
        Database: database_html,
    }
    for kind, form in forms.items():
        if isinstance(thing, kind):
            return form(thing)
    raise TypeError(f"nothing to show of {type(thing).__name__}")


def database_html(db: Database) -> str:
    """Contents of a database by operation and platform; builds no index."""
    title = f"Database {db.store.place}"
    try:
        counts = db.store.counts()
        rows = [
            (p.op, p.platform, f"{len(db.store.members(p)):,}", f"{db.store.count_runs(p):,}")
            for p in db.store.partitions()
        ]
    except EmbeddbError as e:  # closed, or damaged
        return _block(title, [e], "")
    counts_line = f"{counts['pattern']:,} patterns, {counts['run']:,} runs"
    return _block(title, [counts_line], _table(("op", "platform", "patterns", "runs"), rows))


def recommendation_html(recommendation: Recommendation) -> str:
    from embeddb.ui.views import Ranking

    rows = [
        (
            row.rank or "–",
            _factor(row.gain),
            f"{_factor(row.low)} – {_factor(row.high)}" if row.low and row.high else "",
            "" if row.seconds is None else page_seconds(row.seconds, recommendation.time_unit),
            "" if row.pays_off == "-" else row.pays_off,
            row.rests_on,
            str(Config(row.config)),
        )
        for row in Ranking.of(recommendation).every
    ]
    lines = [
        f"{recommendation.op} on {recommendation.platform}; from: {recommendation.link}; "
        f"sure: {recommendation.confidence}",
        *recommendation.warnings,
        *([_SIMULATED] if recommendation.simulated else []),
    ]
    head = ("rank", "gain", "10–90 %", "measured", "pays off", "rests on", "configuration")
    title = f"{recommendation.subject}: answer {recommendation.id}"
    return _block(title, lines, _table(head, rows))


def explanation_html(e: Explanation) -> str:
    """The answer and its neighbours; `embeddb.ui.report` has the full explanation."""
    rows = [
        (
            n.name or n.pattern_id,
            f"{n.distance:.3g}",
            str(n.measured),
            str(sum(n.failed.values())),
            _factor(n.answer_gain),
            _factor(n.best_gain),
        )
        for n in e.neighbours
    ]
    recommendation = e.recommendation
    gains = ((e.measured_gain, "measured"), (e.expected_gain, "expected"))
    gain = next((f"gain {_factor(g)} ({how}); " for g, how in gains if g is not None), "")
    lines = [
        f"{recommendation.op} on {recommendation.platform}: {Config(e.answer)}",
        f"{gain}from: {recommendation.link}; sure: {recommendation.confidence}",
        *([e.novelty] if e.novelty else []),
        *recommendation.warnings,
        *([_SIMULATED] if recommendation.simulated else []),
    ]
    head = ("neighbour", "distance", "configurations", "failed", "the answer there", "best there")
    title = f"{recommendation.subject}: why {recommendation.id}"
    drawn = _drawn(e.pattern.kernel, recommendation.subject, f"kernel-{recommendation.id}")
    return _block(title, lines, drawn + _table(head, rows))


def pattern_html(pattern: Pattern | WorkloadInfo) -> str:
    from embeddb.ui.draw import spy, style

    picture = pattern.thumbnail if isinstance(pattern, WorkloadInfo) else thumbnail(pattern)
    name, sizes = pattern.name or pattern.id, pattern.sizes
    if sizes.named:
        return _block(name, [f"{one_of(pattern.kind)}: {sizes}"], "")
    line = f"{sizes.m:,} x {sizes.n:,}, {sizes.nnz:,} nonzeros"
    line = line if min(sizes) >= 0 else "sizes unknown"
    drawn = ""
    if len(picture) == SIDE * SIDE:
        key = f"pattern-{pattern.id[:12]}"
        drawn = f"<style>{style()}</style>{spy(picture, title=_clean(name), width=128, key=key)}"
    return _block(name, [line], drawn)


def rows_html(rows: Rows[Any]) -> str:
    """The first patterns or runs, as a table."""
    columns = rows.head()
    lines = list(zip(*columns.values(), strict=True))
    cells = [["" if cell is None else cell for cell in line] for line in lines]
    caption = f"the first {len(lines)}" if lines else "none"
    return _block("Rows", [caption], _table(list(columns), cells))


def kernel_html(kernel: TensorGraph) -> str:
    from embeddb.ranking.kernel_view import kernel_view

    view, name = kernel_view(kernel), kernel.name or kernel.id
    line = f"{one_of(kernel.kind)}: {kernel.sizes}; {view.count:,} operations"
    return _block(name, [line], _drawn(view, name, f"kernel-{kernel.id[:12]}"))


def _drawn(view: KernelView | None, name: str, key: str) -> str:
    from embeddb.ui.draw import style
    from embeddb.ui.views import drawn_kernel

    if view is None:
        return ""
    return f"<style>{style()}</style>{drawn_kernel(view, title=_clean(name), key=key)}"


def _clean(text: object) -> str:
    cut = str(text)[: _MOST_LETTERS + 1].replace("\u00a0", " ")
    shown = clean(cut)
    return shown if len(shown) <= _MOST_LETTERS else shown[:_MOST_LETTERS] + "…"


def _text(text: object) -> str:
    return html.escape(_clean(text))


def _block(title: object, lines: Iterable[object], body: str) -> str:
    body_lines = "".join(f"<div>{_text(line)}</div>" for line in lines)
    return f"<div><strong>{_text(title)}</strong>{body_lines}{body}</div>"


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table without empty columns; columns of words are aligned left."""
    if not rows:
        return ""
    used = [at for at in range(len(head)) if any(str(row[at]) for row in rows)]
    flush = {at: _LEFT if any(str(row[at])[:1].isalpha() for row in rows) else "" for at in used}
    heads = "".join(f"<th scope='col'{flush[at]}>{_text(head[at])}</th>" for at in used)
    lines = [
        "<tr>" + "".join(f"<td{flush[at]}>{_text(row[at])}</td>" for at in used) + "</tr>"
        for row in rows[:_MOST_ROWS]
    ]
    more = len(rows) - _MOST_ROWS
    note = f"<div>and {more:,} more</div>" if more > 0 else ""
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>{note}"
