"""Python as people write it: matrices of other libraries, files and names, looking around."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from builders import OP, band, fill, patterns, runs_of, tiny

import embeddb
from embeddb.core.config import Config, Op
from embeddb.core.errors import (
    EmbeddbError,
    MatrixError,
    MissingDependency,
    NothingFound,
    UsageError,
)
from embeddb.core.pattern import Pattern
from embeddb.database import Database
from indexer import library
from indexer.resolve import resolve_workload


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("asked") / "db"
    with Database.create(place) as db:
        fill(db, tiny())
    return place


@pytest.fixture
def db(folder: Path) -> Iterator[Database]:
    with Database.open(folder) as opened:
        yield opened


NEW = band(137, 14, name="new")
#: Calls with an argument of a wrong type, and the start of the message.
WRONG: list[tuple[Callable[[Database, Any], object], str]] = [
    (lambda db, one: db.query(NEW, platform="tiny", op=one), "op is "),
    (lambda db, one: db.query(NEW, platform=one, op=OP), "platform is "),
    (lambda db, one: db.query(NEW, platform="tiny", op=OP, measure=one), "measure is "),
    (lambda db, one: db.query(NEW, platform="tiny", op=OP, exact=one), "exact is "),
    (lambda db, one: db.query(NEW, platform="tiny", op=OP, tuner=one), "tuner is "),
    (lambda db, one: db.query(one, platform="tiny", op=OP), ""),
    (lambda db, one: db.by_featurizer(one), "name is "),
    (lambda db, one: db.platform(one), "platform is "),
    (lambda db, one: db.runs(op=one), "op is "),
    (lambda db, one: db.runs(platform=one), "platform is "),
    (lambda db, one: db.atlas(one, db.platform("tiny")), "op is "),
    (lambda db, one: db.atlas(OP, one), "platform is "),
    (lambda db, one: db.recommendation(one), "answer is "),
    (lambda db, one: db.explain(one), "answer is "),
    (lambda db, one: db.measure(one), "answer is "),
    (lambda db, one: db.index_runs(one), "files is "),
    (lambda db, one: db.index_runs([], platform=one), "platform is "),
    (lambda db, one: db.index_runs([], options=one), "options is "),
    (lambda db, one: db.calibrate(platform=one), "platform is "),
    (lambda db, one: db.calibrate(platform="tiny", ops=one), "ops is "),
    (lambda db, one: db.calibrate(platform="tiny", minutes=one, ops=[OP]), "minutes is "),
    (lambda db, one: db.tune(NEW, one, op=OP), "options is "),
    (lambda db, one: db.evaluate(op=one), "op is "),
    (lambda db, one: Database.create(one), "the database is "),
    (lambda db, one: embeddb.open(one), "the database is "),
    (lambda db, one: embeddb.query(NEW, op=OP, db=one), "the database is "),
    (lambda db, one: Op(one), "name is "),
    (lambda db, one: Op("spmm", one), "width is "),
    (lambda db, one: Op("spmm", 3, one), "dtype is "),
    (lambda db, one: Config(one), "values is "),
    (lambda db, one: Config.parse(one), "text is "),
]
FORMATS = ("csr", "csc", "coo", "bsr", "dia", "lil", "dok")


@pytest.mark.parametrize("format", FORMATS)
def test_every_sparse_matrix_of_scipy_is_the_same_pattern(format: str) -> None:
    for kind in (sp.csr_array, sp.csr_matrix):
        matrix = kind(NEW.to_scipy()).asformat(format)
        assert Pattern.from_matrix(matrix, name="new") == NEW


def test_stored_zeros_are_entries_and_those_that_fill_blocks_are_not() -> None:
    kept = sp.csr_array((np.array([0.0, 1.0]), np.array([0, 1]), np.array([0, 2, 2])), shape=(2, 2))
    assert Pattern.from_matrix(kept).nnz == 2
    filled = sp.bsr_array(sp.csr_array(np.eye(4)), blocksize=(2, 2))
    assert filled.nnz == 8 and Pattern.from_matrix(filled).nnz == 4 and filled.nnz == 8


@pytest.mark.parametrize("call", range(len(WRONG)))
@pytest.mark.parametrize("wrong", [1.5, object()], ids=["number", "object"])
def test_an_argument_of_a_wrong_type_is_named(db: Database, call: int, wrong: Any) -> None:
    ask, start = WRONG[call]
    if start == "minutes is " and wrong == 1.5:
        wrong = "5"
    with pytest.raises(EmbeddbError) as refused:
        ask(db, wrong)
    assert str(refused.value).startswith(start) and refused.type in (UsageError, MatrixError)


def test_one_text_is_no_list_of_texts(db: Database, tmp_path: Path) -> None:
    for call in (
        lambda: db.index_runs("runs.csv"),
        lambda: db.calibrate(platform="tiny", ops="spmm:32"),
        lambda: db.campaign(tmp_path / "camp", platform="tiny", ops="spmm:32", matrices=tmp_path),
    ):
        with pytest.raises(UsageError, match="a list is needed"):
            call()


def test_a_path_names_a_workload_as_its_text_does(db: Database) -> None:
    name = next(iter(db.patterns())).name
    assert db.find(Path(name)) == db.find(name)  # type: ignore[arg-type]


def test_a_matrix_is_not_sorted_in_place() -> None:
    indices = np.array([1, 0], dtype=np.int32)
    matrix = sp.csr_array((np.ones(2), indices, np.array([0, 2])), shape=(1, 2))
    assert Pattern.from_matrix(matrix).indices.tolist() == [0, 1]
    assert matrix.indices.tolist() == [1, 0]


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_of_torch_are_taken() -> None:
    torch = pytest.importorskip("torch")
    csr = NEW.to_scipy()
    parts = torch.tensor(csr.indptr), torch.tensor(csr.indices), torch.tensor(csr.data)
    tensor = torch.sparse_csr_tensor(*parts, size=csr.shape, check_invariants=True)
    for one in (tensor, tensor.to_sparse_csc(), tensor.to_sparse_coo()):
        assert Pattern.from_matrix(one) == NEW
    with pytest.raises(MatrixError, match="Tensor of shape"):
        Pattern.from_matrix(tensor.to_dense())


@pytest.mark.parametrize("thing", [np.eye(3), 7, [[1, 2]], None])
def test_what_is_no_sparse_matrix_is_refused(thing: Any) -> None:
    with pytest.raises(MatrixError, match="is not a sparse matrix") as e:
        Pattern.from_matrix(thing)
    assert "csr_array" in e.value.hint


def test_a_question_takes_a_matrix_a_file_a_name_or_an_id(db: Database, tmp_path: Path) -> None:
    file = tmp_path / "new.npz"
    sp.save_npz(file, NEW.to_scipy())
    asked: dict[str, Any] = {"platform": "tiny", "op": "spmm:32"}
    ids = {db.query(one, **asked).pattern_id for one in (NEW, NEW.to_scipy(), file, str(file))}
    assert ids == {NEW.id}
    known = patterns()[3]
    for one in (known.name, known.id, known):
        assert db.query(one, **asked, k=2).pattern_id == known.id
    with pytest.raises(MatrixError, match="no such file") as e:
        db.query(f"{known.name}x", **asked)
    assert known.name in e.value.hint
    assert db.explain(str(file)).recommendation.pattern_id == NEW.id
    last = db.explain().recommendation
    assert last.pattern_id == known.id and db.explain(last).recommendation.id == last.id
    assert resolve_workload(db.index, known) is known


def test_a_word_is_an_existing_path_else_an_id_else_a_name(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    known = patterns()[3]
    assert db.find(known.name, kind="matrix").id == db.find(known.id).id == known.id
    sp.save_npz(tmp_path / "a.npz", NEW.to_scipy())
    (tmp_path / "a.npz").rename(tmp_path / known.name)
    assert db.find(known.name).id == NEW.id
    named_as_an_id = band(138, 15, name=known.id)
    with Database.in_memory() as other:
        other.index.add_patterns([known, named_as_an_id])
        assert other.find(known.id).id == known.id
    (tmp_path / known.name).unlink()
    for folder in (known.name, known.id, "neither"):
        (tmp_path / folder).mkdir()
    assert db.find(known.name).id == db.find(known.id).id == known.id
    answer = db.query(known.name, platform="tiny", op=OP)
    assert db.explain(known.name).recommendation.id == answer.id
    with pytest.raises(MatrixError, match="a folder, not a file"):
        db.find("neither")


def test_an_answer_is_explained_by_its_id_without_reading_a_file(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = db.query(patterns()[3], platform="tiny", op=OP)
    monkeypatch.chdir(tmp_path)
    (tmp_path / answer.id).write_text("no matrix")
    monkeypatch.setattr(library, "contents", lambda *_: pytest.fail("a file was read"))
    assert db.explain(answer.id).recommendation.id == answer.id
    assert db.recommendation("last").id == answer.id


def test_one_question_needs_one_call_again_and_again(folder: Path) -> None:
    for _ in range(2):
        made = embeddb.query(NEW.to_scipy(), op=OP, platform="tiny", db=folder, k=3, why=True)
        assert made.pattern_id == NEW.id and len(made.candidates) == 3 and made.insight.deep
    assert isinstance(made, embeddb.Recommendation)


def test_measuring_is_a_word_of_the_question(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: dict[str, Any] = {}

    def measured(self: Database, made: Any, pattern: Any, **wishes: Any) -> Any:
        heard.update(wishes, pattern=pattern)
        return made

    monkeypatch.setattr(Database, "measure", measured)
    made = db.query(NEW.to_scipy(), platform="tiny", op=OP, measure=True, why=True, k=2)
    assert heard["pattern"] == NEW and heard["k"] == 2 and heard["why"]
    assert heard["platform"].name == "tiny" and not made.insight.deep


def test_patterns_and_runs_are_gone_through_one_by_one(db: Database) -> None:
    infos = list(db.patterns())
    assert {p.name for p in patterns()} == {info.name for info in infos}
    assert not list(db.patterns(kind="nest")) and len(list(db.patterns(kind="matrix"))) == len(
        infos
    )
    known = patterns()[0]
    runs = db.runs(platform="tiny", op="spmm:32", pattern=known.name)
    assert {run.id for run in runs} == {run.id for run in runs_of(known, tiny())}
    assert len(list(db.runs())) == db.store.count_runs()
    assert not list(db.runs(pattern=NEW))
    with pytest.raises(NothingFound, match="spmm:64 on tiny") as e:
        db.runs(platform="tiny", op="spmm:64")
    assert "spmm:32 on tiny" in e.value.hint


def test_columns_are_of_one_length_and_a_notebook_shows_the_first(db: Database) -> None:
    told = db.runs().columns()
    assert {len(column) for column in told.values()} == {db.store.count_runs()}
    assert {"pattern", "op", "status", "seconds", "config.variant"} <= told.keys()
    assert {len(c) for c in db.patterns().columns(most=3).values()} == {3}
    shown = db.runs(op=OP)._repr_html_()
    assert shown.startswith("<div>") and shown.count("<tr>") == 21 and "config.variant" in shown


def test_a_data_frame_is_made_by_what_is_there(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pandas", "polars"):
        fake = ModuleType(name)
        fake.__dict__["DataFrame"] = lambda columns, name=name, **_: (name, len(columns["name"]))
        monkeypatch.setitem(sys.modules, name, fake)
    there: set[str] = set()
    monkeypatch.setattr("embeddb.store.rows.find_spec", lambda n: n if n in there else None)
    with pytest.raises(MissingDependency, match="pandas or polars"):
        db.patterns().frame()
    there.add("polars")
    assert db.patterns().frame() == ("polars", len(list(db.patterns())))
    with pytest.raises(MissingDependency, match="needs pandas"):
        db.patterns().frame("pandas")
    there.add("pandas")
    assert db.patterns().frame()[0] == "pandas"
    with pytest.raises(UsageError, match="no data frames"):
        db.patterns().frame("arrow")


def test_an_editor_is_told_of_every_public_name() -> None:
    assert set(dir(embeddb)) == set(embeddb.__all__)
    assert all(getattr(embeddb, name) is not None for name in embeddb.__all__)
    assert (Path(embeddb.__file__).parent / "py.typed").is_file()
