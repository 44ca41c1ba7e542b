"""`embeddb kernel import` and `embeddb kernel show`, as people type them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import run_verb
from hlo_texts import FOLDER, PERMUTED, PLAIN
from nest_logs import log_of
from played_xla import HERE, chain, played
from tile_kernels import Kernel

from embeddb.core.config import Config, Op
from embeddb.core.records import WorkloadInfo
from embeddb.database import Database
from embeddb.tensors.tensor_text import tensor_from_text
from embeddb.ui.cli.arguments import resolve_workloads
from indexer.frontends.hlo.files import read_tensors
from indexer.frontends.hlo.printer import hlo_text
from indexer.programs import tensors
from indexer.tensor_runs import FusionJob, FusionRequest

MLP = str(FOLDER / "mlp.before.txt")
TOML = """
name = "toy-tiles"
version = "1"
title = "A toy"

[[space]]
kernels = ["tile"]

[space.params]
t1 = { type = "int", values = [0, 8, 16] }

[space.default]
t1 = 0
"""


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert run_verb(words) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    capsys.readouterr()
    return run_verb(words), capsys.readouterr().err


def test_cuts_in_a_log_are_judged_by_their_own_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, log = str(tmp_path / "t.db"), tmp_path / "cuts.csv"
    with Database.create(tmp_path / "t.db") as made:
        for program in (
            replace(chain(6), name="six", group="a"),
            replace(chain(9), name="nine", group="b"),
        ):
            made.store.put_structure(program, WorkloadInfo.whole(program))
    rows = ["six,5:80,1", "six,whole,2", "nine,8:80,1", "nine,5:80,1"]
    log.write_text("\n".join(["matrix,cut,time_ms", *rows]) + "\n")
    words = ("index", db, str(log), "--platform", "xla-cpu", "--op", "fusion", "--json")
    (told,) = printed(capsys, *words)["files"]
    (why,) = told["reasons"]
    assert told["added"] == 3 and why.startswith(
        "is the cut of another program: it has 5 edges, not 8"
    )


def test_programs_are_on_no_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = str(tmp_path / "t.db")
    with Database.create(tmp_path / "t.db") as made:
        FusionJob(played(made.index), FusionRequest(cuts=6)).programs([chain(6)])
    words = (
        "plot",
        "map",
        db,
        "--platform",
        HERE.id,
        "--op",
        "fusion",
        "-o",
        str(tmp_path / "m.svg"),
    )
    code, said = refused(capsys, *words)
    assert code == 3 and "programs have no embedding to draw" in said


def test_what_is_there_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = str(tmp_path / "t.db")
    assert run_verb(["kernel", "import", db, MLP]) == 0
    told = printed(capsys, "kernel", "show", db, "--json")
    assert [(one["name"], one["kind"]) for one in told] == [("mlp", "program")]
    assert run_verb(["kernel", "show", db]) == 0
    assert "mlp" in capsys.readouterr().out
    code, said = refused(capsys, "kernel", "show", db, "--kind", "kernel")
    assert code and "kernel import" in said


def test_a_dump_once_and_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db, dump = str(tmp_path / "t.db"), tmp_path / "dump"
    dump.mkdir()
    for when, name in (("before", "before"), ("after", "cpu_after")):
        place = dump / f"module_0001.jit_mlp.{name}_optimizations.txt"
        shutil.copy(FOLDER / f"mlp.{when}.txt", place)
    first = printed(capsys, "kernel", "import", db, str(dump), "--group", "mlps", "--json")
    kinds = [(one["kind"], one["group"]) for one in first["added"]]
    assert sorted(kinds) == [("kernel", "mlps")] * 7 + [("program", "mlps")]
    again = printed(capsys, "kernel", "import", db, str(dump), "--json")
    assert again["added"] == [] and len(again["known"]) == 8
    assert run_verb(["kernel", "import", db, str(dump)]) == 0
    assert "8 already stored" in capsys.readouterr().out
    assert printed(capsys, "db", "stat", db, "--json")["counts"]["tensor"] == 8
    assert run_verb(["db", "check", db]) == 0
    assert "no problems" in capsys.readouterr().out


def test_what_is_known_keeps_its_name_and_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, copy = str(tmp_path / "t.db"), tmp_path / "copy.hlo"
    assert run_verb(["kernel", "import", db, MLP]) == 0
    copy.write_text(Path(MLP).read_text().replace("HloModule jit_mlp", "HloModule jit_other"))
    told = printed(capsys, "kernel", "import", db, str(copy), "--group", "mine", "--json")
    assert [(one["name"], one["group"]) for one in told["known"]] == [("mlp", "mlp")]
    assert told["notes"] == ["--group is for new kernels; 1 stored before keep theirs: mlp in mlp"]
    assert printed(capsys, "kernel", "show", db, "mlp", "--json")["group"] == "mlp"
    assert "notes" in told and run_verb(["kernel", "import", db, MLP, "--group", "mlp"]) == 0
    assert "keep theirs" not in capsys.readouterr().err


def test_programs_of_a_dump_are_taken_once_and_others_of_a_name_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, dump = str(tmp_path / "t.db"), tmp_path / "dump"
    dump.mkdir()
    after = dump / "module_0001.jit_mlp.cpu_after_optimizations.txt"
    shutil.copy(MLP, dump / "module_0001.jit_mlp.before_optimizations.txt")
    shutil.copy(FOLDER / "mlp.after.txt", after)
    done = printed(capsys, "kernel", "import", db, str(dump), "--kind", "program", "--json")
    assert [one["name"] for one in done["added"]] == ["mlp"]
    assert run_verb(["kernel", "import", db, str(after), "--kind", "program"]) == 0
    code, said = refused(capsys, "kernel", "show", db, "mlp")
    assert code == 2 and "2 patterns are called mlp (give an id: " in said
    assert "program of 38 operations, 615,968 flops, gives f32[32,10]" in said
    assert "program of 28 operations, 616,288 flops" in said and said.count("\n") == 1


def test_programs_are_cut_into_kernels_beside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = str(tmp_path / "t.db")
    done = printed(capsys, "kernel", "import", db, MLP, "--cut", "--json")
    names = [(one["kind"], one["name"], one["group"]) for one in done["added"]]
    assert names[0] == ("program", "mlp", "mlp")
    assert names[1:] == [("kernel", f"mlp/{at}", "mlp") for at in range(len(names) - 1)]
    assert len(names) > 2
    code, said = refused(capsys, "kernel", "import", db)
    assert code == 2 and "--ours" in said and said.count("\n") <= 2


def test_an_operation_that_no_kernel_has_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(
        "HloModule m\n\nENTRY main {\n  x = f32[8] parameter(0)\n"
        "  t = (f32[3], s32[3]) topk(x), k=3, largest=true\n"
        "  ROOT y = f32[3] get-tuple-element(t), index=0\n}\n"
    )
    assert run_verb(["kernel", "import", str(tmp_path / "t.db"), str(file), "--cut"]) == 0
    assert "m: no kernel has topk t: several results" in capsys.readouterr().err


def test_a_kernel_and_a_program_of_one_name_are_told_apart_by_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, kernel = str(tmp_path / "t.db"), tmp_path / "mlp.json"
    assert run_verb(["kernel", "import", db, MLP]) == 0
    shown = printed(capsys, "kernel", "show", MLP, "--kind", "kernel", "--json")
    kernel.write_text(json.dumps(shown["tensor"]))
    assert run_verb(["kernel", "import", db, str(kernel)]) == 0
    code, said = refused(capsys, "kernel", "show", db, "mlp")
    assert code == 2 and "a kernel and a program are called mlp (choose one: --kind" in said
    for kind in ("kernel", "program"):
        shown = printed(capsys, "kernel", "show", db, "mlp", "--kind", kind, "--json")
        assert shown["kind"] == kind


def test_our_own_programs_are_imported_and_found_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "program_names", lambda: ["gcn.small", "vae.small"])
    db = str(tmp_path / "t.db")
    done = printed(capsys, "kernel", "import", db, "--ours", "--json")
    named = [(one["name"], one["group"]) for one in done["added"]]
    assert named == [("gcn.small", "gcn"), ("vae.small", "vae")]
    assert printed(capsys, "kernel", "show", db, "vae.small", "--json")["kind"] == "program"


def test_probes_are_imported_as_kernels_of_their_own_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = tensors.probes()[::500]
    monkeypatch.setattr(tensors, "probes", lambda: some)
    db = str(tmp_path / "t.db")
    done = printed(capsys, "kernel", "import", db, "--probes", "--json")
    assert [one["id"] for one in done["added"]] == [one.id for one in some]
    assert {one["kind"] for one in done["added"]} == {"kernel"}
    assert all(one["group"].startswith("probe.") for one in done["added"])
    # Their tiles are measured where they are named alone.
    _, said = refused(capsys, "kernel", "measure", db)
    assert "no tensor kernel is stored" in said


def test_files_that_are_cut_off_are_noted_beside_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, dump = str(tmp_path / "t.db"), tmp_path / "dump"
    dump.mkdir()
    text = Path(MLP).read_text()
    (dump / "whole.txt").write_text(text)
    (dump / "half.txt").write_text(text[: len(text) // 2])
    done = printed(capsys, "kernel", "import", db, str(dump), "--json")
    assert len(done["added"]) == 1
    assert len(done["notes"]) == 1 and "half.txt" in done["notes"][0]
    code, said = refused(capsys, "kernel", "import", db, str(dump / "half.txt"))
    assert code == 1 and "half.txt" in said and said.count("\n") == 1
    (dump / "whole.txt").unlink()
    code, said = refused(capsys, "kernel", "import", db, str(dump))
    assert code == 1 and "has no kernel and no program" in said


def test_show_from_a_file_and_from_a_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = str(tmp_path / "t.db")
    assert run_verb(["kernel", "import", db, MLP]) == 0
    told = printed(capsys, "kernel", "show", db, "mlp", "--json")
    assert (told["kind"], told["flops"], told["transcendentals"]) == ("program", 615968, 320)
    assert told == printed(capsys, "kernel", "show", MLP, "--json")
    made = tensor_from_text(json.dumps(told["tensor"]))
    assert made.id == told["id"] and len(told["operations"]) == len(made.operations)
    assert run_verb(["kernel", "show", db, "mlp"]) == 0
    shown = capsys.readouterr().out
    assert "615,968 flops, 320 transcendental calls" in shown and "exponential" in shown
    assert run_verb(["kernel", "show", db, told["id"], "--as", "json"]) == 0
    assert tensor_from_text(capsys.readouterr().out) == made
    assert run_verb(["kernel", "show", db, "mlp", "--as", "hlo"]) == 0
    written = tmp_path / "again.hlo"
    written.write_text(capsys.readouterr().out)
    assert read_tensors(written).tensors == (made,)


def test_a_database_keeps_the_order_of_parameters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, file = tmp_path / "t.db", tmp_path / "m.hlo"
    file.write_text(PERMUTED.lstrip())
    (made,) = read_tensors(file).tensors
    with Database.create(db) as opened:  # as earlier versions stored it
        opened.index.add_patterns([replace(made, signature=None)])
    assert run_verb(["kernel", "show", str(db), "m", "--as", "hlo"]) == 0
    assert "// parameter 0 = x" in capsys.readouterr().out
    assert run_verb(["kernel", "import", str(db), str(file)]) == 0
    assert "1 already stored" in capsys.readouterr().out
    assert run_verb(["kernel", "show", str(db), "m", "--as", "hlo"]) == 0
    assert capsys.readouterr().out == hlo_text(made)


def test_what_cannot_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = str(tmp_path / "t.db")
    assert run_verb(["kernel", "import", db, MLP]) == 0
    assert "no such file" in refused(capsys, "kernel", "show", db, "other")[1]
    code, said = refused(capsys, "kernel", "show", db, "--as", "hlo")
    assert code == 2 and "which kernel" in said
    code, said = refused(capsys, "kernel", "show", str(FOLDER / "mlp.after.txt"))
    assert code == 2 and "has 7 kernels" in said
    code, said = refused(capsys, "kernel", "show", MLP, "other")
    assert code == 3 and "there are: mlp" in said
    code, said = refused(capsys, "kernel", "show", str(FOLDER / "scan.before.txt"), "--as", "hlo")
    assert code == 1 and "cannot be written as HLO" in said


def test_logs_find_their_kernels_in_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, toml, db = tmp_path / "files", tmp_path / "toy.toml", str(tmp_path / "t.db")
    files.mkdir()
    toml.write_text(TOML)
    shutil.copy(FOLDER / "mlp.after.txt", files)
    (files / "readme.txt").write_text("not HLO")
    kernel = read_tensors(FOLDER / "mlp.after.txt").tensors[0]
    rows = [(kernel.name, Config({"t1": t1}), 1e-3 + t1) for t1 in (0, 8, 16)]
    log = log_of(tmp_path / "runs.jsonl", rows, op="tile")
    done = printed(
        capsys,
        *("index", db, str(log), "--platform", str(toml), "--matrices", str(files), "--json"),
    )
    assert done["files"][0]["rejected"] == 0 and not done["matrix_problems"]
    with Database.open(db, readonly=True) as opened:
        assert opened.problems() == []
        assert opened.store.tensor(kernel.id) == kernel
        runs = list(opened.store.runs("toy-tiles", Op("tile"), kernel.id))
        assert len(runs) == 3


def test_import_takes_the_runs_of_stubs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toml, db = tmp_path / "toy.toml", str(tmp_path / "t.db")
    toml.write_text(TOML)
    kernel = read_tensors(FOLDER / "mlp.after.txt").tensors[0]
    log = log_of(tmp_path / "runs.jsonl", [(kernel.name, Config({"t1": 8}), 1e-3)], op="tile")
    assert run_verb(["index", db, str(log), "--platform", str(toml)]) == 0
    done = printed(capsys, "kernel", "import", db, str(FOLDER / "mlp.after.txt"), "--json")
    assert done["adopted_runs"] == 1


def test_a_file_is_what_the_operation_runs_on(tmp_path: Path) -> None:
    (tmp_path / "dense.txt").write_text(PLAIN)
    assert run_verb(["kernel", "import", str(tmp_path / "t.db"), MLP]) == 0
    with Database.open(tmp_path / "t.db", readonly=True) as db:
        (kernel,) = resolve_workloads(db, str(tmp_path / "dense.txt"), Op("tile"))
        (program,) = resolve_workloads(db, str(tmp_path / "dense.txt"), Op("fusion"))
        several = resolve_workloads(db, str(FOLDER / "mlp.after.txt"), Op("fused"))
    assert (kernel.kind, program.kind, len(several)) == ("kernel", "program", 7)


def test_a_program_that_is_taken_as_one_kernel_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy, db, whole = tmp_path / "toy.toml", str(tmp_path / "t.db"), str(tmp_path / "one.hlo")
    toy.write_text(TOML, encoding="utf-8")
    assert run_verb(["kernel", "import", db, MLP]) == 0
    asks = ("--platform", str(toy), "--op", "tile")
    told = refused(capsys, "query", db, MLP, *asks)[1]
    assert f"{MLP} is a whole program, here taken as one kernel" in told
    assert "--cut` stores the 3 kernels" in told
    kernel = read_tensors(FOLDER / "mlp.after.txt").tensors[0]
    Path(whole).write_text(hlo_text(kernel))
    assert "whole program" not in refused(capsys, "query", db, whole, *asks)[1]
    code, told = refused(capsys, "query", db, "mlp", *asks)
    assert (
        code == 2
        and "mlp is a program, not a kernel (`embeddb kernel import DB FILE --cut`" in told
    )
    assert run_verb(["kernel", "import", db, MLP, "--cut"]) == 0
    assert "its kernels are mlp/0 and on" in refused(capsys, "query", db, "mlp", *asks)[1]


def test_an_answer_about_a_file_is_explained_by_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy, db, cut = tmp_path / "toy.toml", str(tmp_path / "t.db"), tmp_path / "cut.hlo"
    toy.write_text(TOML, encoding="utf-8")
    assert run_verb(["init", db]) == 0
    code, said = refused(capsys, "explain", db, MLP)
    assert code == 3 and "was never queried" in said
    assert run_verb(["query", db, MLP, "--platform", str(toy), "--op", "tile"]) == 3
    capsys.readouterr()
    assert run_verb(["explain", db, MLP]) == 0
    told = capsys.readouterr().out
    assert "no evidence on any other: `embeddb measure` or `embeddb tune` runs some" in told
    assert "ask again with" not in told
    cut.write_text(Path(MLP).read_text()[:300])
    code, said = refused(capsys, "explain", db, str(cut))
    assert code == 1 and "cut.hlo" in said and "never asked" not in said


def test_what_cannot_be_compared_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy, db = tmp_path / "toy.toml", str(tmp_path / "t.db")
    toy.write_text(TOML, encoding="utf-8")
    one, other = read_tensors(FOLDER / "mlp.after.txt").tensors[:2]
    log = log_of(tmp_path / "runs.jsonl", [(one.name, Config({"t1": 0}), 1e-3)], op="tile")
    files = ("--matrices", str(FOLDER))
    assert run_verb(["index", db, str(log), "--platform", str(toy), *files]) == 0
    assert run_verb(["kernel", "import", db, str(FOLDER / "mlp.after.txt"), MLP]) == 0
    capsys.readouterr()
    asks = ("--platform", "toy-tiles", "--op", "tile")
    assert run_verb(["query", db, other.name, *asks]) == 3
    told = capsys.readouterr()
    assert "there are runs of tile on toy-tiles, of too few tensor kernels that can be" in told.err
    assert "warning: 1 measured pattern can be compared, too few to vote; the answer" in told.out
    code, said = refused(capsys, "query", db, "mlp", "--platform", "xla-cpu", "--op", "fusion")
    assert code == 3 and "programs are not compared with each other: `embeddb tune" in said
    assert "embeddb embed" not in said
    assert run_verb(["db", "check", db]) == 0
    assert "embeddb embed" not in capsys.readouterr().err


def test_where_nothing_could_be_measured_it_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = str(tmp_path / "t.db")
    k = Kernel()
    gather = k.done(k.op("gather", (4, 5), k.given(9, 5), k.given(4, dtype="s32")), name="picked")
    with Database.create(db) as opened:
        opened.index.add_pattern(gather)
    for verb in (["kernel", "measure", db], ["tune", db, "picked", "--op", "tile"]):
        code, said = refused(capsys, *verb)
        assert code == 1 and "picked has no tiles" in said
        assert "nothing could be measured (picked: gather: gather is not supported)" in said
    capsys.readouterr()
    assert run_verb(["kernel", "measure", db, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["skipped"] == {
        "picked": "gather: gather is not supported"
    }


def test_where_nothing_ran_what_makes_runs_of_kernels_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, toy = str(tmp_path / "t.db"), tmp_path / "toy.toml"
    toy.write_text(TOML, encoding="utf-8")
    assert run_verb(["init", db]) == 0
    code, told = refused(capsys, "query", db, MLP, "--platform", str(toy), "--op", "tile")
    assert code == 3 and "no evidence: there are no runs" in told
    assert "`embeddb measure` makes some, `embeddb kernel measure` those of many" in told
