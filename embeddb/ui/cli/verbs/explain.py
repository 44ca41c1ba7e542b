"""`explain`: the evidence behind an answer, from the database alone."""

from __future__ import annotations

from pathlib import Path

import click

from embeddb.explain.explain import explain
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.cli.explain_text import show_explanation
from embeddb.ui.cli.output import emit, json_option, note, say, write_page


@click.command("explain")
@click.argument("db")
@click.argument("answer")
@click.option("--html", default="", metavar="OUT", help="Write a self-contained report.")
@json_option
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
