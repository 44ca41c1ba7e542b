"""A kind of workload from outside: a dense matrix product, in one folder of plug-ins.

Its runs are indexed, a question is answered, explained and evaluated, all by the code that knows no
kind. Nothing of the packages knows of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddb.core import kinds
from embeddb.core.config import Op
from embeddb.core.errors import UsageError
from embeddb.core.subject import Subject
from embeddb.database import Database, open_database
from embeddb.testing.workloads import WorkloadKindContract

KIND = """
import hashlib, json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import ClassVar

from embeddb.core.config import Config
from embeddb.core.errors import InputError
from embeddb.core.kinds import Operation, WorkloadKind
from embeddb.core.sizes import UNKNOWN


@dataclass(frozen=True)
class Product:
    m: int
    n: int
    k: int
    name: str = ""
    group: str = ""
    kind: ClassVar[str] = "dense"

    @cached_property
    def id(self):
        text = f"dense {self.m} {self.n} {self.k}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def sizes(self):
        return UNKNOWN.naming({"M": self.m, "N": self.n, "K": self.k})


class Dense(WorkloadKind):
    name, one, many = "dense", "dense product", "dense products"
    operations = (Operation("gemm", typed=True),)
    symbols = ("M", "N", "K")

    def sample_sizes(self):
        return [UNKNOWN.naming({"M": m, "N": 2 * m, "K": 7}) for m in (1, 64, 4096)]

    def samples(self):
        return [Product(8, 8, 8), Product(1000, 3, 500)]

    def write(self, workload):
        return json.dumps(asdict(workload)).encode()

    def read(self, raw):
        try:
            return Product(**json.loads(raw))
        except TypeError:
            raise InputError("not a dense product") from None

    def files(self, folder):
        return sorted(folder.glob("*.dense"))

    def read_file(self, path, *, alone=False):
        return [self.read(line.encode()) for line in path.read_text().splitlines()]


PLUGIN = Dense()
"""
FEATURIZER = """
import numpy as np


class DenseSizes:
    name, version, kinds = "dense-sizes", "1", ("dense",)
    names = ("log_m", "log_n", "log_k")
    dim = 3

    def embed(self, workload):
        return np.log2([size for _, size in workload.sizes.named]).astype(np.float32)

    def from_info(self, info):
        return np.log2(list(info.named.values())).astype(np.float32) if info.named else None


PLUGIN = DenseSizes
"""
PLATFORM = """
name = "blas"
version = "1"
title = "A tiled dense matrix product"

[[space]]
kernels = ["gemm"]
constraints = ["tile <= M or tile == 8"]

[space.params.tile]
type = "int"
values = [8, 32, 128]

[space.params.loop]
type = "choice"
values = ["row", "column"]

[space.default]
tile = 8
loop = "row"
"""
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
    for name, text in (("workloads/dense", KIND), ("featurizers/dense_sizes", FEATURIZER)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "blas.toml").write_text(PLATFORM)
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
    whole = filled.store.subject(infos[0].id)
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
    def workloads(self, dense: Path) -> list[Subject]:
        return list(kinds.kind_of("dense").samples())


def test_a_kind_whose_names_are_taken_is_refused(dense: Path) -> None:
    assert Op("gemm", dtype="f64").workload.name == "dense"
    with pytest.raises(UsageError):
        kinds.register(kinds.kind_of("nest"))
    with pytest.raises(UsageError):
        kinds.kind_of("nothing")
