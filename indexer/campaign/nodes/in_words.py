"""A campaign over an executor, asked for in words: the same on the command line and in Python."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

from embeddb.core.errors import UsageError
from embeddb.index.lookup import Lookup
from indexer.campaign.folder import Campaign
from indexer.campaign.nodes.chunk import options_of
from indexer.campaign.nodes.coordinator import NodesJob, unheard
from indexer.campaign.nodes.spread import executor_named
from indexer.campaign.nodes.submissions import MOST_CHUNKS
from indexer.campaign.plan import Told, untold
from indexer.executors.base import Effort, ExecutorOptions
from indexer.runners.base import RunOptions

__all__ = [
    "NodesWords",
    "effort_on_nodes",
    "named_on_nodes",
    "nodes_job",
    "refuse_without_executor",
]

_OTHERS = ("address", "script", "chunks", "mixed", "no_wait")


class NodesWords(TypedDict, total=False):
    """`executor` is the name of a plug-in (`local`, `slurm`, `dask`), `address` and `script` are
    its; a submission has at most so many `chunks`; with `mixed` nodes of several kinds may work,
    with `no_wait` it submits and returns."""

    executor: str
    address: str
    script: str
    chunks: int | None
    mixed: bool
    no_wait: bool


def named_on_nodes(platform: object) -> str:
    """What nodes are told of a platform that the user named: a file by its whole path, for a
    command is only run out of one that is named; nothing of a `Platform` that is no word."""
    if not isinstance(platform, str) or not platform.endswith(".toml"):
        return platform if isinstance(platform, str) else ""
    return str(Path(platform).resolve())


def effort_on_nodes(options: RunOptions, platform: object = "") -> Effort:
    """What nodes are told of how carefully to measure, and of a platform as it was named.

    Raises: UsageError for what they cannot be told.
    """
    told = Effort(
        repeats=options.repeats, threads=options.threads, platform=named_on_nodes(platform)
    )
    if options_of(told) != options:
        raise UsageError("nodes are told repeats and threads alone", hint="leave the rest as it is")
    return told


def refuse_without_executor(words: Mapping[str, Any]) -> None:
    """Raises: UsageError for a word that says something of an executor, where there is none."""
    for name in _OTHERS:
        if words.get(name) and not words.get("executor"):
            raise UsageError(
                f"--{name.replace('_', '-')} is of an --executor", hint="add --executor slurm"
            )


@contextmanager
def nodes_job(
    campaign: Campaign,
    db: Lookup,
    effort: Effort,
    words: NodesWords,
    *,
    again: Collection[str] = (),
    told: Told = untold,
    note: Callable[[str], None] = unheard,
) -> Iterator[NodesJob]:
    """The job that these words ask for; its executor is given up at the end.

    Raises: UsageError, MissingDependency, PluginError for an executor that is none.
    """
    options = ExecutorOptions(address=words.get("address", ""), script=words.get("script", ""))
    executor = executor_named(words.get("executor", ""), options)
    try:
        yield NodesJob(
            campaign=campaign,
            db=db,
            executor=executor,
            effort=effort,
            options=options,
            again=again,
            most_chunks=words.get("chunks") or MOST_CHUNKS,
            mixed=words.get("mixed", False),
            wait=not words.get("no_wait", False),
            told=told,
            note=note,
        )
    finally:
        executor.close()
