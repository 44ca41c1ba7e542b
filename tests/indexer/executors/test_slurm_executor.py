"""SLURM of one node: the contract, and what goes wrong on a cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slurm_node import SlurmNode

from embeddb.core.errors import InputError
from embeddb.database import Database
from embeddb.testing.executors import ExecutorContract, script_campaign, script_effort
from indexer.campaign.folder import Campaign
from indexer.campaign.nodes.coordinator import NodesJob
from indexer.campaign.nodes.submissions import Attempts, Submissions, open_chunks, spread_of
from indexer.campaign.run import Settle
from indexer.executors.base import ExecutorOptions, Submission
from indexer.executors.slurm import SlurmExecutor

pytestmark = pytest.mark.slow
ONCE = Settle(rounds=0)


class TestSlurm(ExecutorContract):
    @pytest.fixture
    def executor(self, node: SlurmNode) -> SlurmExecutor:
        return SlurmExecutor()


def job(folder: Path, db: Database, **more: Any) -> NodesJob:
    found = {"executor": SlurmExecutor(), "effort": script_effort(folder), "chunk_s": 0.0} | more
    return NodesJob(campaign=Campaign(folder / "camp"), db=db.index, **found)


def complete(folder: Path, db: Database, points: int) -> None:
    """Everything was measured and stored, and nothing twice."""
    campaign = Campaign(folder / "camp")
    done = campaign.progress(db.index)
    assert done.measured == done.points == points and done.tasks_stored == done.tasks
    assert db.store.count_runs() == points
    assert sum(campaign.outcome(task).lines for task in campaign.tasks()) == points


@pytest.fixture
def slow(tmp_path: Path, node: SlurmNode) -> Callable[[], None]:
    """A campaign of six tasks whose points wait, submitted; call to let them go on."""
    (tmp_path / "slow").touch()
    script_campaign(tmp_path, 6)
    _, done = job(tmp_path, Database.in_memory(), wait=False).run()
    assert done.measured == 0
    node.until(lambda: Attempts(tmp_path / "camp").count() > 0, "a worker")
    return (tmp_path / "slow").unlink


# -- what goes wrong ---------------------------------------------------------------------------


def test_killed_tasks_and_a_killed_node_lose_nothing(
    tmp_path: Path, node: SlurmNode, slow: Callable[[], None]
) -> None:
    campaign = Campaign(tmp_path / "camp")
    assert spread_of(campaign).running >= 1 and (spread_of(campaign).waiting or 0) >= 1
    assert _kill_a_worker(tmp_path)
    node.kill("slurmd")
    slow()
    node.start("slurmd", "-D")
    db = Database.in_memory()
    job(tmp_path, db).run(ONCE)
    complete(tmp_path, db, 12)
    assert Attempts(campaign.folder).count() == 0 and Submissions(campaign.folder).open() == []


def test_a_requeued_chunk_waits_in_the_queue(
    tmp_path: Path, node: SlurmNode, slow: Callable[[], None]
) -> None:
    """By state alone: SLURM holds what is requeued back for two minutes."""
    campaign = Campaign(tmp_path / "camp")
    name = Submissions(campaign.folder).job(1).job
    running = next(at for at, state in open_chunks(campaign)[1].items() if state == "running")
    node.say("scontrol", "requeue", f"{name}_{running}")
    told = f"{name}_{running}"
    node.until(lambda: "Restarts=1" in node.say("scontrol", "show", "job", told), "a restart")
    node.until(lambda: (SlurmExecutor().states(name) or {})[running] == "waiting", "a place")
    node.say("scancel", name)
    slow()
    node.until(lambda: "running" not in (SlurmExecutor().states(name) or {}).values(), "an end")
    # A stop in order blames no configuration. SLURM may say that a job ended before it has written
    # its last line.
    assert list(Attempts(campaign.folder).all())
    node.until(lambda: all(one.ended for one in Attempts(campaign.folder).all()), "a stop in order")


def test_a_cancelled_array_is_submitted_again_when_asked(
    tmp_path: Path, node: SlurmNode, slow: Callable[[], None]
) -> None:
    campaign, db = Campaign(tmp_path / "camp"), Database.in_memory()
    node.say("scancel", Submissions(campaign.folder).job(1).job)
    slow()
    with pytest.raises(InputError, match=r"submission 1 \(slurm job \d+\) was cancelled"):
        job(tmp_path, db).run(ONCE)
    job(tmp_path, db, chunk_s=60.0).run(ONCE)
    complete(tmp_path, db, 12)


def test_a_poisoned_point_is_named_and_given_up(tmp_path: Path, node: SlurmNode) -> None:
    campaign = script_campaign(tmp_path, 1, configs=3)
    poison = campaign.configs["spmm:8"][campaign.wanted(campaign.tasks()[0])[1]]
    text, words = (tmp_path / "script.sh").read_text(), f"{poison['step']}{poison['mode']}"
    (tmp_path / "script.sh").write_text(f'[ "$1$2" = {words} ] && kill -9 $PPID\n{text}')
    db = Database.in_memory()
    job(tmp_path, db).run(ONCE)
    complete(tmp_path, db, 3)
    told = campaign.lines(campaign.tasks()[0])[poison]
    assert told.status == "crash" and "3 times, on " in told.error


# -- what is submitted -------------------------------------------------------------------------


def test_a_script_is_the_users_or_ours_to_the_letter(tmp_path: Path, node: SlurmNode) -> None:
    campaign = script_campaign(tmp_path, 1)
    db = Database.in_memory()
    job(tmp_path, db).run(ONCE)
    place = campaign.folder / "slurm.sh"
    written = place.read_text()
    assert "--exclusive" not in written, "nothing is timed by a simulator"
    mark = tmp_path / "ran"
    place.write_text(written.replace("\nexec ", f"\ntouch {mark}\nexec "))
    campaign.repeat({"ok"})
    with pytest.raises(InputError, match="was not written by embeddb") as caught:
        job(tmp_path, db).run(ONCE)
    assert f"--script {place}" in caught.value.hint and not mark.exists()
    options = ExecutorOptions(script=str(place))
    job(tmp_path, db, executor=SlurmExecutor(options), options=options).run(ONCE)
    assert mark.exists() and place.read_text() != written


def test_what_sbatch_refuses_is_said_with_what_to_do(tmp_path: Path, node: SlurmNode) -> None:
    script_campaign(tmp_path, 1)
    script = tmp_path / "mine.sh"
    script.write_text("#!/bin/bash\n#SBATCH --partition=nowhere\nexit\n")
    with pytest.raises(InputError, match="invalid partition specified") as caught:
        executor = SlurmExecutor(ExecutorOptions(script=str(script)))
        job(tmp_path, Database.in_memory(), executor=executor).run()
    assert "#SBATCH" in caught.value.hint
    script.unlink()
    with pytest.raises(InputError, match="no such script"):
        executor.start(_work(tmp_path))


def _work(folder: Path) -> Submission:
    return Submission(
        folder=folder / "camp", campaign="0" * 16, number=1, chunks=2, exclusive=False
    )


def _kill_a_worker(folder: Path) -> bool:
    """Kill a process that works on a campaign, as a node that fails would."""
    words = f"campaign\0work\0{folder / 'camp'}\0".encode()
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and words in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
                return True
        except OSError:
            continue
    return False
