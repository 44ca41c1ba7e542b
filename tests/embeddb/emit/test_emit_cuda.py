"""`embeddb emit` for a GPU: the emitted code on the CPU behind an emulating header, and by nvcc."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("torch", reason="needs the extra learn or cuda")

import torch
from builders import by_law, patterns
from command_line import run_verb
from cuda_cases import KERNELS, csr_of, excess_of, expected, pattern, plans
from cuda_cases import patterns as cases
from emitted_cuda import (
    BAD_ALIGNMENT,
    BAD_ARGUMENT,
    BAD_COLUMNS,
    BAD_POINTERS,
    CHOICE,
    FLAGS,
    NO_MEMORY,
    NO_THREADS,
    OK,
    TOO_FULL,
    Loaded,
    emulated,
    written,
)
from scipy import sparse

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.database import open_database
from embeddb.emit.emit import emit_answer
from embeddb.kernels.cuda.forms import Csr
from embeddb.kernels.cuda.plan import Plan
from embeddb.platforms.platform import load_platform
from embeddb.ranking.answers import keep
from embeddb.ranking.recommendation import Candidate
from indexer.embed import embed
from tuners.rule.learn import learn_rule

needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")

LINES = [line.split() for line in KERNELS.split("\n")[1:-1]]
OPS = list(dict.fromkeys(op for op, _ in LINES))


def cases_of(op: str) -> list[tuple[Config, Plan]]:
    """Configurations of an operation with their plans."""
    found = []
    for (text, config), one in zip(LINES, plans(), strict=True):
        plain = {"grid": "columns", "reorder": "none"} if one.op.name == "spmm" else {}
        if text == op:
            found.append((Config({"block": 64, **plain, **Config.parse(config)}), one))
    return found


def loaded(folder: Path, op: str) -> Loaded:
    library = written(folder, Op.parse(op), [config for config, _ in cases_of(op)])
    return Loaded(folder, library.prefix)


@pytest.mark.gcc
@pytest.mark.slow
@needs_gxx
@pytest.mark.parametrize("op", OPS)
def test_every_kind_equals_scipy(op: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As created and with other values; every kind of format, on degenerate patterns."""
    library = loaded(tmp_path, op)
    taken = []

    def compute(csr: Csr, b: torch.Tensor, x: torch.Tensor | None, out: torch.Tensor) -> None:
        code, matrix = library.create(csr.with_values(torch.full_like(csr.values, 7)))
        assert code == OK
        taken.append(library.configuration(matrix))
        assert library.run(matrix, b, x, torch.clone(out)) == OK
        assert library.update(matrix, csr.values) == OK
        assert library.run(matrix, b, x, out) == OK
        library.call("destroy", matrix)

    for nth, (config, one) in enumerate(cases_of(op)):
        monkeypatch.setenv(CHOICE, str(nth))
        for name, a in cases().items():
            assert excess_of(compute, a, one) <= 1, (name, config)
            assert taken[-1] == str(config)
    assert library.number("emulated_live").value == 0


@pytest.mark.gcc
@pytest.mark.slow
@needs_gxx
def test_infinity_reaches_only_rows_that_have_its_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, a = loaded(tmp_path, "spmv"), pattern(45, 90, [2] * 45, 3)
    for nth, (config, one) in enumerate(cases_of("spmv")):
        monkeypatch.setenv(CHOICE, str(nth))
        x = torch.ones(90)
        x[int(a.indices[0])] = torch.inf
        y = torch.full((45,), torch.nan)
        _, matrix = library.create(csr_of(a, torch.float32))
        assert library.run(matrix, x, None, y) == OK
        exact, _ = expected(one, a, x.double().numpy(), None)
        torch.testing.assert_close(y.double(), torch.from_numpy(exact), msg=str(config))
        library.call("destroy", matrix)


@pytest.mark.gcc
@pytest.mark.slow
@needs_gxx
def test_bad_input_is_a_code_and_nothing_leaks(tmp_path: Path) -> None:
    op, config = Op.parse("spmm:4"), "work=windows,math=fp32,lanes=4,vec=4,cols=1,window=4,unroll=1"
    config = Config({"block": 64, "grid": "columns", "reorder": "none", **Config.parse(config)})
    library = Loaded(tmp_path, written(tmp_path, op, [config]).prefix)
    a = csr_of(cases()["random"], torch.float32)

    def code_of(**changes: torch.Tensor | tuple[int, int]) -> int:
        parts = {"shape": a.shape, "ptr": a.ptr, "idx": a.idx, "values": a.values, **changes}
        return library.create(Csr(**parts))[0]

    assert code_of(shape=(-1, 90)) == code_of(shape=(45, 1 << 31)) == BAD_ARGUMENT
    assert code_of(idx=a.idx[1:]) == BAD_POINTERS
    assert code_of(ptr=a.ptr.flip(0).contiguous()) == BAD_POINTERS
    assert code_of(idx=a.idx - 100) == code_of(shape=(45, 60)) == BAD_COLUMNS
    assert code_of(idx=torch.zeros_like(a.idx)) == BAD_COLUMNS
    allocations = library.number("emulated_allocations")
    for count in range(30):
        allocations.value = count
        code, matrix = library.create(a)
        if code == OK:
            break
        assert code == NO_MEMORY and not matrix
    assert 4 < count < 30
    allocations.value = 1 << 40
    b, d = torch.ones(361), torch.ones(181)
    assert library.run(matrix, b[1:], None, d[:180]) == BAD_ALIGNMENT
    assert library.run(matrix, b[:360], None, d[1:]) == BAD_ALIGNMENT
    assert library.run(None, b[:360], None, d[:180]) == BAD_ARGUMENT
    threads = library.number("emulated_threads")
    threads.value = 32
    code, _ = library.create(a)
    threads.value = 1024  # all libraries of a process share it
    assert code == NO_THREADS


@pytest.mark.gcc
@pytest.mark.slow
@needs_gxx
def test_a_format_of_mostly_zeros_gives_way_to_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ("work=rows,lanes=4,unroll=2,reorder=none", "work=slices,unroll=1,sigma=1")
    configs = [Config({"block": 64, **Config.parse(text)}) for text in texts]
    library = Loaded(tmp_path, written(tmp_path, Op.parse("spmv"), configs).prefix)
    a = csr_of(pattern(6400, 400, ([300] + [0] * 31) * 200, 1), torch.float32)
    for choice in "01":
        monkeypatch.setenv(CHOICE, choice)
        code, matrix = library.create(a)
        assert code == OK and library.configuration(matrix) == str(configs[0])
    alone = Loaded(
        tmp_path / "one", written(tmp_path / "one", Op.parse("spmv"), configs[1:]).prefix
    )
    assert alone.create(a)[0] == TOO_FULL


TESTED = ["spmm:36:f64", "spmm:40:bf16", "spmv", "sddmm:36"]


@pytest.mark.gcc
@pytest.mark.slow
@needs_gxx
@pytest.mark.parametrize("op", TESTED)
def test_its_test_program_passes_and_notices_what_is_wrong(op: str, tmp_path: Path) -> None:
    config, _ = cases_of(op)[0]
    library = written(tmp_path, Op.parse(op), [config])
    done = subprocess.run([emulated(tmp_path, library.prefix, test=True)], capture_output=True)
    assert done.returncode == 0 and b"ok: the largest error" in done.stdout, done.stderr
    without = {**os.environ, "EMULATED_NO_GPU": "1"}
    done = subprocess.run([tmp_path / "test"], capture_output=True, env=without)
    assert done.returncode == 1 and done.stderr.startswith(b"test: no GPU for this test: ")
    source = tmp_path / f"{library.prefix}.cu"
    text = source.read_text()
    fewer = "".join(f" args.{name} -= args.{name} > 5;" for name in ("m", "nnz", "pieces"))
    broken = text.replace("args.B = b;", f"args.B = b;{fewer}")
    assert broken != text
    source.write_text(broken)
    done = subprocess.run([emulated(tmp_path, library.prefix, test=True)], capture_output=True)
    assert done.returncode == 1 and b"not" in done.stderr


@pytest.mark.gcc
@needs_gxx
def test_the_example_of_its_readme_compiles(tmp_path: Path) -> None:
    for op in ("spmm:33", "spmv", "sddmm:28"):
        folder = tmp_path / op.replace(":", "_")
        written(folder, Op.parse(op), [cases_of(op)[0][0]])
        (example,) = re.findall(r"```c\n(.*?)```", (folder / "README.md").read_text(), re.S)
        (folder / "example.c").write_text(example)
        command = ["g++", "-x", "c++", "-fsyntax-only", "-Wall", "-Werror", *FLAGS[3:5]]
        done = subprocess.run([*command, str(folder / "example.c")], capture_output=True, text=True)
        assert not done.returncode, done.stderr


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("op", OPS)
def test_nvcc_compiles_it(op: str, tmp_path: Path) -> None:
    """The first configuration of each operation and value type, and its test program."""
    written(tmp_path, Op.parse(op), [cases_of(op)[0][0]])
    assert "ARCH ?= sm_90" in (tmp_path / "Makefile").read_text()
    command = ["make", "-C", str(tmp_path), "test", "shared", "NVCCFLAGS=-O1 -Werror all-warnings"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


# ---- the verb ------------------------------------------------------------------------------------

ROWS = "block=128,cols=1,grid=columns,lanes=8,reorder=none,stage=direct,unroll=2,vec=4,work=rows"


def test_an_answer_is_written_with_its_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Pattern.from_matrix(sparse.random(50, 40, 0.2, format="csr", random_state=1))
    db, place = str(tmp_path / "runs.db"), tmp_path / "c"
    gpu = load_platform("cuda").at("", {"gpu": "NVIDIA X", "capability": "90"})
    with open_database(db, create=True) as opened:
        opened.store.put_platform(gpu)
        answer = opened.query(made, platform=gpu.id, op="spmm:36")
    words = ["emit", db, "last", "-o", str(place), "--prefix", "fast", "--json"]
    assert run_verb(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"fast.cu", "fast.h", "test.cu", "Makefile", "LICENSE"} <= set(document["files"])
    assert "ARCH ?= sm_90" in (place / "Makefile").read_text()
    library = Candidate(config={"work": "cusparse", "algorithm": "csr2"}, score=0.1, origin="x")
    wide = {**Config.parse(ROWS), "vec": 4, "lanes": 16}
    own = Candidate(config=dict(wide), score=0.2, origin="x")
    better = msgspec.structs.replace(answer, candidates=[library, own], op="spmm:34")
    manifest = emit_answer(better, place, prefix="fast")
    assert manifest.configs == [str(Config(wide).replace(vec=2))]  # 34 columns, so two at a time
    assert "ranks cuSPARSE" in (place / "README.md").read_text()
    assert "ARCH ?= native" in (place / "Makefile").read_text()
    texts = "".join(one.read_text() for one in place.iterdir())
    assert not re.search(r"@[A-Za-z_]+@", texts)
    assert run_verb(["emit", db, "last", "-o", str(place), "--platform", "cuda"]) == 2


def test_an_answer_of_cusparse_is_said_to_be_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, place = str(tmp_path / "runs.db"), tmp_path / "c"
    made = Pattern.from_matrix(sparse.random(50, 40, 0.2, format="csr", random_state=1))
    with open_database(db, create=True) as opened:
        answer = opened.query(made, platform="cuda", op="spmm:32")
        first = Candidate(config={"work": "cusparse", "algorithm": "csr2"}, score=0.1, origin="x")
        keep(opened.index, msgspec.structs.replace(answer, candidates=[first]))
    assert run_verb(["emit", db, answer.id, "-o", str(place)]) == 0
    assert "cuSPARSE (algorithm=csr2,work=cusparse) is ranked first" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "op", "platform", "reason"),
    [
        (ROWS, "spmm:33", "cuda", "33 dense columns are no multiple of vec=4"),
        (ROWS, "nest", "cuda", "no GPU code for nest"),
        (ROWS, "spmm:32", "spade", "code is available for cpu and cuda only"),
        ("work=rows", "spmm:32", "cuda", "'lanes' is missing"),
        ("work=cusparse,algorithm=csr2", "spmm:32", "cuda", "NVIDIA's library"),
        ("work=windows,math=f16,window=16,cols=1,block=64", "spmm:32", "cuda", "no CUDA kernel"),
        ("work=windows,math=bf16,window=16,block=64", "sddmm:32", "cuda", "no CUDA kernel"),
        ("work=windows,math=bf16,window=16,block=64", "sddmm:32:bf16", "cuda", "no CUDA kernel"),
    ],
)
def test_what_cannot_be_emitted_is_said(
    config: str,
    op: str,
    platform: str,
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["emit", "none.db", "--config", config, "--op", op, "--platform", platform]
    assert run_verb([*words, "-o", str(tmp_path / "c")]) in (1, 2)
    stated = capsys.readouterr().err
    assert reason in stated and len(stated.splitlines()) <= 2
    assert not (tmp_path / "c").exists()


#: The default first; which is fastest follows from the length of rows.
CONFIGS = tuple(
    Config.parse(text)
    for text in (
        "work=rows,lanes=32,vec=1,cols=1,stage=direct,unroll=1,block=128,grid=columns,reorder=none",
        "work=pieces,lanes=8,vec=4,cols=1,stage=direct,unroll=1,block=64,grid=columns,reorder=none,"
        "piece=8",
        "work=windows,math=fp32,lanes=8,vec=2,cols=1,window=4,unroll=1,block=64,grid=columns,"
        "reorder=none",
        ROWS,
        "work=cusparse,algorithm=csr2",
        "work=windows,math=tf32,window=8,cols=1,block=64,grid=columns,reorder=none",
    )
)


@pytest.mark.gcc
@needs_gxx
def test_a_pack_chooses_as_its_rule_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of kernels of our own that are as exact as their type, whatever is faster."""
    place, op, gpu = str(tmp_path / "runs.db"), Op("spmm", 32), load_platform("cuda").at("here", {})
    with open_database(place, create=True) as db:
        db.store.put_platform(gpu)
        for one in patterns(8):
            db.store.put_structure(one, WorkloadInfo.whole(one))
            times = [by_law(one, at) for at in range(4)]
            times += [min(times) / 4, min(times) / 5]
            db.store.append(
                Run(one.id, op, gpu.id, config, Measurement(times_s=(seconds,)))
                for config, seconds in zip(CONFIGS, times, strict=True)
            )
        embed(db.index)
    out = tmp_path / "c"
    words = ["emit", place, "--pack", "6", "--op", str(op), "--platform", "cuda", "-o", str(out)]
    assert run_verb([*words, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert set(made["configs"]) == {str(config) for config in CONFIGS[:4]}
    with open_database(place, readonly=True) as db:
        rule = learn_rule(db.index, "cuda", op, 6, allowed=lambda one: one in CONFIGS[:4])
    library, taken = Loaded(out, made["prefix"]), set()
    for one in patterns(8):
        code, matrix = library.create(csr_of(sparse.csr_array(one.to_scipy()), torch.float32))
        assert code == OK and library.configuration(matrix) == str(rule.choose(one))
        taken.add(library.configuration(matrix))
        library.call("destroy", matrix)
    assert len(taken) == 4
