"""Without an optional package each verb that needs it says so in one sentence, with the extra."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from builders import fill, tiny
from scipy.io import mmwrite
from scipy.sparse import eye_array

from embeddb.core.errors import MissingDependency
from embeddb.core.extras import EXTRA_OF, needing
from embeddb.database import Database

ROOT = Path(__file__).parents[1]
HIDDEN = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
from embeddb.ui.cli.main import run
run(sys.argv[2:])
"""
VERBS = [
    ("torch", "train costmodel DB --platform tiny --op spmm:32", "learn"),
    ("torch", "train costmodel DB --platform tiny --op spmm:32 --threads 2", "learn"),
    ("torch", "train costmodel DB --platform tiny --op spmm:32 --threads 0", "learn"),
    ("torch", "train costmodel DB --platform tiny --op spmm:32 --preset cognate", "learn"),
    ("torch", "train featurizer MATRICES -o OUT.safetensors", "learn"),
    ("torch", "train towers DB -o OUT.safetensors", "learn"),
    ("torch", "train nests DB -o OUT.safetensors", "graphs"),
    ("torch", "train kernels DB --task tile", "graphs"),
    ("torch", "eval DB --learned", "learn"),
    ("torch_geometric", "train nests DB -o OUT.safetensors", "graphs"),
    ("torch", "embed DB --weights MODEL", "learn"),
    ("starlette", "serve DB", "serve"),
    ("uvicorn", "serve DB", "serve"),
    ("psycopg", "db stat postgresql://localhost/nowhere", "postgres"),
    ("psycopg", "index postgresql://localhost/nowhere MATRICES/a.mtx --yes", "postgres"),
    ("resvg_py", "plot spy MATRICES/a.mtx -o OUT.png", "plot"),
    ("numba", "dynamics MATRICES/a.mtx --op spmm:32", "dynamics"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("extras")
    with Database.create(root / "a.db") as db:
        fill(db, tiny())
    (root / "matrices").mkdir()
    for name in ("a", "b"):
        mmwrite(root / "matrices" / f"{name}.mtx", eye_array(40).tocoo())
    return root


@pytest.mark.slow
@pytest.mark.parametrize(("module", "words", "extra"), VERBS)
def test_a_verb_names_the_extra(folder: Path, module: str, words: str, extra: str) -> None:
    places = {
        "DB": folder / "a.db",
        "MATRICES": folder / "matrices",
        "MODEL": ROOT / "embeddb" / "data" / "scnn.safetensors",
        "OUT": folder / "out",
    }
    for word, place in places.items():
        words = words.replace(word, str(place))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HIDDEN, module, *words.split()],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "EMBEDDB_DEBUG"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == MissingDependency.exit_code, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert module in last and f"[{extra}]" in last, done.stderr


def test_the_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert set(EXTRA_OF.values()) <= extras.keys() - {"dev"}
    for extra in ("learn", "graphs"):  # a user's own torch stays
        (torch,) = (one for one in extras[extra] if one.partition(">")[0] == "torch")
        assert torch.startswith("torch>=") and "==" not in torch
    assert "torch==" in (ROOT / "constraints.txt").read_text()


def test_only_what_is_optional_and_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with (
        pytest.raises(MissingDependency, match="a picture needs resvg_py") as caught,
        needing("a picture"),
    ):
        import resvg_py  # noqa: F401
    assert "[plot]" in caught.value.hint
    with pytest.raises(ModuleNotFoundError), needing("a picture"):
        import embeddb.no_such_module  # type: ignore[import-not-found]  # noqa: F401
