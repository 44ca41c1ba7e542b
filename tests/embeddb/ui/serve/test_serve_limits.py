"""What the page lets one question take, and what it says of simulated and of lost databases."""

from __future__ import annotations

import gzip
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest
from builders import band, fill, patterns, tiny

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("httpx", reason="needs httpx")

from serve_site import BASE, TestClient, ask, matrix, served

from embeddb.core.errors import MatrixError
from embeddb.core.thumbnail import thumbnail
from embeddb.database import Database
from embeddb.ui.serve import app as serve_app
from embeddb.ui.serve import reading, running
from embeddb.ui.serve.app import build_app


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two instances of a simulated platform."""
    made = tmp_path_factory.mktemp("served") / "runs.db"
    with pytest.MonkeyPatch.context() as patch, Database.create(made) as db:
        patch.setattr("embeddb.featurizers.scnn.SHIPPED", made / "none")
        for instance in ("one", "two"):
            fill(db, tiny(simulated=True).at(instance), patterns()[:4])
    return made


def test_simulated_is_said_wherever_an_answer_or_a_campaign_is_listed(db: Database) -> None:
    client = TestClient(build_app(db), base_url=BASE)
    one, two = db.store.platforms()
    first = patterns()[0]
    made = client.get(f"/ask.json?pattern={first.id}&platform={one}&op=spmm:32").json()["id"]
    for address in (
        "/",
        f"/search?q={made}",
        f"/patterns/{first.id}",
        f"/answers/{made}",
        f"/platforms/{one}",
        "/campaigns?name=",
        "/runs",
        f"/runs?pattern={first.id}",
        "/map",
        f"/compare?pattern={first.id}&left={one}&right={two}",
    ):
        text = client.get(address).text
        main = text[text.index("<main") : text.index("</main>")]
        assert "imulated" in main, address
    rows = client.get("/").text
    assert "simulated" in rows[rows.index("Latest answers") :]
    assert client.get("/campaigns.json?name=").json()["places"][0]["simulated"]


def test_one_platform_twice_is_not_called_the_only_one(db: Database) -> None:
    client = TestClient(build_app(db), base_url=BASE)
    one, two = db.store.platforms()
    address = f"/compare?pattern={patterns()[0].id}&op=spmm:32&left={one}&right="
    same = client.get(address + one).text
    assert "choose another" in same and "one platform only" not in same
    assert "choose another" not in client.get(address + two).text


def bomb(side: int) -> bytes:
    """A small file that takes long to read."""
    head = f"%%MatrixMarket matrix array real general\n{side} {side}\n".encode()
    return gzip.compress(head + b"0\n" * side**2, 1)


def test_files_that_take_long_are_let_go(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_S", 0.1)
    app = build_app(db, max_upload=10_000_000)
    client = TestClient(app, base_url=BASE)
    for _ in range(3):  # more than can be read at a time
        reply = ask(client, bomb(3000), "B.mtx.gz", platform="tiny@one")
        assert reply.status_code == 504 and "B.mtx.gz was not read within" in reply.json()["error"]
    monkeypatch.setattr(reading, "READ_S", 30.0)
    assert ask(client, matrix(), platform="tiny@one").status_code == 201


@pytest.mark.parametrize(
    ("limits", "word"),
    [
        (reading.Limits(10, 10**6, 10**6, 10**6, 1 << 31), "entries"),
        (reading.Limits(10**6, 50, 10**6, 10**6, 1 << 31), "50 rows that a file of its size"),
        (reading.Limits(10**6, 10**6, 50, 10**6, 1 << 31), "50 columns"),
        (reading.Limits(10**6, 10**6, 10**6, 10**6, 1 << 31), ""),
    ],
)
def test_a_file_has_limits_of_its_own(tmp_path: Path, limits: reading.Limits, word: str) -> None:
    (tmp_path / "A.mtx").write_bytes(matrix())
    if not word:
        pattern, picture = anyio.run(reading.read_apart, tmp_path / "A.mtx", "B", limits)
        assert (pattern, pattern.name, pattern.group) == (band(120, 6), "B", "B")
        assert picture == thumbnail(pattern)
        return
    with pytest.raises(MatrixError, match=word):
        anyio.run(reading.read_apart, tmp_path / "A.mtx", "B", limits)


def test_a_file_may_not_take_all_memory(tmp_path: Path) -> None:
    rows = b"%%MatrixMarket matrix coordinate pattern general\n13000000 30000000 1\n1 1\n"
    (tmp_path / "A.mtx").write_bytes(rows)
    limits = reading.Limits(10**8, 10**8, 10**8, 1 << 30, 300 << 20)
    with pytest.raises(MatrixError, match="memory"):
        anyio.run(reading.read_apart, tmp_path / "A.mtx", "A", limits)


def test_a_database_replaced_or_removed_is_told(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "c.db"
    shutil.copytree(folder, copy)
    with Database.open(copy) as opened:
        client = TestClient(build_app(opened, writable=True), base_url=BASE)
        assert client.get("/").status_code == 200
        copy.rename(tmp_path / "old.db")
        reply = client.get("/")
        assert reply.status_code == 500 and "c.db was removed" in reply.text
        Database.create(copy).close()
        reply = client.get("/index.json")
        assert reply.status_code == 500 and "replaced" in reply.json()["error"]
        reply = ask(client, matrix(), platform="tiny@one")  # its answer would be stored nowhere
        assert reply.status_code == 500 and "replaced" in reply.json()["error"]


def test_who_does_not_read_is_cut_off(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "HEAD_S", 0.2)
    monkeypatch.setattr(running, "KEEP_S", 0.2)
    monkeypatch.setattr(serve_app.measured, "map_points", lambda *_: {"x": "x" * 50_000_000})
    with served(db) as port, socket.create_connection(("127.0.0.1", port)) as s:
        s.sendall(b"GET /map.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        time.sleep(1.5)
        s.settimeout(10)
        size = 0
        while got := s.recv(1 << 20):
            size += len(got)
        assert size < 20_000_000


@pytest.mark.parametrize("later", [0.25, 0.4, 1.0])  # its reader starts, imports, reads
def test_the_end_does_not_wait_for_a_file(folder: Path, later: float) -> None:
    command = [sys.executable, "-m", "embeddb.ui.cli.main", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(
        [*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        found = json.loads("".join(process.stdout.readline() for _ in range(7)))
        port = int(found["url"].rpartition(":")[2].strip("/"))
        body = bomb(4000)  # seconds
        question = "/ask?platform=tiny@one&op=spmm:32&name=A.mtx.gz"
        with socket.create_connection(("127.0.0.1", port)) as s:
            head = f"POST {question} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}"
            s.sendall(head.encode() + b"\r\n\r\n" + body)
            time.sleep(later)
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            assert process.wait(20) == 0
            assert time.monotonic() - began < 8
        assert "Traceback" not in process.stderr.read()


def test_rows_are_in_proportion_to_the_file() -> None:
    of = reading.Limits.of_upload
    assert of(64_000_000, 121_000).rows == 1 << 20
    assert of(64_000_000, 20_000_000).rows == 20_000_000
    assert of(1000, 900).rows == 500


@pytest.mark.parametrize(
    "broken", ["raise IndexError(7)", "import os; os._exit(3)", "print('x'); 1/0"]
)
def test_a_reader_that_fails_in_any_way_is_422(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if any('serve.reading' in word for word in sys.orig_argv):\n"
        "    import embeddb.matrix_files.matrix_market as reader\n"
        f"    def read(source):\n        {broken}\n"
        "    reader.read = read\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    reply = ask(TestClient(build_app(db), base_url=BASE), matrix(), platform="tiny@one")
    assert reply.status_code == 422 and reply.json()["error"].startswith("A.mtx: ")


def test_features_are_computed_within_the_limits(tmp_path: Path) -> None:
    """What they take beside the matrix counts as well."""
    (tmp_path / "A.mtx").write_bytes(matrix())
    code = (
        "import sys, embeddb.ui.serve.reading as r\n"
        "def fails(*_): raise MemoryError\n"
        "r.thumbnail = fails\n"
        "sys.exit(r._main(sys.argv[1]))"
    )
    limits = {"entries": 10**6, "rows": 10**6, "columns": 10**6, "unpacked_bytes": 10**6}
    asked = json.dumps(
        [str(tmp_path / "A.mtx"), str(tmp_path / "p.npz"), {**limits, "memory_bytes": 1 << 31}]
    )
    done = subprocess.run([sys.executable, "-c", code, asked], capture_output=True, text=True)
    assert done.returncode == 1 and "memory" in done.stdout and not done.stderr


def test_malformed_requests_are_told_once_and_counted(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    log = logging.getLogger("uvicorn.error")
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: told.append(record.getMessage()))
    worth = running._RateLimitedLog()
    log.addFilter(worth)
    log.addHandler(handler)
    try:
        with served(db) as port:
            for _ in range(25):
                with socket.create_connection(("127.0.0.1", port)) as s:
                    s.sendall(b"NONSENSE\r\n\r\n")
                    while s.recv(4096):
                        pass
    finally:
        log.removeHandler(handler)
        log.removeFilter(worth)
    warned = [line for line in told if "Invalid HTTP" in line]
    assert len(warned) == 2 and "10 times so far" in warned[1]
