"""What SLURM's programs are asked, without SLURM."""

from __future__ import annotations

import subprocess
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


def submitted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, printed: str, *, refused: str = ""
) -> str:
    """The job that a site's sbatch, which prints this, is taken to have made."""
    done = subprocess.CompletedProcess([], 1 if refused else 0, printed, refused)
    monkeypatch.setattr("indexer.executors.slurm._asked", lambda _: done)
    (folder / "camp" / "submit" / "0001").mkdir(parents=True, exist_ok=True)
    work = Submission(
        folder=folder / "camp", campaign="0" * 16, number=1, chunks=1000, exclusive=True
    )
    return SlurmExecutor().start(work)


@pytest.mark.parametrize(
    "printed",
    [
        "75168975\n",
        "75168975;cluster\n",
        "----\n  Hello from 2 systems\n--> Checking the host (login2)...OK\n75168975\n",
        "sbatch: Your job is charged to account alpha (1,204 hours left)\n75168975\n",
        "12\n75168975;c1\n\nGood luck!\n",
        "Submitted batch job 75168975\n",
        "Submitted batch job 75168975 on cluster c1\n",
    ],
)
def test_the_job_id_among_what_a_site_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str
) -> None:
    assert submitted(tmp_path, monkeypatch, printed) == "75168975"


@pytest.mark.parametrize("printed", ["", "welcome\n", "job 12 of 13\n", "1" * 13])
def test_without_an_id_it_says_how_to_find_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str
) -> None:
    with pytest.raises(InputError) as caught:
        submitted(tmp_path, monkeypatch, printed)
    assert "squeue --name=" in caught.value.hint


@pytest.mark.parametrize(
    ("refused", "remedy"),
    [
        ("sbatch: error: Batch job submission failed: Invalid job array specification", "--chunks"),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit", "--chunks"),
        ("sbatch: error: invalid partition specified: gpu", "#SBATCH"),
    ],
)
def test_the_remedy_fits_what_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str, remedy: str
) -> None:
    with pytest.raises(InputError) as caught:
        submitted(tmp_path, monkeypatch, "", refused=refused)
    assert remedy in caught.value.hint and refused.split(": ")[-1] in str(caught.value)
