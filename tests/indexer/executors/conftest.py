"""One SLURM for all modules that need one, and workers that find this checkout."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_node import SlurmNode, lacking, slurm_node

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are processes of their own: they import what is tested."""
    known = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), known])))


@pytest.fixture(scope="session")
def running_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmNode]:
    if missing := lacking():
        pytest.skip(f"SLURM: there is no {missing}")
    folder = tmp_path_factory.mktemp("slurm")
    for path in (folder, *folder.parents):  # munged, which is not root, has to get there
        if path.stat().st_uid == os.geteuid() and not path.stat().st_mode & 0o001:
            path.chmod(path.stat().st_mode | 0o011)
    with slurm_node(folder) as node:
        yield node


@pytest.fixture
def node(running_node: SlurmNode, monkeypatch: pytest.MonkeyPatch) -> SlurmNode:
    """SLURM of one node that `sbatch` finds."""
    monkeypatch.setenv("SLURM_CONF", str(running_node.conf))
    return running_node
