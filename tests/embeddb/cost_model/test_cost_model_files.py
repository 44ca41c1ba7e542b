"""The files of cost models: which are read, and what takes the place of one that is not written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import embeddb
from embeddb.core.config import Op
from embeddb.cost_model.files import LEARNED, CostModelFiles
from embeddb.cost_model.model import CostModel
from embeddb.platforms.platform import load_platform

CPU, OP = load_platform("cpu").at("here"), Op.parse("spmm:32")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model that an earlier query learned."""
    file = tmp_path / LEARNED / "cpu@here-spmm-32.safetensors"
    file.parent.mkdir()
    shutil.copy(Path(embeddb.__file__).parent / "data" / "costmodel-cpu-spmm.safetensors", file)
    return tmp_path


def test_a_learned_model_that_cannot_be_written_replaces_an_earlier_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = CostModelFiles(folder)
    earlier = files.learned(CPU, OP)
    assert earlier is not None

    def refused(self: CostModel, path: Path) -> str:
        raise PermissionError

    monkeypatch.setattr(CostModel, "save", refused)
    new = CostModel({**earlier.card, "stamp": "new"}, earlier.tensors)
    files.keep(CPU, OP, new)
    assert files.learned(CPU, OP) is new and files.learned(CPU, OP) is new
    assert CostModelFiles(folder).learned(CPU, OP) is not None


def test_a_database_in_memory_reads_no_file_of_the_current_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert CostModelFiles(None).learned(CPU, OP) is None
