"""Run logs of loop nests: found in files by name, judged by their dependences, stubs apart from
those of matrices, answered in the end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from builders import OP as SPMM
from builders import band, fill, runs_of, tiny
from nest_logs import CPU, OP, configs_of, log_of, save_nests

from embeddb.core.config import Config
from embeddb.core.pattern import stub_id
from embeddb.core.records import WorkloadInfo
from embeddb.database import Database
from embeddb.nests.examples import sample_nests
from embeddb.nests.nest import Nest
from indexer.add import add_coded
from indexer.coverage import example, scope_states
from indexer.embed import adopt_stubs
from indexer.index_runs import index_runs
from indexer.ingest import IngestReport, ingest
from indexer.library import Library

NESTS = sample_nests()
MATMUL, SPMV = NESTS["matmul"], NESTS["spmv"]


def rows_of(*nests: Nest) -> list[tuple[str, Config, float]]:
    return [
        (nest.name, config, 1e-3 * (at + 1))
        for nest in nests
        for at, config in enumerate(configs_of(nest))
    ]


def read(db: Database, path: Path, folder: Path | None = None) -> IngestReport:
    library = Library(folder) if folder is not None else None
    return ingest(db.store, path, platform=CPU, library=library)


def rejected(report: IngestReport) -> list[str]:
    lines = Path(report.rejects_file).read_text().splitlines()
    return [json.loads(line)["reason"] for line in lines]


def test_nests_are_found_in_files_by_their_names(tmp_path: Path) -> None:
    files = save_nests(tmp_path / "nests" / "all.json", list(NESTS.values())).parent
    log = log_of(tmp_path / "runs.jsonl", rows_of(MATMUL, SPMV))
    with Database.in_memory() as db:
        report = read(db, log, files)
        assert (report.rejected, report.added, report.patterns, report.stubs) == (0, 5, 2, 0)
        assert (report.matrices_found, report.matrices_missing) == (2, [])
        info = db.store.pattern(MATMUL.id)
        assert info is not None and (info.kind, info.stub) == ("nest", False)
        assert info.named == {"DEPTH": 3, "TRIP_1": 16, "TRIP_2": 16, "TRIP_3": 16}
        assert db.store.nest(MATMUL.id) == MATMUL
        assert len(list(db.store.runs("nest-cpu", OP, MATMUL.id))) == 3


def test_what_the_dependences_forbid_is_rejected_where_the_code_is_known(tmp_path: Path) -> None:
    files = save_nests(tmp_path / "nests" / "all.json", [SPMV]).parent
    default = configs_of(SPMV)[0]
    turned = Config({**default, "order_2": ("2", "1")})
    log = log_of(tmp_path / "runs.jsonl", [(SPMV.name, default, 1.0), (SPMV.name, turned, 1.0)])
    with Database.in_memory() as db:
        report = read(db, log, files)
        assert (report.added, report.rejected) == (1, 1)
        assert "the bounds of i2 depend on i1" in rejected(report)[0]
    with Database.in_memory() as db:
        assert read(db, log).added == 2, "of a name alone nobody can tell"


def test_a_loop_that_is_not_there_is_rejected(tmp_path: Path) -> None:
    files = save_nests(tmp_path / "nests" / "all.json", [SPMV]).parent
    wrong = Config({**configs_of(SPMV)[0], "tile_3": 8})
    with Database.in_memory() as db:
        report = read(db, log_of(tmp_path / "runs.jsonl", [(SPMV.name, wrong, 1.0)]), files)
        assert report.added == 0 and "tile_3" in rejected(report)[0]


def test_a_stub_of_a_nest_is_none_of_a_matrix(tmp_path: Path) -> None:
    matrix = band(30, 2, name=MATMUL.name)
    with Database.in_memory() as db:
        fill(db, tiny(), [matrix], indexed=False)
        report = read(db, log_of(tmp_path / "runs.jsonl", rows_of(MATMUL)))
        assert (report.added, report.stubs) == (3, 1)
        matrix_info, nest_info = sorted(db.store.find(MATMUL.name), key=lambda info: info.kind)
        assert (matrix_info.id, matrix_info.kind) == (matrix.id, "matrix")
        assert nest_info.stub and nest_info.kind == "nest"
        assert nest_info.id == stub_id(MATMUL.name, -1, -1, -1, kind="nest")
        assert nest_info.id != stub_id(MATMUL.name, -1, -1, -1)
        assert not db.store.structure(nest_info.id) and db.store.count_runs() == 4 + 3


def test_sizes_of_a_matrix_are_none_of_a_nest(tmp_path: Path) -> None:
    log = log_of(tmp_path / "runs.jsonl", rows_of(MATMUL)[:1])
    row = {**json.loads(log.read_text()), "m": 16}
    log.write_text(json.dumps(row) + "\n")
    with Database.in_memory() as db:
        report = read(db, log)
        assert report.added == 0 and "are sizes of a matrix, not a nest" in rejected(report)[0]


def test_stubs_move_to_their_nest_when_it_comes(tmp_path: Path) -> None:
    files = save_nests(tmp_path / "nests" / "all.json", [MATMUL]).parent
    log = log_of(tmp_path / "runs.jsonl", rows_of(MATMUL))
    with Database.in_memory() as by_folder, Database.in_memory() as by_import:
        for db in (by_folder, by_import):
            read(db, log)
        assert adopt_stubs(by_folder.index, Library(files)) == 3
        done = add_coded(by_import.index, [MATMUL])
        assert (done.added, done.stored, done.adopted_runs) == ([MATMUL], [], 3)
        for db in (by_folder, by_import):
            assert len(list(db.store.runs("nest-cpu", OP, MATMUL.id))) == 3
            assert [info.stub for info in db.store.patterns()] == [False]
            assert db.problems() == []
        again = add_coded(by_import.index, [MATMUL])
        assert (again.added, again.stored, again.adopted_runs) == ([], [MATMUL], 0)


def test_two_nests_of_one_name_are_nobodys_stub(tmp_path: Path) -> None:
    other = replace(NESTS["transpose"], name=MATMUL.name)
    files = save_nests(tmp_path / "nests" / "a.json", [MATMUL, other]).parent
    log = log_of(tmp_path / "runs.jsonl", rows_of(MATMUL))
    with Database.in_memory() as db:
        report = read(db, log, files)
        assert report.patterns == 0 and report.matrices_missing == [MATMUL.name]
        assert "may be any of 2 nests" in report.problems[0]
        assert add_coded(db.index, [MATMUL, other]).adopted_runs == 0


def test_a_file_that_is_no_nest_costs_itself_alone(tmp_path: Path) -> None:
    files = save_nests(tmp_path / "nests" / "all.json", [MATMUL]).parent
    (files / "readme.json").write_text('{"hello": 1}')
    (files / "wrong.c").write_text("int main(void) { return 0; }")
    library = Library(files)
    assert library.subject("nest", MATMUL.name) == MATMUL
    assert sorted(Path(p.partition(":")[0]).name for p in library.problems) == [
        "readme.json",
        "wrong.c",
    ]
    assert library.subject("nest", "nobody") is None and library.subject("matrix", "all") is None


def test_the_example_asks_about_a_stored_nest(tmp_path: Path) -> None:
    nests = list(NESTS.values())
    files = save_nests(tmp_path / "nests" / "all.json", nests).parent
    (files / "a.mtx").write_text("%%MatrixMarket matrix coordinate pattern general\n1 1 1\n1 1\n")
    log = log_of(tmp_path / "runs.jsonl", rows_of(*nests))
    with Database.in_memory() as db:
        report = index_runs(db.index, [log], platform="nest-cpu", matrices=files)
        (state,) = report.answers
        assert (state["kind"], state["patterns"], state["stubs"]) == ("nest", 6, 0)
        assert state["featurizer"] is not None
        assert not any("matri" in line for line in state["missing"])
        assert report.question is not None
        assert report.question.matrix in {nest.name for nest in nests}
        assert report.example.endswith("--platform nest-cpu --op nest")


def test_stubs_alone_say_what_is_missing(tmp_path: Path) -> None:
    with Database.in_memory() as db:
        read(db, log_of(tmp_path / "runs.jsonl", rows_of(MATMUL)))
        (state,) = scope_states(db.index)
        assert "its nests are known by name only" in state["missing"][0]
        assert example(db.index, [state]) is None


def test_a_log_may_hold_both_kinds(tmp_path: Path) -> None:
    matrix = band(30, 2, name="m")
    with Database.in_memory() as db:
        db.store.put_platform(tiny())
        db.store.put_structure(matrix, WorkloadInfo.whole(matrix))
        db.store.append(runs_of(matrix, tiny(), op=SPMM))
        add_coded(db.index, [MATMUL])
        read(db, log_of(tmp_path / "runs.jsonl", rows_of(MATMUL)))
        assert {(p.platform, p.op.kind) for p in db.store.partitions()} == {
            ("tiny", "matrix"),
            ("nest-cpu", "nest"),
        }
        assert (db.store.counts()["structure"], db.store.counts()["nest"]) == (1, 1)
        assert db.problems() == []
