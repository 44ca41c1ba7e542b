"""Plain technical English in docstrings, messages and pages.

Pages keep to the rules, with the exceptions below. Code is rewritten step by step: `CEILINGS` has
the number of places that break each rule, and only falls. `python tests/test_words.py RULE` lists
them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = [
    p for room in ("embeddb", "indexer", "tuners") for p in sorted((ROOT / room).rglob("*.py"))
]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

#: First words of a docstring that is no noun phrase and no imperative: say what the thing is.
OPENING = re.compile(r"(What|Whether|Of|How|By|As|Where|Which|Those|Why|That)\b")
#: Words of our own, and the field's word to use instead.
WORDS = {
    r"(un)?told\b|\btells?\b(?! (apart|from))": "report, state, predict, know",
    r"\bunheard\b": "ignored",
    r"\b(is|are|was|were|be) said\b|\bsaid to\b": "report, predict",
    r"\bforet(ell|old)\w*": "predict",
    r"\bpromise[sd]?\b": "predict",
    r"\basked (about|for|of)\b": "queried, requested",
    r"\bso for all below\b": "name the option",
    r"\bcarried over\b|\bcarr(y|ies) over\b": "transfer",
    r"\bmade up for\b": "amortised",
    r"\blessons?\b|\btaught\b|\bpupils?\b": "training data, trained",
    r"\bcannot be meant\b": "invalid",
}
WRONG = re.compile("|".join(f"(?:{word})" for word in WORDS), re.I)
#: Names that say how a value came, not what it is.
BINDINGS = {"found", "told", "made", "known", "said", "asked", "held", "given", "kept"}

#: Places that break a rule in code. They only fall: lower a number when you have rewritten some.
CEILINGS = {"openings": 0, "docstrings": 0, "messages": 0, "bindings": 1}
#: Words that a page needs all the same: page and words around it.
EXCEPTIONS: dict[str, tuple[str, ...]] = {}


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in MODULES:
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of strings of three words or more that are no docstrings."""
    lines = {line for line, _ in docstrings(tree)}
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and node.lineno not in lines and len(text.split()) > 2:
            yield node.lineno, text


def bindings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of every variable, argument or attribute that is bound."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def broken(rule: str) -> list[str]:
    """Places in code that break a rule."""
    lines = []
    for path, tree in trees():
        where = path.relative_to(ROOT)
        if rule == "openings":
            hits = [(n, t.split("\n")[0]) for n, t in docstrings(tree) if OPENING.match(t)]
        elif rule == "docstrings":
            hits = [(n, m[0]) for n, t in docstrings(tree) for m in WRONG.finditer(t)]
        elif rule == "messages":
            hits = [(n, m[0]) for n, t in messages(tree) for m in WRONG.finditer(t)]
        else:
            hits = [(n, name) for n, name in bindings(tree) if name in BINDINGS]
        lines += [f"{where}:{line}: {text}" for line, text in hits]
    return lines


@pytest.mark.parametrize("rule", CEILINGS)
def test_code_speaks_plainly(rule: str) -> None:
    places = broken(rule)
    most = CEILINGS[rule]
    hint = (
        f"python tests/test_words.py {rule} lists them; use {WORDS if rule != 'bindings' else ''}"
    )
    assert len(places) <= most, f"{rule}: {len(places)} places, {most} may be; {hint}"


def prose(page: Path) -> str:
    """The text of a page without code."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.sub(r"`[^`]*`", "", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_pages_speak_plainly(page: Path) -> None:
    text, name = prose(page), page.relative_to(ROOT).as_posix()
    for words in EXCEPTIONS.get(name, ()):
        text = text.replace(words, "")
    places = [text[max(m.start() - 30, 0) : m.end() + 20] for m in WRONG.finditer(text)]
    assert not places, f"{name}: {places}"


def test_the_glossary_is_short_and_pages_are_few() -> None:
    glossary = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^\| \*\*", glossary, re.M)) <= 50
    generated = re.compile(r"<!-- table: [\w-]+ -->.*?<!-- end -->", re.S)
    texts = [generated.sub("", page.read_text(encoding="utf-8")) for page in PAGES[1:]]
    assert sum(len(text.splitlines()) for text in texts) <= 4500
    assert len(PAGES[0].read_text(encoding="utf-8").splitlines()) <= 100


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in broken(sys.argv[1])))
