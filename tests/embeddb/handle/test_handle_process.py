"""Built code in the user's own process: cache, threads, forks, no compiler."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import embeddb
from embeddb.core.config import Config, Op
from embeddb.core.errors import RunnerUnavailable
from embeddb.handle import autotune, kernel_call
from embeddb.handle import choice as of_choice
from embeddb.handle import compile as of_compile
from embeddb.handle.choice import Choice, choice_of_config
from embeddb.handle.handle import Handle
from embeddb.handle.kernel_call import by_kernel
from embeddb.handle.matrix import matrix_of
from embeddb.index import evidence
from embeddb.index.lookup import Lookup
from embeddb.kernels import build as cpu_build
from embeddb.kernels import called
from embeddb.platforms.platform import load_platform

needs_gcc = pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
pytestmark = [pytest.mark.gcc, needs_gcc]

ROWS = "order=ijk,format=csr,threads=all,schedule=static"
BLOCKS = "block=2x2,format=bcsr,ktile=16,order=ik1jk0,schedule=static,threads=all"
PIECES = "order=pk1k0,format=csr,ktile=16,threads=all,pieces=8,seams=fixup,unroll=1"


@pytest.fixture
def a() -> Any:
    rng = np.random.default_rng(0)
    return sparse.csr_array(rng.random((120, 90), dtype=np.float32) * (rng.random((120, 90)) < 0.3))


@pytest.fixture
def b() -> Any:
    return np.random.default_rng(1).random((90, 16), dtype=np.float32)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and no library loaded from another."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    called._library.cache_clear()
    kernel_call._kernel.cache_clear()
    kernel_call._loaded.clear()
    of_choice._warned.clear()
    yield tmp_path / "cache" / "embeddb" / "kernels"
    called._library.cache_clear()
    kernel_call._kernel.cache_clear()


@pytest.fixture
def empty_db(tmp_path: Path) -> Path:
    from embeddb.database import Database

    Database.create(tmp_path / "x.db").close()
    return tmp_path / "x.db"


def runs_here(f: Handle, a: Any, b: Any) -> None:
    np.testing.assert_allclose(f(b), a @ b, rtol=1e-5)


# -- the cache ---------------------------------------------------------------------------------


def test_the_cache_is_the_users_alone(cache: Path, a: Any, b: Any) -> None:
    runs_here(embeddb.compile(a, "spmm", k=16, config=ROWS), a, b)
    assert cache.stat().st_mode & 0o777 == 0o700
    assert [p.stat().st_mode & 0o077 for p in cache.glob("*.so")] == [0]


@pytest.mark.parametrize("harm", ["half", "empty", "version", "bits"])
def test_a_damaged_object_is_built_anew(cache: Path, a: Any, b: Any, harm: str) -> None:
    embeddb.compile(a, "spmm", k=16, config=ROWS)
    (path,) = cache.glob("*.so")
    data = path.read_bytes()
    path.unlink()  # the old one stays mapped
    harmed = {
        "half": data[: len(data) // 2],
        "empty": b"",
        "version": data.replace(b"embeddb1", b"embeddb0"),
        "bits": data[:5000] + bytes([data[5000] ^ 255]) + data[5001:],
    }
    path.write_bytes(harmed[harm])
    path.chmod(0o700)
    kernel_call._kernel.cache_clear()  # as in the next process
    runs_here(embeddb.compile(a, "spmm", k=16, config=ROWS), a, b)
    assert path.read_bytes()[-32:-24] == b"embeddb1"


def test_a_folder_that_others_write_to_is_not_loaded_from(cache: Path, a: Any, b: Any) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="other users can write here"):
        f = embeddb.compile(a, "spmm", k=16, config=ROWS)
    assert f.config is None
    runs_here(f, a, b)


def test_no_code_for_another_processor_is_run(
    cache: Path, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDDB_MARCH", "x86-64-v4")
    monkeypatch.setattr(cpu_build, "cpu_flags", lambda: ["sse2", "avx", "avx2"])
    with pytest.warns(RuntimeWarning, match="this processor has no"):
        f = embeddb.compile(a, "spmm", k=16, config=ROWS)
    runs_here(f, a, b)


def test_code_for_extensions_of_this_processor_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ["sse2", "sse4_1", "sse4_2", "avx", "avx2", "fma", "bmi1", "bmi2"]
    monkeypatch.setenv("EMBEDDB_MARCH", "x86-64-v3")
    monkeypatch.setattr(cpu_build, "cpu_flags", lambda: own)
    called._require_runnable()
    own.remove("bmi1")
    with pytest.raises(RunnerUnavailable, match="this processor has no bmi, which"):
        called._require_runnable()


def test_objects_are_named_by_processor_and_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {cpu_build._key("int x;", "gcc 1"), cpu_build._key("int x;", "gcc 2")}
    monkeypatch.setattr(cpu_build, "cpu_flags", lambda: ["sse2"])
    names.add(cpu_build._key("int x;", "gcc 1"))
    monkeypatch.setenv("EMBEDDB_MARCH", "x86-64-v2")
    names.add(cpu_build._key("int x;", "gcc 1"))
    assert len(names) == 4


def test_a_cache_without_room_leaves_it_to_scipy(cache: Path, a: Any, b: Any) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file in its place")
    with pytest.warns(RuntimeWarning, match="cannot store compiled kernels"):
        f = embeddb.compile(a, "spmm", k=16, config=ROWS)
    runs_here(f, a, b)


ONE = """
import numpy as np, embeddb
from scipy import sparse
a = sparse.csr_array(np.eye(200, dtype=np.float32))
f = embeddb.compile(a, "spmm", k=16, config={config!r})
b = np.ones((200, 16), np.float32)
assert f.config is not None and (f(b) == b).all()
"""


def test_two_processes_build_the_same_kernel(cache: Path) -> None:
    code = [sys.executable, "-W", "error", "-c", ONE.format(config=ROWS)]
    both = [subprocess.Popen(code) for _ in range(2)]
    assert [process.wait(120) for process in both] == [0, 0]
    assert len(list(cache.glob("*.so"))) == 1 and not list(cache.glob(".build-*"))


# -- who computes ------------------------------------------------------------------------------


def test_without_a_compiler_scipy_computes_and_it_is_said_once(
    cache: Path, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDDB_CC", "no-such-compiler")
    of_choice._warned.clear()
    with pytest.warns(RuntimeWarning, match="no-such-compiler not found"):
        f = embeddb.compile(a, "spmm", k=16)
    assert f.config is None and "no-such-compiler not found" in f.why()
    runs_here(f, a, b)
    runs_here(embeddb.compile(a, "spmm", k=16), a, b)  # warnings are errors here


def test_a_cache_that_is_a_file_leaves_it_to_scipy(
    cache: Path, a: Any, b: Any, empty_db: Path
) -> None:
    cache.parent.parent.mkdir()
    cache.parent.write_text("")
    for calls in (1e9, None):
        of_choice._warned.clear()
        with pytest.warns(RuntimeWarning, match="cannot store compiled kernels"):
            f = embeddb.compile(a, "spmm", k=16, db=empty_db, calls=calls)
        assert f.config is None
        runs_here(f, a, b)


def test_without_a_compiler_a_cache_that_is_carried_along_runs(
    cache: Path, a: Any, b: Any, empty_db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embeddb.compile(a, "spmm", k=16, config=ROWS)
    embeddb.compile(a, "spmm", k=16, config=BLOCKS)
    wanted = embeddb.compile(a, "spmm", k=16, db=empty_db, build=True).config
    monkeypatch.setenv("EMBEDDB_CC", "no-such-compiler")
    kernel_call._kernel.cache_clear()
    called._library.cache_clear()
    for config in (ROWS, BLOCKS):
        f = embeddb.compile(a, "spmm", k=16, config=config)
        assert f.config == Config.parse(config)
        runs_here(f, a, b)
    f = embeddb.compile(a, "spmm", k=16, db=empty_db, calls=1e6)
    assert f.config == wanted
    runs_here(f, a, b)
    with pytest.warns(RuntimeWarning, match="no-such-compiler not found"):
        g = embeddb.compile(a, "spmm", k=16, config=PIECES)  # nobody built it
    assert g.config is None
    runs_here(g, a, b)
    (cache / "compilers").write_text("another\n")
    kernel_call._kernel.cache_clear()
    of_choice._warned.clear()
    with pytest.warns(RuntimeWarning):
        assert embeddb.compile(a, "spmm", k=16, config=ROWS).config is None


def test_asked_to_build_without_a_compiler_a_kernel_of_the_cache_runs(
    cache: Path, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = autotune.usual_config(Op("spmm", 16), matrix_of(a))
    embeddb.compile(a, "spmm", k=16, config=usual)
    chosen(monkeypatch, 4.0)
    monkeypatch.setenv("EMBEDDB_CC", "no-such-compiler")
    kernel_call._kernel.cache_clear()
    f = embeddb.compile(a, "spmm", k=16, calls=1e6, build=True)
    assert f.config == usual and "no-such-compiler not found" in f.why()
    runs_here(f, a, b)


def test_small_problems_are_scipys(a: Any) -> None:
    small = a[:3, :]
    f = embeddb.compile(small, "spmv")
    assert f.config is None and "fewer than" in f.why()
    x = np.ones(90, np.float32)
    np.testing.assert_allclose(f(x), small @ x, rtol=1e-6)


def test_few_calls_do_not_win_a_building_back(
    cache: Path, a: Any, b: Any, empty_db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = embeddb.compile(a, "spmm", k=16, calls=3, db=empty_db)
    assert f.config is None and "does not pay for 3 calls" in f.why()
    assert embeddb.compile(a, "spmm", k=16, build=False, db=empty_db).config is None
    assert not cache.exists()
    f = embeddb.compile(a, "spmm", k=16, calls=3, build=True, db=empty_db)
    assert f.config is not None
    runs_here(f, a, b)
    assert embeddb.compile(a, "spmm", k=16, calls=3, db=empty_db).config is None
    monkeypatch.setattr(autotune, "_ASK_S", 0.0)
    monkeypatch.setattr(autotune, "_PREPARE_S", 0.0)
    assert embeddb.compile(a, "spmm", k=16, calls=3, db=empty_db).config == f.config
    cache.rename(cache.with_name("old"))
    f = embeddb.compile(a, "spmm", k=16, calls=3, db=empty_db)
    assert f.config is None and "building a better" in f.why()
    monkeypatch.setattr(autotune, "usual_build_s", lambda: 0.0)
    assert embeddb.compile(a, "spmm", k=16, calls=3, db=empty_db).config is not None
    assert embeddb.compile(a, "spmm", k=16, calls=0, build=True, db=empty_db).config is not None


def test_few_calls_do_not_wait_for_an_index(
    cache: Path, a: Any, empty_db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_ASK_S", "_PREPARE_S"):
        monkeypatch.setattr(autotune, name, 0.0)
    monkeypatch.setattr(autotune, "usual_build_s", lambda: 0.0)
    once_s = a.nnz * 16 * autotune._SAVED_S
    monkeypatch.setattr(Lookup, "preparing_s", lambda *_: 4 * once_s)
    f = embeddb.compile(a, "spmm", k=16, calls=3, db=empty_db)
    assert f.config is None and "preparing answers" in f.why()
    # Enough calls, or an answer that is kept, are asked for.
    assert embeddb.compile(a, "spmm", k=16, calls=5, db=empty_db).config is not None


def test_what_many_programs_lose_builds_a_kernel(
    cache: Path, a: Any, empty_db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autotune, "_ASK_S", 0.0)
    monkeypatch.setattr(autotune, "_PREPARE_S", 0.0)
    once_s = 3 * a.nnz * 16 * autotune._SAVED_S
    monkeypatch.setattr(autotune, "usual_build_s", lambda: 2.5 * once_s)
    ask = partial(embeddb.compile, a, "spmm", k=16, calls=3, db=empty_db)
    assert [ask().config is None for _ in range(2)] == [True, True]
    (owed,) = cache.glob("*.owed")
    for damage in (b"", b"nan", b"-5", b"1e300", b"x" * 100):
        owed.write_bytes(damage)
        assert ask().config is None
        assert float(owed.read_bytes()) == pytest.approx(once_s, rel=1e-3, abs=1e-6)
    assert ask().config is None
    assert ask().config is not None
    assert not list(cache.glob("*.owed"))


def test_the_usual_kernel_runs_where_asking_does_not_pay(cache: Path, a: Any) -> None:
    a = sparse.csr_array(sparse.vstack([a, a]))
    for kernel, k in (("spmm", 16), ("spmm", 100), ("sddmm", 16)):
        usual = autotune.usual_config(Op(kernel, k), matrix_of(a))
        kernel_of = embeddb.compile(a, kernel, k=k, config=usual)
        f = embeddb.compile(a, kernel, k=k, calls=1)
        assert f.config == kernel_of.config and "already built" in f.why()
        x = np.ones((90, k), np.float32)
        if kernel == "sddmm":
            y = np.ones((240, 16), np.float32)
            np.testing.assert_allclose(f(y, x), 16 * a.data, rtol=1e-5)
        else:
            np.testing.assert_allclose(f(x), a @ x, rtol=1e-5)


@pytest.mark.parametrize(
    ("how", "first", "tries"),
    [
        ({"calls": 100}, False, False),
        ({"calls": 1000}, True, True),
        ({"calls": 1000, "reproducible": True}, True, False),
    ],
    ids=["few calls", "many", "the same bits"],
)
def test_small_spmv_is_tried_beside_scipy(
    cache: Path, a: Any, how: dict[str, Any], first: bool, tries: bool
) -> None:
    a = sparse.csr_array(sparse.vstack([a, a]))
    usual = autotune.usual_config(Op("spmv"), matrix_of(a))
    embeddb.compile(a, "spmv", config=usual)
    f = embeddb.compile(a, "spmv", **how)
    assert f.config == (usual if first else None)
    x = np.random.default_rng(0).random(90, dtype=np.float32)
    for _ in range(12):
        np.testing.assert_allclose(f(x), a @ x, rtol=1e-5)
    assert ("first calls tried" in f.why()) == tries
    assert f.config in (usual, None)


def test_nothing_is_built_where_that_is_forbidden(
    cache: Path, a: Any, empty_db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Config.parse(BLOCKS)
    monkeypatch.setattr(autotune, "usual_build_s", lambda: 0.0)
    monkeypatch.setattr(
        of_compile, "query_choice", lambda held, op, *_: choice_of_config(other, held, op)
    )
    embeddb.compile(a, "spmm", k=16, config=other)
    built = sorted(cache.glob("*.so"))
    f = embeddb.compile(a, "spmm", k=16, calls=1e6, build=False, db=empty_db)
    assert f.config == other and sorted(cache.glob("*.so")) == built


def test_openmp_is_told_to_wait_briefly_unless_the_user_says_how(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from embeddb.kernels.called import _short_waits

    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    with _short_waits():
        assert os.environ["GOMP_SPINCOUNT"] == "2000"
    assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    with _short_waits():
        assert "GOMP_SPINCOUNT" not in os.environ


def test_an_answer_is_asked_once(
    cache: Path, a: Any, empty_db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from embeddb.database import Database

    first = embeddb.compile(a, "spmm", k=16, db=empty_db)
    assert first.answer.startswith("r") and "default of cpu" in first.why()
    kept = list((cache.parent / "choices").glob("*.json"))
    assert len(kept) == 1

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("asked")

    with monkeypatch.context() as patch:
        patch.setattr(Database, "query", refuse)
        assert embeddb.compile(a, "spmm", k=16, db=empty_db).answer == first.answer
    for harmed in (b"", kept[0].read_bytes()[:40], b'{"format": "other"}'):
        kept[0].write_bytes(harmed)
        assert embeddb.compile(a, "spmm", k=16, db=empty_db).answer != first.answer
    with Database.open(empty_db) as db:
        assert embeddb.compile(a, "spmm", k=16, db=db).config == first.config


def _model_in(db: Path, content: bytes = b"damaged") -> Path:
    (db / "models").mkdir(exist_ok=True)
    file = db / "models" / "costmodel-cpu-spmm.safetensors"
    file.write_bytes(content)
    return file


def test_an_answer_of_other_evidence_is_not_reused(
    cache: Path, a: Any, empty_db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def compiled() -> Handle:
        return embeddb.compile(a, "spmm", k=16, db=empty_db)

    first = compiled()
    model = _model_in(empty_db)
    second = compiled()
    assert second.answer not in ("", first.answer) and f"{model.name} is not used" in second.why()
    assert compiled().answer == second.answer
    _model_in(empty_db, b"another")
    third = compiled()
    assert third.answer != second.answer
    model.unlink()
    assert compiled().answer == first.answer
    with monkeypatch.context() as patch:
        patch.setattr(evidence, "FIT_VERSION", "other")
        assert compiled().answer not in (first.answer, second.answer, third.answer)


def test_an_answer_before_facts_of_a_machine_changed_is_not_reused(
    cache: Path, a: Any, empty_db: Path
) -> None:
    from embeddb.database import Database

    answers = []
    for cpu in ("one", "another", "another"):
        with Database.open(empty_db) as db:
            db.store.put_platform(load_platform("cpu").at("elsewhere", {"cpu": cpu}))
        answers.append(embeddb.compile(a, "spmm", k=16, db=empty_db).answer)
    assert answers[0] != answers[1] == answers[2]


def test_an_answer_of_a_database_that_was_in_the_same_place_is_not_reused(
    cache: Path, a: Any, empty_db: Path
) -> None:
    from embeddb.database import Database

    first = embeddb.compile(a, "spmm", k=16, db=empty_db)
    shutil.rmtree(empty_db)
    Database.create(empty_db).close()  # of the same generation
    second = embeddb.compile(a, "spmm", k=16, db=empty_db)
    assert second.answer not in ("", first.answer)
    with Database.open(empty_db) as db:
        assert db.recommendation(second.answer).id == second.answer


def test_a_query_is_not_cached_with_evidence_that_came_during_it(
    cache: Path, a: Any, empty_db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from embeddb.database import Database

    real = Database.query

    def interrupted(db: Database, *args: Any, **how: Any) -> Any:
        answer = real(db, *args, **how)
        _model_in(empty_db)
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(Database, "query", interrupted)
        before = embeddb.compile(a, "spmm", k=16, db=empty_db)
    assert embeddb.compile(a, "spmm", k=16, db=empty_db).answer != before.answer


def test_an_answer_that_was_not_stored_has_no_id(
    cache: Path, a: Any, empty_db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from embeddb.core.errors import StoreLocked
    from embeddb.database import Database, open_database

    def locked(db: Path, *, readonly: bool = False) -> Database:
        if not readonly:
            raise StoreLocked("another process is writing")
        return open_database(db, readonly=True)

    with monkeypatch.context() as patch:
        patch.setattr("embeddb.database.open_database", locked)
        first = embeddb.compile(a, "spmm", k=16, db=empty_db)
    for f in (first, embeddb.compile(a, "spmm", k=16, db=empty_db)):
        assert f.answer == "" and "default of cpu" in f.why()
        assert "not stored" not in f.why()
    assert len(list((cache.parent / "choices").iterdir())) == 1


def test_the_oldest_cached_answers_are_deleted(
    cache: Path, a: Any, empty_db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_choice, "_MOST_CACHED", 3)
    folder = cache.parent / "choices"

    def answer(k: int) -> str:
        return embeddb.compile(a, "spmm", k=k, db=empty_db).answer

    answers = {}
    for k in (16, 17, 18):
        before = set(folder.glob("*"))
        answers[k] = answer(k)
        (new,) = set(folder.iterdir()) - before
        os.utime(new, (k, k))
    with monkeypatch.context() as patch:
        listed = os.listdir
        patch.setattr(os, "listdir", lambda at: [*listed(at), "deleted-by-another-process"])
        answers[19] = answer(19)
    assert len(list(folder.iterdir())) == 3
    assert {k: answer(k) for k in (17, 18, 19)} == {k: answers[k] for k in (17, 18, 19)}
    assert answer(16) != answers[16]


def chosen(monkeypatch: pytest.MonkeyPatch, break_even: float, source: str = "test") -> None:
    """Blocks are the answer, and the default comes next."""
    choice = Choice(
        config=dict(Config.parse(BLOCKS)),
        default=dict(Config.parse(ROWS)),
        others=[dict(Config.parse(PIECES))],
        source=source,
        gain=1.5,
        break_even=break_even,
    )
    monkeypatch.setattr(of_compile, "query_choice", lambda *_, **__: choice)


def test_a_conversion_comes_when_it_pays(a: Any, b: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen(monkeypatch, 4.0)
    f = embeddb.compile(a, "spmm", k=16)
    assert "converts after 4 calls" in f.why()
    formats = []
    for _ in range(6):
        assert f.config is not None
        formats.append(f.config["format"])
        runs_here(f, a, b)
    assert formats == ["csr"] * 5 + ["bcsr"]
    assert "conversion took" in f.why()
    assert embeddb.compile(a, "spmm", k=16, calls=1000, build=True).config == Config.parse(BLOCKS)
    assert embeddb.compile(a, "spmm", k=16, calls=3, build=True).config == Config.parse(ROWS)


@pytest.mark.parametrize("calls", [None, 1000])
def test_reproducible_calls_keep_their_bits(
    a: Any, b: Any, calls: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen(monkeypatch, 4.0)
    f = embeddb.compile(a, "spmm", k=16, calls=calls, reproducible=True, build=True)
    config, first = f.config, f(b)
    assert config == Config.parse(ROWS if calls is None else BLOCKS)
    for _ in range(40):
        assert (f(b) == first).all() and f.config == config
    assert "converts after" not in f.why()
    assert (f"not {Config.parse(BLOCKS)}" in f.why()) == (calls is None)


def test_reproducible_tensors_and_gradients_keep_their_bits(
    a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    chosen(monkeypatch, 4.0)
    csr = (torch.from_numpy(one) for one in (a.indptr, a.indices, a.data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of torch, about its sparse CSR
        matrix = torch.sparse_csr_tensor(*csr, a.shape)
    f = embeddb.compile(matrix, "spmm", k=16, reproducible=True, build=True)
    x = torch.from_numpy(b).requires_grad_()
    values = torch.from_numpy(a.data).clone().requires_grad_()

    def computed() -> list[Any]:
        one, other = f(x), f(x, values=values)
        return [one, other, *torch.autograd.grad((one + other).square().sum(), (x, values))]

    first = computed()
    for _ in range(20):
        assert all(map(torch.equal, computed(), first))
    assert "converts after" not in f.why() and f.why().count("runs: format=csr") == 3


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("measured of cpu@here", "measured"),
        ("fastest of 3 measured here, 0.2 ms a call", "measured"),
        ("neighbours of cpu", "expected"),
    ],
)
def test_a_measured_gain_is_told_from_an_expected_one(
    a: Any, monkeypatch: pytest.MonkeyPatch, source: str, word: str
) -> None:
    chosen(monkeypatch, 4.0, source)
    assert f"{word}: 1.50 times the default" in embeddb.compile(a, "spmm", k=16).why()


def test_the_best_of_few_are_measured(a: Any, b: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen(monkeypatch, 4.0)
    f = embeddb.compile(a, "spmm", k=16, seconds=0.2, build=True)
    assert "measured here" in f.why()
    runs_here(f, a, b)


# -- threads and forks -------------------------------------------------------------------------


def test_threads_call_at_the_same_time(a: Any, b: Any) -> None:
    for config in (ROWS, BLOCKS, PIECES):
        f = embeddb.compile(a, "spmm", k=16, config=config)
        wrong: list[int] = []

        def work(f: Handle = f, wrong: list[int] = wrong) -> None:
            for nth in range(30):
                if not np.allclose(f(b * nth), a @ (b * nth), rtol=1e-4):
                    wrong.append(nth)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


BUSY = """
import os, signal, threading, numpy as np, embeddb
from scipy import sparse
a = sparse.csr_array(np.eye(200, dtype=np.float32))
f = embeddb.compile(a, "spmm", k=16, config={config!r})
with f._changing:  # as in another thread's update
    child = os.fork()
    if not child:
        signal.alarm(20)
        f.update(2 * a)
        os._exit(0 if (f(np.ones((200, 16), np.float32)) == 2).all() else 3)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_child_updates_a_handle_that_its_parent_was_updating() -> None:
    code = BUSY.format(config=ROWS)
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


SETTINGS = """
import ctypes, numpy as np, embeddb
from scipy import sparse
omp = ctypes.CDLL("libgomp.so.1")
a = sparse.csr_array(np.eye(200, dtype=np.float32))
f = embeddb.compile(a, "spmm", k=16, config={config!r})
kind, chunk = ctypes.c_int(), ctypes.c_int()
for threads in (1, 3):
    omp.omp_set_num_threads(threads)
    omp.omp_set_schedule(2, 7)
    f(np.ones((200, 16), np.float32))
    omp.omp_get_schedule(ctypes.byref(kind), ctypes.byref(chunk))
    assert omp.omp_get_max_threads() == threads
    assert (kind.value & 7, chunk.value) == (2, 7)
    import os
    print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
def test_openmp_settings_are_obeyed_and_left_as_they_were() -> None:
    import os

    code = [sys.executable, "-c", SETTINGS.format(config=ROWS)]
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(code, check=True, capture_output=True, text=True, env=env, timeout=120)
    one, three = map(int, done.stdout.split())
    assert three == one + 2


FORKED = """
import ctypes, os, sys, time
def computed():
    import numpy as np, embeddb
    from scipy import sparse
    a, b = sparse.csr_array(np.eye(400, dtype=np.float32)), np.ones((400, 16), np.float32)
    f = embeddb.compile(a, "spmm", k=16, config={config!r})
    return lambda: (f(b) == b).all()
early = computed() if {early} else None
ctypes.CDLL({library!r}).team()
child = os.fork()
if not child:
    os._exit(0 if (early or computed())() else 3)
end = time.monotonic() + 30
while time.monotonic() < end:
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        sys.exit(os.waitstatus_to_exitcode(status))
    time.sleep(0.05)
os.kill(child, 9)
sys.exit("the child waits for threads of its parent")
"""


@pytest.mark.parametrize("early", [True, False], ids=["compiled before", "imported after"])
def test_a_child_computes_after_others_used_openmp_in_the_parent(
    early: bool, tmp_path: Path
) -> None:
    source, library = tmp_path / "team.c", tmp_path / "team.so"
    source.write_text("int sum; void team(void) {\n#pragma omp parallel\n  sum++;\n}\n")
    subprocess.run(["gcc", "-fopenmp", "-shared", "-fPIC", source, "-o", library], check=True)
    script = FORKED.format(config=ROWS, early=early, library=str(library))
    code = [sys.executable, "-W", "ignore", "-c", script]
    env = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(code, capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr


def _in_child(f: Handle, b: Any, queue: Any) -> None:
    queue.put(f(b))


@pytest.mark.parametrize("before", [False, True], ids=["before a call", "after a call"])
def test_a_forked_child_computes(a: Any, b: Any, before: bool) -> None:
    f = embeddb.compile(a, "spmm", k=16, config=ROWS)
    if before:
        f(b)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=_in_child, args=(f, b, queue))
        child.start()
    try:
        np.testing.assert_allclose(queue.get(timeout=60), a @ b, rtol=1e-5)
    finally:
        child.kill()
        child.join()


def test_a_kernel_that_does_not_compile_is_said(a: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from embeddb.core.config import Op
    from embeddb.handle.matrix import matrix_of

    kernel_call._kernel.cache_clear()
    monkeypatch.setattr(called.cpu_codegen, "source", lambda *_, **__: "no C at all")
    with pytest.raises(RunnerUnavailable, match="does not compile"):
        by_kernel(matrix_of(a), Op("spmm", 16), Config.parse(ROWS))


def test_a_compiler_that_comes_later_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = cpu_build.compiler()
    assert real is not None
    monkeypatch.delenv("EMBEDDB_CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cpu_build.compiler() is None
    (tmp_path / "gcc").symlink_to(real[0])
    assert cpu_build.compiler() == (str(tmp_path / "gcc"), real[1])


def test_another_compilers_kernel_is_not_taken_for_this_ones(
    cache: Path, a: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    embeddb.compile(a, "spmm", k=16, config=ROWS)
    path, version = cpu_build.compiler() or ("", "")
    monkeypatch.setattr(cpu_build, "compiler", lambda: (path, f"{version} of another"))
    embeddb.compile(a, "spmm", k=16, config=ROWS)
    assert len(list(cache.glob("*.so"))) == 2
