"""PostgreSQL as an engine of the store: the shipped contract, and what only a server can meet."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import postgres_server
import postgres_writer
import pytest
from engine_contract import EngineContract, EngineMachine
from hypothesis import HealthCheck, settings
from postgres_server import Server

from embeddb.core.errors import (
    StoreError,
    StoreLocked,
    StoreReadOnly,
    StoreVersion,
    UsageError,
)
from embeddb.core.records import WorkloadInfo
from embeddb.database import open_database
from embeddb.store import Engine, Txn, is_database, open_store

if postgres_server.missing():
    pytest.skip(f"needs {postgres_server.missing()}", allow_module_level=True)

import psycopg

from embeddb.store.postgres.postgres_engine import PostgresEngine

_SERVERS: list[Server] = []


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch, postgres_server.running_server() as running:
        patch.setenv("EMBEDDB_HOME", str(tmp_path_factory.mktemp("home")))
        _SERVERS.append(running)
        yield running
        _SERVERS.clear()


def _opened(folder: Path) -> Engine:
    """The database of a folder's name, made where it is not there."""
    schema = hashlib.blake2b(str(folder).encode(), digest_size=8).hexdigest()
    url = _SERVERS[0].url(schema)
    return PostgresEngine(url, create=not is_database(url), wait_s=20)


class TestPostgres(EngineContract):
    def open_engine(self, folder: Path) -> Engine:
        return _opened(folder)


class PostgresMachine(EngineMachine):
    def open_engine(self, folder: Path) -> Engine:
        return _opened(folder)


TestPostgresMachine = PostgresMachine.TestCase
TestPostgresMachine.settings = settings(
    max_examples=8,
    stateful_step_count=10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


# -- what only a server can meet ---------------------------------------------------------------


@pytest.fixture
def url(server: Server, request: pytest.FixtureRequest) -> str:
    """Of a database of this test's own, which is there."""
    found = server.url(f"t {request.node.name}"[:60])
    open_store(found, create=True).close()
    return found


def _count(txn: Txn) -> int:
    number = int(txn.get("meta", b"n") or b"0") + 1
    txn.put("meta", b"n", str(number).encode())
    return number


def test_what_is_no_database_is_told_in_one_line(server: Server, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no database there"):
        open_store(server.url("nothing"))
    assert not is_database(server.url("nothing"))
    open_store(server.url("twice"), create=True).close()
    with pytest.raises(StoreError, match="a database is there already"):
        open_store(server.url("twice"), create=True)
    with pytest.raises(UsageError, match="not a valid schema name"):
        open_store(server.url("pg_own"))
    nobody = "postgresql://me:topsecret@127.0.0.1:1/db"
    with pytest.raises(StoreError, match=r"me:\*\*\*@127") as refused:
        open_store(nobody)
    assert "topsecret" not in f"{refused.value!r}{refused.value.hint}"
    with pytest.raises(UsageError, match="not an address") as odd:
        open_store("postgresql://me:topsecret@[::1/db")
    assert "topsecret" not in str(odd.value)


def test_a_second_writer_waits_and_then_says_for_whom(url: str) -> None:
    one, two = PostgresEngine(url), PostgresEngine(url, wait_s=0.3)
    inside, done = threading.Event(), threading.Event()

    def slow(txn: Txn) -> None:
        inside.set()
        assert done.wait(30)

    writer = threading.Thread(target=one.write, args=(slow,))
    writer.start()
    assert inside.wait(30)
    said = rf"process {os.getpid()} on {socket.gethostname()} .*is writing since 0.3 s"
    with pytest.raises(StoreLocked, match=said):
        two.write(_count)
    with two.read() as txn:  # who reads does not wait
        assert txn.get("meta", b"n") is None
    done.set()
    writer.join(30)
    assert two.write(_count) == 1
    one.close()
    two.close()


def test_a_commit_whose_answer_is_lost_is_done_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client cannot know whether it was committed: it looks, and runs the body only if not."""
    engine = PostgresEngine(url, wait_s=20)
    real = psycopg.Connection.execute
    lose = ["after", "before"]

    def flaky(self: psycopg.Connection, query: Any, *args: Any, **how: Any) -> Any:
        if query != "COMMIT" or not lose:
            return real(self, query, *args, **how)
        if lose.pop(0) == "after":
            real(self, query, *args, **how)
        self.close()
        raise psycopg.OperationalError("the connection was lost")

    monkeypatch.setattr(psycopg.Connection, "execute", flaky)
    calls: list[int] = []

    def body(txn: Txn) -> int:
        calls.append(_count(txn))
        return calls[-1]

    assert engine.write(body) == 1 and calls == [1]
    assert engine.write(body) == 2 and calls == [1, 2, 2]
    assert not lose
    engine.close()


def test_a_newer_schema_is_met_by_whoever_is_still_connected(url: str) -> None:
    store, newer = open_store(url), PostgresEngine(url)
    newer.write(lambda txn: txn.put("meta", b"schema", b"2"))
    with pytest.raises(StoreVersion, match="written with schema 2"):
        store.put_patterns([WorkloadInfo(id=f"{1:032x}")])
    newer.close()
    store.close()


def test_a_damaged_value_is_found(server: Server) -> None:
    engine = PostgresEngine(server.url("damaged"), create=True)
    engine.write(lambda txn: txn.put("note", b"k", b"value"))
    server.sql("UPDATE damaged.note SET v = overlay(v placing 'x'::bytea from 1)")
    (problem,) = engine.problems()
    assert "the stored value is damaged" in problem
    engine.write(lambda txn: txn.put("note", b"other", b"sound"))
    with engine.read() as txn:
        assert list(txn.scan_sound("note")) == [(b"other", b"sound")]
    engine.close()


def test_after_a_fork_the_child_opens_it_again(url: str) -> None:
    engine = PostgresEngine(url)
    engine.write(_count)
    child = multiprocessing.get_context("fork").Process(target=_forked, args=(engine, url))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert engine.write(_count) == 3
    engine.close()


def _forked(engine: PostgresEngine, url: str) -> None:
    with pytest.raises(StoreError, match="opened before a fork"):
        engine.write(_count)
    engine.close()
    again = PostgresEngine(url)
    again.write(_count)
    again.close()


# -- kills -------------------------------------------------------------------------------------


def _acknowledged(process: subprocess.Popen[str], most: int) -> list[int]:
    assert process.stdout is not None
    return [int(next(process.stdout)) for _ in range(most)]


def test_a_killed_client_leaves_whole_batches(url: str) -> None:
    told = 0
    for pause in (0.0, 0.004, 0.011):
        with postgres_writer.started(url, first=told) as process:
            numbers = _acknowledged(process, 5)
            time.sleep(pause)
            process.kill()
            numbers += [int(line) for line in process.stdout or ()]
        told = postgres_writer.whole_batches(url, at_least=numbers[-1] + 1)


def test_a_killed_server_loses_nothing_that_was_acknowledged(server: Server, url: str) -> None:
    with postgres_writer.started(url, most=60) as process:
        for _ in range(2):
            _acknowledged(process, 10)
            server.kill()
            server.start()
        assert process.wait(120) == 0, process.stdout
    assert postgres_writer.whole_batches(url) == 60


# -- roles -------------------------------------------------------------------------------------


def test_roles_as_the_page_says(server: Server, tmp_path: Path) -> None:
    """The statements of docs/howto/team.md, for a schema `team`."""
    page = (Path(__file__).parents[3] / "docs" / "howto" / "team.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sql\n(.*?)^```", page, re.M | re.S)
    open_store(server.url("team"), create=True).close()
    server.sql(*(line for block in blocks for line in block.split(";\n") if line.strip()))
    server.sql("CREATE USER ann IN ROLE team_reader", "CREATE USER bob IN ROLE team_contributor")
    reader = open_store(server.url("team", user="ann"))
    with pytest.raises(StoreReadOnly, match="this user may only read"):
        reader.put_patterns([WorkloadInfo(id=f"{1:032x}")])
    with open_database(server.url("team", user="bob")) as db:
        postgres_writer.append(db.store, 0)
        with pytest.raises(StoreReadOnly, match="only its owner may compact"):
            db.store.compact()
    assert reader.count_runs() == postgres_writer.SPAN
    reader.close()
    server.sql("CREATE USER eve")
    with pytest.raises(StoreError, match="this user may not read it"):
        open_store(server.url("team", user="eve"))


# -- counting ------------------------------------------------------------------------------------


def test_rows_are_counted_by_who_writes_and_not_by_who_asks(url: str, server: Server) -> None:
    store = open_store(url)
    postgres_writer.append(store, 0)
    postgres_writer.append(store, 1)
    runs = 2 * postgres_writer.SPAN
    assert store.counts()["run"] == store.count_runs() == runs and store.counts()["pattern"] == 2
    inside = 'SET search_path TO "{}"'.format(url.partition("schema=")[2])
    server.sql(inside, "DELETE FROM pattern")
    assert store.counts()["pattern"] == 2, "nobody reads a table to count it"
    assert "table 'pattern': 0 rows, expected 2" in "".join(store.engine.problems())
    store.compact()
    assert store.counts()["pattern"] == 0 and store.engine.problems() == []
    store.close()


def test_what_nobody_counted_yet_is_counted(url: str, server: Server) -> None:
    """A database of a program that did not count."""
    store = open_store(url)
    postgres_writer.append(store, 0)
    inside = 'SET search_path TO "{}"'.format(url.partition("schema=")[2])
    server.sql(inside, "DELETE FROM about WHERE name <> 'id'")
    assert store.counts()["run"] == postgres_writer.SPAN
    before = store.engine.version()
    postgres_writer.append(store, 1)
    assert store.counts()["run"] == 2 * postgres_writer.SPAN
    assert before != store.engine.version() and store.engine.problems() == []
    server.sql(inside, "UPDATE about SET value = 'many' WHERE name = 'rows/run'")
    assert store.counts()["run"] == 2 * postgres_writer.SPAN, "what is no number is none"
    store.close()


def test_two_clients_count_together(url: str) -> None:
    one, two = open_store(url), open_store(url)
    versions = [one.engine.version()]
    for at in range(4):
        postgres_writer.append((one, two)[at % 2], at)
        versions.append((two, one)[at % 2].engine.version())
    assert len(set(versions)) == 5
    assert one.counts() == two.counts() and one.count_runs() == 4 * postgres_writer.SPAN
    one.close()
    two.close()
