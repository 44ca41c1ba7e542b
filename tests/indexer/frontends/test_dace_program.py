"""Python programs through DaCe in an interpreter of its own, which is stood in for by a script."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from nest_evaluation import run
from sdfg_files import elementwise, written

from embeddb.core.errors import MissingDependency, NestError
from indexer.frontends import extract
from indexer.frontends.dace.python_program import VARIABLE, sdfg_files

PROGRAM = "import dace\n"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(VARIABLE, raising=False)
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def interpreter(tmp_path: Path, body: str) -> str:
    """A program that is called as `python -I driver.py PROGRAM.py FOLDER`."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_what_the_interpreter_writes_is_read(program: Path, tmp_path: Path) -> None:
    file = written(tmp_path / "made.json", elementwise("o = a"))
    says = '{"program": "g", "error": "TypeError: no"}'
    body = f"cp {file} $4/f.sdfg; echo talk; echo '{says}'; test \"$1 $3\" = '-I {program}'"
    found = extract(program, dace_python=interpreter(tmp_path, body), defines={"N": 4})
    assert [(n.name, n.group, n.trips) for n in found.nests] == [("program_f", "program", (4, 4))]
    assert found.notes == ("g: TypeError: no",)


def test_nothing_is_left_behind(program: Path, tmp_path: Path) -> None:
    file = written(tmp_path / "made.json", elementwise("o = a"))
    python = interpreter(tmp_path, f"cp {file} $4/f.sdfg; touch $HOME/litter")
    with sdfg_files(program, python=python) as (files, notes):
        folder = files[0].parent
        assert [f.name for f in files] == ["f.sdfg"] and not notes
        assert (folder / "litter").exists()
    assert not folder.exists()


def test_no_interpreter(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingDependency) as caught:
        extract(program)
    assert "pip install dace 'numpy<2'" in caught.value.hint and VARIABLE in caught.value.hint
    bare = interpreter(tmp_path, "echo \"ModuleNotFoundError: No module named 'dace'\" >&2; exit 1")
    monkeypatch.setenv(VARIABLE, bare)
    with pytest.raises(MissingDependency, match="has no DaCe"):
        extract(program)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("echo 'Traceback:'; echo 'ValueError: bad' >&2; exit 1", "DaCe failed: ValueError: bad"),
        ("exit 3", "DaCe failed: it ended with 3"),
        ("true", "DaCe found no program: it has no @dace.program"),
        ("yes", "DaCe failed: output"),
        ('echo \'{"program": "f", "error": "TypeError: x"}\'', "no program: f: TypeError: x"),
        ("echo '{}' > $4/f.sdfg", "has no loop nest; f: is no SDFG"),
    ],
)
def test_failures_name_the_program(program: Path, tmp_path: Path, body: str, why: str) -> None:
    with pytest.raises(NestError) as caught:
        extract(program, dace_python=interpreter(tmp_path, body))
    assert caught.value.where == str(program) and why in caught.value.reason


def test_one_that_never_ends(program: Path, tmp_path: Path) -> None:
    python = interpreter(tmp_path, "sleep 60 & wait")
    with (
        pytest.raises(NestError, match=r"program\.py: DaCe took longer than 0\.2 s"),
        sdfg_files(program, python=python, time_limit_s=0.2),
    ):
        pass


def test_no_such_program(tmp_path: Path) -> None:
    with pytest.raises(NestError, match=r"gone\.py: No such file"):
        extract(tmp_path / "gone.py", dace_python="python")


@pytest.mark.slow
@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no interpreter with DaCe")
def test_dace_itself(tmp_path: Path) -> None:
    path = tmp_path / "gemm.py"
    path.write_text(
        "import dace\nN, K = dace.symbol('N'), dace.symbol('K')\n"
        "@dace.program\ndef gemm(A: dace.float64[N, K], B: dace.float64[K, N]):\n"
        "    return A @ B + 1\n"
    )
    found = extract(path, defines={"N": 16, "K": 8})
    assert (16, 16, 8) in [n.trips for n in found.nests] and not found.notes
    rng = np.random.default_rng(0)
    held = {"A": rng.random((16, 8)), "B": rng.random((8, 16))}
    run(found.nests, held)
    np.testing.assert_allclose(held["__return"], held["A"] @ held["B"] + 1)
