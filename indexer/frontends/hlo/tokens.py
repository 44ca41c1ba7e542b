"""HLO text cut into tokens, a statement at a time.

Every alternative of the one expression is possessive and takes what it has begun, also where the
end of that is lacking, so that no text makes it go back: the time is linear in the text, whatever
it holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from embeddb.core.errors import TensorError

_TOKEN = re.compile(
    r'"(?:[^"\\]++|\\.)*+"?+'  # a text
    r"|/\*(?:[^*]++|\*(?!/))*+(?:\*/)?+|//.*+"  # a remark
    r"|->"
    r"|(?:[\w.%+?@$]|-(?!>))++"  # a name, a number, a word
    r"|\S"
)
_OPENING, _CLOSING = frozenset("({["), frozenset(")}]")
#: A literal of a large constant goes over several lines.
_MOST_LINES, _MOST_TOKENS = 1 << 20, 1 << 22
_WORD = re.compile(r"[\w.%+?@$-]")


@dataclass(frozen=True, slots=True)
class Statement:
    """The tokens of a line, and of those after it that its brackets hold together."""

    line: int
    tokens: list[str]


def statements(text: str) -> Iterator[Statement]:
    """Statements in order, without remarks and empty lines. A bracket that ends a line opens a
    body if it is the only one that is open.

    Raises: TensorError, with the line, for brackets that do not fit.
    """
    tokens: list[str] = []
    depth = first = 0
    for number, line in enumerate(text.splitlines(), 1):
        found = [t for t in _TOKEN.findall(line) if not t.startswith(("/*", "//"))]
        if not found:
            continue
        if not tokens:
            first = number
        for token in found:
            if token in _OPENING:
                depth += 1
            elif token in _CLOSING:
                depth -= 1
        tokens += found
        opens_body = depth == 1 and found[-1] == "{" and "=" not in tokens[1:3]
        if depth <= 0 or opens_body:
            if depth < 0 and tokens[0] != "}":
                raise TensorError("a bracket closes what was not opened", line=number)
            yield Statement(first, tokens)
            tokens, depth = [], 0
        elif number - first > _MOST_LINES or len(tokens) > _MOST_TOKENS:
            raise TensorError("a bracket is never closed", line=first)
    if tokens:
        raise TensorError("ends inside of brackets: the dump was cut off", line=first)


def joined(tokens: list[str]) -> str:
    """Tokens as a text again, with a space only between words."""
    parts: list[str] = []
    for token in tokens:
        if parts and _WORD.match(token[0]) and _WORD.match(parts[-1][-1]):
            parts.append(" ")
        parts.append(token)
    return "".join(parts)
