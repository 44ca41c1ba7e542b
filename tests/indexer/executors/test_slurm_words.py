"""What SLURM's programs are asked, without SLURM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from embeddb.core.errors import InputError, UsageError
from indexer.executors.base import ExecutorOptions, Submission
from indexer.executors.slurm import SlurmExecutor


def test_timings_have_a_node_for_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def asked(words: list[str]) -> Any:
        seen.append(words)
        raise InputError("not asked")

    monkeypatch.setattr("indexer.executors.slurm._asked", asked)
    (tmp_path / "camp" / "submit" / "0001").mkdir(parents=True)
    work = Submission(
        folder=tmp_path / "camp", campaign="0" * 16, number=1, chunks=2, exclusive=True
    )
    with pytest.raises(InputError, match="not asked"):
        SlurmExecutor().start(work, after="17")
    assert "#SBATCH --exclusive" in (tmp_path / "camp" / "slurm.sh").read_text()
    assert "--dependency=afterany:17" in seen[0] and "--array=0-1" in seen[0]


def test_without_slurm_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "there is no sbatch here" in str(SlurmExecutor().available())
    with pytest.raises(UsageError, match="takes no --address"):
        SlurmExecutor(ExecutorOptions(address="host"))


@pytest.mark.parametrize("name", ["", "1 --help", "-u root", "$(id)", "1;2"])
def test_a_job_that_is_none_is_not_asked_about(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indexer.executors.slurm._asked", lambda _: pytest.fail("asked"))
    assert SlurmExecutor().states(name) == {}
    SlurmExecutor().cancel(name)
