"""`campaign work`: what a node runs."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embeddb.core.errors import InputError, UsageError
from embeddb.core.wording import plural
from embeddb.ui.cli.arguments import threads_option
from embeddb.ui.cli.output import Progress, emit, json_option, note, say

if TYPE_CHECKING:
    from indexer.campaign.nodes.worker import Worked

__all__ = ["work_verb"]


@click.command("work")
@click.argument("folder", metavar="DIR")
@click.option(
    "--task", "tasks", multiple=True, metavar="ID", help="As in results/; again for more."
)
@click.option("--submission", default=0, type=click.IntRange(0), help="Its number in submit/.")
@click.option("--chunk", default=-1, type=click.IntRange(-1), help="Of --submission, from 0.")
@click.option("--platform", default="", help="Its file again, where a command measures it.")
@click.option("--repeats", default=5, show_default=True, type=click.IntRange(1, 1000))
@threads_option
@json_option
def work_verb(folder: str, tasks: tuple[str, ...], as_json: bool, **asked: Any) -> None:
    """Measure tasks of the campaign in DIR on this node, into DIR alone; no database is opened.

    Executors start it (`campaign run --executor`); by hand it works on tasks by their names. What
    is done already is left alone, and any number of nodes may work at the same time.

    \b
    Example:
      embeddb campaign work camp --task 0000-spmm_32-0
      embeddb campaign work camp --submission 1 --chunk 12
    """
    if bool(tasks) == bool(asked["submission"]) or bool(tasks) != (asked["chunk"] < 0):
        raise UsageError("name tasks by --task, or a --submission and a --chunk of it")
    # What ends a job asks first: the point in hand is then not blamed for the end.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        worked = _worked(Path(folder), tasks, asked)
    finally:
        signal.signal(signal.SIGTERM, before)
    document = {
        "host": socket.gethostname(),
        "done": worked.done,
        "there": worked.there,
        "failed": worked.failed,
    }
    if as_json:
        emit(document)
    else:
        say(f"{plural(len(worked.done), 'task')} done here, {len(worked.there)} were done already")
    if worked.failed:
        for name, reason in worked.failed.items():
            note(f"{name}: {reason}")
        raise InputError(f"{plural(len(worked.failed), 'task')} failed", where=folder)


def _worked(folder: Path, tasks: Sequence[str], asked: dict[str, Any]) -> Worked:
    from indexer.campaign.nodes.worker import work_chunk, work_tasks
    from indexer.executors.base import Effort

    effort = Effort(**{name: asked[name] for name in ("platform", "repeats", "threads")})
    with Progress() as progress:
        if tasks:
            return work_tasks(folder, tasks, effort, told=progress)
        return work_chunk(folder, asked["submission"], asked["chunk"], effort, progress)
