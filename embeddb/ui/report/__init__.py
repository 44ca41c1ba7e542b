"""Reports as files: `explanation_html` of one answer, `answers_html` over several answers,
`database_html` of a whole database.

Each is one self-contained HTML file: charts and style inside, no script, no external resources.
`explanation_body` with `page_style` is the same for a page that has a frame of its own.
"""

from __future__ import annotations

from embeddb.ui.report.database import DatabaseFacts, database_facts, database_html
from embeddb.ui.report.explanation import answers_html, explanation_body, explanation_html
from embeddb.ui.report.page import page_style

__all__ = [
    "DatabaseFacts",
    "answers_html",
    "database_facts",
    "database_html",
    "explanation_body",
    "explanation_html",
    "page_style",
]
