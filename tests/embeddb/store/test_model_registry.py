"""The registry of models: what each was trained on outlives its file, and never ends a command."""

from __future__ import annotations

import fcntl
import json
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from builders import fill, patterns, tiny
from command_line import run_verb
from hypothesis import given
from hypothesis import strategies as st

from embeddb.core.errors import ModelError, StoreCorrupt
from embeddb.core.files.model_file import version_of
from embeddb.database import Database
from embeddb.store import lmdb_engine, memory_store
from embeddb.store.model_files import model_states, register_files
from embeddb.store.models import MOST_CARD_BYTES, ModelEntry, decode_entry, facts_of
from indexer.exchange.exchange import export_file, import_file
from indexer.exchange.export_records import adopt_models
from tuners.evaluation import choose_predictor as judging

FILE = "costmodel-cpu-spmm.safetensors"
CARD: dict[str, Any] = {
    "kind": "costmodel",
    "kernel": "spmm",
    "ops": ["spmm:32", "spmm:128"],
    "platform": {"name": "cpu", "space": "00ff", "version": "2"},
    "featurizer": {"name": "stats", "version": "1"},
    "settings": {"predictor": "mlp", "members": 3},
    "held_out": {"spmm:32": {"rank": {"of_optimum@1": 0.91}, "transfer": {"of_optimum@1": 0.9}}},
    "patterns": 257,
    "groups": 212,
    "samples": 221_121,
    "simulated": False,
    "parent": "",
    "created": "2026-11-21T10:52:06+00:00",
}
LESSON = "spmm:32, spmm:128 on cpu: 221,121 measured runs of 257 matrices in 212 groups"


def card(**changes: Any) -> dict[str, Any]:
    return {**CARD, **changes}


def put_file(db: Database, about: dict[str, Any], name: str = FILE) -> str:
    """A model file without tensors in the database's folder; its version."""
    assert db.store.path is not None
    path = db.store.path / "models" / name
    path.parent.mkdir(exist_ok=True)
    header = json.dumps({"__metadata__": {"card": json.dumps(about)}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    return version_of(path)


def states(db: Database) -> dict[str, str]:
    return model_states(db.store, db.store.models.entries())


# -- the table ---------------------------------------------------------------------------------


def test_a_card_is_never_changed_and_never_lost(tmp_path: Path) -> None:
    with Database.create(tmp_path / "db") as db:
        first = put_file(db, CARD)
        assert register_files(db.store) == []
        kept = db.store.models.get(first)
        second = put_file(db, card(samples=7))
        assert register_files(db.store) == []
        assert states(db) == {first: "replaced", second: "in use"}
        forged = ModelEntry(first, card(samples=1), FILE)
        assert db.store.models.register([forged]) == []
        assert db.store.models.get(first).card == kept.card == CARD  # type: ignore[union-attr]
        assert db.store.models.get(first).registered == kept.registered  # type: ignore[union-attr]
        assert put_file(db, CARD) == first  # the old file is put back
        register_files(db.store)
        register_files(db.store)
        assert states(db) == {first: "in use", second: "replaced"}
        assert db.problems() == []


def test_a_card_that_an_export_told_gives_way_to_that_of_the_file(tmp_path: Path) -> None:
    """A version can be computed by anybody who has the file, and be told with another card."""
    with Database.create(tmp_path / "db") as db:
        version = put_file(db, CARD)
        db.store.models.register([ModelEntry(version, card(samples=1))])
        assert states(db)[version] != "in use"
        register_files(db.store)
        assert db.store.models.get(version).card == CARD  # type: ignore[union-attr]
        assert states(db) == {version: "in use"}
        assert db.problems() == []


def test_registering_again_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Database.create(tmp_path / "db") as db:
        put_file(db, CARD)
        register_files(db.store)
        monkeypatch.setattr(lmdb_engine._LmdbTxn, "put", lambda *_: pytest.fail("written"))
        register_files(db.store)


def test_a_registration_that_is_cut_off_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old and new model are one transaction: there is no moment with neither in use."""
    entries = [ModelEntry("0" * 15 + digit, CARD, FILE) for digit in "12"]
    real, seen = lmdb_engine._LmdbTxn.put, []

    def dying(self: Any, table: str, key: bytes, value: bytes) -> None:
        seen.append(key)
        if len(seen) == 2:
            raise KeyboardInterrupt
        real(self, table, key, value)

    with Database.create(tmp_path / "db") as db:
        monkeypatch.setattr(lmdb_engine._LmdbTxn, "put", dying)
        with pytest.raises(KeyboardInterrupt):
            db.store.models.register(entries)
        monkeypatch.undo()
        assert db.store.models.entries() == []
        assert len(db.store.models.register(entries)) == 2


def older(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database as programs made it that knew nothing of models."""
    monkeypatch.setattr(
        lmdb_engine, "TABLES", tuple(name for name in lmdb_engine.TABLES if name != "model")
    )
    with Database.create(folder) as db:
        fill(db, tiny(), patterns(2))
        put_file(db, CARD)
    monkeypatch.undo()
    return folder


@pytest.mark.parametrize("readonly", [True, False])
def test_a_database_of_before_has_no_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readonly: bool
) -> None:
    with Database.open(older(tmp_path / "db", monkeypatch), readonly=readonly) as db:
        assert db.store.models.entries() == []
        assert db.store.models.get("0" * 16) is None
        assert db.store.problems() == [] == db.problems()
        assert db.store.count_runs() > 0


def test_the_first_write_makes_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = older(tmp_path / "db", monkeypatch)
    with Database.open(folder) as db:
        with db.store._engine.read() as before:
            assert before.count("model") == 0
        assert register_files(db.store) == []
        assert list(states(db).values()) == ["in use"]
        assert db.store.problems() == []
    with Database.open(folder, readonly=True) as db:
        assert list(states(db).values()) == ["in use"]


def test_a_read_that_is_open_while_the_table_is_made_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Database.open(older(tmp_path / "db", monkeypatch)) as db:
        with db.store._engine.read() as txn:
            writer = threading.Thread(target=register_files, args=(db.store,))
            writer.start()
            writer.join(30)
            assert not writer.is_alive()
            assert txn.count("model") == 0 and list(txn.scan("model")) == []
            assert txn.get("model", b"0" * 16) is None and txn.count("run") > 0
        assert len(db.store.models.entries()) == 1


# -- cards of strangers ------------------------------------------------------------------------


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "bad",
    [
        ModelEntry("no version", CARD),
        ModelEntry("0" * 16, {}),
        ModelEntry("0" * 16, card(kind="checkpoint")),
        ModelEntry("0" * 16, card(kind=["costmodel"])),
        ModelEntry("0" * 16, card(x="a" * MOST_CARD_BYTES)),
        ModelEntry("0" * 16, card(x=nested(17))),
        ModelEntry("0" * 16, card(x=nested(100_000))),
        ModelEntry("0" * 16, card(x=float("nan"))),
        ModelEntry("0" * 16, card(x="\ud800")),
        ModelEntry("0" * 16, card(x=object())),
        ModelEntry("0" * 16, CARD, "f" * 300),
        ModelEntry("0" * 16, CARD, registered=-1.0),
    ],
)
def test_what_cannot_be_kept_is_refused_in_one_line(bad: ModelEntry) -> None:
    store = memory_store()
    with pytest.raises(ModelError) as told:
        store.models.register([bad])
    assert "\n" not in str(told.value) and len(str(told.value)) < 600
    assert store.models.entries() == []


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"\xff", b"[]", b"{}", b"1" * 5000, b'{"card": {}}', b"[" * 100_000),
        json.dumps({"card": CARD, "file": 1, "registered": 0, "used": 0}).encode(),
        json.dumps({"card": CARD, "file": "", "registered": 1e300, "used": 0}).encode(),
        json.dumps({"card": CARD, "file": "", "registered": 0, "used": True}).encode(),
        b" " * (MOST_CARD_BYTES + 1),
    ],
)
def test_what_a_stranger_wrote_into_the_table_is_told_not_believed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], raw: bytes
) -> None:
    with pytest.raises(StoreCorrupt) as told:
        decode_entry(b"0" * 16, raw)
    assert "\n" not in str(told.value)
    with Database.create(tmp_path / "db") as db:
        db.store._engine.write(lambda txn: txn.put("model", b"0" * 16, raw))
        assert db.store.models.entries() == []
        assert [line for line in db.problems() if "0000000000000000" in line]
        put_file(db, CARD)
        register_files(db.store)
        export_file(db.index, tmp_path / "out.jsonl")
    assert run_verb(["db", "models", str(tmp_path / "db")]) == 0
    assert LESSON in capsys.readouterr().out


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(CARD)), ANY))
def test_any_card_gives_facts(changes: dict[str, Any]) -> None:
    facts = facts_of(ModelEntry("0" * 16, card(**changes), FILE))
    assert facts.training_summary and len(facts.training_summary) < 4000
    assert all(0 <= at_1 <= 1 for by in facts.held_out.values() for at_1 in by.values())


def test_a_hostile_card_cannot_write_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Database.create(tmp_path / "db") as db:
        put_file(db, card(ops=["\x1b[2J" * 500], platform={"name": "x\ny"}, samples=10**400))
        assert register_files(db.store) == []
    assert run_verb(["db", "models", str(tmp_path / "db")]) == 0
    told = capsys.readouterr()
    assert "\x1b" not in told.out and len(told.out) < 2000
    assert len(told.out.splitlines()) == 2


# -- files and registry ------------------------------------------------------------------------


def test_check_tells_what_does_not_agree_and_rebuild_heals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "db")

    def checked() -> tuple[int, dict[str, Any]]:
        code = run_verb(["db", "check", place, "--json"])
        return code, json.loads(capsys.readouterr().out)

    with Database.create(place) as db:
        put_file(db, CARD)
    code, told = checked()
    assert (code, told["problems"]) == (0, [])
    assert "not registered" in told["notes"][0]
    assert run_verb(["db", "rebuild", place]) == 0
    capsys.readouterr()
    assert checked() == (0, {"database": place, "damaged": False, "problems": [], "notes": []})
    path = Path(place) / "models" / FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    assert "cannot be read" in checked()[1]["problems"][0]
    with Database.open(place) as db:
        put_file(db, card(samples=8))
    code, told = checked()
    assert code == 1
    assert "of another version" in told["problems"][0] and "not registered" in told["notes"][0]
    path.unlink()
    assert "missing" in checked()[1]["problems"][0]
    assert run_verb(["db", "rebuild", place]) == 0
    capsys.readouterr()
    assert checked()[0] == 0
    with Database.open(place, readonly=True) as db:
        assert list(states(db).values()) == ["no file here"]


def test_an_export_takes_the_cards_along(tmp_path: Path) -> None:
    with Database.create(tmp_path / "a") as db:
        fill(db, tiny(), patterns(2))
        own = put_file(db, card(platform={"name": "tiny"}))
        other = put_file(db, CARD, "costmodel-cpu-spmv.safetensors")
        register_files(db.store)
        assert export_file(db.index, tmp_path / "all.jsonl").models == 2
        assert export_file(db.index, tmp_path / "part.jsonl", platform="tiny").models == 1
        kept = {e.version: (e.card, e.registered) for e in db.store.models.entries()}
    with Database.create(tmp_path / "b") as db:
        put_file(db, card(samples=9), FILE)
        register_files(db.store)
        assert import_file(db.index, tmp_path / "part.jsonl").models == 1
        assert db.store.models.get(other) is None
        report = import_file(db.index, tmp_path / "all.jsonl")
        assert (report.models, report.rejected) == (2, 0)
        for version, found in kept.items():
            entry = db.store.models.get(version)
            assert entry is not None and (entry.card, entry.registered) == found
        assert sorted(states(db).values()) == ["in use", "no file here", "no file here"]
        assert db.problems() == []
        again = tmp_path / "again.jsonl"
        export_file(db.index, again)
        export_file(db.index, tmp_path / "twice.jsonl")
        assert again.read_bytes() == (tmp_path / "twice.jsonl").read_bytes()
        put_file(db, card(platform={"name": "tiny"}), "costmodel-tiny-spmm.safetensors")
        register_files(db.store)
        assert states(db)[own] == "in use"


def test_bad_cards_of_an_export_are_rejected(tmp_path: Path) -> None:
    lines = [
        '{"format": "embeddb", "version": 1}',
        json.dumps(["model", "0" * 16, 1.0, CARD]),
        json.dumps(["model", "1" * 16, 1.0, card(x="a" * MOST_CARD_BYTES)]),
        json.dumps(["model", "../../etc/passwd", 1.0, CARD]),
        json.dumps(["model", "2" * 16, "soon", CARD]),
        '["model", "3333333333333333", 1.0, {"kind": "costmodel", "x": ' + "[" * 900 + "]" * 900
        + "}]",
        json.dumps(["model"]),
        json.dumps(["end", 0, 0, 0]),
    ]  # fmt: skip
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(lines) + "\n")
    db = Database.in_memory()
    report = import_file(db.index, path)
    assert (report.models, report.rejected) == (1, 5)
    assert [entry.version for entry in db.store.models.entries()] == ["0" * 16]


def test_the_models_of_the_starter_are_registered(tmp_path: Path) -> None:
    beside = tmp_path / "data"
    with Database.create(tmp_path / "other") as other:
        version = put_file(other, CARD)
        of_kernels = {**CARD, "kind": "kernels", "kernel": "tile", "network": {"task": "tile"}}
        tiles = put_file(other, of_kernels, "kernels-tile-cpu-tile.safetensors")
        (tmp_path / "other" / "models").rename(beside)
    with Database.create(tmp_path / "db") as db:
        assert adopt_models(db.index, beside) == 2
        assert states(db) == {version: "in use", tiles: "in use"}


# -- with a model that answers -----------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with runs to learn from."""
    pytest.importorskip("torch")
    place = tmp_path_factory.mktemp("trained") / "db"
    with Database.create(place) as db:
        fill(db, tiny(), patterns(3))
    return place


@pytest.fixture(autouse=True)
def judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judging takes five trainings more; a model that was never judged does not rank."""
    best = {"of_optimum@1": 1.0, "of_optimum@5": 1.0}
    found = {"spmm:32": {"rank": best, "transfer": {"of_optimum@1": 0.5, "of_optimum@5": 0.5}}}
    monkeypatch.setattr(judging.Judge, "__call__", lambda *_: found)


def train(place: Path, *words: str) -> int:
    asked = ("--platform", "tiny", "--op", "spmm:32", "--predictor", "mlp")
    small = ("--epochs", "1", "--members", "1", *words)
    return run_verb(["train", "costmodel", str(place), *asked, *small])


def ask(place: Path) -> str:
    with Database.open(place) as db:
        return db.query(patterns(1, first=9)[0], platform="tiny", op="spmm:32").id


def test_an_old_answer_still_tells_what_its_model_learned_from(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(trained) == 0
    first = ask(trained)
    assert train(trained, "--seed", "1") == 0
    (trained / "models" / "costmodel-tiny-spmm.safetensors").unlink()
    assert "warning" not in capsys.readouterr().err
    with Database.open(trained, readonly=True) as db:
        found = db.explain(first)
        assert found.learned is not None and found.learned.version == found.recommendation.model
        assert sorted(states(db).values()) == ["file missing", "replaced"]
    said = "spmm:32 on tiny: 48 measured runs of 12 matrices in 3 groups"
    assert found.learned.training_summary == said
    assert run_verb(["explain", str(trained), first]) == 0
    assert f"  learned {said}" in capsys.readouterr().out
    assert run_verb(["explain", str(trained), first, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["learned"]["runs"] == 48
    page = trained.parent / "why.html"
    assert run_verb(["explain", str(trained), first, "--html", str(page)]) == 0
    assert said in page.read_text()


def test_an_answer_registers_a_model_that_was_put_there_by_hand(
    trained: Path, tmp_path: Path
) -> None:
    place = tmp_path / "db"
    with Database.create(place) as db:
        fill(db, tiny(), patterns(3))
    elsewhere = tmp_path / "m.safetensors"
    assert train(place, "-o", str(elsewhere)) == 0
    with Database.open(place) as db:
        assert db.store.models.entries() == []
        (place / "models").mkdir()
        elsewhere.rename(place / "models" / "costmodel-tiny-spmm.safetensors")
        made = db.query(patterns(1, first=9)[0], platform="tiny", op="spmm:32")
        assert states(db) == {made.model: "in use"}
        learned = db.explain(made.id).learned
        assert learned is not None and learned.runs == 48


def test_a_busy_database_costs_no_training(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lmdb_engine.LmdbEngine.__init__, "__kwdefaults__",
                        {"readonly": False, "max_map_bytes": 1 << 40, "wait_s": 0.05})  # fmt: skip
    with (trained / "writer.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert train(trained, "--seed", "2") == 0
    told = capsys.readouterr()
    assert "saved and in use but not registered" in told.err
    assert f"embeddb db rebuild {trained}" in told.err
    file = trained / "models" / "costmodel-tiny-spmm.safetensors"
    version = version_of(file)
    assert version in told.out
    with Database.open(trained) as db:
        assert db.store.models.get(version) is None
        register_files(db.store)
        assert states(db)[version] == "in use"


def test_a_replaced_model_that_was_never_registered_is_kept_too(trained: Path) -> None:
    """The file of a database of before is read before it is overwritten."""
    with Database.open(trained) as db:
        old = put_file(db, CARD, "costmodel-tiny-spmm.safetensors")
        assert db.store.models.get(old) is None
    assert train(trained, "--seed", "3") == 0
    with Database.open(trained, readonly=True) as db:
        assert states(db)[old] == "replaced"


def test_weights_of_a_featurizer_are_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from embeddb.featurizers import scnn

    with Database.create(tmp_path / "db") as db:
        about = {"kind": "featurizer", "network": {"name": "waco"}, "reduction": {}}
        about |= {"patterns": 275, "groups": 221, "samples": {"train": 643}}

        def install(weights: Path, folder: Path) -> str:
            return put_file(db, {**about, "seed": int(weights.name)}, "scnn.safetensors")

        monkeypatch.setattr(scnn, "install", install)
        monkeypatch.setattr("embeddb.index.lookup.read_card", lambda file: about)
        first, second = db.index.use_weights("1"), db.index.use_weights("2")
        assert states(db) == {first: "replaced", second: "in use"}
        entry = db.store.models.get(first)
        assert entry is not None
        facts = facts_of(entry)
        assert (facts.kind, facts.predictor, facts.runs) == ("featurizer", "waco", None)
        assert facts.training_summary == "structures: 275 matrices in 221 groups"
