"""What strangers may try at the page: files, addresses, hosts, sites, slowness, numbers."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from builders import band
from msgspec.structs import replace

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("httpx", reason="needs httpx")

import serve_site
from serve_site import BASE, TestClient, ask, matrix

from embeddb.core.errors import StoreCorrupt, UsageError
from embeddb.core.records import WorkloadInfo
from embeddb.database import Database
from embeddb.store import memory_store
from embeddb.ui.serve import app as serve_app
from embeddb.ui.serve import running
from embeddb.ui.serve.app_state import ServerAnswers

FIRST = serve_site.first_id()


@pytest.mark.parametrize(
    ("body", "name", "status"),
    [
        (b"", "A.mtx", 400),
        (b"not a matrix at all", "A.txt", 422),
        (b"%%MatrixMarket matrix coordinate pattern general\n3 3 9\n1 1\n", "A.mtx", 422),
        (b"%%MatrixMarket matrix coordinate pattern general\n2147483647 9 1\n1 1\n", "A.mtx", 422),
        (b"%%MatrixMarket matrix coordinate pattern general\n3 3 1\n9 9\n", "A.mtx", 422),
        (b"PK\x03\x04" + bytes(50), "A.npz", 422),
        (gzip.compress(bytes(90_000_000))[:90_000], "A.mtx.gz", 422),
        (bytes(100_001), "A.mtx", 413),
    ],
)
def test_what_is_no_matrix_is_one_line(
    client: TestClient, body: bytes, name: str, status: int
) -> None:
    reply = ask(client, body, name)
    assert reply.status_code == status
    error = reply.json()["error"]
    assert error and "\n" not in error and "Traceback" not in error and "/tmp" not in error
    if status == 422:
        assert error.startswith(name)


def test_uploads_leave_nothing_behind(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_app.tempfile, "tempdir", str(tmp_path))
    assert ask(client, matrix()).status_code == 201
    assert ask(client, b"nonsense").status_code == 422
    assert ask(client, bytes(200_000)).status_code == 413

    def chunks() -> Iterator[bytes]:  # no content-length to refuse it by
        yield from [bytes(30_000)] * 10

    assert ask(client, chunks()).status_code == 413  # type: ignore[arg-type]  # httpx streams it
    assert list(tmp_path.iterdir()) == []


def test_questions_lacking_something_say_what(client: TestClient) -> None:
    body = matrix()
    asked = {
        "?op=spmm:32": (400, "platform"),
        "?platform=tiny": (400, "op"),
        "?platform=tiny&op=spmm": (400, "spmm"),
        "?platform=tiny&op=sddmm:8": (400, "sddmm"),
        "?platform=nobody&op=spmm:32": (404, "nobody"),
        "?platform=/etc/passwd&op=spmm:32": (404, "/etc/passwd"),
        "?platform=x.toml&op=spmm:32": (404, "x.toml"),
        "?platform=tiny@x.toml&op=spmm:32": (404, "tiny@x.toml"),
    }
    for question, (status, word) in asked.items():
        reply = client.post("/ask" + question, content=body)
        assert (reply.status_code, word in reply.json()["error"]) == (status, True), question
    reply = ask(client, body, headers={"content-encoding": "gzip"})
    assert reply.status_code == 415


@pytest.mark.parametrize(
    "address",
    [
        "/nothing",
        "/patterns/" + "0" * 32,
        "/patterns/..%2f..%2fetc%2fpasswd",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static/app.py",
        "/thumbs/..%2f..%2fpage.svg",
        "/answers/r000000000000",
        "/answers/last",
        "/platforms/%2fetc%2fpasswd.toml",
        "/platforms/x.toml",
        "/campaigns/nobody",
        "/campaigns/../../etc/passwd",
        "/runs?platform=nobody",
        f"/runs?pattern={FIRST}&op=spmm:7",
        f"/compare?pattern={FIRST}&left=nobody",
        "/compare?pattern=never-ran",
        "/map?platform=nobody",
    ],
)
def test_what_is_not_there_is_404_and_helps(client: TestClient, address: str) -> None:
    reply = client.get(address)
    assert reply.status_code == 404
    if "/static/" in address or ".svg" in address:
        return
    assert 'href="/search"' in reply.text and "root:" not in reply.text
    assert "default-src 'self'" in reply.headers["content-security-policy"]
    path = address.partition("?")[0]
    assert "error" in client.get(address.replace(path, path + ".json")).json()


def test_what_cannot_be_asked_is_400(client: TestClient) -> None:
    for address in (
        "/runs?page=0",
        "/runs?page=x",
        "/map?color=<b>",
        "/runs?op=<b>",
        "/map?page=9e9",
    ):
        reply = client.get(address)
        assert reply.status_code == 400 and "<b>" not in reply.text, address
    assert client.get("/runs?page=999").status_code == 200  # the last there is
    assert client.get("/search?q=" + "x" * 5000).status_code == 414
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH"):
        assert client.request(method, "/").status_code == 405
    assert client.post("/", content=b"x").status_code == 405
    assert client.head("/").status_code == 200


def test_other_hosts_and_other_sites_are_refused(client: TestClient) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "", "0.0.0.0", "[::1]"):
        assert client.get("/", headers={"host": host}).status_code == 400, host
    for host in ("localhost", "localhost:8321", "127.0.0.1:9"):
        assert client.get("/", headers={"host": host}).status_code == 200, host
    question = {"pattern": FIRST, "platform": "tiny", "op": "spmm:32"}
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        reply = ask(client, matrix(), headers=headers)
        assert reply.status_code == 403, headers
        assert client.get("/ask", params=question, headers=headers).status_code == 403, headers
    for headers in ({"origin": BASE, "sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}):
        assert ask(client, matrix(), headers=headers).status_code == 201


def test_a_damaged_database_is_500_without_a_trace(
    client: TestClient, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise StoreCorrupt("table 'run', key 00: the stored value is damaged", hint="db check")

    monkeypatch.setattr(db.store, "pattern", broken)
    reply = client.get(f"/patterns/{FIRST}")
    assert reply.status_code == 500 and "damaged" in reply.text and "Traceback" not in reply.text
    assert client.get(f"/patterns/{FIRST}.json").json()["hint"] == "db check"
    monkeypatch.undo()
    assert client.get(f"/patterns/{FIRST}").status_code == 200
    monkeypatch.setattr(db.store, "counts", broken)  # what the frame itself asks
    assert client.get("/").status_code == 500
    monkeypatch.setattr(db.store, "counts", lambda: 1 / 0)
    quiet = TestClient(client.app, base_url=BASE, raise_server_exceptions=False)
    reply = quiet.get("/")
    assert reply.status_code == 500 and "ZeroDivision" not in reply.text
    assert "default-src 'self'" in reply.headers["content-security-policy"]


def test_held_answers_are_bounded(client: TestClient, db: Database) -> None:
    made = db.query(band(120, 6), platform="tiny", op="spmm:32")
    held = ServerAnswers(memory_store(), most=3)
    for at in range(5):
        held.keep(replace(made, id=f"r{at}"), WorkloadInfo(id=f"p{at}"))
    assert [held.get(f"r{at}") is not None for at in range(5)] == [False, False, True, True, True]
    small = ServerAnswers(memory_store(), most_bytes=1)
    small.keep(made, WorkloadInfo(id="p"))
    small.keep(replace(made, id="later"), WorkloadInfo(id="p"))
    assert small.get(made.id) is None and small.get("later") is not None


# -- a real server ---------------------------------------------------------------------------


def head(length: int) -> bytes:
    path = "/ask?platform=tiny&op=spmm:32&name=A.mtx"
    return f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n".encode()


@pytest.mark.parametrize("limit", ["BODY_S", "PAUSE_S"])
def test_slow_clients_are_cut_off_while_others_are_served(
    db: Database, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(serve_app, limit, 0.3)
    monkeypatch.setattr(running, "HEAD_S", 0.3)
    with serve_site.served(db) as port:
        at = ("127.0.0.1", port)
        with socket.create_connection(at) as body, socket.create_connection(at) as line:
            body.sendall(head(1000) + b"%%Matrix")
            line.sendall(b"GET / HT")
            other = http.client.HTTPConnection(*at)
            other.request("GET", "/index.json")
            assert other.getresponse().status == 200
            other.close()
            body.settimeout(10)
            assert body.recv(4096).startswith(b"HTTP/1.1 408")
            line.settimeout(10)
            assert line.recv(100) == b""


def test_stalled_uploads_do_not_keep_others_from_theirs(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_app, "PAUSE_S", 0.3)
    with serve_site.served(db) as port, ExitStack() as stalled:
        for _ in range(10):
            body = socket.create_connection(("127.0.0.1", port))
            stalled.enter_context(body).sendall(head(1000) + b"%%Matrix")
        with socket.create_connection(("127.0.0.1", port)) as other:
            other.sendall(head(9) + b"%%Matrix\n")
            other.settimeout(10)
            assert other.recv(4096).startswith(b"HTTP/1.1 422")  # read, and no matrix


def test_a_file_too_large_is_refused_before_it_is_sent(db: Database) -> None:
    served = serve_site.served(db, max_upload=1000)
    with served as port, socket.create_connection(("127.0.0.1", port)) as s:
        s.sendall(head(10**12))
        s.settimeout(10)
        assert s.recv(4096).startswith(b"HTTP/1.1 413")


def test_too_many_at_once_are_told_to_wait(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(serve_app, "WAIT_S", 0.2)
    monkeypatch.setattr(db, "query", lambda *_, **__: release.wait(20) and 1 / 0)
    replies: list[int] = []

    def post(port: int, seed: int) -> None:
        c = http.client.HTTPConnection("127.0.0.1", port)
        c.request("POST", "/ask?platform=tiny&op=spmm:32&name=A.mtx", matrix(60 + seed))
        reply = c.getresponse()
        assert reply.status != 503 or reply.headers["retry-after"] == "2"
        replies.append(reply.status)
        c.close()

    with serve_site.served(db) as port:
        threads = [threading.Thread(target=post, args=(port, i)) for i in range(6)]
        for t in threads:
            t.start()
        while replies.count(503) < 4:
            time.sleep(0.01)
        c = http.client.HTTPConnection("127.0.0.1", port)
        c.request("GET", "/index.json")
        assert c.getresponse().status == 200  # pages do not wait for questions
        c.close()
        release.set()
        for t in threads:
            t.join()
    assert sorted(replies) == [500, 500, 503, 503, 503, 503]


def test_many_readers_at_once_see_the_same(db: Database) -> None:
    addresses = [
        "/index.json",
        f"/patterns/{FIRST}.json",
        "/map.json",
        "/runs.json",
        "/compare.json",
    ]
    seen: dict[str, set[bytes]] = {a: set() for a in addresses}

    def read(port: int) -> None:
        c = http.client.HTTPConnection("127.0.0.1", port)
        for address in addresses * 3:
            c.request("GET", address)
            seen[address].add(c.getresponse().read())
        c.close()

    with serve_site.served(db) as port:
        threads = [threading.Thread(target=read, args=(port,)) for _ in range(12)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert {len(bodies) for bodies in seen.values()} == {1}
    assert all(json.loads(next(iter(bodies))) for bodies in seen.values())


def test_a_port_that_is_taken_is_one_line() -> None:
    with running.listening(0) as place:
        assert place.getsockname()[0] == "127.0.0.1"
        # Else asyncio lets a small reply wait for what comes after it: 40 ms on a kept connection.
        assert place.proto == socket.IPPROTO_TCP
        with pytest.raises(UsageError, match="in use") as e:
            running.listening(place.getsockname()[1])
    assert "--port 0" in e.value.hint


def started(folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "embeddb.ui.cli.main",
        "serve",
        str(folder),
        "--port",
        "0",
        *more,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_verb_says_where_and_ends_cleanly(folder: Path, end: signal.Signals) -> None:
    with started(folder) as process:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/ shows .*read-only", line)
        assert found is not None, line
        # A connection that stays open does not keep it alive.
        c = http.client.HTTPConnection("127.0.0.1", int(found[1]))
        c.request("GET", "/")
        assert c.getresponse().status == 200
        process.send_signal(end)
        assert process.wait(20) == 0
        assert process.stderr.read() == ""
        c.close()


def test_the_verb_as_json_and_on_a_busy_port(folder: Path) -> None:
    with started(folder, "--json") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(7)]
        found = json.loads("".join(lines))
        assert found["url"].startswith("http://127.0.0.1:") and found["writable"] is False
        port = found["url"].rpartition(":")[2].strip("/")
        with started(folder, "--port", port) as second:
            assert second.wait(20) == 2
            assert second.stderr is not None
            said = second.stderr.read()
        assert said.count("\n") == 1 and "in use" in said and "--port 0" in said
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
