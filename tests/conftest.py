"""Tiers of the tests, and fixtures every test module shares.

`tests/tiers/unit.txt` lists the files of `make check`: no compiler, no subprocess, no torch.
`tests/tiers/integration.txt` lists those that `make test` runs too, one or a few for each seam.
`.ci/run` runs the others as well, less the tests marked slow; `make test-all` runs everything.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]

# How fast inputs are drawn depends on what else the machine does.
settings.register_profile("busy", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("busy")


def listed(tier: str) -> set[Path]:
    """The test files of a tier's list."""
    lines = (ROOT / "tests" / "tiers" / f"{tier}.txt").read_text(encoding="utf-8").splitlines()
    return {ROOT / line for line in lines if line}


class NoTorch(MetaPathFinder):
    """Importing torch fails: it takes seconds that unit tests do not have."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "torch":
            raise ModuleNotFoundError("no torch in a unit test", name=name)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=("unit", "test", "more", "all"),
        default="all",
        help="unit: make check; test: make test; more: what these leave out; all",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--tier") == "unit":
        sys.meta_path.insert(0, NoTorch())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    tier = config.getoption("--tier")
    files = listed("unit") if tier == "unit" else listed("unit") | listed("integration")
    if tier == "all" or (tier == "more" and collection_path.is_dir()):
        return None
    if collection_path.is_dir():  # its conftest.py would be imported
        return None if any(collection_path in file.parents for file in files) else True
    if not collection_path.name.startswith("test_"):
        return None
    return True if (collection_path in files) == (tier == "more") else None


@pytest.fixture(autouse=True)
def no_process_in_a_unit_test(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("no process in a unit test: take its file off tests/tiers/unit.txt")

    if request.config.getoption("--tier") == "unit":
        monkeypatch.setattr(subprocess.Popen, "__init__", refuse)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared inputs beside the checkout; the test is skipped without it."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not (folder / "matrices" / "MANIFEST.csv").is_file():
        pytest.skip("needs the shared matrices and runs beside the checkout (../shared)")
    return folder


@pytest.fixture(autouse=True)
def mistakes_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verb's uncaught exception ends the test that met it, and not in a line and a file."""
    monkeypatch.setenv("EMBEDDB_DEBUG", "1")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20260101)


@pytest.fixture(autouse=True)
def no_shipped_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Most tests are about something else, and embedding with a network takes seconds: the package
    has no weights unless a test puts them there."""
    from embeddb.featurizers import scnn

    none = tmp_path_factory.getbasetemp() / "none.safetensors"
    monkeypatch.setattr(scnn, "SHIPPED", none)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """torch on one thread: on a busy machine two wait for each other longer than they add."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
