"""Dask on this machine: the contract, killed workers and a task that kills them."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from embeddb.core.errors import InputError, UsageError
from embeddb.database import Database
from embeddb.testing.executors import ExecutorContract, script_campaign, script_effort
from indexer.campaign.folder import Campaign
from indexer.campaign.nodes.coordinator import NodesJob
from indexer.campaign.nodes.submissions import Attempts
from indexer.campaign.run import Settle
from indexer.executors.base import ExecutorOptions, Submission
from indexer.executors.dask import DaskExecutor, _answered

distributed = pytest.importorskip("distributed", reason="Dask is not installed: the extra `dask`")
LocalCluster = distributed.LocalCluster
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[DaskExecutor]:
    """One cluster of one worker."""
    made = DaskExecutor()
    yield made
    made.close()


class TestDask(ExecutorContract):
    @pytest.fixture
    def executor(self, cluster: DaskExecutor) -> DaskExecutor:
        return cluster


def job(folder: Path, db: Database, executor: DaskExecutor) -> NodesJob:
    effort = script_effort(folder)
    return NodesJob(
        campaign=Campaign(folder / "camp"),
        db=db.index,
        executor=executor,
        effort=effort,
        chunk_s=0.0,
    )


def complete(folder: Path, db: Database, points: int) -> None:
    """Everything was measured and stored, and nothing twice."""
    campaign = Campaign(folder / "camp")
    done = campaign.progress(db.index)
    assert done.measured == done.points == points and done.tasks_stored == done.tasks
    assert db.store.count_runs() == points


def test_killed_workers_lose_nothing(tmp_path: Path, cluster: DaskExecutor) -> None:
    script_campaign(tmp_path, 8)
    (tmp_path / "slow").touch()
    db = Database.in_memory()

    def kills() -> None:
        attempts = Attempts(tmp_path / "camp")
        for at in range(2):
            while sum(one.alive for one in attempts.all()) == 0 or attempts.count() <= at:
                time.sleep(0.02)
            os.kill(_worker_pid(cluster), signal.SIGKILL)
        (tmp_path / "slow").unlink()

    killer = threading.Thread(target=kills)
    killer.start()
    job(tmp_path, db, cluster).run(Settle(rounds=0))
    killer.join()
    complete(tmp_path, db, 16)
    assert Attempts(tmp_path / "camp").count() == 0


def test_a_task_that_kills_workers_is_given_up(tmp_path: Path, cluster: DaskExecutor) -> None:
    campaign = script_campaign(tmp_path, 1, configs=3)
    poison = campaign.configs["spmm:8"][campaign.wanted(campaign.tasks()[0])[1]]
    text = (tmp_path / "script.sh").read_text()
    words = f"{poison['step']}{poison['mode']}"
    (tmp_path / "script.sh").write_text(f'[ "$1$2" = {words} ] && kill -9 $PPID\n{text}')
    db = Database.in_memory()
    job(tmp_path, db, cluster).run(Settle(rounds=0))
    complete(tmp_path, db, 3)
    told = campaign.lines(campaign.tasks()[0])[poison]
    assert told.status == "crash" and "3 times, on " in told.error


def test_workers_without_a_slot_are_refused() -> None:
    with LocalCluster(n_workers=1, host="127.0.0.1", dashboard_address="127.0.0.1:0") as bare:
        executor = DaskExecutor(ExecutorOptions(address=bare.scheduler_address))
        try:
            with pytest.raises(InputError, match="no worker has a slot") as caught:
                executor.start(_work())
            assert "--resources slot=1" in caught.value.hint
        finally:
            executor.close()


def test_no_scheduler_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indexer.executors.dask._ANSWER_S", 1)
    executor = DaskExecutor(ExecutorOptions(address="tcp://127.0.0.1:9"))
    with pytest.raises(InputError, match="no Dask scheduler answers"):
        executor.start(_work())
    with pytest.raises(UsageError, match="takes no --script"):
        DaskExecutor(ExecutorOptions(script="x"))


@pytest.mark.parametrize(
    "reply", [b"HTTP/1.0 400 Bad\r\n\r\n", b"\xff" * 64, b""], ids=["http", "noise", "silence"]
)
def test_another_server_there(monkeypatch: pytest.MonkeyPatch, reply: bytes) -> None:
    monkeypatch.setattr("indexer.executors.dask._ANSWER_S", 1)
    monkeypatch.setattr("indexer.executors.dask._GRACE_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as open_ones:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    open_ones.enter_context(server.accept()[0]).sendall(reply)

        threading.Thread(target=serve, daemon=True).start()
        port, began = server.getsockname()[1], time.monotonic()
        with pytest.raises(InputError, match="no Dask scheduler answers"):
            DaskExecutor(ExecutorOptions(address=f"tcp://127.0.0.1:{port}")).start(_work())
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("address", ["127.0.0.1", "nonsense"])
def test_no_address(address: str) -> None:
    with pytest.raises(InputError, match=r"no Dask scheduler answers.*missing p") as caught:
        DaskExecutor(ExecutorOptions(address=address)).start(_work())
    assert "HOST:PORT" in caught.value.hint


@pytest.mark.parametrize("ended", [None, KeyboardInterrupt])
def test_a_late_client_is_closed(
    ended: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexer.executors.dask._ANSWER_S", 0)
    monkeypatch.setattr("indexer.executors.dask._GRACE_S", 0.05)
    closed, left = threading.Event(), threading.Event()

    class Late:
        def close(self) -> None:
            closed.set()

    def connect() -> Late:
        left.wait(9)
        return Late()

    if ended is not None:

        class Stopped(Future):  # type: ignore[type-arg]
            def result(self, timeout: float | None = None) -> object:
                if timeout is not None:
                    raise KeyboardInterrupt
                return super().result()

        monkeypatch.setattr("indexer.executors.dask.Future", Stopped)
    with pytest.raises(ended or InputError) as caught:
        _answered(connect, "")
    assert ended or not getattr(caught.value, "hint", "")
    left.set()
    assert closed.wait(9)


def _work() -> Submission:
    folder = Path("nowhere")
    return Submission(folder=folder, campaign="0" * 16, number=1, chunks=1, exclusive=True)


def _worker_pid(executor: DaskExecutor) -> int:
    return int(next(iter(executor._held[-1].run(os.getpid).values())))
