"""Executor of this machine: one process per chunk, one at a time if runs are timed."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

from embeddb.core.errors import UsageError
from indexer.executors.base import ExecutorOptions, Job, JobsInOrder

_LOOK_S, _GRACE_S = 0.05, 10.0


class LocalExecutor(JobsInOrder):
    """Run chunks as processes of this machine: a campaign as on a cluster, tested without one. A
    point that kills its process does not end the campaign. Raises: UsageError for any option."""

    name = "local"

    def __init__(self, options: ExecutorOptions | None = None) -> None:
        super().__init__()
        if options is not None and (options.address or options.script):
            raise UsageError("the executor local takes neither --address nor --script")

    def available(self) -> str | None:
        """None: always available."""
        return None

    def _work_off(self, job: Job) -> None:
        slots = 1 if job.work.exclusive else len(os.sched_getaffinity(0))
        waiting = list(range(job.work.chunks))
        running: dict[int, subprocess.Popen[bytes]] = {}
        while (waiting or running) and not job.stop.wait(_LOOK_S if running else 0):
            for chunk, process in list(running.items()):
                if process.poll() is not None:
                    del running[chunk]
                    job.end(chunk)
            while waiting and len(running) < slots:
                chunk = waiting.pop(0)
                with (job.work.logs / f"{chunk}.log").open("ab") as log:
                    running[chunk] = subprocess.Popen(
                        job.work.command(chunk), stdin=subprocess.DEVNULL, stdout=log, stderr=log
                    )
                job.states[chunk] = "running"
        for process in running.values():
            process.terminate()
        for process in running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
            process.kill()
            process.wait()


PLUGIN = LocalExecutor
