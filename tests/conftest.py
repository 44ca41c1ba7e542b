"""Fixtures every test module shares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest


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
