"""The wheel: built from what is tracked, installed where no checkout is, and asked there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from scipy import sparse

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("embeddb", "indexer", "tuners")
#: What a build or a run leaves beside the sources.
_LEFT = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info")

if find_spec("setuptools") is None or int(version("setuptools").partition(".")[0]) < 77:
    pytest.skip("needs setuptools 77 to build without the network", allow_module_level=True)


def run(words: Sequence[str | Path], cwd: Path, home: Path) -> str:
    """What a command prints, in an environment that knows nothing of this checkout."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "EMBEDDB"))}
    done = subprocess.run(
        [*map(str, words)],
        cwd=cwd,
        env={**kept, "EMBEDDB_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=2400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools builds beside the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, copy / package, ignore=_LEFT)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run([*pip, "--no-index", "--wheel-dir", folder, copy], folder, folder)
    (made,) = folder.glob("embeddb-*.whl")
    return made


def installed(wheel: Path, folder: Path) -> Path:
    """The Python of a new environment that holds the wheel, and beside it, on its path alone, what
    this one has of other packages: no editable install of ours among them."""
    venv.create(folder, with_pip=False)
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    site = "import site; print(site.getsitepackages()[0])"
    packages = Path(run([scripts / "python", "-c", site], folder, folder).strip())
    with zipfile.ZipFile(wheel) as archive:
        assert not any(name.startswith(("/", "..")) for name in archive.namelist())
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    run([*pip, "--target", packages, wheel], folder, folder)
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return scripts / "python"


@pytest.mark.slow
def test_the_wheel_holds_what_is_tracked(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith(PACKAGES)}
    there = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert not there - held, f"package-data of pyproject.toml lacks {sorted(there - held)}"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_wheel_answers_without_a_checkout(wheel: Path, tmp_path: Path) -> None:
    python, home = installed(wheel, tmp_path / "env"), tmp_path / "home"
    place = tmp_path / "elsewhere"
    place.mkdir()
    sparse.save_npz(place / "A.npz", sparse.random(900, 900, 0.01, format="csr", random_state=1))
    where = run([python, "-c", "import embeddb; print(embeddb.__file__)"], place, home)
    assert Path(where.strip()).is_relative_to(tmp_path / "env")
    said = run([python, "-m", "embeddb", "--version"], place, home)
    assert "store schema 1" in said and "starter " in said
    ask = ["query", "starter", "A.npz", "--platform", "cpu", "--op", "spmm:64"]
    assert "ranked by" in run([python, "-m", "embeddb", *ask], place, home)
    told = run([python, "-m", "embeddb", "explain", "starter", "last"], place, home)
    assert "A" in told
    (data,) = home.glob("starter-*")
    assert data.name.removeprefix("starter-") in said
    code = "import embeddb; print(embeddb.query('A.npz', op='spmm:64').candidates[0].config)"
    assert "order" in run([python, "-c", code], place, home)
