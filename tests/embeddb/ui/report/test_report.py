"""Explanations as pages: valid, complete, closed to the outside, safe whatever a name holds."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from html.parser import HTMLParser

import html5lib
import msgspec
import pytest
from report_cases import HOSTILE, answered, bare, full, hostile

from embeddb.core.records import WorkloadInfo
from embeddb.core.wording import figure, line, page_factor, page_seconds, page_share, shown, when
from embeddb.explain.explanation import BESIDE, LINK_WORDS, RESTS, Agreement, Explanation
from embeddb.explain.quantities import QuantityView
from embeddb.ranking.order_reason import REASONS
from embeddb.ranking.query import LINKS
from embeddb.ranking.recommendation import Diagnostics
from embeddb.ui import draw
from embeddb.ui.report import (
    answers_html,
    explanation_body,
    explanation_html,
    page_style,
)
from embeddb.ui.report import explanation as explanation_page
from embeddb.ui.report.explanation import settings
from embeddb.ui.report.page import bars

VARIANTS = {
    "full": full(),
    "not measured": full(measured=False, deep=False),
    "bare": bare(),
    "no insight": answered(full(), insight=Diagnostics()),
    "no drawings": msgspec.structs.replace(full(), neighbours=[], pattern=type(full().pattern)()),
    **{f"hostile {at}": hostile(text) for at, text in enumerate(HOSTILE)},
}
#: Headings by the field that brings them.
SECTIONS = {
    "novelty": "How new this matrix is",
    "neighbours": "The measured matrices it rests on",
    "agreement": "What the neighbours agree on",
}


class _Page(HTMLParser):
    """Tags with their attributes, and the text outside of style."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._style = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._style = False

    def handle_data(self, data: str) -> None:
        if not self._style:
            self.text += data

    def ids(self) -> list[str]:
        return [v for _, attrs in self.tags if (v := attrs.get("id"))]

    def named(self, tag: str) -> Iterator[dict[str, str | None]]:
        return (attrs for name, attrs in self.tags if name == tag)


@pytest.fixture(params=VARIANTS, scope="module")
def page(request: pytest.FixtureRequest) -> tuple[Explanation, str]:
    e = VARIANTS[request.param]
    return e, explanation_html(e)


def test_it_is_valid_html(page: tuple[Explanation, str]) -> None:
    html5lib.HTMLParser(strict=True).parse(page[1])


def test_it_reaches_out_to_nothing_and_runs_nothing(page: tuple[Explanation, str]) -> None:
    assert outside(page[1]) == []


def outside(html: str) -> list[str]:
    """Everything in a page that could load or run something."""
    read = _Page(html)
    found = [tag for tag, _ in read.tags if tag in ("script", "img", "iframe", "link", "object")]
    for tag, attrs in read.tags:
        for name, value in attrs.items():
            reaches = name in ("src", "href", "xlink:href") and not (value or "").startswith("#")
            if reaches or name.startswith("on") or re.search(r"url\((?!#)", value or "", re.I):
                found.append(f"{tag} {name}={value}")
    style = "".join(re.findall(r"<style>(.*?)</style>", html, re.S))
    return found + re.findall(r"@import|url\((?!#)|expression\(", style)


def test_ids_are_unique_and_references_lead_somewhere(page: tuple[Explanation, str]) -> None:
    read = _Page(page[1])
    ids = read.ids()
    assert len(ids) == len(set(ids))
    for _, attrs in read.tags:
        named = f"{attrs.get('aria-labelledby') or ''} {attrs.get('for') or ''}".split()
        named += [(attrs.get("href") or "#")[1:]] if attrs.get("href") else []
        named += re.findall(r"url\(#([^)]+)\)", " ".join(v or "" for v in attrs.values()))
        assert set(named) <= set(ids)


def test_tables_and_figures_say_what_they_show(page: tuple[Explanation, str]) -> None:
    read = _Page(page[1])
    tags = [tag for tag, _ in read.tags]
    assert tags.count("table") == tags.count("caption")
    assert tags.count("figure") == tags.count("figcaption")
    assert all(attrs.get("scope") in ("row", "col") for attrs in read.named("th"))
    assert all(
        attrs.get("role") == "img" or attrs.get("aria-hidden") == "true"
        for attrs in read.named("svg")
    )
    assert tags.count("h1") == 1 and tags.count("main") == 1


def test_landmarks_have_names_of_their_own() -> None:
    read = _Page(explanation_html(full()))
    labels = [attrs["aria-label"] for _, attrs in read.tags if attrs.get("role") == "region"]
    headings = re.findall(r"<h2[^>]*>([^<]*)", explanation_html(full()))
    assert len(labels) == len(set(labels)) and not set(labels) & set(headings)


def test_it_is_small_and_written_as_utf8(page: tuple[Explanation, str]) -> None:
    assert len(page[1].encode("utf-8")) < 300_000


def test_nothing_invisible_comes_through(page: tuple[Explanation, str]) -> None:
    """No control, direction or other format characters, wherever a name ends up."""
    odd = {c for c in page[1] if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co") and c != "\n"}
    assert not odd


def test_what_a_stranger_wrote_is_text_and_no_template() -> None:
    html = explanation_html(hostile(HOSTILE[0]))
    assert "<script" not in html and "&lt;script&gt;" in html
    assert "{{ 7 * 7 }}" in _Page(explanation_html(hostile(HOSTILE[3]))).text
    assert "[U+202E]" in explanation_html(hostile(HOSTILE[2]))
    assert "(10,000 characters)" in explanation_html(hostile(HOSTILE[6]))


def test_the_verdict_comes_first_and_says_what_to_run() -> None:
    text = _Page(explanation_html(full())).text
    at = [
        text.index(part)
        for part in (
            "Simulated.",
            "Run this configuration",
            "1.90×",
            "1.80×",
            "1.20× to 2.40×",
            "order=ik1jk0,tile=64",
            "Why it is not surer",
            "The nearest measured pattern is unusually far.",
            "How new this matrix is",
            "The matrix",
            "The measured matrices it rests on",
            "What the neighbours agree on",
            "What simpler methods would say",
            "Predicted against measured",
            "What to measure next",
            "What each parameter does on this matrix",
            "What would change the answer",
            "Measured elsewhere, but not legal here",
            "Where this comes from",
        )
    ]
    assert at == sorted(at)


@pytest.mark.parametrize(("field", "heading"), SECTIONS.items())
def test_a_part_is_there_with_its_data_only(field: str, heading: str) -> None:
    assert heading in explanation_html(full())
    without = msgspec.structs.replace(full(), **{field: type(getattr(full(), field))()})
    text = _Page(explanation_html(without)).text
    assert heading not in text or "no comparable matrix was measured" in text


def test_what_was_rejected_is_there_with_its_data_only() -> None:
    heading = "Measured elsewhere, but not legal here"
    assert heading in explanation_html(full())
    assert heading not in explanation_html(answered(full(), rejected={}))


@pytest.mark.parametrize(
    ("field", "heading"),
    [
        ("simpler", "What simpler methods would say"),
        ("next", "What to measure next"),
        ("effects", "What each parameter does on this matrix"),
    ],
)
def test_an_insight_is_there_with_its_data_only(field: str, heading: str) -> None:
    assert heading in explanation_html(full())
    rest = msgspec.structs.replace(full().recommendation.insight, **{field: []})
    assert heading not in explanation_html(answered(full(), insight=rest))


def test_the_figures_are_told() -> None:
    text = " ".join(_Page(explanation_html(full())).text.split())
    for told in (
        "1,200 × 1,100, 9,000 nonzeros",  # the matrix
        "nonzeros per row, mean 19.1 1,410 -1.8",  # the difference, logarithms undone
        "farther than 50",  # of the third neighbour
        "2 crash",  # its failures
        "disagree on tile",
        "2.1 %",  # worth of the next run
        "the wrong value costs up to 1.64×",
        "order: no value is more than 2 % better",
        "+1.2",  # deviations of the move
        "breaks the constraint tile < NNZ",
        "as good, within the noise",
        "1.9 ms",
        "inside its predicted interval",
        "for want of runs of spmm:32",
        "embeddb explain DB r0123456789ab",
        "The answer ran on this matrix: 1 ms, 900 µs to 1.2 ms; 3 runs, 15 repeats in all, "
        "1970-01-02 to 1970-01-04; hardware",
        "without format conversion",
        "embeddb measure DB MATRIX --platform tiny.toml --op spmm:32",
        "DB is the folder of the database; MATRIX is the file of the matrix",
        "tiny.toml is the file that describes the platform",
    ):
        assert told.replace(" ", "") in text.replace("\u00a0", " ").replace(" ", ""), told


def test_commands_name_the_database_as_the_user_did() -> None:
    text = _Page(explanation_html(full(), place="my runs.db")).text
    assert "embeddb explain 'my runs.db' r0123456789ab" in text
    assert "is the folder of the database" not in text
    secret = explanation_html(full(), place="postgresql://ann:hunter2@db/team?schema=x")
    assert "hunter2" not in secret and "ann:***@db/team" in secret


def test_a_vote_against_the_answer_is_not_called_agreement() -> None:
    vote = Agreement(parameter="tile", votes={"8": 0.9, "16": 0.1}, answer="16", open=False)
    text = _Page(explanation_html(msgspec.structs.replace(full(), agreement=[vote]))).text
    assert "the answer goes against the vote" in text and "agreed;" not in text


def test_a_matrix_without_a_name_is_told_by_its_sizes() -> None:
    made = full().recommendation
    asked = WorkloadInfo(id=made.pattern_id, m=1200, n=1100, nnz=9000)
    made = msgspec.structs.replace(made, pattern_name="", pattern=asked)
    page = _Page(explanation_html(msgspec.structs.replace(full(), recommendation=made)))
    assert "for a matrix of 1,200 x 1,100 with 9,000 nonzeros" in " ".join(page.text.split())


@pytest.mark.parametrize("link", ["measured", "other-width", "model", "static-best"])
def test_who_did_not_vote_is_not_said_to_have_voted(link: str) -> None:
    assert ">vote<" in explanation_html(full())
    html = explanation_html(answered(full(), link=link))
    assert ">vote<" not in html and "The measured matrices it rests on" not in html
    assert f"The answer {RESTS[link]}. Below are {BESIDE[link]}." in _Page(html).text


def test_every_link_has_its_words() -> None:
    assert set(LINK_WORDS) == set(RESTS) == set(LINKS) and set(BESIDE) == {*LINKS} - {"neighbours"}


def test_ties_are_no_noise_where_nothing_ran_twice() -> None:
    text = _Page(explanation_html(answered(full(), noise=0.0))).text
    assert "no evidence of a difference" in text and "within the noise" not in text


def test_no_command_measures_where_nothing_can_run() -> None:
    text = _Page(explanation_html(msgspec.structs.replace(full(), runnable=False))).text
    assert "What to measure next" in text and "embeddb measure" not in text


def test_counted_preparation_is_told() -> None:
    text = _Page(explanation_html(answered(full(), calls=1000.0))).text
    assert "known, amortised over 1,000 calls; measured times exclude it" in text


def test_without_evidence_it_says_so() -> None:
    text = _Page(explanation_html(bare())).text
    assert "Nothing is known: keep the default" in text
    assert "no comparable matrix was measured" in text
    assert "without evidence" in text


def test_the_body_goes_into_another_page() -> None:
    body = str(explanation_body(full()))
    assert "<html" not in body and "<h1" not in body and "<style" not in body
    html5lib.HTMLParser(strict=True).parseFragment(body)
    assert "</style" not in page_style()


def test_drawings_are_in_the_page() -> None:
    read = _Page(explanation_html(full()))
    # the matrix, its attention, per neighbour a picture and a curve, and five bar charts
    assert sum(1 for _ in read.named("svg")) >= 2 + 3 + 3 + 3


def test_settings_say_what_is_not_as_usual() -> None:
    rows = settings({"a": 1, "b": 2}, {"a": 1, "c": 3}, {})
    assert [(s["name"], s["value"], s["default"]) for s in rows] == [
        ("a", "1", None),
        ("b", "2", "(not used)"),
        ("c", "(not used)", "3"),
    ]


def test_words() -> None:
    assert shown("a\tb\u202e\x00") == "a b[U+202E][U+0000]"
    assert shown("Ünïcode ok") == "Ünïcode ok"
    assert shown("y" * 300, 10) == "y" * 10 + "… (300 characters)"
    assert (page_factor(1.234), page_factor(None), page_factor(float("nan"))) == ("1.23×", "–", "–")
    assert (page_share(0.934), page_share(0.001), page_share(0.0)) == (
        "93\u00a0%",
        "< 1\u00a0%",
        "0\u00a0%",
    )
    assert (page_seconds(1.5e-5), page_seconds(2.0), page_seconds(None)) == (
        "15\u00a0µs",
        "2\u00a0s",
        "–",
    )
    assert (figure(1234567.0), figure(0.123456)) == ("1,234,567", "0.1235")
    assert (when(0.0), when(86400.0)) == ("–", "1970-01-02 00:00 UTC")
    assert line({"b": 1, "a": "x y"}) == 'a="x y",b=1'


def test_contents_lead_to_every_part_and_to_nothing_else() -> None:
    for e in (full(), bare()):
        page = explanation_html(e)
        linked = re.findall(r'href="#(report-[a-z]+)"', page)
        there = re.findall(r'<section aria-labelledby="(report-[a-z]+)"', page)
        assert [a for a in linked if a != "report-main"] == there


def test_what_looks_odd_is_explained() -> None:
    made = full().recommendation
    candidates = [
        msgspec.structs.replace(made.candidates[0], expected_gain=gain, order_reason=reason)
        for gain, reason in ((1.4, ""), (1.1, "explores"), (1.3, ""))
    ]
    mixed = msgspec.structs.replace(made, candidates=candidates)
    page = explanation_html(msgspec.structs.replace(full(), recommendation=mixed))
    assert "; explores</td>" in page and REASONS["explores"] in page
    own = msgspec.structs.replace(full().own[0], fastest=1.0, slowest=7.0, times=9)
    noisy = msgspec.structs.replace(full(), own=[own])
    assert explanation_page.uneven(noisy) == 7.0
    assert "7.00× the time of the fastest" in explanation_html(noisy)
    assert explanation_page.uneven(msgspec.structs.replace(full(), own=[])) is None


def test_values_say_what_they_mean_and_the_machine_is_named() -> None:
    name = next(iter(full().answer))
    told = msgspec.structs.replace(full(), meaning={name: "as <it> is"}, machine="EPYC, gcc 12")
    page = explanation_html(told)
    assert "as &lt;it&gt; is" in page and "The machine: <bdi>EPYC, gcc 12</bdi>" in page


def test_several_answers_are_one_page() -> None:
    page = answers_html([("a.html", full()), ("b.html", bare())], title="Two", notes=["beware"])
    text = _Page(page).text
    assert "2 answers about" in text and "Beware." in text and "Simulated." in text
    assert re.findall(r'href="(.\.html)"', page) == ["a.html", "b.html"]
    assert "Keep the default" in text and answers_html([], title="None")


def test_a_neighbour_without_the_default_is_not_called_unmeasured() -> None:
    e = full()
    near = msgspec.structs.replace(e.neighbours[0], answer_gain=None, best_gain=None, answer_at=0)
    text = _Page(explanation_html(msgspec.structs.replace(e, neighbours=[near]))).text
    assert "not known: the default did not run" in text and "was not measured" not in text


def test_derived_quantities_are_those_that_differ() -> None:
    same = QuantityView(name="panels", answer=1.0, default=1.0)
    other = QuantityView(name="tasks", answer=16.0, default=2.0)
    e = full()
    html = explanation_html(msgspec.structs.replace(e, quantities=[same, other]))
    assert "<bdi>tasks</bdi>" in html and "<bdi>panels</bdi>" not in html
    alike = explanation_html(msgspec.structs.replace(e, quantities=[same]))
    assert "Derived quantities" not in alike


def test_bars_have_the_digits_of_tables() -> None:
    drawn = str(bars([draw.Bar("rank 1", 1.0), draw.Bar("rank 2", 0.923)], title="t", key="k"))
    assert ">1.00×<" in drawn and ">0.92×<" in drawn
