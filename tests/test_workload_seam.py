"""The kind of workload of docs/howto/new-kind.md: a dense matrix product, in a folder of plug-ins.

Its runs are indexed, a question is answered, explained and evaluated, all by the code that knows no
kind. Nothing of the packages knows of it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from command_line import run_verb
from serve_site import BASE, TestClient

from embeddb import workloads
from embeddb.core import kinds
from embeddb.core.config import Op
from embeddb.core.errors import NothingFound, PluginWarning, StoreError, UsageError
from embeddb.core.workload import Workload
from embeddb.database import Database, open_database
from embeddb.store import platform_rows
from embeddb.store.withdrawn import RunSelection
from embeddb.testing.workloads import WorkloadKindContract
from embeddb.ui.serve.app import build_app
from indexer.embed import embed
from indexer.exchange.exchange import export_file, import_file

PAGE = (Path(__file__).resolve().parents[1] / "docs/howto/new-kind.md").read_text(encoding="utf-8")
GEMM = "gemm"


def sizes(count: int) -> list[tuple[int, int, int]]:
    """Tall, wide and square products."""
    return [(2 ** (3 + at % 7), 2 ** (9 - at % 7), 16 + 8 * at) for at in range(count)]


def seconds(m: int, n: int, k: int, tile: int, loop: str) -> float:
    """A law: large tiles suit tall products, and rows those that are not wide."""
    fits = 1.0 + abs(tile - min(m, 128)) / 64
    return 1e-9 * m * n * k * fits * (1.0 if (loop == "row") == (m >= n) else 1.5) + 1e-6


@pytest.fixture
def dense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the kind and its featurizer, a platform, products and a log of runs."""
    for name, text in re.findall(r"^```\w+\n# ([\w/]+\.\w+)\n(.*?)^```", PAGE, re.M | re.S):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    products, log = [], ["matrix,op,tile,loop,time_s"]
    for at, (m, n, k) in enumerate(sizes(24)):
        name = f"p{at}"
        product = {"m": m, "n": n, "k": k, "name": name, "group": f"g{at % 6}"}
        products.append(json.dumps(product))
        log += [
            f"{name},gemm,{tile},{loop},{seconds(m, n, k, tile, loop):.9f}"
            for tile in (8, 32, 128)
            for loop in ("row", "column")
            if tile <= max(m, 8)
        ]
    (tmp_path / "all.dense").write_text("\n".join(products) + "\n")
    (tmp_path / "runs.csv").write_text("\n".join(log) + "\n")
    monkeypatch.setenv("EMBEDDB_PLUGINS", str(tmp_path))
    monkeypatch.setattr(kinds, "_KINDS", dict(kinds._KINDS))
    monkeypatch.setattr(kinds, "_OPERATIONS", dict(kinds._OPERATIONS))
    forget_platforms()
    yield tmp_path
    forget_platforms()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nothing_of_this_name", "No module named 'nothing_of_this_name'"),
        ("raise SystemExit('no licence')", "no licence"),
        ("PLUGIN = None", "its PLUGIN is no object of a subclass of WorkloadKind"),
        ("class PLUGIN(WorkloadKind): name = 'broken'", "is no object of a subclass"),
        ("class Odd(WorkloadKind): name = 'other'\nPLUGIN = Odd()", "its name is 'other'"),
        (
            "class Odd(WorkloadKind): name, operations = 'broken', (Operation('spmm'),)\n"
            "PLUGIN = Odd()",
            "'spmm' is already the name of a kind of workload or of an operation",
        ),
        (
            "class Odd(WorkloadKind): name, operations = 'broken', ('gemv',)\nPLUGIN = Odd()",
            "'str' object has no attribute 'name'",
        ),
    ],
)
def test_a_kind_that_cannot_be_used_is_left_out_and_the_others_work(
    dense: Path, text: str, said: str
) -> None:
    head = "from embeddb.core.kinds import Operation, WorkloadKind\n"
    (dense / "workloads" / "broken.py").write_text(head + text)
    with pytest.warns(PluginWarning, match=f"kind of workload broken is left out: .*{said}"):
        operation, kind = kinds.operation_of("gemm")
    assert (operation.name, kind.name) == ("gemm", "dense")
    with pytest.warns(PluginWarning, match=said), pytest.raises(UsageError, match="no kernel"):
        kinds.operation_of("gemv")


@pytest.fixture
def filled(dense: Path) -> Iterator[Database]:
    with open_database(dense / "db", create=True) as db:
        report = db.index_runs(
            [dense / "runs.csv"], platform=str(dense / "blas.toml"), matrices=dense
        )
        assert not report.problems, report
        yield db


def test_runs_of_a_kind_from_outside_are_indexed(filled: Database) -> None:
    infos = list(filled.patterns(kind="dense"))
    assert len(infos) == 24 and not any(info.stub for info in infos)
    whole = filled.store.workload(infos[0].id)
    assert whole is not None and whole.sizes == infos[0].sizes
    assert str(infos[0].sizes).count(" x ") == 2
    assert filled.problems() == []


def test_a_question_is_answered_explained_and_judged(filled: Database, dense: Path) -> None:
    kind = kinds.kind_of("dense")
    asked = kind.read(
        json.dumps({"m": 512, "n": 8, "k": 100, "name": "new", "group": "x"}).encode()
    )
    made = filled.query(asked, platform="blas", op=GEMM)
    assert made.link == "neighbours" and made.best == {"tile": 128, "loop": "row"}
    body = made.document()
    assert body["pattern"]["kind"] == "dense" and body["pattern"]["sizes"]["M"] == 512
    why = filled.explain(made)
    assert why.pattern.kind == "dense" and why.why and why.neighbours
    assert json.dumps(why.document(), default=str)
    rows = filled.evaluate(seeds=(1,))
    reached = {row.method: row.figures["of_optimum@1"] for row in rows}
    assert reached["embeddb"] > 0.9 > reached["default"]


def test_the_command_line_shows_it(filled: Database, dense: Path) -> None:
    for words in (
        ["query", "db", "p3", "--platform", "blas", "--op", GEMM],
        ["explain", "db", "last"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "embeddb", *words], cwd=dense, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "tile" in done.stdout


def unload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the kind, as in a new process."""
    shipped = {name: kind for name, kind in kinds._KINDS.items() if name != "dense"}
    monkeypatch.setattr(kinds, "_KINDS", shipped)
    operations = {name: op for name, op in kinds._OPERATIONS.items() if name != GEMM}
    monkeypatch.setattr(kinds, "_OPERATIONS", operations)
    forget_platforms()


def forget_platforms() -> None:
    """Forget which platforms were read, and with which kinds."""
    platform_rows._parsed.cache_clear()
    platform_rows.read_platform.cache_clear()


def test_check_loads_the_kind(filled: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    (info, *_) = filled.patterns(kind="dense")
    unload(monkeypatch)
    assert info.sizes.possible and "M" in info.sizes.symbols
    unload(monkeypatch)
    assert filled.store.problems() == [] == filled.problems()


@pytest.fixture
def without(filled: Database, dense: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """The database of a colleague who lacks the plug-in, with runs of a kind that ships."""
    filled.query("p3", platform="blas", op=GEMM)
    (dense / "plain.csv").write_text("matrix,op,threads,time_s\nA,spmv,1,2e-3\nA,spmv,2,1e-3\n")
    (dense / "plain.toml").write_text(
        'name = "plain"\nversion = "1"\ntitle = "Plain"\n[[space]]\nkernels = ["spmv"]\n'
        'default = { threads = 1 }\n[space.params]\nthreads = { type = "int", values = [1, 2] }\n'
    )
    filled.index_runs([dense / "plain.csv"], platform=str(dense / "plain.toml"))
    monkeypatch.setenv("EMBEDDB_PLUGINS", "")
    unload(monkeypatch)
    with open_database(dense / "db") as db:
        yield db


@pytest.mark.filterwarnings("ignore::embeddb.core.errors.PluginWarning")
def test_runs_of_a_missing_kind_lock_nobody_out(without: Database, dense: Path) -> None:
    with pytest.warns(PluginWarning, match="runs of gemm on blas are left out") as caught:
        assert [str(table.op) for table in without.store.partitions()] == ["spmv"]
        assert without.store.partitions() and without.store.platforms() == ["plain"]
    assert len(caught) == 1
    assert [info.name for info in without.patterns()] == ["A"] and not without.store.find("p3")
    assert without.problems() == []
    assert without.query("A", platform="plain", op="spmv").best == {"threads": 2}
    exported = export_file(without.index, dense / "all.jsonl")
    assert (exported.runs, exported.patterns, exported.platforms) == (2, 1, ["plain"])
    assert not [line for line in embed(without.index).problems if GEMM in line]


#: A space of a kind that ships, in the file of the platform; log and meaning name the other one's.
MIXED = """
[[space]]
kernels = ["spmv"]
default = { threads = 1 }
[space.params]
threads = { type = "int", values = [1, 2] }
[log]
op = "gemm"
[meaning]
loop = "the outer loop"
"""


@pytest.fixture
def partly(dense: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """The same, where one platform has kernels of both kinds."""
    (dense / "blas.toml").write_text((dense / "blas.toml").read_text() + MIXED)
    (dense / "plain.csv").write_text("matrix,op,threads,time_s\nA,spmv,1,2e-3\nA,spmv,2,1e-3\n")
    with open_database(dense / "db", create=True) as db:
        for log in ("runs.csv", "plain.csv"):
            db.index_runs([dense / log], platform=str(dense / "blas.toml"), matrices=dense)
        db.query("p3", platform="blas", op=GEMM)
    monkeypatch.setenv("EMBEDDB_PLUGINS", "")
    unload(monkeypatch)
    with open_database(dense / "db") as db:
        yield db


@pytest.mark.filterwarnings("ignore::embeddb.core.errors.PluginWarning")
def test_a_platform_is_read_without_the_space_of_a_missing_kind(
    partly: Database, dense: Path
) -> None:
    assert partly.store.platforms() == ["blas"] and partly.problems() == []
    stored = partly.platform("blas")
    assert stored.ops == ("spmv",) and "gemm" in stored.text
    assert partly.query("A", platform="blas", op="spmv").best == {"threads": 2}
    exported = export_file(partly.index, dense / "all.jsonl")
    assert (exported.runs, exported.platforms) == (2, ["blas"])
    other = Database.in_memory()
    assert import_file(other.index, dense / "all.jsonl").platforms == ["blas"]
    assert other.platform("blas").text == stored.text and other.store.count_runs() == 2
    partly.store.put_platform(stored)
    assert partly.store.platform("blas") == stored


@pytest.mark.filterwarnings("ignore::embeddb.core.errors.PluginWarning")
def test_an_answer_of_a_missing_kind_is_left_out(partly: Database) -> None:
    (answer,) = partly.store.recommendations.items()
    with pytest.raises(NothingFound, match=f"answer {answer} is about gemm"):
        partly.recommendation(answer)
    with TestClient(build_app(partly, writable=True), base_url=BASE) as client:
        for page in ("/", "/index.json", "/runs", f"/search?q={answer}"):
            assert client.get(page).status_code == 200, page
        assert client.get(f"/answers/{answer}").status_code == 404


@pytest.mark.filterwarnings("ignore::embeddb.core.errors.PluginWarning")
def test_runs_of_a_missing_kind_can_be_withdrawn(without: Database) -> None:
    table = without.store.withdrawn
    selected = table.withdraw(RunSelection(op=table.named_op(GEMM)))
    assert [(one.platform, one.op) for one in selected] == [("blas", GEMM)]
    assert len(without.store.partitions()) == 1
    assert table.restore(RunSelection(platform="blas")) == selected
    with pytest.raises(UsageError, match="no kernel 'gem'"):
        table.named_op("gem")


def test_check_counts_what_it_cannot_check(
    without: Database, dense: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    total = without.store.counts()["run"] - 2
    assert run_verb(["db", "check", str(dense / "db")]) == 0
    note = f"{total} runs of gemm on blas cannot be checked without the plug-in"
    assert note in capsys.readouterr().err


def test_the_command_line_names_what_is_missing(without: Database, dense: Path) -> None:
    for words in (["stat", "db"], ["export", "db", "all.csv"], ["push", "db", "db2"]):
        with suppress(StoreError):
            open_database(dense / "db2", create=True).close()
        done = subprocess.run(
            [sys.executable, "-m", "embeddb", "db", *words],
            cwd=dense, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("warning: runs of gemm on blas are left out") == 1


class TestContract(WorkloadKindContract):
    kind = "dense"

    @pytest.fixture
    def workloads(self, dense: Path) -> list[Workload]:
        return list(kinds.kind_of("dense").samples())


def test_a_kind_whose_names_are_taken_is_refused(dense: Path) -> None:
    assert Op("gemm", dtype="f64").workload.name == "dense"
    with pytest.raises(UsageError):
        kinds.register(kinds.kind_of("nest"))
    with pytest.raises(UsageError):
        kinds.kind_of("nothing")


def test_threads_that_need_the_kinds_first_all_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads find the registry empty and load what ships at the same moment."""
    meeting = threading.Barrier(4)

    def load(_: str) -> ModuleType:
        meeting.wait(10)
        return workloads

    monkeypatch.setattr(kinds, "_KINDS", {})
    monkeypatch.setattr(kinds, "_OPERATIONS", {})
    monkeypatch.setattr(kinds, "importlib", SimpleNamespace(import_module=load))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: kinds.kinds(), range(4)))
    assert found == [workloads.KINDS] * 4


def test_a_kind_that_is_registered_first_comes_after_those_that_ship(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Mine(kinds.WorkloadKind):
        name = "mine"
        operations = ()

    monkeypatch.setattr(kinds, "_KINDS", {})
    monkeypatch.setattr(kinds, "_OPERATIONS", {})
    mine = Mine()
    kinds.register(mine)
    assert kinds.kinds() == (*workloads.KINDS, mine)
