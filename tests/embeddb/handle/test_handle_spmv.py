"""SpMV handles that ask nobody: slices where they pay, one thread where processors are busy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from scipy import sparse

import embeddb
from embeddb.core.config import Config, Op
from embeddb.handle import autotune, kernel_call
from embeddb.handle import compile as of_compile
from embeddb.handle.choice import Choice, choice_of_config
from embeddb.handle.matrix import matrix_of
from embeddb.kernels import build as cpu_build
from embeddb.kernels import called

needs_gcc = pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
pytestmark = [pytest.mark.gcc, needs_gcc]
SPMV = Op("spmv")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and no kernel loaded from another."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    called._library.cache_clear()
    kernel_call._kernel.cache_clear()
    kernel_call._loaded.clear()
    yield tmp_path / "cache" / "embeddb" / "kernels"
    kernel_call._kernel.cache_clear()
    called._library.cache_clear()


def random_matrix(m: int, n: int, nnz: int, dtype: Any = np.float32) -> Any:
    rng = np.random.default_rng(nnz)
    where = (rng.integers(0, m, nnz), rng.integers(0, n, nnz))
    return sparse.coo_array((rng.random(nnz).astype(dtype), where), shape=(m, n)).tocsr()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("columns", "form", "calls"), [(3000, "sell16", 100), (70_000, "sell", 1000)]
)
def test_slices_run_once_they_are_built(
    cache: Path, columns: int, form: str, calls: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = random_matrix(2000, columns, 30_000, dtype)
    x = np.random.default_rng(0).random(columns).astype(dtype)
    f = embeddb.compile(a, "spmv", calls=calls)
    assert f.config is None and list(cache.glob("*.owed"))  # the loss is accounted
    monkeypatch.setattr(autotune, "usual_build_s", lambda: 0.0)
    f = embeddb.compile(a, "spmv", calls=calls)
    assert f.config is not None and f.config["format"] == form and not list(cache.glob("*.owed"))
    tight = 1e-4 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(f(x), a @ x, rtol=tight)
    f.update(2 * a)
    np.testing.assert_allclose(f(x), 2 * (a @ x), rtol=tight)
    x[7] = np.nan
    np.testing.assert_array_equal(np.isnan(f(x)), np.isnan(a @ x))
    monkeypatch.undo()
    assert embeddb.compile(a, "spmv", calls=3).config is None


@pytest.mark.parametrize(
    ("processor", "flags", "said", "gather"),
    [
        ("Intel(R) Xeon(R) Processor", "avx2 avx512f", "Not affected", "hardware"),
        ("Intel(R) Xeon(R) Processor", "avx2 avx512f", "Mitigation: Microcode", "loads"),
        ("Intel(R) Xeon(R) Processor", "avx2 avx512f", None, "loads"),
        ("Intel(R) Xeon(R) CPU E5-2680 v3", "avx2", "Not affected", "loads"),
        ("AMD EPYC", "avx2 avx512f", "Not affected", "loads"),
    ],
)
def test_the_gather_instruction_is_used_where_it_is_fast(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    processor: str,
    flags: str,
    said: str | None,
    gather: str,
) -> None:
    if said is not None:
        (tmp_path / "sampling").write_text(f"{said}\n")
    monkeypatch.setattr(autotune, "_GATHERS", tmp_path / "sampling")
    monkeypatch.setattr(cpu_build, "cpu_model", lambda: processor)
    monkeypatch.setattr(cpu_build, "cpu_flags", lambda: tuple(flags.split()))
    monkeypatch.setattr(autotune, "_gather", autotune._gather.__wrapped__)
    usual = autotune.usual_config(SPMV, matrix_of(random_matrix(2000, 3000, 30_000)))
    assert usual is not None and (usual["format"], usual["gather"]) == ("sell16", gather)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_long_rows_of_wide_matrices_stay_csr(
    cache: Path, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autotune, "usual_build_s", lambda: 0.0)
    a = random_matrix(20, 70_000, 60_000, dtype)
    f = embeddb.compile(a, "spmv", calls=100)
    assert f.config is not None and (f.config["format"], f.config["unroll"]) == ("csr", 4)
    x = np.random.default_rng(0).random(70_000).astype(dtype)
    np.testing.assert_allclose(f(x), a @ x, rtol=1e-4 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize(
    ("usual_length", "long", "length", "window"),
    [(6, 0, 0, 256), (6, 4, 4000, 16_384), (1, 1, 30_000, 0)],
)
def test_slices_of_mostly_fill_are_left_to_scipy(
    cache: Path, usual_length: int, long: int, length: int, window: int
) -> None:
    rng = np.random.default_rng(long)
    rows = [rng.integers(0, 30_000, usual_length) for _ in range(30_000)]
    for at in range(long):
        rows[1000 * at] = rng.integers(0, 30_000, length)
    where = (np.repeat(np.arange(len(rows)), [row.size for row in rows]), np.concatenate(rows))
    values = rng.random(where[0].size, dtype=np.float32)
    a = sparse.coo_array((values, where), shape=(30_000, 30_000)).tocsr()
    assert autotune.window(matrix_of(a)) == window
    usual = autotune.usual_config(SPMV, matrix_of(a))
    assert (None if usual is None else usual["sigma"]) == (window or None)
    small = random_matrix(100, 100, 5000)
    embeddb.compile(small, "spmv", config=autotune.usual_config(SPMV, matrix_of(small)))
    f = embeddb.compile(a, "spmv", calls=100)
    assert f.config == usual
    x = rng.random(30_000, dtype=np.float32)
    np.testing.assert_allclose(f(x), a @ x, rtol=1e-3)


@pytest.mark.parametrize(("processors", "teams"), [(1, False), (2, True)])
def test_first_calls_of_spmv_try_a_team_where_there_is_one(
    processors: int, cache: Path, monkeypatch: pytest.MonkeyPatch, *, teams: bool
) -> None:
    monkeypatch.setattr(cpu_build, "threads_used", lambda _: processors)
    monkeypatch.setattr(autotune, "crowded", lambda: False)
    a = random_matrix(3000, 2000, 30_000)
    one = autotune.usual_config(SPMV, matrix_of(a))
    assert one is not None and one["threads"] == "one"
    embeddb.compile(a, "spmv", config=one)
    f = embeddb.compile(a, "spmv", calls=100)
    x = np.random.default_rng(0).random(2000, dtype=np.float32)
    for _ in range(2 * autotune.TRIED + 1):
        np.testing.assert_allclose(f(x), a @ x, rtol=1e-4)
    assert ("threads=all" in f.why()) == teams
    assert autotune.team_of(SPMV, matrix_of(random_matrix(50, 50, 500)), one) is None
    assert embeddb.compile(a, "spmv", calls=20)._trial is None  # too few to try
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert autotune.team_of(SPMV, matrix_of(a), one) is None


@pytest.mark.parametrize(
    ("rows", "processors", "chunk"), [(9000, 2, 32), (900, 2, 4), (9000, 64, 4)]
)
def test_each_thread_of_a_team_has_work(
    rows: int, processors: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_build, "threads_used", lambda _: processors)
    monkeypatch.setattr(autotune, "crowded", lambda: False)
    held = matrix_of(random_matrix(rows, 3000, 40_000))
    one = autotune.usual_config(SPMV, held)
    assert one is not None and one["threads"] == "one"
    team = autotune.team_of(SPMV, held, one)
    assert team is not None and (team["threads"], team["chunk"]) == ("all", chunk)


@pytest.mark.parametrize(("processors", "rows"), [(1, False), (2, True)])
def test_many_rows_of_mostly_fill_are_left_to_a_team_on_csr(
    processors: int, monkeypatch: pytest.MonkeyPatch, *, rows: bool
) -> None:
    monkeypatch.setattr(cpu_build, "threads_used", lambda _: processors)
    monkeypatch.setattr(autotune, "crowded", lambda: False)
    lengths = np.where(np.arange(40_000) % 40_000 == 0, 200_000, 6)
    where = (np.repeat(np.arange(40_000), lengths), np.arange(lengths.sum()) % 200_000)
    a = sparse.coo_array((np.ones(where[0].size, np.float32), where), shape=(40_000, 200_000))
    held = matrix_of(a)
    assert autotune.window(held) == 0
    usual = autotune.usual_config(SPMV, held)
    assert (None if usual is None else (usual["format"], usual["threads"])) == (
        ("csr", "all") if rows else None
    )
    assert usual is None or autotune.level_with_scipy(SPMV, held, usual)


@pytest.mark.parametrize(
    ("processors", "load", "busy"),
    [(1, 9.0, False), (2, 0.5, False), (2, 2.5, False), (2, 9.0, True), (64, 90.0, False)],
)
def test_one_thread_replaces_a_small_team_on_a_busy_machine(
    processors: int, load: float, *, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_build, "threads_used", lambda _: processors)
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert autotune.crowded() == busy
    held = matrix_of(random_matrix(50, 50, 500))
    usual = autotune.usual_config(Op("spmm", 32), held)
    threads = None if usual is None else usual["threads"]
    assert threads == ("one" if busy else "all")


def test_an_answer_for_a_busy_machine_is_launched_on_one_thread(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = Config.parse("order=ik1jk0,format=bcsr,block=4x1,ktile=16,threads=all,schedule=static")
    pieces = Config.parse(
        "order=pk1k0,format=csr,ktile=16,unroll=1,threads=all,seams=fixup,pieces=8"
    )

    def asked(pattern: Any, op: Op, *_: object, **__: object) -> Choice:
        return choice_of_config(team, pattern, op)

    monkeypatch.setattr(of_compile, "query_choice", asked)
    monkeypatch.setattr(of_compile, "crowded", lambda: True)
    a = random_matrix(300, 200, 9000)
    b = np.random.default_rng(1).random((200, 16), dtype=np.float32)
    f = embeddb.compile(a, "spmm", k=16, calls=1e6, build=True)
    assert f.config is not None and f.config["threads"] == "one" and "schedule" not in f.config
    assert "busy" in f.why()
    np.testing.assert_allclose(f(b), a @ b, rtol=1e-4)
    assert embeddb.compile(a, "spmm", k=16, build=True).config["threads"] == "all"  # type: ignore[index]
    assert autotune.one_thread(pieces) == pieces  # its loops need a team
    team = pieces
    f = embeddb.compile(a, "spmm", k=16, calls=1e6, build=True)
    assert f.config is not None and f.config["threads"] == "one"
    assert f"not {pieces}: it needs several threads" in f.why() and "one thread: " not in f.why()
    np.testing.assert_allclose(f(b), a @ b, rtol=1e-4)
    team = f.config
    held, op = matrix_of(a), Op("spmm", 16)
    single = replace(choice_of_config(team, held.pattern, op), default=dict(team))
    assert autotune.alone(single, op, held) == single  # nothing changes, nothing is said
    more = replace(single, others=[{**team, "threads": "all"}])
    (other,) = autotune.alone(more, op, held).others
    assert other["threads"] == "one"


_COUNT = """
import os
os.sched_setaffinity(0, {{{processors}}})
import numpy as np, embeddb
from scipy import sparse
a = sparse.random_array((4000, 4000), density=0.01, format="csr", dtype=np.float32)
config = "order=ijk,format=csr,threads=all,schedule=static"
f = embeddb.compile(a, "spmm", k=8, config=config)
before = len(os.listdir("/proc/self/task"))
f(np.ones((4000, 8), np.float32))
print(len(os.listdir("/proc/self/task")) - before + 1)
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
def test_threads_are_as_many_as_the_affinity_allows(cache: Path) -> None:
    own = sorted(os.sched_getaffinity(0))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    for processors in {1: own[:1], len(own): own}.values():
        text = _COUNT.format(processors=", ".join(map(str, processors)))
        command = [sys.executable, "-c", text]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        assert int(done.stdout) == len(processors)


def test_a_carried_cache_serves_slices_without_a_compiler(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = random_matrix(2000, 3000, 30_000)
    usual = autotune.usual_config(SPMV, matrix_of(a))
    assert not called.is_built(usual, SPMV)
    embeddb.compile(a, "spmv", config=usual)
    monkeypatch.setattr(cpu_build, "compiler", lambda: None)
    kernel_call._kernel.cache_clear()
    kernel_call._loaded.clear()
    f = embeddb.compile(a, "spmv", calls=100)
    assert f.config == usual
    x = np.random.default_rng(0).random(3000, dtype=np.float32)
    np.testing.assert_allclose(f(x), a @ x, rtol=1e-4)
