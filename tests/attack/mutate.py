"""Bad inputs out of good ones: bytes, words, numbers, lines, JSON trees; the rng decides."""

from __future__ import annotations

import gzip
import json
import random
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

#: Longest input, bytes.
MOST = 2_000_000

_NUMBERS = [
    b"0", b"-1", b"1", b"-0", b"0.0", b"1.5", b"2147483647", b"2147483648", b"4294967295",
    b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808", b"1e308", b"1e999",
    b"-1e999", b"1e-400", b"nan", b"inf", b"-inf", b"NaN", b"Infinity", b"9" * 26, b"1" * 5000,
    b"0x10", b"1_000", b"true", b"null", b"", b" ", b"\xd9\xa3",
]  # fmt: skip
_MARKS = [
    b"\0", b"\r", b"\n", b"\n\n", b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3\x28", b"\xed\xa0\x80",
    "\u2028".encode(), "\u202e".encode(), b"\x85", b'"', b"'", b",", b"[", b"{", b"}", b"]", b"#",
    b"%", b"\\", b"\x1b[31m", b"<script>", b"../", b"\t", b"=cmd|x", b"%s", b"${x}",
]  # fmt: skip
_DEEP = [b"[", b'{"a":', b"(", b"{", b"[[", b"not ", b"-", b"((1+", b"min(", b"{a="]
_WORDS = [
    b"null", b'""', b"[]", b"{}", b"1", b"-1", b"1e999", b"true", b'"\\u0000"', b'"\\ud800"',
    b"[1,2]", b'"a\\nb"', b"99999999999999999999999999",
]  # fmt: skip
_ODD = [
    None, True, False, 0, -1, 1, 1.5, 2**31, 2**53, 2**63, 10**30, 1e308, -1e308, 1e-300, "", "x",
    "../../x", "<script>", "\0", "\n", "\u202e", "\ud800", "9" * 5000, "a" * 10_000, [], {}, [[]],
    [1] * 1000, {"a": {"b": 1}}, float("nan"), float("inf"),
]  # fmt: skip
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORD = re.compile(rb"[A-Za-z_]{2,}")
_QUOTED = re.compile(rb'"[^"\n]{0,40}"')
_SIZES = (1, 2, 4, 8, 16, 64, 256)

Change = Callable[[random.Random, bytearray, Sequence[bytes]], None]


def mutated(rng: random.Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """`data` with one to six things wrong; `others` are spliced in."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        if not out:
            out += rng.randbytes(rng.randrange(1, 20))
        else:
            rng.choice(_CHANGES)(rng, out, others)
        del out[MOST:]
    return bytes(out)


def mutated_gzip(rng: random.Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """A sound gzip file of bad content, or (three in ten) a damaged one."""
    if rng.random() < 0.3:
        return mutated(rng, data, others)
    try:
        plain = gzip.decompress(data)
    except (OSError, EOFError, zlib.error):
        return mutated(rng, data, others)
    return gzip.compress(mutated(rng, plain, others), 1, mtime=0)


def mutated_json(rng: random.Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """One of the JSON values in `data` (a document, or lines of them), changed as a tree."""
    lines = data.split(b"\n") if b"\n" in data.strip() else [data]
    whole = _loaded(data)
    at = 0
    if whole is None:
        at = rng.randrange(len(lines))
        whole = _loaded(lines[at])
    else:
        lines = [data]
    if whole is None:
        return mutated(rng, data, others)
    try:
        lines[at] = json.dumps(mutated_tree(rng, whole)).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return mutated(rng, data, others)
    return b"\n".join(lines)


def mutated_tree(rng: random.Random, tree: Any) -> Any:
    """A JSON or TOML tree with one to four places changed, in place."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(tree))
        if not places:
            return rng.choice(_ODD)
        inside, key = rng.choice(places)
        act = rng.randrange(10)
        if act == 0:
            del inside[key]
        elif act == 1:
            inside[key] = _nested(rng.choice((20, 200, 2000)))
        elif act == 2:
            other, where = rng.choice(places)
            inside[key] = _copied(other.get(where) if isinstance(other, dict) else other[where])
        elif act == 3 and isinstance(inside, dict):
            inside[str(rng.choice(_ODD))] = inside.pop(key)
        elif act == 4 and isinstance(inside, list):
            inside.insert(key, _copied(inside[key]))
        elif act == 5 and isinstance(inside[key], str):
            text = mutated(rng, inside[key].encode("utf-8", "surrogatepass"))
            inside[key] = text.decode("utf-8", "replace")
        else:
            inside[key] = _copied(rng.choice(_ODD))
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        items = part.items() if isinstance(part, dict) else ()
        items = enumerate(part) if isinstance(part, list) else items
        for key, value in items:
            yield part, key
            if isinstance(value, dict | list):
                waiting.append(value)


def _loaded(data: bytes) -> Any:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None


def _copied(value: Any) -> Any:
    """A tree that shares nothing with another: two places would change at once, or make a ring."""
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    return [_copied(v) for v in value] if isinstance(value, list) else value


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


# -- changes of bytes --------------------------------------------------------------------------


def _bit(rng: random.Random, d: bytearray, _: Sequence[bytes]) -> None:
    d[rng.randrange(len(d))] ^= 1 << rng.randrange(8)


def _byte(rng: random.Random, d: bytearray, _: Sequence[bytes]) -> None:
    d[rng.randrange(len(d))] = rng.randrange(256)


def _cut(rng: random.Random, d: bytearray, _: Sequence[bytes]) -> None:
    del d[rng.randrange(len(d)) :]


def _hole(rng: random.Random, d: bytearray, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(d))
    del d[at : at + rng.choice(_SIZES)]


def _again(rng: random.Random, d: bytearray, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(d))
    part = bytes(d[at : at + rng.choice((*_SIZES, 1024))])
    to = rng.randrange(len(d))
    d[to:to] = part * rng.choice((1, 1, 2, 10))


def _number(rng: random.Random, d: bytearray, _: Sequence[bytes]) -> None:
    at = 0 if rng.random() < 0.5 else max(0, rng.randrange(len(d)) - 200)
    spans = [found.span() for found in _NUMBER.finditer(bytes(d[at : at + 400]))]
    if spans:
        start, end = rng.choice(spans)
        d[at + start : at + end] = rng.choice(_NUMBERS)


def _integer(rng: random.Random, d: bytearray, _: Sequence[bytes]) -> None:
    value = rng.choice((0, 1, -1, 2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**63 - 1, -(2**63)))
    width = rng.choice((2, 4, 8))
    order = rng.choice(("<", ">"))
    raw = struct.pack(f"{order}Q", value % 2**64)
    at = rng.randrange(len(d))
    d[at : at + width] = raw[:width] if order == "<" else raw[-width:]


def _splice(rng: random.Random, d: bytearray, others: Sequence[bytes]) -> None:
    if others:
        other = rng.choice(others)
        d[rng.randrange(len(d)) :] = other[rng.randrange(len(other) + 1) :]


def _mark(rng: random.Random, d: bytearray, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(d))
    d[at:at] = rng.choice(_MARKS) * rng.choice((1, 1, 1, 3, 1000))


def _deep(rng: random.Random, d: bytearray, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(d))
    d[at:at] = rng.choice(_DEEP) * rng.choice((50, 500, 5000, 100_000))


def _lines(rng: random.Random, d: bytearray, _: Sequence[bytes]) -> None:
    lines = bytes(d).split(b"\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    act = rng.randrange(4)
    if act == 0:
        del lines[at]
    elif act == 1:
        lines.insert(at, lines[other])
    elif act == 2:
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines[at] *= rng.choice((2, 50))
    d[:] = b"\n".join(lines)


def _encoding(rng: random.Random, d: bytearray, _: Sequence[bytes]) -> None:
    to = rng.choice(("utf-16", "utf-32", "latin-1", "utf-16-be", "utf-8-sig"))
    d[:] = bytes(d).decode("utf-8", "replace").encode(to, "replace")


def _word(rng: random.Random, d: bytearray, _: Sequence[bytes]) -> None:
    spans = [found.span() for found in _WORD.finditer(bytes(d[:4000]))]
    if spans:
        (start, end), (other, till) = rng.choice(spans), rng.choice(spans)
        d[start:end] = bytes(d[other:till])


def _noise(rng: random.Random, d: bytearray, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(d))
    d[at:at] = rng.randbytes(rng.choice((1, 4, 64)))


def _line_ends(rng: random.Random, d: bytearray, _: Sequence[bytes]) -> None:
    d[:] = bytes(d).replace(b"\n", rng.choice((b"\r\n", b"\r", b"\n\n", b"\x0b", b" ")))


def _quoted(rng: random.Random, d: bytearray, _: Sequence[bytes]) -> None:
    spans = [found.span() for found in _QUOTED.finditer(bytes(d[:8000]))]
    if spans:
        start, end = rng.choice(spans)
        d[start:end] = rng.choice(_WORDS)


_CHANGES: tuple[Change, ...] = (
    _bit, _byte, _cut, _hole, _again, _number, _number, _number, _number, _integer, _splice,
    _mark, _deep, _lines, _encoding, _word, _noise, _line_ends, _quoted,
)  # fmt: skip
