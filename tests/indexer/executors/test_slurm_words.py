"""What SLURM's programs are asked, without SLURM."""

from __future__ import annotations

import os
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

    monkeypatch.setattr("indexer.executors.slurm._called", asked)
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
    assert "sbatch not found" in str(SlurmExecutor().available())
    with pytest.raises(UsageError, match="takes no --address"):
        SlurmExecutor(ExecutorOptions(address="host"))


@pytest.mark.parametrize("name", ["", "1 --help", "-u root", "$(id)", "1;2"])
def test_a_job_that_is_none_is_not_asked_about(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indexer.executors.slurm._called", lambda _: pytest.fail("asked"))
    assert SlurmExecutor().states(name) == {}
    SlurmExecutor().cancel(name)


# -- sites that print more than a job id -------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Programs of SLURM in front of the PATH that print what a test says."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")

    def write(name: str, body: str) -> None:
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)

    write("squeue", "exit 0")
    return write


def _work(folder: Path, chunks: int = 2) -> Submission:
    (folder / "camp" / "submit" / "0001").mkdir(parents=True)
    return Submission(
        folder=folder / "camp", campaign="0" * 16, number=1, chunks=chunks, exclusive=False
    )


@pytest.mark.parametrize(
    "printed",
    [
        "75168975",
        "75168975;cluster-2.site",
        "-----\n  Hello from the site\n--> Checking (login2)...OK\n75168975",
        "sbatch: charged to account alpha (1,204 hours left)\n\n75168975\n",
        "75168975\nThank you for computing with us",
        "2 projects\nSubmitted batch job 75168975",
    ],
)
def test_the_job_id_is_read_among_a_sites_lines(printed: str, tmp_path: Path, site: Any) -> None:
    site("sbatch", f"cat <<'END'\n{printed}\nEND")
    assert SlurmExecutor().start(_work(tmp_path)) == "75168975"


def test_a_job_whose_id_was_not_printed_is_found_by_its_name(tmp_path: Path, site: Any) -> None:
    work = _work(tmp_path)
    site("sbatch", "echo submitted")
    site("squeue", f'case "$*" in *--name={work.name}*) printf "417\\n417\\n";; esac')
    assert SlurmExecutor().start(work) == "417"


def test_a_job_that_cannot_be_found_is_reported_with_its_name(tmp_path: Path, site: Any) -> None:
    work = _work(tmp_path)
    site("sbatch", "echo submitted")
    with pytest.raises(InputError) as caught:
        SlurmExecutor().start(work)
    assert "submitted" in str(caught.value) and f"--name={work.name}" in caught.value.hint


@pytest.mark.parametrize(
    ("reason", "chunks", "remedy"),
    [
        ("Batch job submission failed: Invalid job array specification", 40, "--chunks 20"),
        ("QOSMaxSubmitJobPerUserLimit", 3, "--chunks 1"),
        ("invalid partition specified: x", 40, "#SBATCH"),
        ("QOSMaxSubmitJobPerUserLimit", 1, "#SBATCH"),
    ],
)
def test_a_refusal_says_what_to_change(
    reason: str, chunks: int, remedy: str, tmp_path: Path, site: Any
) -> None:
    site("sbatch", f'echo "sbatch: error: {reason}" >&2; exit 1')
    with pytest.raises(InputError) as caught:
        SlurmExecutor().start(_work(tmp_path, chunks))
    assert reason in str(caught.value) and remedy in caught.value.hint
