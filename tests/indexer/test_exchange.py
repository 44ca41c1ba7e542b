"""A database out and in again: nothing lost, nothing twice, nothing illegal let in."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pytest

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError, NothingFound, ReaderError, UsageError
from embeddb.core.pattern import Pattern, stub_id
from embeddb.core.records import ARRAYS, OF_PROGRAM, Measurement, Run, WorkloadInfo
from embeddb.database import Database
from embeddb.platforms.platform import load_platform
from indexer.exchange.exchange import export, export_file, import_file
from indexer.ingest import ingest

SPMM, SPMV = Op("spmm", 32), Op("spmv")
CPU = load_platform("cpu").at("here", {"compiler": "gcc"})
FORMATS = load_platform("spmv-formats@V100")
STUB = stub_id("é\x1b", 9, 9, 9)


def filled() -> Database:
    db = Database.in_memory()
    rng = np.random.default_rng(3)
    default = CPU.default(SPMM)
    dynamic = default.replace(schedule="dynamic", chunk=4)
    configs = [default, dynamic, default.replace(schedule="guided")]
    for i in range(3):
        indices = np.sort(rng.choice(50, size=20, replace=False))
        indptr = np.linspace(0, 20, 11).astype(np.int64)
        pattern = Pattern.from_csr((10, 50), indptr, indices, name=f"p{i}", group="g")
        times = [(1e-3 * (i + 1), 2e-3), (3e-3,), ()]
        runs = [
            Run(pattern.id, SPMM, CPU.id, config, Measurement("ok" if t else "crash", t), "c")
            for config, t in zip(configs, times, strict=True)
        ]
        db.index.record(runs, pattern, CPU)
    db.store.put_platform(FORMATS)
    stub = WorkloadInfo(id=STUB, m=9, n=9, nnz=9, name="é\x1b", stub=True, features={"x": 1.5})
    fast = Run(stub.id, SPMV, FORMATS.id, Config({"format": "ell"}), Measurement(times_s=(1e-6,)))
    db.store.append([fast], patterns=[stub])
    return db


def everything(db: Database) -> tuple[set[str], dict[str, WorkloadInfo], list[str]]:
    runs = {run.id for p in db.store.partitions() for run in db.store.runs(p.platform, p.op)}
    return runs, {info.id: info for info in db.store.patterns()}, db.store.platforms()


def test_workloads_that_are_stored_during_an_export_are_complete_in_it(tmp_path: Path) -> None:
    db, late = filled(), Pattern.from_coo((7, 8), np.arange(7), np.arange(7), name="late")

    class Out(io.StringIO):
        def write(self, text: str) -> int:
            if text.startswith('["pattern"') and not db.store.find("late"):
                measured = Measurement(times_s=(1e-3,))
                run = Run(late.id, SPMM, CPU.id, CPU.default(SPMM), measured)
                db.index.record([run], late, CPU)
            return super().write(text)

    out, other = Out(), Database.in_memory()
    report = export(db.index, out, format="jsonl")
    (tmp_path / "all.jsonl").write_text(out.getvalue())
    assert report.patterns == 5
    assert import_file(other.index, tmp_path / "all.jsonl").rejected == 0
    (info,) = other.store.find("late")
    assert (info.id, info.m, info.n, info.nnz) == (late.id, 7, 8, 7)


def test_facts_of_machines_travel(tmp_path: Path) -> None:
    """Those that are known where they are read and not in the file stay."""
    db, other = filled(), Database.in_memory()
    db.store.put_platform(CPU.at(CPU.instance, {"cpu": "x", "l2_bytes": "1048576"}))
    other.store.put_platform(CPU.at(CPU.instance, {"cpu": "x", "wake_us": "7"}))
    export_file(db.index, tmp_path / "all.jsonl")
    import_file(other.index, tmp_path / "all.jsonl")
    found = other.store.platform(CPU.id)
    assert found is not None
    told = {"cpu": "x", "l2_bytes": "1048576", "wake_us": "7"}
    assert told.items() <= found.environment.items()


@pytest.mark.parametrize("name", ["all.jsonl", "all.jsonl.gz"])
def test_nothing_is_lost(tmp_path: Path, name: str) -> None:
    db, other = filled(), Database.in_memory()
    report = export_file(db.index, tmp_path / name)
    assert (report.format, report.patterns, report.runs) == ("jsonl", 4, 10)
    done = import_file(other.index, tmp_path / name)
    assert (done.added, done.duplicates, done.rejected, done.runs) == (10, 0, 0, 10)
    runs, patterns, platforms = everything(db)
    runs2, patterns2, platforms2 = everything(other)
    assert runs2 == runs and platforms2 == platforms
    assert other.store.platform(CPU.id) == CPU
    for key, info in patterns.items():
        copy = patterns2[key]
        assert (copy.m, copy.name, copy.group, copy.stub) == (
            *(info.m, info.name, info.group),
            info.stub,
        )
        assert copy.thumbnail == info.thumbnail
        assert info.features.items() <= copy.features.items()
    again = import_file(other.index, tmp_path / name)
    assert (again.added, again.duplicates) == (0, 10)


def test_vectors_travel_as_features(tmp_path: Path) -> None:
    db, other = filled(), Database.in_memory()
    export_file(db.index, tmp_path / "all.jsonl")
    import_file(other.index, tmp_path / "all.jsonl")
    plug = db.index.featurizers()["stats"]
    ids = [info.id for info in db.store.patterns() if not info.stub]
    mine = db.store.vectors.get("stats", plug.version, ids)
    assert len(mine) == 3
    for key, vector in mine.items():
        info = other.store.pattern(key)
        assert info is not None
        assert np.array_equal(plug.from_info(info), vector)


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = Database.in_memory(), tmp_path / "2.jsonl.gz"
    export_file(filled().index, tmp_path / "1.jsonl.gz")
    import_file(first.index, tmp_path / "1.jsonl.gz")
    export_file(filled().index, second)
    assert second.read_bytes() == (tmp_path / "1.jsonl.gz").read_bytes()
    assert gzip.decompress(second.read_bytes()).startswith(b'{"format":"embeddb"')


def test_an_export_that_is_indexed_as_a_log_names_the_verb_that_reads_it(tmp_path: Path) -> None:
    export_file(filled().index, tmp_path / "1.jsonl.gz")
    with pytest.raises(UsageError, match="which platform ran this") as caught:
        ingest(Database.in_memory().store, tmp_path / "1.jsonl.gz")
    assert f"`embeddb db import DB {tmp_path / '1.jsonl.gz'}`" in caught.value.hint


def test_filters_choose_runs_with_what_they_need(tmp_path: Path) -> None:
    db, out = filled(), io.StringIO()
    report = export(db.index, out, format="jsonl", platform="cpu", op=SPMM)
    assert (report.platforms, report.patterns, report.runs) == ([CPU.id], 3, 9)
    kinds = [json.loads(line)[0] for line in out.getvalue().splitlines()[1:]]
    assert kinds.count("pattern") == 3 and kinds.count("platform") == 1
    assert export(db.index, io.StringIO(), format="csv", platform=FORMATS.id).runs == 1
    with pytest.raises(NothingFound, match="no runs of spmv on cpu"):
        export(db.index, io.StringIO(), format="csv", platform="cpu", op=SPMV)
    with pytest.raises(UsageError):
        export(db.index, io.StringIO(), format="parquet")


def test_other_formats_are_written_by_their_ending(tmp_path: Path) -> None:
    db = filled()
    export_file(db.index, tmp_path / "all.csv", platform="cpu")
    report = ingest(Database.in_memory().store, tmp_path / "all.csv", platform=CPU)
    assert (report.added, report.rejected) == (9, 0)
    assert export_file(db.index, tmp_path / "all.json").format == "t4"
    assert "EMBEDDB_BEST_H" in _text(db, tmp_path / "best.h")
    with pytest.raises(UsageError, match="no export format has this file ending"):
        export_file(db.index, tmp_path / "all.txt")


def _text(db: Database, path: Path) -> str:
    export_file(db.index, path)
    return path.read_text()


def test_a_failed_export_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    path.write_text("precious")
    with pytest.raises(NothingFound):
        export_file(filled().index, path, platform="none")
    assert path.read_text() == "precious"
    assert [file.name for file in tmp_path.iterdir()] == ["all.jsonl"]
    with pytest.raises(InputError, match="cannot be written"):
        export_file(filled().index, tmp_path / "no" / "such" / "all.jsonl")


def test_what_cannot_be_used_is_rejected_with_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    export_file(filled().index, path)
    # An open choice takes new values, but no value of another kind.
    text = path.read_text().replace('"chunk":4', '"chunk":3').replace('"ell"', '"non sense!"')
    text = text.replace(STUB, "zz" * 16)
    path.write_text(text)
    report = import_file(Database.in_memory().index, path)
    assert report.added == 6 and report.rejected == 5
    rejects = [json.loads(line) for line in Path(report.rejects_file).read_text().splitlines()]
    assert len(rejects) == 5
    reasons = " ".join(r["reason"] for r in rejects)
    assert "parameter 'chunk': 3" in reasons and "no id of a pattern" in reasons
    assert "non sense!" in reasons


def test_a_changed_platform_does_not_replace_the_stored_one(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    export_file(filled().index, path)
    path.write_text(path.read_text().replace("values = [1, 8, 64]", "values = [1, 8]"))
    db = filled()
    report = import_file(db.index, path)
    assert report.added == 0
    assert report.rejected == 1 and report.duplicates == 10
    assert db.store.platform(CPU.id) == CPU


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b'{"format":"embeddb","version":9}\n'])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(ReaderError):
        import_file(Database.in_memory().index, path)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_a_file_that_was_cut_off_is_said(tmp_path: Path, name: str, share: float) -> None:
    path, db = tmp_path / name, Database.in_memory()
    export_file(filled().index, path)
    raw = path.read_bytes()
    path.write_bytes(raw[: int(share * len(raw))])
    with pytest.raises(ReaderError, match=r"end (line )?is missing"):
        import_file(db.index, path, rejects=False)
    if share > 0.9:
        assert db.store.count_runs() >= 9  # those before the end are stored
    assert not list(tmp_path.glob("*.rejects.jsonl"))


def test_a_brief_export_keeps_medians_and_failures(tmp_path: Path) -> None:
    db, other = Database.in_memory(), Database.in_memory()
    pattern = Pattern.from_csr((4, 4), [0, 1, 2, 3, 4], [0, 1, 2, 3], name="eye", group="g")
    times = tuple(1e-3 * (1 + 0.01 * i) for i in (3, 0, 9, 4, 1, 8, 2, 7))
    default = CPU.default(SPMM)
    facts: dict[str, float | str] = {"load": 1.0, ARRAYS: OF_PROGRAM}
    ok = Measurement("ok", times, cpu_max_s=times, context=facts, when=100.6)
    failed = Measurement("oom", error="fill 99 x")
    db.index.record(
        [
            Run(pattern.id, SPMM, CPU.id, default, ok),
            Run(pattern.id, SPMM, CPU.id, default.replace(schedule="guided"), failed),
        ],
        pattern,
        CPU,
    )
    export_file(db.index, tmp_path / "brief.jsonl", brief=True)
    import_file(other.index, tmp_path / "brief.jsonl")
    kept = {r.config: r.measurement for r in other.store.runs(CPU.id, SPMM)}
    short = kept[default]
    assert short.seconds == pytest.approx(ok.seconds, rel=1e-3)
    assert short.times_s == pytest.approx((1e-3, ok.seconds, 1.09e-3), rel=1e-3)
    assert short.of_program  # whether it counts hangs on that
    assert (len(short.context), len(short.cpu_max_s), short.when) == (1, 1, 120.0)
    lost = kept[default.replace(schedule="guided")]
    assert (lost.status, lost.error) == ("oom", "fill 99 x")


def test_a_link_of_the_name_of_the_rejects_is_left_alone(tmp_path: Path) -> None:
    """The name follows from that of the file, and the content is what its author chose."""
    export_file(filled().index, tmp_path / "all.jsonl")
    with (tmp_path / "all.jsonl").open("a") as out:
        out.write("not a record\n")
    (tmp_path / "profile").write_text("mine")
    (tmp_path / "all.jsonl.rejects.jsonl").symlink_to(tmp_path / "profile")
    with pytest.raises(InputError, match=r"rejects\.jsonl: a link where a file of ours would be"):
        import_file(Database.in_memory().index, tmp_path / "all.jsonl")
    assert (tmp_path / "profile").read_text() == "mine"


def test_an_export_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("indexer.exchange.export_formats.write_jsonl", broken)
    for name in ("all.jsonl", "all.jsonl.gz"):
        (tmp_path / name).write_bytes(b"before")
        with pytest.raises(InputError, match=rf"{name}: cannot be written: No space left"):
            export_file(filled().index, tmp_path / name)
        assert (tmp_path / name).read_bytes() == b"before"
    assert len(list(tmp_path.iterdir())) == 2
