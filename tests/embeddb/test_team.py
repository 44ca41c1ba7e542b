"""A team's database as its members use it: one measures, another asks, a third may only read."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import builders
import postgres_server
import pytest
from command_line import run_verb

from embeddb.core.errors import StoreReadOnly
from embeddb.database import Database, open_database
from embeddb.store.model_files import model_states, register_files
from embeddb.ui.serve.app_state import AppState
from indexer.exchange.exchange import push

MODEL = Path(__file__).parents[2] / "embeddb" / "data" / "costmodel-cpu-spmm.safetensors"
PLATFORM = builders.tiny()
(ASKED,) = builders.patterns(1, first=9)[:1]


@pytest.fixture(scope="module")
def server() -> Iterator[postgres_server.Server]:
    if postgres_server.missing():
        pytest.skip(f"needs {postgres_server.missing()}")
    with postgres_server.running_server() as running:
        yield running


class Member:
    """Somebody with a home and a role of their own."""

    def __init__(self, folder: Path, url: str, patch: pytest.MonkeyPatch) -> None:
        self.home, self.url, self._patch = folder, url, patch

    def opened(self, *, create: bool = False) -> Database:
        self._patch.setenv("EMBEDDB_HOME", str(self.home))
        return open_database(self.url, create=create)

    def files(self, kind: str) -> list[str]:
        return sorted(path.name for path in self.home.rglob(f"{kind}/*"))


@pytest.fixture
def team(
    server: postgres_server.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Member, Member]]:
    """Who made a database and filled it, and who may only read it."""
    owner = Member(tmp_path / "owner", server.url("team"), monkeypatch)
    with owner.opened(create=True) as db:
        builders.fill(db, PLATFORM)
    server.sql(
        "CREATE USER reader",
        "GRANT USAGE ON SCHEMA team TO reader",
        "GRANT SELECT ON ALL TABLES IN SCHEMA team TO reader",
    )
    yield owner, Member(tmp_path / "reader", server.url("team", user="reader"), monkeypatch)
    server.sql("DROP SCHEMA team CASCADE", "DROP USER reader")


def test_everybody_gets_the_same_answer_with_an_index_of_their_own(
    team: tuple[Member, Member],
) -> None:
    owner, reader = team
    with owner.opened() as db:
        answer = db.query(ASKED, platform="tiny", op=builders.OP)
        again = db.explain(answer.id)
    with reader.opened() as db:
        assert reader.files("index") == []
        same = db.query(ASKED, platform="tiny", op=builders.OP)
        assert same.candidates == answer.candidates
        assert db.explain(answer.id) == again
        assert [row.id for row in db.recommendations()] == [answer.id]
    assert len(reader.files("index")) == 1 and len(reader.files("notes")) >= 1
    made = reader.files("index")
    with reader.opened() as db:
        db.query(ASKED, platform="tiny", op=builders.OP)
        assert db.problems() == []
    assert reader.files("index") == made, "the saved one was read"


def test_newer_runs_of_a_colleague_are_seen(team: tuple[Member, Member]) -> None:
    owner, reader = team
    with reader.opened() as db:
        before = db.query(ASKED, platform="tiny", op=builders.OP)
        with Database.in_memory() as own:
            builders.fill(own, PLATFORM, builders.patterns(2, first=8), indexed=False)
            with owner.opened() as theirs:
                done = push(own.index, theirs.index, source="ann")
        assert done.added == 2 * 4 * 4
        after = db.query(ASKED, platform="tiny", op=builders.OP)
        assert after.candidates != before.candidates or after.neighbours != before.neighbours


def test_a_registered_model_reaches_the_colleagues(team: tuple[Member, Member]) -> None:
    owner, reader = team
    with owner.opened() as db:
        assert db.store.path is not None
        (db.store.path / "models").mkdir(exist_ok=True)
        shutil.copy(MODEL, db.store.path / "models")
        assert register_files(db.store) == []
    with reader.opened() as db:
        (state,) = model_states(db.store, db.store.models.entries()).values()
        assert state == "in use"
        with pytest.raises(StoreReadOnly):
            register_files(db.store)
    (file,) = reader.home.rglob(MODEL.name)
    assert file.read_bytes() == MODEL.read_bytes()


def test_verbs_and_pages_take_the_url(
    team: tuple[Member, Member], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owner, _ = team
    url = owner.url.replace("postgres@", "postgres:topsecret@")
    with owner.opened() as db:
        state = AppState(db, writable=True, max_upload=1 << 20)
        token = state.version_token()
        db.query(ASKED, platform="tiny", op=builders.OP)
        assert state.version_token() != token
        assert state.name.startswith("postgresql://")
    report, export = str(tmp_path / "report.html"), str(tmp_path / "all.jsonl")
    for words in (
        ["db", "stat", url],
        ["db", "check", url],
        ["db", "sources", url],
        ["db", "models", url],
        ["db", "rebuild", url],
        ["db", "export", url, export],
        ["db", "withdraw", url, "--status", "ok", "--yes"],
        ["db", "withdraw", url, "--undo", "--yes"],
        ["embed", url],
        [
            "query",
            url,
            builders.patterns(1)[0].name,
            "--platform",
            "tiny",
            "--op",
            str(builders.OP),
        ],
        ["explain", url, "last"],
        ["report", url, "--html", report],
        ["eval", url, "--seeds", "1"],
    ):
        assert run_verb(words) == 0, (words, capsys.readouterr())
    said = "".join(capsys.readouterr()) + Path(report).read_text(encoding="utf-8")
    said += Path(export).read_text(encoding="utf-8")
    with owner.opened() as db:
        said += "".join(map(repr, db.store.recommendations.items().values()))
    assert "topsecret" not in said
