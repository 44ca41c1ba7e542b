"""Requests to the page, as its server hands them over: one that anybody here may ask, and one
behind a token, which nobody of these has."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attack import database
from attack.case import Case
from attack.mutate import mutated

_ID = "0" * 32
_PATHS = (
    "/", "/index.json", "/search?q=m", "/search.json?q=m", f"/patterns/{_ID}",
    f"/patterns/{_ID}.json", "/answers/r000000000000", "/platforms/tiny", "/platforms/tiny.json",
    "/campaigns", "/campaigns.json", "/campaigns/x", "/runs?platform=tiny&op=spmm:32",
    f"/runs.json?pattern={_ID}&platform=tiny&op=spmm:32&page=1",
    "/map?platform=tiny&op=spmm:32&color=winner", "/map.json?platform=tiny&op=spmm:32&color=winner",
    f"/compare?pattern={_ID}&op=spmm:32&left=tiny&right=other",
    f"/ask?pattern={_ID}&platform=tiny&op=spmm:32", f"/thumbs/{_ID}.svg", "/static/page.css",
    "/login", "/team/", "/team/login", "/team/runs.json", "/team/static/page.css",
)  # fmt: skip
_VALUES = (
    "", "0", "-1", "99999999999999999999", "1" * 5000, "1e9", "nan", "%00", "%ff", "%ed%a0%80",
    "..", "../../etc/passwd", "<script>alert(1)</script>", "'\"><svg/onload=alert(1)>", "a" * 3000,
    "spmm:0", "spmm:1048577", "spmv:9", "sddmm:7:f16", "tiny@", "@", "%0a%0d", "winner.",
    "winner.variant", "winner.__class__", "platform", "%E2%80%AE", "\u0661", "null", "{{7*7}}",
    "%2e%2e%2f", "/etc/x.toml", "r000000000000", "*", "\\x00",
)  # fmt: skip
_NAMES = ("page", "color", "platform", "op", "pattern", "left", "right", "q", "name", "calls")
_HEADERS = (
    ("host", "evil.example"), ("host", "127.0.0.1:80:x"), ("origin", "http://evil.example"),
    ("sec-fetch-site", "cross-site"), ("if-none-match", "*"), ("range", "bytes=0-"),
    ("content-encoding", "gzip"), ("content-length", "-1"), ("content-length", "9" * 30),
    ("cookie", "a" * 9000), ("x" * 100, "\xff"), ("accept-encoding", "gzip"),
    ("authorization", "Bearer "), ("authorization", "bearer \xff\xfe"), ("authorization", "\xa0"),
    ("cookie", "embeddb-000000000000=9999999999.\xb2;=;;a"), ("host", "tuning.example.org:99999"),
    ("host", "tuning.example.org"), ("x-forwarded-for", "\xff, ::1%eth0"), ("host", "[::1"),
)  # fmt: skip
_MATRIX = b"%%MatrixMarket matrix coordinate pattern general\n3 3 2\n1 1\n3 2\n"
_FILES = ("a.mtx", "a.npz", "../../x.mtx", ".mtx", "a.mtx.gz", "\0.mtx", "a" * 500, "<b>.mtx",
          "/etc/passwd", "..", "\u202egnp.mtx", "con.mat")  # fmt: skip


def _case(method: str, address: str, headers: Sequence[tuple[str, str]], body: bytes = b"") -> Case:
    return Case(json.dumps([method, address, list(headers)]), body)


def seeds() -> list[Case]:
    return [_case("GET", path, []) for path in _PATHS]


def mutate(rng: random.Random, case: Case, seeds: Sequence[Case]) -> Case:
    method, address, headers = json.loads(case.how)
    address = address.replace(_ID, rng.choice(_ids()))
    if rng.random() < 0.85:
        for _ in range(rng.choice((1, 1, 2, 3))):
            address = _address(rng, address)
    if rng.random() < 0.1:
        headers = [*headers, rng.choice(_HEADERS)]
    if rng.random() < 0.1:
        method = rng.choice(("HEAD", "PUT", "OPTIONS", "FOO", "get", "", "DELETE"))
    if rng.random() < 0.01:  # each starts a process that reads it
        name = urllib.parse.quote(rng.choice(_FILES))
        data = mutated(rng, _MATRIX) if rng.random() < 0.5 else _MATRIX
        return _case("POST", f"/ask?platform=tiny&op=spmm:32&name={name}", headers, data)
    if rng.random() < 0.05:
        form = mutated(rng, b"token=wrong&after=%2Fruns%3Fplatform%3Dtiny")
        return _case("POST", rng.choice(("/login", "/team/login")), headers, form)
    return _case(method, address, headers)


def _ids() -> list[str]:
    from builders import patterns

    return [one.id for one in patterns(2)] + [_ID]


def _address(rng: random.Random, address: str) -> str:
    path, _, query = address.partition("?")
    act = rng.randrange(8)
    value = urllib.parse.quote(rng.choice(_VALUES), safe="%")
    if act < 3 and query:
        pairs = query.split("&")
        at = rng.randrange(len(pairs))
        name, _, was = pairs[at].partition("=")
        pairs[at] = (
            f"{name}={value}" if act else f"{name}={was[: rng.randrange(len(was) + 1)]}{value}"
        )
        query = "&".join(pairs if rng.random() < 0.9 else [*pairs, pairs[at]] * 5)
    elif act == 3:
        parts = path.split("/")
        parts[rng.randrange(len(parts))] = value
        path = "/".join(parts)
    elif act == 4:
        path += rng.choice((".json", "/", ".json.json", "%2ejson", "//", ";a=b"))
    elif act == 5:
        path = path.replace("/", "//", 1)
    else:
        query = f"{query}&{rng.choice(_NAMES)}={value}"
    return path + (f"?{query}" if query else "")


def prepare(scratch: Path) -> Any:
    from embeddb.database import Database
    from embeddb.ui.serve.access import Address
    from embeddb.ui.serve.app import build_app

    folder = database.with_copy(database.base(), scratch / "served.db")
    db = Database.open(folder, readonly=True)
    address = Address(public="https://tuning.example.org/team")
    closed = build_app(db, max_upload=100_000, address=address, token=secrets.token_urlsafe(32))
    return build_app(db, max_upload=100_000), closed, asyncio.new_event_loop()


def feed(case: Case, scratch: Path, state: Any) -> None:
    app, closed, loop = state
    method, address, headers = json.loads(case.how)
    _look(*loop.run_until_complete(_answer(app, method, address, headers, case.data)))
    reply = loop.run_until_complete(_answer(closed, method, address, headers, case.data))
    _look(*reply)
    # The program's own files, and the form; nothing of a database.
    free = urllib.parse.unquote(address).removeprefix("/team").startswith(("/static/", "/login"))
    assert free or reply[0] >= 400, f"{reply[0]} without the token: {reply[2][:300]!r}"
    assert reply[0] != 303, "a session without the token"


def _look(status: int, sent: dict[bytes, bytes], body: bytes) -> None:
    assert status < 500 or status == 503, f"{status}: {body[:300]!r}"
    assert b"content-security-policy" in sent, f"no policy on a {status}"
    if b"html" in sent.get(b"content-type", b""):
        assert b"<script>alert(1)" not in body and b"<svg/onload" not in body, (
            "markup of a stranger"
        )
    assert b"Traceback" not in body


async def _answer(
    app: Any, method: str, address: str, headers: Sequence[tuple[str, str]], body: bytes
) -> tuple[int, dict[bytes, bytes], bytes]:
    path, _, query = address.partition("?")
    given = (
        {"host": "127.0.0.1", "content-length": str(len(body))} if body else {"host": "127.0.0.1"}
    )
    given.update(headers)
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": urllib.parse.unquote(path), "raw_path": path.encode(),
        "query_string": query.encode("utf-8", "replace"), "root_path": "",
        "headers": [(k.encode(), v.encode("latin-1", "replace")) for k, v in given.items()],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    told: dict[str, Any] = {"status": 0, "headers": {}, "body": b""}
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if waiting:
            return waiting.pop()
        await asyncio.sleep(30)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            told["status"], told["headers"] = message["status"], dict(message["headers"])
        else:
            told["body"] += message.get("body", b"")

    await app(scope, receive, send)
    return told["status"], told["headers"], told["body"]
