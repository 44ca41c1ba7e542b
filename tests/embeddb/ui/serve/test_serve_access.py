"""Who may see the page: tokens, sessions, hosts, a proxy before it, and what strangers try."""

from __future__ import annotations

import hashlib
import http.client
import re
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("httpx", reason="needs httpx")

import serve_site
from command_line import run_verb
from html5lib import HTMLParser
from itsdangerous import TimestampSigner
from serve_site import BASE, TestClient, ask, matrix

from embeddb.core.errors import UsageError
from embeddb.database import Database
from embeddb.ui.cli.arguments import open_database
from embeddb.ui.serve import access
from embeddb.ui.serve.access import FEWEST, Address, Failures, Token, read_token
from embeddb.ui.serve.app import build_app

TOKEN = "k3J9-vQx7_tYb2LmZp8RsWdF4hN6cGaE"
FIRST = serve_site.first_id()
PUBLIC = "https://tuning.example.org/embeddb"


def visitor(db: Database, *, public: str = "", base: str = BASE, **more: Any) -> TestClient:
    address = Address(public=public)
    app = build_app(db, max_upload=100_000, address=address, token=TOKEN, **more)
    return TestClient(app, base_url=base, follow_redirects=False)


def login(client: TestClient, token: str = TOKEN, after: str = "/runs", **more: Any) -> Any:
    return client.post("/login", data={"token": token, "after": after}, **more)


# -- the token -------------------------------------------------------------------------------


def test_nothing_is_seen_without_the_token(db: Database) -> None:
    client = visitor(db)
    for address in ("/", "/search?q=m0", f"/patterns/{FIRST}", "/runs", "/nothing", "/ask?op=x"):
        reply = client.get(address)
        assert reply.status_code == 401, address
        HTMLParser(strict=True).parse(reply.text)
        assert 'type="password"' in reply.text and "m0" not in reply.text.replace(address, "")
        assert "form-action 'self'" in reply.headers["content-security-policy"]
    for address in ("/index.json", "/runs.json", "/map.json", "/answers/r000000000000.json"):
        reply = client.get(address)
        assert reply.status_code == 401 and reply.headers["www-authenticate"] == "Bearer"
        assert set(reply.json()) == {"error", "hint"}
    assert ask(client, matrix()).status_code == 401
    assert client.get("/static/page.css").status_code == 200, "the form has its style"
    assert client.get("/thumbs/x.svg").status_code == 401


def test_a_browser_gives_it_once(db: Database) -> None:
    client = visitor(db)
    form = client.get("/runs?platform=tiny").text
    assert 'name="after" value="/runs?platform=tiny"' in form
    reply = login(client, after="/runs?platform=tiny")
    assert reply.status_code == 303 and reply.headers["location"] == "/runs?platform=tiny"
    cookie = reply.headers["set-cookie"]
    assert TOKEN not in cookie and "Secure" not in cookie
    for word in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=2592000"):
        assert word in cookie, word
    assert client.get("/").status_code == 200
    assert ask(client, matrix(), headers={"origin": BASE}).status_code == 201
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "same-site"}):
        assert ask(client, matrix(), headers=headers).status_code == 403, headers
    other = visitor(db)
    other.cookies = client.cookies
    assert other.get("/").status_code == 200, "another worker knows the session"
    stranger = build_app(db, token=TOKEN[::-1], address=Address())
    held = TestClient(stranger, base_url=BASE, cookies=dict(client.cookies))
    assert held.get("/").status_code == 401, "another token ends it"


def test_a_program_gives_it_every_time(db: Database) -> None:
    client = visitor(db)
    right = {"authorization": f"Bearer {TOKEN}"}
    assert client.get("/index.json", headers=right).status_code == 200
    assert ask(client, matrix(), headers=right).status_code == 201
    assert client.get("/index.json").status_code == 401, "no session comes of it"
    for wrong in (
        "Bearer",
        "Bearer ",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
    ):
        reply = client.get("/", headers={"authorization": wrong})
        assert reply.status_code == 401 and TOKEN not in reply.text, wrong


def test_a_session_is_neither_guessed_nor_kept_for_ever(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = Token(TOKEN)
    good = token.session()
    value, made, proof = good.split(".")
    assert token.is_session(good)
    signer = TimestampSigner("another key", digest_method=hashlib.sha256)
    for bad in (
        "",
        ".",
        made,
        f"{value}.{made}.",
        f".{proof}",
        f"{value}.{made[::-1]}.{proof}",
        f"other.{made}.{proof}",
        f"{good}0",
        f"{value}.{'9' * 30}.{proof}",
        f"{value}.-1.{proof}",
        f"{value}.{made}.{proof.swapcase()}",
        signer.sign("session").decode(),
        "٣.x",
        good.replace(".", "..", 1),
    ):
        assert not token.is_session(bad), bad
        client = visitor(db)
        cookie = f"{token.cookie}={bad}".encode()
        assert client.get("/", headers={"cookie": cookie}).status_code == 401, bad
    both = f"{token.cookie}=planted; x=y; {token.cookie}={good}"
    assert visitor(db).get("/", headers={"cookie": both}).status_code == 200
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 31 * 24 * 3600)
    assert not token.is_session(good)


def test_wrong_tokens_are_told_to_wait(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    client = visitor(db)
    assert login(client).status_code == 303
    guest = visitor(db)
    guest.app = client.app
    for _ in range(access.MOST_FAILURES):
        assert login(guest, "wrong" * 8).status_code == 401
    for reply in (login(guest), guest.get("/", headers={"authorization": f"Bearer {TOKEN}"})):
        assert reply.status_code == 429, "also the right one is not looked at"
        assert 0 < int(reply.headers["retry-after"]) <= access.WINDOW_S + 1
    assert client.get("/").status_code == 200, "who has a session goes on"
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + access.WINDOW_S + 1)
    assert login(guest).status_code == 303


def test_failures_are_counted_by_address_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Failures()
    for at in range(access.MOST_FAILURES):
        counted.add("10.0.0.1")
        counted.add(f"2001:db8:0:1::{at}")
        counted.add("odd")
    assert counted.wait_s("10.0.0.1") > 0 and counted.wait_s("::ffff:10.0.0.1") > 0
    assert counted.wait_s("2001:db8:0:1:ffff::9") > 0, "a network is one"
    assert counted.wait_s("10.0.0.2") == counted.wait_s("2001:db8:0:2::1") == 0
    monkeypatch.setattr(access, "_MOST_ADDRESSES", 5)
    for at in range(20):
        counted.add(f"10.1.0.{at}")
    assert len(counted._times) == 5 and counted.wait_s("10.0.0.1") == 0


def test_the_form_refuses_what_is_none(db: Database) -> None:
    client = visitor(db)
    many = "&".join(f"a{i}=1" for i in range(50))
    for body in (b"\xff\xfe", b"x" * 9000, many.encode()):
        assert client.post("/login", content=body).status_code == 400, body[:10]
    assert client.post("/login", content=b"").status_code == 401
    assert client.get("/login").status_code == 200
    for origin in ("http://evil.example", "null"):
        assert login(client, headers={"origin": origin}).status_code == 403
    assert login(client, headers={"origin": BASE}).status_code == 303
    for after in (
        "//evil.example",
        "/\\evil.example",
        "https://evil.example",
        "",
        "/\r\nx: y",
        "/" + "é" * 3,
        "/" + "x" * 3000,
    ):
        assert login(client, after=after).headers["location"] == "/", after


def test_a_wrong_token_keeps_the_way(db: Database) -> None:
    reply = login(visitor(db), "wrong", after='/runs?op="><script>')
    assert reply.status_code == 401 and "wrong token" in reply.text
    assert "&#34;&gt;&lt;script&gt;" in reply.text and "<script>" not in reply.text


# -- where it comes from ---------------------------------------------------------------------


def test_a_token_comes_from_a_file_that_others_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EMBEDDB_TOKEN", raising=False)
    assert read_token("") == ""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o644)
    with pytest.raises(UsageError, match="other users can read it"):
        read_token(str(file))
    file.chmod(0o600)
    assert read_token(str(file)) == TOKEN
    monkeypatch.setenv("EMBEDDB_TOKEN", TOKEN[::-1])
    assert read_token("") == TOKEN[::-1] and read_token(str(file)) == TOKEN
    for bad, said in {
        "": "random characters",
        TOKEN[: FEWEST - 1]: "random characters",
        "ab" * 40: "random characters",
        f"{TOKEN} {TOKEN}": "no spaces",
        f"{TOKEN}é": "no spaces",
        TOKEN * 40: "no spaces",
    }.items():
        file.write_bytes(bad.encode("latin-1"))
        with pytest.raises(UsageError, match=said) as refused:
            read_token(str(file))
        assert not bad or bad not in f"{refused.value}{refused.value.hint}"
    for place in (tmp_path, tmp_path / "nothing", Path("/dev/zero")):
        with pytest.raises(UsageError):
            read_token(str(place))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "needs a token"),
        (["--host", "::"], "needs a token"),
        (["--public-url", "https://tuning.example.org"], "needs a token"),
        (["--host", "tuning.example.org"], "not an IP address"),
        (["--host", "192.0.2.77", "--token-file", "token"], "not an address of this machine"),
        (
            ["--public-url", "tuning.example.org", "--token-file", "token"],
            "not a URL of a page",
        ),
        (["--token-file", "short"], "24 random characters"),
        (["--workers", "0"], "--workers"),
    ],
)
def test_the_verb_refuses_to_be_open(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("token", TOKEN), ("short", "secret")):
        Path(name).write_text(text)
        Path(name).chmod(0o600)
    assert run_verb(["serve", str(folder), "--port", "0", *words]) == 2
    told = capsys.readouterr()
    assert said in told.err and TOKEN not in told.err and not told.out


def test_an_address_is_only_told_where_a_page_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise UsageError("no page today")

    monkeypatch.setattr("embeddb.ui.serve.running.build_app", broken)
    assert run_verb(["init", str(tmp_path / "a.db")]) == 0
    capsys.readouterr()
    assert run_verb(["serve", str(tmp_path / "a.db"), "--port", "0", "--json"]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "no page today" in printed.err


def test_write_on_a_database_that_can_only_be_read_is_pointed_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opening = partial(open_database, readonly=True)
    monkeypatch.setattr("embeddb.ui.cli.verbs.serve.open_database", lambda db, **_: opening(db))
    monkeypatch.setattr("embeddb.ui.serve.running.serve", lambda *_, **__: None)
    for words, said in (["--write"], "answers are not stored"), ([], ""):
        assert run_verb(["serve", str(folder), "--port", "0", *words]) == 0
        printed = capsys.readouterr()
        assert "(read-only)" in printed.out
        assert said in printed.err and len(printed.err.splitlines()) == len(words)


def test_an_app_that_others_reach_needs_one(db: Database) -> None:
    for address in (Address("0.0.0.0"), Address(public=PUBLIC)):
        with pytest.raises(UsageError, match="token"):
            build_app(db, address=address)


# -- hosts and origins -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listens", "reached", "good", "bad"),
    [
        ("127.0.0.1", "127.0.0.1", ["localhost:1", "127.0.0.1"], ["10.0.0.5", "[::1]", "127.1"]),
        ("::1", "::1", ["[::1]:8321", "localhost"], ["127.0.0.1", "::1"]),
        ("10.0.0.5", "10.0.0.5", ["10.0.0.5:8321"], ["localhost", "10.0.0.6", "evil.example"]),
        ("0.0.0.0", "10.0.0.5", ["10.0.0.5"], ["10.0.0.6", "0.0.0.0", "localhost", "host.lan"]),
        ("::", "::ffff:10.0.0.5", ["10.0.0.5:8321"], ["10.0.0.6", "[::]"]),
    ],
)
def test_the_host_is_the_address_that_was_reached(
    listens: str, reached: str, good: list[str], bad: list[str]
) -> None:
    address = Address(listens)
    for host in good:
        assert address.takes(host, reached), host
        assert address.may_ask(f"http://{host}", host)
    for host in (*bad, "", ":80", "a b", "127.0.0.1:x", "127.0.0.1@evil.example", "\n127.0.0.1"):
        assert not address.takes(host, reached), host


@pytest.mark.parametrize(
    "url",
    [
        "tuning",
        "ftp://a.b",
        "https://",
        "https://a.b/?x",
        "https://a.b/#x",
        "https://u:p@a.b",
        "https://a.b/../c",
        "https://a.b//c",
        "https://a.b/ä",
        "https://a b",
        "https://a.b:99999",
        "https://[::1",
        'https://a.b/"',
    ],
)
def test_what_is_no_public_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="public-url"):
        Address(public=url)


def test_behind_a_proxy_links_cookies_and_checks_are_of_the_public_address(db: Database) -> None:
    outside = "https://tuning.example.org"
    for path in ("", "/embeddb"):  # proxies leave the prefix, or take it off
        client = visitor(db, public=PUBLIC + "/", base=outside)
        page = client.get(path + "/")
        assert page.status_code == 401 and 'action="/embeddb/login"' in page.text
        reply = client.post(
            path + "/login", data={"token": TOKEN, "after": "/map"}, headers={"origin": outside}
        )
        assert reply.headers["location"] == "/embeddb/map"
        assert "Secure" in reply.headers["set-cookie"]
        assert "Path=/embeddb" in reply.headers["set-cookie"]
        client.headers["cookie"] = reply.headers["set-cookie"].partition(";")[0]
        for address in (
            "/",
            "/search?q=m",
            f"/patterns/{FIRST}",
            "/map",
            "/runs",
            "/nothing",
            "/campaigns",
            "/compare",
        ):
            text = client.get(path + address).text
            inner = re.findall(r'(?:href|src|action)="(/[^"]*)', text)
            assert inner and all(one.startswith("/embeddb/") for one in inner), address
            assert 'data-root="/embeddb"' in text
            twin = re.findall(r'rel="alternate"[^>]*href="([^"]*)"', text)
            assert all(one.startswith("/embeddb/") and ".json" in one for one in twin)
        assert 'aria-current="page"' in client.get(path + "/map").text
        made = client.post(
            path + "/ask",
            content=matrix(),
            headers={"origin": outside},
            params={"platform": "tiny", "op": "spmm:32", "name": "A.mtx"},
        )
        assert made.status_code == 201 and made.json()["url"].startswith("/embeddb/answers/r")
        assert client.get(made.headers["location"]).status_code == 200
        for origin in ("http://tuning.example.org", "https://evil.example", "null", BASE):
            reply = client.post(path + "/ask", content=b"x", headers={"origin": origin})
            assert reply.status_code == 403, origin
    for host in ("evil.example", "tuning.example.org.evil.example", "tuning.example.org:8080"):
        assert client.get("/", headers={"host": host}).status_code == 400, host
    for host in ("tuning.example.org:443", "TUNING.example.org", "127.0.0.1:8321"):
        assert client.get("/", headers={"host": host}).status_code == 200, host
    assert client.get("/embeddbx").status_code == 404


def test_a_proxy_says_for_whom_it_asks_and_nobody_else(db: Database) -> None:
    def wrong(port: int, who: str) -> int:
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        c.request("GET", "/", headers={"X-Forwarded-For": who, "Authorization": "Bearer x"})
        status = c.getresponse().status
        c.close()
        return status

    for proxy in (True, False):
        with serve_site.served(db, token=TOKEN, behind_proxy=proxy) as port:
            for _ in range(access.MOST_FAILURES):
                assert wrong(port, "198.51.100.7") == 401
            assert wrong(port, "198.51.100.7") == 429
            assert wrong(port, "198.51.100.8") == (401 if proxy else 429)
            # What a client makes up stands before what the proxy adds.
            assert wrong(port, "198.51.100.9, 198.51.100.7") == 429


def test_a_public_address_without_a_path_or_with_a_port(db: Database) -> None:
    plain = Address(public="http://10.0.0.5:8080/")
    assert (plain.root, plain.origin, plain.secure) == ("", "http://10.0.0.5:8080", False)
    assert plain.takes("10.0.0.5:8080", "127.0.0.1") and not plain.takes("10.0.0.5", "127.0.0.1")
    assert plain.url(1) == "http://10.0.0.5:8080/" and Address("::1").url(7) == "http://[::1]:7/"
    usual = Address(public="https://[2001:db8::1]:443")
    assert usual.origin == "https://[2001:db8::1]" and usual.takes("[2001:db8::1]", "")
