"""Contract tests of executors, as a base class.

class TestMine(ExecutorContract):
    @pytest.fixture
    def executor(self):
        executor = MyExecutor()
        yield executor
        executor.close()

Its campaign measures a shell script, so that nodes need nothing but embeddb.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from embeddb.core.config import Op
from embeddb.platforms.platform import load_platform
from embeddb.testing.common import has_own_name
from indexer.campaign.folder import Campaign
from indexer.campaign.nodes.submissions import Submissions, Submitted
from indexer.campaign.plan import Matrix, PlanOptions, make_plan
from indexer.executors.base import Effort, Executor, Submission

_PLATFORM = """
name = "script"
version = "1"
title = "A shell script that prints its time"
simulated = true
runner = "command"

[command]
run = ["sh", "script.sh", "{config.step}", "{config.mode}", "{matrix}"]
time = { regex = 't=(\\S+)', unit = "ms" }

[[space]]
kernels = ["spmm"]

[space.params]
step = { type = "int", values = [1, 2, 4, 8, 16, 32] }
mode = { type = "choice", values = ["a", "b"] }

[space.default]
step = 1
mode = "a"
"""
_MATRIX = "%%MatrixMarket matrix coordinate pattern general\n{n} {n} 2\n1 1\n2 {n}\n"


def script_campaign(
    folder: Path, matrices: int = 3, *, configs: int = 2, widths: Sequence[int] = (8,)
) -> Campaign:
    """A campaign in `folder/camp`, of SpMM with `widths` dense columns, measured by a script
    `folder/script.sh`, which sleeps while a file `folder/slow` exists."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "script.toml").write_text(_PLATFORM)
    lines = f"while [ -e '{folder}/slow' ]; do sleep 0.1; done\necho t=$1\n"
    (folder / "script.sh").write_text(lines)
    planned = []
    for at in range(matrices):
        file = folder / f"m{at}.mtx"
        file.write_text(_MATRIX.format(n=at + 2))
        planned.append(Matrix(str(file), f"m{at}", f"m{at}", at + 2, at + 2, 2))
    options = PlanOptions(configs=configs, shared=configs, sampled=False, rounds=1)
    platform = load_platform(folder / "script.toml")
    ops = [Op("spmm", width) for width in widths]
    return Campaign.create(folder / "camp", make_plan(platform, ops, planned, options))


def script_effort(folder: Path) -> Effort:
    """Effort of its workers."""
    return Effort(repeats=1, threads=1, platform=str(folder / "script.toml"))


class ExecutorContract:
    """Contract of an executor. Subclasses define the fixture `executor`, and `shared` if its
    machines do not see pytest's temporary folders; `patience_s` is the time limit for a few seconds
    of work."""

    patience_s = 90.0

    @pytest.fixture
    def executor(self) -> Iterator[Executor]:
        raise NotImplementedError

    @pytest.fixture
    def shared(self, tmp_path: Path) -> Path:
        """An empty folder that all machines have under the same path."""
        return tmp_path

    @pytest.fixture
    def campaign(self, shared: Path) -> Campaign:
        """Three tasks of a shell script."""
        return script_campaign(shared)

    def test_availability_is_none_or_one_line(self, executor: Executor) -> None:
        reason = executor.available()
        assert reason is None or (reason and "\n" not in reason)
        has_own_name("executor", executor)
        assert isinstance(executor.detached, bool)

    def test_all_chunks_run_before_those_of_the_next_job(
        self, executor: Executor, campaign: Campaign
    ) -> None:
        first, second, third = (task.id for task in campaign.tasks())
        before, work = _frozen(campaign, [first], [second]), _frozen(campaign, [third])
        job = executor.start(before)
        after = executor.start(work, after=job)
        self._wait(lambda: not _live(executor, after))
        assert not executor.states(job)
        assert not any(campaign.missing(task) for task in campaign.tasks())
        lines = {task.id: campaign.lines(task).values() for task in campaign.tasks()}
        began = {name: max(m.when for m in measured) for name, measured in lines.items()}
        assert began[third] > max(began[first], began[second])

    def test_the_same_work_twice_is_done_once(self, executor: Executor, campaign: Campaign) -> None:
        names = [task.id for task in campaign.tasks()]
        work = _frozen(campaign, names)
        jobs = [executor.start(work), executor.start(work)]
        assert len(set(jobs)) == 2 and all(isinstance(job, str) and job for job in jobs)
        self._wait(lambda: not any(_live(executor, job) for job in jobs))
        names_written = sorted(path.name for path in (campaign.folder / "results").iterdir())
        assert names_written == sorted(f"{name}.jsonl" for name in names)
        assert all(campaign.outcome(task).lines == 2 for task in campaign.tasks())

    def test_a_chunk_that_fails_ends_and_leaves_the_others(
        self, executor: Executor, campaign: Campaign
    ) -> None:
        names = [task.id for task in campaign.tasks()]
        work = _frozen(campaign, ["no such task"], [names[0]])
        job = executor.start(work)
        self._wait(lambda: not _live(executor, job))
        assert not campaign.missing(campaign.named(names[:1])[0])
        assert Submissions(campaign.folder).last_words(work.number)

    def test_cancelled_work_ends_and_may_be_submitted_again(
        self, executor: Executor, campaign: Campaign, shared: Path
    ) -> None:
        (shared / "slow").touch()
        names = [task.id for task in campaign.tasks()]
        job = executor.start(_frozen(campaign, names))
        self._wait(lambda: "running" in (executor.states(job) or {}).values())
        executor.cancel(job)
        (shared / "slow").unlink()
        self._wait(lambda: not _live(executor, job))
        job = executor.start(_frozen(campaign, names))
        self._wait(lambda: not _live(executor, job))
        assert not any(campaign.missing(task) for task in campaign.tasks())

    def test_an_unknown_job_has_no_chunks(self, executor: Executor) -> None:
        assert not executor.states("no such job")
        executor.cancel("no such job")

    def _wait(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + self.patience_s
        while not condition():
            assert time.monotonic() < end, "it takes too long"
            time.sleep(0.05)


def _frozen(campaign: Campaign, *chunks: list[str]) -> Submission:
    number = Submissions(campaign.folder).add(Submitted(executor="contract", chunks=list(chunks)))
    return Submission(
        folder=campaign.folder,
        campaign=campaign.id,
        number=number,
        chunks=len(chunks),
        exclusive=True,
        effort=script_effort(campaign.folder.parent),
    )


def _live(executor: Executor, job: str) -> bool:
    states = executor.states(job)
    return states is None or any(state != "cancelled" for state in states.values())
