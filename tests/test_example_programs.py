"""The example programs give the same results whoever multiplies."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import io, sparse

import embeddb
from embeddb.database import Database
from embeddb.kernels import build as cpu_build

PROGRAMS = Path(__file__).resolve().parents[1] / "examples" / "programs"
NAMES = ("svd", "label_propagation", "conjugate_gradients", "gcn")
needs_gcc = pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
pytestmark = [pytest.mark.gcc, needs_gcc]


@pytest.fixture(params=NAMES)
def program(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Any]:
    """A program that asks an empty database, since the index of the starter takes long."""
    if request.param == "gcn":
        pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(PROGRAMS))
    monkeypatch.setattr(embeddb, "compile", partial(embeddb.compile, db=tmp_path / "none.db"))
    Database.create(tmp_path / "none.db").close()
    yield importlib.import_module(request.param)
    for name in (*NAMES, "race"):
        sys.modules.pop(name, None)


def a_graph() -> Any:
    made = sparse.random_array((70, 70), density=0.1, rng=np.random.default_rng(0))
    return sparse.csr_array((made + made.T) != 0).astype(np.float32)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_a_program_tells_the_same_whoever_multiplies(
    program: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    io.mmwrite(tmp_path / "graph.mtx", a_graph())
    monkeypatch.setattr(sys, "argv", ["program", str(tmp_path / "graph.mtx")])
    program.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 3
    rows = [line for line in lines if " times embeddb's " in line]
    assert [row.split()[0] for row in rows] in (["embeddb", "scipy"], ["embeddb", "torch"])
    assert all(float(row.split()[-1]) < 1e-3 for row in rows), rows


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_programs_make_an_input_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROGRAMS))
    monkeypatch.setattr(sys, "argv", ["program"])
    import race

    made = race.matrix(lambda: race.graph(300, 2000))
    assert made.shape == (300, 300) and made.nnz > 2000 and (made != made.T).nnz == 0
    sys.modules.pop("race")
