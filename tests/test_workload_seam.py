"""The kind of workload of docs/howto/new-kind.md: a dense matrix product, in a folder of plug-ins.

Its runs are indexed, a question is answered, explained and evaluated, all by the code that knows no
kind. Nothing of the packages knows of it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddb.core import kinds
from embeddb.core.config import Op
from embeddb.core.errors import UsageError
from embeddb.core.workload import Workload
from embeddb.database import Database, open_database
from embeddb.testing.workloads import WorkloadKindContract

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
    yield tmp_path


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
