"""`report`: coverage, winners, quality, noise and gaps of a database; `explain`: one answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.core.wording import counted, factor, many_of, one_of, plural, share, when
from embeddb.explain.explain import explain
from embeddb.store.provenance import HERE
from embeddb.ui.cli import option
from embeddb.ui.cli.arguments import eval_rows, open_database
from embeddb.ui.cli.explain_text import show_explanation
from embeddb.ui.cli.output import Progress, emit, note, say, table, write_page

if TYPE_CHECKING:
    from embeddb.ui.report.contributors import Contributor
    from embeddb.ui.report.database import DatabaseFacts
    from embeddb.ui.report.scopes import ClassChoice, ScopeFacts

#: Gaps shown in text; a file and --json have all.
_MOST_GAPS = 12


@option.verb("report")
@click.argument("db")
@option.text("--html", metavar="FILE", help="Write a self-contained report.")
@option.text("--eval", "eval_file", metavar="FILE", help="Output of `eval DB --json`.")
@option.text("--source", metavar="NAME", help="Only the runs of this source.")
def report_verb(db: str, html: str, eval_file: str, source: str, as_json: bool) -> None:
    """Report coverage of DB, winning configurations, quality of answers, noise of times, and gaps.

    Reads every run once. FILE is one HTML file without external resources.

    \b
    Example:
      embeddb report starter
      embeddb report runs.db --html report.html
      embeddb report runs.db --eval eval.json --html report.html
      embeddb report runs.db --source ann@cluster7
    """
    if source:
        if eval_file:
            raise UsageError("--eval does not go with --source", hint="leave one of them out")
        from embeddb.ui.report.contributors import contributors_of

        with open_database(db, readonly=True) as opened, Progress() as progress:
            opened.store.refuse_damage()
            contributors = contributors_of(opened, only=source, progress=progress)
        if html:
            from embeddb.ui.report.database import source_html

            write_page(source_html(contributors, place=db), Path(html))
        if as_json:
            emit(contributors[0])
        elif not html:
            _show_contributors(contributors)
        return
    from embeddb.ui.report.database import Judged, database_facts

    rows = eval_rows(eval_file, Judged) if eval_file else []
    with open_database(db) as opened, Progress() as progress:  # what it prepares is kept
        opened.store.refuse_damage()
        facts = database_facts(opened, place=db, judged=rows, progress=progress)
    scopes = {(place, s.op) for s in facts.scopes for place in s.places}
    foreign = [f"{r.op} on {r.platform}" for r in rows if (r.platform, r.op) not in scopes]
    if foreign:
        note(f"warning: {eval_file}: not shown is {foreign[0]}, of which {db} has no runs")
    if html:
        from embeddb.ui.report.database import database_html

        write_page(database_html(facts), Path(html))
    if as_json:
        emit(facts)
    elif not html:
        _show(facts)


def _show_contributors(contributors: Sequence[Contributor]) -> None:
    for one in contributors:
        by = f", pushed by {', '.join(one.pushed_by)}" if one.pushed_by else ""
        gone = f", {one.withdrawn:,} withdrawn" if one.withdrawn else ""
        say(f"{one.name or HERE}: {plural(one.runs, 'run')}{gone}{by}")
        if not one.brought:
            continue
        head = ("op", "platform", "measured", "alone", "configs", "runs", "failed", "gain")
        rows = []
        for b in one.brought:
            counts = (b.patterns, b.alone, b.configs, b.runs, b.failed)
            beside = f"{factor(b.beside_others)} of {b.in_common:,}" if b.in_common else "-"
            last = when(b.last)[:10] if b.last else "-"
            rows.append((b.op, b.platform, *counts, factor(b.gain), beside, last))
        table((*head, "beside others", "last"), rows, indent="  ")
        for b in one.brought:
            if b.winners:
                config, patterns = b.winners[0]
                won = counted({Op.parse(b.op).kind: patterns})
                say(f"  {b.op} on {b.platform}: fastest on {won}: {Config(config)}")
    say("alone: measured there by this source only; gain: best over default, both of this source;")
    say("beside others: time over that of all other sources for the same configuration")


def _show(facts: DatabaseFacts) -> None:
    counts = ", ".join(plural(n, what) for what, n in facts.counts.items() if n)
    say(f"{facts.place}: {counts or 'empty'}")
    if not facts.scopes:
        say("no runs: `embeddb index` reads a log, `embeddb measure` measures")
        return
    say()
    one, many = one_of(*facts.kinds), many_of(*facts.kinds)
    head = ("op", "platform", many, "configs", "runs", "failed", "held out", "fixed choice")
    table((*head, "possible", "noise", "note"), [_row(s) for s in facts.scopes])
    say("held out: share of the optimum, cross-validated by group; fixed choice, possible: gain")
    say(f"over the default of one configuration for all, and of each {one}'s best; on n of N:")
    say(f"where that choice and the default ran, counting each {one} once on each machine")
    for s in facts.scopes:
        if not s.winners:
            continue
        say()
        win = "wins" if s.distinct_winners == 1 else "win"
        say(
            f"{s.op} on {s.platform}: {plural(s.distinct_winners, 'configuration')} {win} somewhere"
        )
        for winner in s.winners[:3]:
            say(f"  {counted({Op.parse(s.op).kind: winner.patterns})}: {Config(winner.config)}")
        for like in s.preferences:
            if not like.settled:
                top = [f"{value} {share(part)}" for value, part in list(like.shares.items())[:3]]
                say(f"  {like.parameter}: {', '.join(top)}")
    if facts.contributors:
        say()
        _show_contributors(facts.contributors)
    if facts.gaps:
        from embeddb.ui.report.commands import stand_ins

        say()
        say("worth measuring")
        for gap in facts.gaps[:_MOST_GAPS]:
            say(f"  {gap.what}: {gap.why}")
            if gap.command:
                say(f"    {gap.command}")
        if len(facts.gaps) > _MOST_GAPS:
            say(f"  and {len(facts.gaps) - _MOST_GAPS} more: --html or --json has all")
        if meaning := stand_ins([gap.command for gap in facts.gaps[:_MOST_GAPS]]):
            say(f"  in the commands, {meaning}")


def _row(s: ScopeFacts) -> tuple[object, ...]:
    best = [v for v in (s.of_optimum, *s.model_of_optimum.values()) if v is not None]
    everything = next((c for c in s.classes if c.kind == "all"), None)
    return (
        *(s.op, s.platform, s.patterns, s.configs, s.runs),
        s.runs - s.statuses.get("ok", 0),
        share(max(best, default=None)),
        _fixed(everything),
        factor(everything.headroom if everything else None),
        "-" if s.noise.between is None else f"{100 * s.noise.between:.1f} %",
        "simulated" if s.simulated else "",
    )


def _fixed(choice: ClassChoice | None) -> str:
    """The gain of a fixed choice, and on how many pairs it and the default ran if not on all."""
    gain = factor(choice.gain if choice else None)
    if choice is None or choice.gain is None or choice.tried_pairs == choice.pairs:
        return gain
    return f"{gain} on {choice.tried_pairs:,} of {choice.pairs:,}"


# -- explain ---------------------------------------------------------------------------------------


@option.verb("explain")
@click.argument("db")
@click.argument("answer")
@option.text("--html", metavar="OUT", help="Write a self-contained report.")
def explain_verb(db: str, answer: str, html: str, as_json: bool) -> None:
    """Explain a stored answer. ANSWER: its id, `last`, or the file, name or id of its workload.

    Computed from DB alone: no model, no runner, no matrix file needed. OUT is one HTML file without
    external resources. Counterfactuals are included if the query ran with `embeddb query --why`.

    \b
    Example:
      embeddb explain starter last
      embeddb explain runs.db r1f0c9e2ab34d --json
      embeddb explain runs.db last --html why.html
    """
    with open_database(db, readonly=True) as opened:
        recommendation = opened.recommendation(answer, note=lambda line: note(f"warning: {line}"))
        explanation = explain(recommendation, opened.store)
    if html:
        from embeddb.ui.report import explanation_html

        write_page(explanation_html(explanation, place=db), Path(html))
    if as_json:
        emit(explanation.document())
    elif not html:
        show_explanation(explanation)
        if not recommendation.insight.deep and (recommendation.neighbours or recommendation.model):
            say()
            say("for counterfactuals, query again with `embeddb query ... --why`")
