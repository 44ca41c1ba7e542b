"""A chunk of a submission, or tasks by name, worked on by this process: `campaign work`."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from embeddb.core.errors import EmbeddbError, InputError
from embeddb.platforms.platform import load_platform, parse_platform, runner_for
from indexer.campaign.folder import Campaign
from indexer.campaign.nodes.submissions import Submissions
from indexer.campaign.nodes.worker import Worked, Worker
from indexer.campaign.plan import Told, untold
from indexer.executors.base import Effort
from indexer.runners.base import RunOptions

__all__ = ["chunk_logged", "options_of", "work_chunk", "work_tasks"]

#: A measurement is repeated at most so often where more repeats are not asked for.
_MOST_REPEATS = 25


def work_tasks(
    folder: Path,
    names: Sequence[str],
    effort: Effort,
    *,
    mixed: bool = False,
    told: Told = untold,
    at: tuple[int, int] = (0, -1),
) -> Worked:
    """Work on tasks by their ids; `at` is their submission and chunk.

    Raises: InputError for a task that is none, or on another instance than the campaign's;
    RunnerUnavailable if this machine cannot measure, or fails.
    """
    campaign = Campaign(folder)
    tasks = campaign.named(names)
    # A plan holds a platform's text; a command is only run out of a file that the user names.
    planned = parse_platform(campaign.plan.platform, where=str(folder))
    runner = runner_for(load_platform(effort.platform) if effort.platform else planned)
    options = options_of(effort)
    worker = Worker(
        campaign=campaign,
        runner=runner,
        options=options,
        host=socket.gethostname(),
        mixed=mixed,
        submission=at[0],
        chunk=at[1],
        told=told,
    )
    return worker.work(tasks)


def options_of(effort: Effort) -> RunOptions:
    """How carefully a node measures that is told this."""
    most = max(_MOST_REPEATS, effort.repeats)
    return RunOptions(repeats=effort.repeats, max_repeats=most, threads=effort.threads)


def work_chunk(
    folder: Path, number: int, chunk: int, effort: Effort, told: Told = untold
) -> Worked:
    """Work on one chunk of a submission. Raises: as `work_tasks`, and InputError for none such."""
    frozen = Submissions(folder).read(number)
    if not 0 <= chunk < len(frozen.chunks):
        raise InputError(
            f"submission {number} has no chunk {chunk}",
            where=str(folder),
            hint=f"chunks are 0 to {len(frozen.chunks) - 1}",
        )
    names = frozen.chunks[chunk]
    return work_tasks(folder, names, effort, mixed=frozen.mixed, told=told, at=(number, chunk))


def chunk_logged(folder: str, number: int, chunk: int, effort: Effort) -> str:
    """`work_chunk` inside a worker of others: an error that we raise on purpose is added to the
    chunk's log, and returned, in one line."""
    try:
        worked = work_chunk(Path(folder), number, chunk, effort)
        said = "; ".join(f"{name}: {reason}" for name, reason in worked.failed.items())
    except (EmbeddbError, OSError) as error:
        said = str(error)
    if said:
        log_file = Path(folder, "submit", f"{number:04d}", f"{chunk}.log")
        with log_file.open("a", encoding="utf-8") as log:
            log.write(f"{said}\n")
    return said
