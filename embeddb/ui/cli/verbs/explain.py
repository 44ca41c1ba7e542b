"""`explain`: why an answer is what it is, from what is stored alone."""

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
@click.option("--html", default="", metavar="OUT", help="Write a report file that needs nothing.")
@json_option
def explain_verb(db: str, answer: str, html: str, as_json: bool) -> None:
    """Why an answer is what it is. ANSWER: its id, `last`, or a file, name or id.

    Computed from DB alone: no model, no runner, no matrix file needed. OUT is one HTML file that
    loads nothing from anywhere. What would change the answer is there if it was asked for with
    `embeddb query --why`.

    \b
    Example:
      embeddb explain starter last
      embeddb explain runs.db r1f0c9e2ab34d --json
      embeddb explain runs.db last --html why.html
    """
    with open_database(db, readonly=True) as opened:
        made = opened.recommendation(answer, note=lambda line: note(f"warning: {line}"))
        found = explain(made, opened.store)
    if html:
        from embeddb.ui.report import explanation_html

        write_page(explanation_html(found, place=db), Path(html))
    if as_json:
        emit(found.document())
    elif not html:
        show_explanation(found)
        if not made.insight.deep and (made.neighbours or made.model):
            say()
            say("what would change the answer: ask again with `embeddb query ... --why`")
