"""One sentence on top: by what it was chosen, what it gains, how sure that is."""

from __future__ import annotations

import msgspec
import pytest
from builders import OP, band, fill, patterns, runs_of, tiny

from embeddb.database import Database
from embeddb.explain.explanation import Explanation
from embeddb.explain.why import why
from embeddb.ranking.query import LINKS
from embeddb.ui.cli.explain_text import show_explanation
from embeddb.ui.report import explanation_html

PAIR = tiny("pair", portable=True)
HOME = PAIR.at("home", {"cpu": "AMD EPYC (26/2/1)", "threads": "2", "compiler": "gcc 12.2.0"})


@pytest.fixture(scope="module")
def db() -> Database:
    return fill(Database.in_memory(), HOME)


@pytest.fixture(scope="module")
def told(db: Database) -> Explanation:
    made = db.query(band(137, 14, name="new", group="new"), platform=HOME, op=OP)
    return db.explain(made.id)


def test_it_names_neighbours_gain_and_confidence(told: Explanation) -> None:
    ran = [n.answer_gain for n in told.neighbours if n.answer_gain is not None]
    faster = sum(gain > 1 for gain in ran)
    assert f"{faster} of the {len(ran)}" in told.why and f"{len(told.neighbours)} most" in told.why
    assert f"{told.expected_gain:.2f}x" in told.why and told.recommendation.confidence in told.why
    assert told.document()["why"] == told.why


def test_it_is_on_top_of_the_page_and_of_the_text(
    told: Explanation, capsys: pytest.CaptureFixture[str]
) -> None:
    page = explanation_html(told)
    assert page.index('report-why">') < page.index('id="report-line"')
    assert "pair: AMD Zen 5, 2 threads, gcc 12" in page and 'title="pair@home"' in page
    show_explanation(told)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:1] == ["why"] for line in lines[:4])


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("default", [False, True])
def test_every_link_has_one(told: Explanation, link: str, *, default: bool) -> None:
    made = told.recommendation
    candidates = made.candidates
    if default:
        candidates = [c for c in candidates if c.config == made.default]
    changed = msgspec.structs.replace(
        made, link=link, candidates=candidates, confidence="low", warnings=["few; rest"]
    )
    for near in (told.neighbours, told.neighbours[:1], []):
        said = why(msgspec.structs.replace(told, recommendation=changed, neighbours=near))
        assert said.endswith("Confidence: low, because few.")
        assert "None" not in said and ".." not in said and said[0].isupper()


def test_measured_here(db: Database) -> None:
    known = patterns(1)[2]
    db.index.record(runs_of(known, HOME), known, HOME)
    said = db.explain(db.query(known, platform=HOME, op=OP).id).why
    assert said.startswith("It is the fastest configuration measured on this matrix: ")
