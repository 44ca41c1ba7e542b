"""URLs of servers: what is shown of them, and what happens without the client library."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command_line import run_verb

from embeddb.core.errors import MissingDependency
from embeddb.core.server_url import is_server_url, redacted
from embeddb.store import open_store


def test_what_is_a_url() -> None:
    assert is_server_url("postgresql://host/db") and is_server_url("postgres:///db")
    assert not is_server_url("runs.db") and not is_server_url(Path("postgresql://host/db"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:secret@host/db", "postgresql://me:***@host/db"),
        ("at postgres://:sec@ret@host: no", "at postgres://:***@host: no"),
        ("'postgresql://me:se:c/r@host'", "'postgresql://me:***@host'"),
        ("postgresql://me@host/db?password=secret&a=1", "postgresql://me@host/db?password=***&a=1"),
        ("postgresql://h/db?sslpassword=secret", "postgresql://h/db?sslpassword=***"),
        ("postgresql://me@host:5432/db", "postgresql://me@host:5432/db"),
        ("http://a:b@c stays", "http://a:b@c stays"),
    ],
)
def test_a_password_is_not_shown(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_a_crash_keeps_no_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "postgresql://me:topsecret@host/db"

    def broken(place: str, **_: object) -> None:
        raise ValueError(f"of {place}")

    monkeypatch.delenv("EMBEDDB_DEBUG", raising=False)
    monkeypatch.setattr("embeddb.database.open_database", broken)
    monkeypatch.setattr(sys, "argv", ["embeddb", "db", "stat", url])
    assert run_verb(["db", "stat", url]) == 1
    said = capsys.readouterr().err
    file = Path(said.rpartition("traceback in ")[2].strip().rstrip(")"))
    kept = file.read_text(encoding="utf-8")
    file.unlink()
    assert "me:***@host" in said and "me:***@host" in kept
    assert "topsecret" not in said + kept


def test_without_the_client_library_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("embeddb.store.postgres.")]:
        if "local_notes" not in name:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingDependency, match="needs psycopg"):
        open_store("postgresql://host/db")
    assert run_verb(["db", "stat", "postgresql://host/db"]) == 1
    assert "[postgres]'" in capsys.readouterr().err
