"""`embeddb emit --pack`: the configurations of a learned rule, chosen among as it does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import OP, by_law, patterns
from command_line import run_verb
from emitted import OK, Loaded

from embeddb.core.config import Config
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.database import Database, open_database
from embeddb.emit import emit
from embeddb.kernels import build as cpu_build
from embeddb.platforms.platform import load_platform
from indexer.embed import embed
from tuners.rule.learn import learn_rule

needs_gcc = pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")

#: The default first; which is fastest follows from the length of rows.
CONFIGS = tuple(
    Config.parse(text)
    for text in (
        "order=ijk,format=csr,threads=all,schedule=static",
        "order=ik1jk0,format=bcsr,block=2x1,ktile=32,threads=one",
        "order=ik1jk0,format=csr,ktile=32,unroll=4,reorder=rcm,threads=one",
        "order=j1ik1j0k0,format=dcsr,jtile=512,ktile=16,threads=all,schedule=guided",
    )
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("pack") / "runs.db")
    cpu = load_platform("cpu").at("here", {"cpu": "*/ one"})
    with open_database(folder, create=True) as db:
        db.store.put_platform(cpu)
        for pattern in patterns(8):
            db.store.put_structure(pattern, WorkloadInfo.whole(pattern))
            times = [by_law(pattern, at) for at in range(4)]
            db.store.append(
                Run(pattern.id, OP, cpu.id, config, Measurement(times_s=(seconds,)))
                for config, seconds in zip(CONFIGS, times, strict=True)
            )
        embed(db.index)
    return folder


@pytest.mark.gcc
@needs_gcc
def test_a_pack_chooses_as_its_rule_does(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "c"
    assert run_verb(["emit", place, "--pack", "4", "--op", str(OP), "-o", str(out), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    with open_database(place, readonly=True) as db:
        rule = learn_rule(db.index, "cpu", OP, 4)
    assert made["configs"] == [str(config) for config in rule.configs]
    assert len(rule.configs) == 4 and made["answer"] == ""
    assert {"embeddb_spmm_f32_rule.h", "embeddb_spmm_f32_kernel_3.c"} <= set(made["files"])
    library = Loaded(out, OP, made["prefix"], "-O3", "-fopenmp")
    taken = set()
    for pattern in patterns(8):
        a = pattern.to_scipy().astype("float32")
        for narrow in (False, True):
            code, matrix = library.create(a, narrow=narrow)
            assert code == OK
            chosen = library.call("configuration", matrix).decode()
            assert chosen == str(rule.choose(pattern))
            library.call("destroy", matrix)
        taken.add(chosen)
    assert len(taken) == 4


def test_a_pack_without_evidence_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, out = str(tmp_path / "empty.db"), tmp_path / "c"
    with open_database(empty, create=True) as db:
        assert isinstance(db, Database)
    words = ["emit", empty, "--op", str(OP), "-o", str(out)]
    assert run_verb([*words, "--pack", "4"]) == 3
    assert "no runs of spmm:32 on cpu" in capsys.readouterr().err
    assert run_verb([*words, "--pack", "13"]) == 2
    assert run_verb([*words, "last", "--pack", "4"]) == 2
    assert run_verb([*words, "--pack", "4", "--platform", "spade"]) == 2
    assert "cpu and cuda" in capsys.readouterr().err
    assert run_verb(["emit", empty, "last", "-o", str(out), "--platform", "cpu"]) == 2
    assert not out.exists()


def test_a_wrong_folder_prefix_or_type_is_refused_before_learning(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def learned(*_: object, **__: object) -> None:
        pytest.fail("learned for minutes")

    monkeypatch.setattr(emit, "learn_rule", learned)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("all of it")
    words = ["emit", place, "--pack", "2"]
    for more, said in (
        (["--op", str(OP), "-o", str(other)], "other contents"),
        (["--op", str(OP), "-o", str(tmp_path / "not" / "there")], "parent folder"),
        (["--op", str(OP), "-o", str(tmp_path / "c"), "--prefix", "a-b"], "prefix"),
        (["--op", "spmv:f16", "-o", str(tmp_path / "c")], "no code for spmv:f16"),
    ):
        assert run_verb([*words, *more]) == 2
        assert said in capsys.readouterr().err


def test_a_pack_reports_its_progress(place: str, tmp_path: Path) -> None:
    seen = []
    with open_database(place, readonly=True) as db:
        emit.emit_pack(
            db.index, OP, tmp_path / "c", most=2, progress=lambda *step: seen.append(step)
        )
    assert len(seen) > 1


@pytest.mark.gcc
@needs_gcc
def test_a_pack_may_be_of_one_machine(place: str, tmp_path: Path) -> None:
    out, words = tmp_path / "c", ["emit", place, "--pack", "2", "--op", str(OP)]
    assert run_verb([*words, "--platform", "cpu@here", "-o", str(out)]) == 0
    assert "on cpu@here" in (out / "README.md").read_text()
    assert run_verb([*words, "--platform", "cpu@there", "-o", str(tmp_path / "d")]) == 3
