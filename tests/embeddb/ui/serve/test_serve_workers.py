"""Several processes that serve one socket: they agree, are replaced, and end together."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import postgres_server
import pytest
from msgspec.structs import replace

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("httpx", reason="needs httpx")

import serve_site

from embeddb.core.records import WorkloadInfo
from embeddb.database import open_database
from embeddb.ranking.recommendation import Recommendation
from embeddb.store import open_store
from embeddb.store.copy import copy_database
from embeddb.ui.serve.app_state import ServerAnswers

TOKEN = "k3J9-vQx7_tYb2LmZp8RsWdF4hN6cGaE"
FIRST = serve_site.first_id()


class Site:
    """A server of several workers, asked on a new connection each time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        lines = "".join(process.stdout.readline() for _ in range(7))
        self.told = json.loads(lines) if lines else {}
        self.port = int(self.told.get("url", ":0/").rpartition(":")[2].strip("/"))

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body, headers)
        reply = connection.getresponse()
        found = reply.status, (json.loads(reply.read()) if ".json" in path or body else b"")
        connection.close()
        return found

    def workers(self) -> list[int]:
        return workers_of(self.process.pid)


def workers_of(pid: int) -> list[int]:
    """Its children, without the process that multiprocessing keeps books with."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    commands = {int(w): Path(f"/proc/{w}/cmdline").read_bytes() for w in text.split()}
    return [child for child, command in commands.items() if b"spawn_main" in command]


@contextmanager
def site(place: object, *words: str, **environment: str) -> Iterator[Site]:
    command = [sys.executable, "-m", "embeddb.ui.cli.main", "serve", str(place), "--port", "0"]
    with subprocess.Popen(
        [*command, "--workers", "2", "--json", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        try:
            yield Site(process)
        finally:
            process.kill()


def until(found: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_what_one_answered_all_know(folder: Path) -> None:
    with site(folder) as here:
        assert here.told["workers"] == 2 and len(here.workers()) == 2
        question = "/ask?platform=tiny&op=spmm:32&name=A.mtx"
        made = {here.ask("POST", question, serve_site.matrix())[1]["id"] for _ in range(6)}
        assert len(made) == 1, "the same question has the same answer"
        (answer,) = made
        for _ in range(12):
            status, found = here.ask("GET", f"/answers/{answer}.json")
            assert status == 200 and found["stored"] is False
            heads = here.ask("GET", "/index.json")[1]["answers"]
            assert [head["id"] for head in heads] == [answer]
        seen = {json.dumps(here.ask("GET", "/runs.json")[1]) for _ in range(6)}
        assert len(seen) == 1
        scratch = list(Path("/proc").glob(f"{here.workers()[0]}/fd/*"))
        assert any("embeddb-serve-" in str(one.readlink()) for one in scratch if one.is_symlink())
        workers = here.workers()
        here.process.send_signal(signal.SIGTERM)
        assert here.process.wait(20) == 0 and gone(workers)
        assert here.process.stderr is not None and here.process.stderr.read() == ""


def test_a_worker_that_dies_is_replaced_and_nothing_is_lost(folder: Path) -> None:
    with site(folder) as here:
        made = here.ask("GET", f"/ask.json?pattern={FIRST}&platform=tiny&op=spmm:32")[1]["id"]
        before = here.workers()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        until(lambda: len(here.workers()) == 2 and not set(before) & set(here.workers()))
        for _ in range(8):  # who comes meanwhile waits until one of them answers
            assert here.ask("GET", f"/answers/{made}.json")[0] == 200
        workers = here.workers()
        here.process.send_signal(signal.SIGINT)
        assert here.process.wait(20) == 0 and gone(workers)
        assert here.process.stderr is not None
        said = here.process.stderr.read()
        assert said.count("ended (signal 9); restarting") == 2, said


def test_a_worker_that_cannot_start_is_told_less_and_less_often(
    folder: Path, tmp_path: Path
) -> None:
    place = tmp_path / "copy.db"
    with open_database(folder, readonly=True) as db:
        copy_database(db.store, str(place))
    with site(place) as here:
        place.rename(tmp_path / "gone.db")
        os.kill(here.workers()[0], signal.SIGKILL)
        assert here.process.stderr is not None
        said = [here.process.stderr.readline() for _ in range(3)]
        assert "(signal 9); restarting in 0.2 s" in said[0]
        for line, pause in zip(said[1:], ("0.4 s", "0.8 s"), strict=True):
            assert "no database there; restarting in " + pause in line, said
        here.process.send_signal(signal.SIGINT)
        assert here.process.wait(20) == 0


def test_an_end_while_workers_start_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "embeddb.ui.cli.main", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(
        [*command, "--workers", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        until(lambda: bool(workers_of(process.pid)))
        workers = workers_of(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) != 0 and process.stdout is not None
        assert process.stdout.read() == "" and gone(workers)
    assert list(tmp_path.glob("embeddb-serve-*")) == []


def test_workers_end_with_a_supervisor_that_is_killed(folder: Path) -> None:
    with site(folder) as here:
        workers = here.workers()
        here.process.kill()
        until(lambda: gone(workers), 20)


def test_a_token_holds_for_all_workers_and_stands_nowhere(folder: Path) -> None:
    with site(folder, EMBEDDB_TOKEN=TOKEN) as here:
        assert here.told["token"] is True
        right = {"Authorization": f"Bearer {TOKEN}"}
        for _ in range(6):
            assert here.ask("GET", "/index.json")[0] == 401
            assert here.ask("GET", "/index.json", **right)[0] == 200
        for pid in (here.process.pid, *here.workers()):
            assert TOKEN not in Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    assert TOKEN not in json.dumps(here.told)


def test_written_answers_are_one_databases(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "copy.db"
    with open_database(folder, readonly=True) as db:
        copy_database(db.store, str(place))
    with site(place, "--write") as here:
        question = "/ask?platform=tiny&op=spmm:32&name=A.mtx"
        made = {here.ask("POST", question, serve_site.matrix())[1]["id"] for _ in range(6)}
        assert len(made) == 1
        assert here.ask("GET", f"/answers/{min(made)}.json")[1]["stored"] is True
        with open_database(place) as db:  # another process writes, and every worker shows it
            db.store.put_patterns([WorkloadInfo(id="ab" * 16, name="a newcomer")])
        for _ in range(6):
            found = here.ask("GET", "/search.json?q=newcomer")[1]["patterns"]
            assert [one["name"] for one in found] == ["a newcomer"]
    with open_database(place, readonly=True) as db:
        assert [one.id for one in db.recommendations()] == list(made) and db.problems() == []


def test_a_port_in_use_and_a_place_without_a_database_are_one_line(
    folder: Path, tmp_path: Path
) -> None:
    with site(folder) as here:
        with site(folder, "--port", str(here.port)) as second:
            assert second.process.wait(30) == 2 and second.process.stderr is not None
            said = second.process.stderr.read()
            assert said.count("\n") == 1 and "in use" in said
        assert here.ask("GET", "/index.json")[0] == 200
    with site(tmp_path / "nothing.db") as none:
        assert none.process.wait(30) == 1 and none.process.stderr is not None
        assert none.process.stderr.read().count("\n") == 1


def test_a_server_that_is_restarted_is_asked_again(folder: Path, tmp_path: Path) -> None:
    if postgres_server.missing():
        pytest.skip(f"needs {postgres_server.missing()}")
    home = {"EMBEDDB_HOME": str(tmp_path / "home")}
    with postgres_server.running_server() as server:
        url = server.url("pages")
        with pytest.MonkeyPatch.context() as patch, open_database(folder, readonly=True) as db:
            patch.setenv("EMBEDDB_HOME", home["EMBEDDB_HOME"])
            copy_database(db.store, url)
        server.sql(
            "CREATE USER reader",
            "GRANT USAGE ON SCHEMA pages TO reader",
            "GRANT SELECT ON ALL TABLES IN SCHEMA pages TO reader",
        )
        with site(server.url("pages", user="reader"), "--write", **home) as here:
            assert here.told["writable"] is False, "this user may only read"
            question = f"/ask.json?pattern={FIRST}&platform=tiny&op=spmm:32"
            made = {here.ask("GET", question)[1]["id"] for _ in range(4)}
            assert len(made) == 1
            server.kill()
            with ThreadPoolExecutor() as pool:
                asked = [pool.submit(here.ask, "GET", "/index.json") for _ in range(4)]
                time.sleep(1)
                server.start()
                replies = [one.result() for one in asked]  # a connection that is lost is waited for
            assert {status for status, _ in replies} <= {200, 500}
            assert all("\n" not in told.get("error", "") for _, told in replies)
            until(lambda: here.ask("GET", "/index.json")[0] == 200)
            for _ in range(6):
                assert here.ask("GET", f"/answers/{min(made)}.json")[0] == 200
            assert len(here.workers()) == 2


def test_kept_answers_of_several_are_bounded_together(folder: Path, tmp_path: Path) -> None:
    with open_database(folder, readonly=True) as db:
        made: Recommendation = db.query(FIRST, platform="tiny", op="spmm:32")
    open_store(tmp_path / "a", create=True).close()
    one = open_store(tmp_path / "a")
    kept, other = ServerAnswers(one, most=3), ServerAnswers(one, most=3)
    for at in range(5):
        (kept, other)[at % 2].keep(replace(made, id=f"r{at}"), WorkloadInfo(id=f"p{at}"))
    assert [head.id for head in kept.heads()] == ["r2", "r3", "r4"]
    assert kept.get("r0") is None and kept.pattern("p3") is not None
    assert kept.get("r4") == replace(made, id="r4") and kept.pattern("p4") is not None
    for at in range(1005):
        kept.remember(f"question {at}", f"r{at}")
    assert kept.answer_of("question 1004") == "r1004" and kept.answer_of("nobody") == ""
    with one.engine.read() as txn:
        assert txn.count("journal") <= 1000
    assert other.answer_of("question 1004") == "r1004" and other.version == kept.version
    one.close()
