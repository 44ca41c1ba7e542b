"""What tools count of a kernel, and the verb that shows it beside what is simulated."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from command_line import run_verb

pytest.importorskip("numba")

from embeddb.core.config import Op
from embeddb.core.errors import InputError, NothingFound
from embeddb.core.pattern import Pattern
from embeddb.core.sizes import Sizes
from embeddb.dynamics import TABLE_5, Cache, execution_of, profile
from embeddb.kernels.build import compiler
from embeddb.platforms.platform import load_platform
from indexer.runners.counters import sparse
from indexer.runners.counters.sparse import build_program


def scattered(m: int, n: int, nnz: int) -> Pattern:
    rng = np.random.default_rng(0)
    rows, cols = rng.integers(0, m, nnz), (rng.random(nnz) ** 3 * n).astype(np.int64)
    return Pattern.from_coo((m, n), rows, cols, name="scattered")


# -- tools -----------------------------------------------------------------------------------------

NAMES = "Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw Bc Bcm Bi Bim"


def cachegrind_text(values: Sequence[int]) -> str:
    return f"desc: x\nevents: {NAMES}\nfn=main\n3 1 2 3\nsummary: {' '.join(map(str, values))}\n"


def test_cachegrind_output_is_read() -> None:
    found = sparse.parse_cachegrind(cachegrind_text(range(1, 14)))
    assert found["Ir"] == 1 and found["D1mr"] == 5 and found["Bim"] == 13
    for bad in ("", "events: Ir\nsummary: 5\n", f"events: {NAMES}\nsummary: 1 2\n"):
        with pytest.raises(InputError, match="cachegrind"):
            sparse.parse_cachegrind(bad)


def test_perf_output_is_read() -> None:
    text = (
        "12345,,instructions:u,1,100.00,,\n"
        "<not supported>,,branches:u,0,100.00,,\n"
        "7,,branch-misses:u,1,55.00,,\n"
    )
    names = ["instructions:u", "branches:u", "branch-misses:u", "l1d.replacement:u"]
    found = sparse.parse_perf(text, names)
    assert found["instructions:u"] == 12345.0
    assert "<not supported>" in str(found["branches:u"])
    assert "estimate" in str(found["branch-misses:u"])
    assert "did not report" in str(found["l1d.replacement:u"])


def test_a_counter_that_never_moves_is_none() -> None:
    assert sparse._per_call(100.0, 300.0, 20) == 10.0
    assert "zero" in str(sparse._per_call(0.0, 0.0, 20))
    assert sparse._per_call("no", 3.0, 20) == "no"


@pytest.mark.parametrize("size", [32 << 10, 48 << 10, 1280 << 10, 2 << 20, 33 << 20])
def test_cachegrind_takes_the_geometry(size: int) -> None:
    total, ways, line = map(int, sparse._geometry(size).split(","))
    sets = total // ways // line
    assert total == size and sets * ways * line == size and sets & (sets - 1) == 0


@pytest.mark.gcc
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("valgrind") or not compiler(), reason="needs valgrind, gcc")
def test_the_simulation_agrees_with_cachegrind() -> None:
    """Whole dense rows, one thread: within 5 % in L1; L2 within 15 % (cold against warm)."""
    pattern, op, platform = scattered(3000, 3000, 30000), Op("spmm", 128), load_platform("cpu")
    config = platform.default(op)
    caches = (Cache(1, 48 << 10, False), Cache(2, 1 << 20, False), Cache(3, 32 << 20, True))
    ex, _ = execution_of(platform, op, config, pattern=pattern, threads=1)
    ours = profile(pattern, op, ex, caches=caches)
    theirs = sparse.cachegrind(pattern, op, config, caches=caches)
    for name, tolerance in (("L1D_REPLACEMENT", 0.05), ("L2_LINES_IN_ALL", 0.15)):
        value = theirs.counters[name].value
        assert ours.counters[name].value == pytest.approx(value, rel=tolerance), name
    vectors = pattern.nnz * op.width // 8  # 8 lanes of f32 in AVX2
    assert 2 * vectors < theirs.counters["MEM_INST_RETIRED_ALL_LOADS"].value < 3 * vectors
    assert 2 * vectors < theirs.counters["INSTR_RETIRED_ANY"].value < 12 * vectors
    assert "CAS_COUNT_WR" in theirs.missing and "CAS_COUNT_WR" in ours.counters


# -- the command line ------------------------------------------------------------------------------


@pytest.fixture
def matrix(tmp_path: Path) -> str:
    import scipy.sparse as sp

    path = tmp_path / "A.npz"
    sp.save_npz(path, sp.csr_matrix(scattered(40, 30, 200).to_scipy()))
    return str(path)


def test_the_verb_prints_one_document(matrix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(["dynamics", matrix, "--op", "spmm:16", "--threads", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    page = (Path(__file__).parents[3] / "docs" / "reference" / "json.md").read_text(
        encoding="utf-8"
    )
    assert all(f"`{key}`" in page for key in document)
    assert len(document["vector"]) == len(document["mask"]) == 19
    for name, value, known in zip(TABLE_5, document["vector"], document["mask"], strict=True):
        assert (name in document["counters"]) == known == (value is not None)
    assert document["threads"] == 2 and set(document["counters"]) | set(document["missing"])


def test_the_verb_for_people(matrix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(["dynamics", matrix, "--op", "spmv"]) == 0
    said = capsys.readouterr().out
    assert "imbalance" in said and "no INSTR_RETIRED_ANY: needs a run" in said


def test_a_tool_that_is_not_there_is_a_remark(
    matrix: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse.shutil, "which", lambda name: None)
    asked = ["dynamics", matrix, "--op", "spmv", "--cachegrind", "--perf", "--json"]
    assert run_verb(asked) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert [n.partition(":")[0] for n in notes] == ["cachegrind", "perf"]


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (["--config", "order=nonsense"], 1),
        (["--op", "spmm"], 2),
        (["--platform", "nowhere"], 1),
        (["--threads", "-1"], 2),
    ],
)
def test_bad_requests(
    matrix: str, more: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb(["dynamics", matrix, "--op", "spmm:16", *more]) == code
    error = capsys.readouterr().err
    assert error.startswith("embeddb: ") and error.count("\n") == 1


@pytest.mark.gcc
@pytest.mark.slow
@pytest.mark.skipif(not compiler(), reason="needs gcc")
@pytest.mark.parametrize("kernel", ["spmm:40", "spmv", "sddmm:40:f64"])
def test_the_program_runs_every_form(kernel: str, tmp_path: Path) -> None:
    """Built with bounds checks: a problem file that does not fit the kernel ends it."""
    pattern, op, platform = scattered(70, 9000, 200000), Op.parse(kernel), load_platform("cpu")
    space = platform.space(op, Sizes(70, 9000, pattern.nnz))
    chosen = {}
    for config in space.sample(600, rng=np.random.default_rng(2)):
        chosen.setdefault((config["order"], config["format"], config.get("reorder")), config)
    flags = ("-march=haswell", "-O1", "-fsanitize=address", "-fno-sanitize-recover")
    ran = set()
    for number, config in enumerate(chosen.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            program = build_program(pattern, op, config, folder=folder, threads=3, target=flags)
        except NothingFound as error:
            assert "fill" in str(error)
            continue
        ran.add(config["format"])
        done = subprocess.run(
            [*program, "2"], capture_output=True, text=True, timeout=60,
            env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
        )  # fmt: skip
        assert done.returncode == 0, (config, done.stderr[:2000])
    assert ran >= {"csr", "bcsr", "csc", "dcsr"}
