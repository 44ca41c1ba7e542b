"""A campaign of small tasks through every executor, undisturbed and with kills.

    PYTHONPATH=.:tests/fixtures python benchmarks/executors.py > benchmarks/results/executors.json

Nothing is timed by the tasks: each runs a shell script twice that says a number, so that what is
left is what an executor costs. Beside them stands `campaign run` in one process. SLURM is one node
on this machine, started here (as root); Dask is a LocalCluster. With kills a worker dies every few
seconds, by SIGKILL; then what was stored is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from machine import about
from slurm_node import lacking, slurm_node

from embeddb.core.files.gate import reason_of
from embeddb.database import Database
from embeddb.platforms.platform import load_platform, runner_for
from embeddb.testing.executors import script_campaign, script_effort
from indexer.campaign.folder import Campaign
from indexer.campaign.nodes import coordinator
from indexer.campaign.nodes.coordinator import NodesJob, collect
from indexer.campaign.nodes.submissions import Submissions
from indexer.campaign.run import CampaignJob, Settle
from indexer.executors.base import Executor
from indexer.executors.dask import DaskExecutor
from indexer.executors.local import LocalExecutor
from indexer.executors.slurm import SlurmExecutor
from indexer.runners.base import RunOptions

#: Estimated seconds of one task, by which chunks are cut.
TASK_S = 0.4
#: Dense columns; a task is a matrix and one of them.
WIDTHS = range(1, 41)
ROOT = Path(__file__).resolve().parents[1]
#: Seconds between two kills; a worker of Dask takes some to be there again.
KILL_EVERY_S, MOST_KILLS = {"slurm": 3.0, "dask": 8.0}, 10


def planned(folder: Path, tasks: int) -> Campaign:
    """So many tasks on few matrices: what a matrix costs is no executor's."""
    widths = WIDTHS[: min(tasks, len(WIDTHS))]
    return script_campaign(folder, tasks // len(widths), widths=widths)


def in_one_process(folder: Path, tasks: int) -> dict[str, Any]:
    """`campaign run` without an executor."""
    campaign = planned(folder, tasks)
    runner = runner_for(load_platform(folder / "script.toml"))
    options = RunOptions(repeats=1, max_repeats=1, threads=1)
    db = Database.in_memory()
    began = time.perf_counter()
    CampaignJob(campaign, db.index, runner, options).run(Settle(rounds=0))
    return _told(Campaign(folder / "camp"), db, time.perf_counter() - began)


def through(
    executor: Executor, folder: Path, tasks: int, per_chunk: int, kill: Callable[[], int]
) -> dict[str, Any]:
    """A campaign through an executor; `kill` ends a worker now and returns how many it ended."""
    campaign = planned(folder, tasks)
    db = Database.in_memory()
    job = NodesJob(
        campaign=campaign,
        db=db.index,
        executor=executor,
        effort=script_effort(folder),
        chunk_s=TASK_S * per_chunk - 0.01,
    )
    with _killing(kill, KILL_EVERY_S.get(executor.name, 3.0)) as kills:
        began = time.perf_counter()
        job.run(Settle(rounds=0))
        wall = time.perf_counter() - began
    campaign = Campaign(folder / "camp")
    other = Database.in_memory()
    began = time.perf_counter()
    collect(campaign, other.index)
    submitted = Submissions(campaign.folder)
    return {
        **_told(campaign, db, wall),
        "collect_s": round(time.perf_counter() - began, 2),
        "kills": kills[0],
        "submissions": len(submitted.numbers()),
        "chunks": len(submitted.read(1).chunks),
    }


def _told(campaign: Campaign, db: Database, wall: float) -> dict[str, Any]:
    done = campaign.progress(db.index)
    written = sum(campaign.written(task) for task in campaign.tasks())
    return {
        "tasks": done.tasks,
        "wall_s": round(wall, 2),
        "ms_a_task": round(1e3 * wall / done.tasks, 1),
        "tasks_stored": done.tasks_stored,
        "points": done.points,
        "runs_stored": db.store.count_runs(),
        "points_lost": done.points - done.measured,
        "points_twice": written - done.measured,
        "given_up": done.statuses["crash"],
        "load": [round(x, 1) for x in os.getloadavg()],
    }


@contextmanager
def _killing(kill: Callable[[], int], every_s: float) -> Iterator[list[int]]:
    kills, over = [0], threading.Event()

    def loop() -> None:
        while kills[0] < MOST_KILLS and not over.wait(every_s):
            kills[0] += kill()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield kills
    finally:
        over.set()
        thread.join()


def _spared() -> int:
    return 0


def kill_process(folder: Path) -> int:
    """End one process that works on the campaign below a folder."""
    words = f"campaign\0work\0{folder / 'camp'}\0".encode()
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and words in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
                return 1
        except OSError:
            continue
    return 0


def kill_dask(executor: DaskExecutor) -> int:
    """End one worker of a cluster."""
    try:
        pid = next(iter(executor._held[-1].run(os.getpid).values()))
        os.kill(int(pid), signal.SIGKILL)
    except Exception as error:  # noqa: BLE001 - between two workers there is none
        print(f"not killed: {reason_of(error)}", file=sys.stderr)
        return 0
    return 1


def measured(scratch: Path, tasks: int, few: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every way by its name, with what it took; a first run, not told, imports everything."""
    in_one_process(scratch / "warm", 10)
    every = {"local": LocalExecutor, "slurm": SlurmExecutor, "dask": DaskExecutor}
    ways = [
        *((name, "kills", tasks, 50) for name in ("slurm", "dask")),
        *((name, "", few, 25) for name in every),
        *((name, "a task a chunk", few // 5, 1) for name in every),
    ]
    yield "one process", in_one_process(scratch / "one", few)
    for name, what, count, per_chunk in ways:
        folder = scratch / f"{name} {what}".strip().replace(" ", "-")
        executor: Any = every[name]()
        kill = partial(kill_dask, executor) if name == "dask" else partial(kill_process, folder)
        spared = kill if what == "kills" else _spared
        try:
            told = through(executor, folder, count, per_chunk, spared)
            yield f"{name}, {what}".removesuffix(", "), told
        finally:
            executor.close()


def _left_out(*_: Any, **__: Any) -> None:
    """Vectors and indexes, which are made once a campaign is at its end, are no executor's."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--few", type=int, default=100)
    asked = parser.parse_args()
    if missing := lacking():
        raise SystemExit(f"needs SLURM: there is no {missing}")
    os.environ["PYTHONPATH"] = str(ROOT)
    coordinator.embed = _left_out
    found: dict[str, Any] = {"machine": about(), "kill_every_s": KILL_EVERY_S}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        folder.chmod(0o711)
        (folder / "slurm").mkdir(mode=0o711)
        with slurm_node(folder / "slurm") as node:
            os.environ["SLURM_CONF"] = str(node.conf)
            for name, told in measured(folder, asked.tasks, asked.few):
                base = found.setdefault("one process", told)
                told["overhead_ms_a_task"] = round(told["ms_a_task"] - base["ms_a_task"], 1)
                found[name] = told
                print(f"{name}: {told}", file=sys.stderr)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
