"""Dask executor: a scheduler at an address (dask-jobqueue's too), or a cluster on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from importlib.util import find_spec
from threading import Thread
from typing import Any

from embeddb.core.errors import InputError, UsageError
from embeddb.core.extras import install_hint
from indexer.campaign.nodes.worker import chunk_logged
from indexer.executors.base import ExecutorOptions, Job, JobsInOrder, Submission

#: Resource of one worker per node, so that no two chunks are timed at a time.
SLOT = "slot"
_LOOK_S, _ANSWER_S = 0.2, 30
#: Seconds beyond the limit of the answer, which Dask keeps itself with a scheduler.
_GRACE_S = 5.0
#: Seconds that this machine's own workers may be missing before they are restarted.
_LOST_S = 20.0


class DaskExecutor(JobsInOrder):
    """Run each chunk as a future on a worker with the resource `slot=1`, one at a time. Completion
    is read from the files; Dask's own retries after a worker's death do no harm.

    Raises: UsageError for a script.
    """

    name = "dask"

    def __init__(self, options: ExecutorOptions | None = None) -> None:
        super().__init__()
        options = options or ExecutorOptions()
        if options.script:
            raise UsageError("the executor dask takes no --script", hint="start its workers by it")
        self._address = options.address
        self._held: list[Any] = []

    def available(self) -> str | None:
        """None if Dask can be imported, else how to install it."""
        if find_spec("distributed") is None:
            return f"Dask is not installed: {install_hint('dask')}"
        return None

    def start(self, work: Submission, *, after: str = "") -> str:
        """Implement `Executor.start`; the client is connected first."""
        self._client(work)
        return super().start(work, after=after)

    def _client(self, work: Submission) -> Any:
        """The client, with workers that have a slot. Raises: InputError if there are none."""
        if not self._held:
            import dask
            from distributed import Client, LocalCluster

            if not self._address:
                # A started chunk stays with its worker: stealing it would only move its log.
                dask.config.set({"distributed.scheduler.work-stealing": False})
                cluster = LocalCluster(  # type: ignore[no-untyped-call]
                    n_workers=1 if work.exclusive else len(os.sched_getaffinity(0)),
                    threads_per_worker=1,
                    host="127.0.0.1",
                    dashboard_address="127.0.0.1:0",
                    resources={SLOT: 1},
                )
                self._held.append(cluster)
            where = self._address or cluster
            self._held.append(_answered(lambda: Client(where, timeout=_ANSWER_S), self._address))  # type: ignore[no-untyped-call]
        client = self._held[-1]
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        if workers and not any(SLOT in one.get("resources", {}) for one in workers):
            raise InputError(
                "no worker has a slot, so no chunk would start",
                where=self._address,
                hint=f"start each with --resources {SLOT}=1 --nthreads 1, one per node",
            )
        return client

    def _work_off(self, job: Job) -> None:
        """Submit no more chunks than there are slots, plus one that lets a growing cluster grow:
        after a worker's death Dask suspects all chunks assigned to it."""
        work = job.work
        client, waiting = self._client(work), list(range(work.chunks))
        futures: dict[int, Any] = {}
        seen, slots = time.monotonic(), 1
        while (waiting or futures) and not job.stop.wait(_LOOK_S):
            slots = self._slots(client)
            if slots:
                seen = time.monotonic()
            elif not self._address and time.monotonic() - seen > _LOST_S:
                # Dask's nannies do not replace workers that are killed while they start.
                self._let_go()
                return
            for chunk, future in list(futures.items()):
                if future.done():
                    del futures[chunk]
                    _log(work, chunk, future)
                    job.end(chunk)
            while waiting and len(futures) <= slots:
                chunk = waiting.pop(0)
                futures[chunk] = client.submit(
                    chunk_logged,
                    *(str(work.folder), work.number, chunk, work.effort),
                    key=f"{work.name}-{chunk}-{time.time_ns()}",
                    resources={SLOT: 1},
                    retries=0,
                    pure=False,
                )
            job.states.update((chunk, "running") for chunk in list(futures)[:slots])
        client.cancel(list(futures.values()), force=True)

    def _slots(self, client: Any) -> int:
        """Number of workers with a slot; 0 if the scheduler does not answer."""
        with suppress(OSError, TimeoutError):
            workers = client.scheduler_info(n_workers=-1)["workers"].values()
            return sum(SLOT in one.get("resources", {}) for one in workers)
        return 0

    def close(self) -> None:
        super().close()
        self._let_go()

    def _let_go(self) -> None:
        while self._held:
            with suppress(OSError, TimeoutError):
                self._held.pop().close()


def _answered(connect: Callable[[], Any], address: str) -> Any:
    """A connected client. Raises: InputError if there is none after some seconds: a server of
    something else may fail in any way, or never answer, for which Dask has no limit. One that
    connects later is closed."""
    answer: Future[Any] = Future()

    def attempt() -> None:
        try:
            answer.set_result(connect())
        except Exception as error:  # noqa: BLE001  # of whatever the server has sent
            answer.set_exception(error)

    Thread(target=attempt, daemon=True).start()
    try:
        return answer.result(timeout=_ANSWER_S + _GRACE_S)
    except BaseException as error:  # Ctrl-C, too
        why = " ".join(str(error).split()) or type(error).__name__
        if not answer.done():
            why = f"no answer after {_ANSWER_S} s"
        answer.add_done_callback(lambda late: late.exception() or late.result().close())
        if not isinstance(error, Exception):
            raise
        raise InputError(
            f"no Dask scheduler answers there: {why}",
            where=address,
            hint="--address takes HOST:PORT as the scheduler prints it, tcp://10.0.0.1:8786"
            if address
            else "",
        ) from None


def _log(work: Submission, chunk: int, future: Any) -> None:
    """Append the error of a chunk that raised, or whose workers died, to its log."""
    if future.status == "error":
        message = " ".join(str(future.exception()).split())
        with (work.logs / f"{chunk}.log").open("a", encoding="utf-8") as log:
            log.write(f"{message}\n")


PLUGIN = DaskExecutor
