"""How far a campaign is across nodes: what waits, what runs where, who has done how much."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from embeddb.core import plugins
from embeddb.core.errors import EmbeddbError
from indexer.campaign.folder import Campaign
from indexer.campaign.nodes.attempts import Attempts, Begun
from indexer.campaign.nodes.submissions import Submissions
from indexer.executors.base import ChunkState, Executor, ExecutorOptions

__all__ = ["HostTasks", "Spread", "executor_named", "open_chunks", "spread_of"]


class HostTasks(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of one host: those it has done, those its workers are at, those it had begun when
    their worker died or was stopped, and the points that it gave up. Without a name they were
    measured by `campaign run` itself."""

    host: str
    instance: str
    done: int = 0
    running: int = 0
    stopped: int = 0
    given_up: int = 0


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks by what became of them. `waiting` are submitted and not begun; None where the executor
    cannot be asked now. `points_given_up` ended every process that tried them."""

    done: int
    running: int
    waiting: int | None
    stopped: int
    points_given_up: int
    hosts: list[HostTasks]


def executor_named(name: str, options: ExecutorOptions | None = None) -> Executor:
    """An executor plug-in. Raises: UsageError, MissingDependency, PluginError."""
    found: Executor = plugins.load("executor", name)(options or ExecutorOptions())
    return found


def open_chunks(
    campaign: Campaign, executor: Executor | None = None
) -> dict[int, Mapping[int, ChunkState] | None]:
    """The chunks that have not ended of submissions that may go on without whoever submitted them,
    by submission; None where nobody can be asked. `executor` is asked in its own name.
    """
    submissions, found = Submissions(campaign.folder), dict[int, Mapping[int, ChunkState] | None]()
    for number in submissions.open():
        frozen = submissions.read(number)
        try:
            known = executor if executor is not None and executor.name == frozen.executor else None
            asked = known or executor_named(
                frozen.executor, ExecutorOptions(address=frozen.address)
            )
            if asked.detached:
                lost = asked.available() is not None
                found[number] = None if lost else asked.states(submissions.job(number).job)
        except EmbeddbError:
            found[number] = None
    return found


def spread_of(campaign: Campaign) -> Spread:
    """Tasks of a campaign by state and host. Raises: InputError for files that are none of it."""
    chunks, submissions = open_chunks(campaign), Submissions(campaign.folder)
    tasks = {task.id: task for task in campaign.tasks()}
    done = {name for name, task in tasks.items() if not campaign.missing(task)}
    begun = {a.task: a for a in Attempts(campaign.folder).all() if a.task in tasks}
    begun = {name: a for name, a in begun.items() if name not in done}
    running = {name for name, a in begun.items() if _runs(a, chunks)}
    waiting: set[str] = set()
    for number, states in chunks.items():
        lists = submissions.read(number).chunks
        live = [at for at, state in (states or {}).items() if state in ("waiting", "running")]
        waiting.update(name for at in live if at < len(lists) for name in lists[at])
    hosts: dict[tuple[str, str], dict[str, int]] = {}
    for name in done:
        where = (campaign.host_of(tasks[name]), campaign.instance_of(tasks[name]))
        _add(hosts, where, "done")
        _add(hosts, where, "given_up", campaign.given_up(tasks[name]))
    for name, one in begun.items():
        _add(hosts, (one.place.host, one.place.on), "running" if name in running else "stopped")
    unknown = any(states is None for states in chunks.values())
    return Spread(
        done=len(done),
        running=len(running),
        waiting=None if unknown else len((waiting & tasks.keys()) - done - running),
        stopped=len(begun) - len(running),
        points_given_up=sum(campaign.given_up(tasks[name]) for name in done),
        hosts=[
            HostTasks(host=host, instance=on, **counts)
            for (host, on), counts in sorted(hosts.items())
        ],
    )


def _runs(one: Begun, chunks: Mapping[int, Mapping[int, ChunkState] | None]) -> bool:
    """Whether an attempt goes on: as its executor says, else whether its file is held, which can be
    seen on the same host alone."""
    states = chunks.get(one.place.submission)
    if states is None or one.ended:
        return one.alive
    return one.alive or states.get(one.place.chunk) == "running"


def _add(
    hosts: dict[tuple[str, str], dict[str, int]], where: tuple[str, str], what: str, by: int = 1
) -> None:
    counts = hosts.setdefault(where, {})
    counts[what] = counts.get(what, 0) + by
