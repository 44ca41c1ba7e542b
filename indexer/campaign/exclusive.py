"""One process at a time measures a campaign, on one instance of its platform."""

from __future__ import annotations

import fcntl
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from embeddb.core.errors import InputError
from embeddb.core.files.safe_write import OwnFolder
from embeddb.platforms.platform import Platform
from indexer.campaign.folder import Campaign, another_campaign
from indexer.campaign.nodes.submissions import Attempts, open_chunks
from indexer.campaign.plan import PLAN, read_plan


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock a campaign for one coordinator: two would measure twice and disturb each other's times.

    Raises: InputError if another holds the lock.
    """
    with OwnFolder(folder).open("lock", "a+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                "another run of this campaign is going on",
                where=str(folder),
                hint="wait for it, or stop it",
            ) from None
        yield


@contextmanager
def alone_with(campaign: Campaign) -> Iterator[None]:
    """Lock a campaign that was read before. Raises: InputError as `alone`, and if another was begun
    in the folder since."""
    with alone(campaign.folder):
        if read_plan(campaign.folder / PLAN).id != campaign.id:
            raise another_campaign(campaign.folder, "begun since this command started")
        yield


def nothing_submitted(campaign: Campaign) -> None:
    """Raises: InputError if nodes work on the campaign: points would be measured twice."""
    live = [number for number, states in open_chunks(campaign).items() if states != {}]
    if live:
        raise InputError(
            f"submission {live[0]} may still be worked on",
            where=str(campaign.folder),
            hint="see `embeddb campaign status`; go on with the --executor it was submitted to",
        )


def admit(campaign: Campaign, here: Platform, again: Collection[str] = ()) -> None:
    """Note the instance that measures here, where points with a status of `again` will be measured
    again; the folder is locked.

    Raises: InputError for another instance than the one before, unless none of its results count.
    """
    # Results of workers name the instance of theirs, which the folder has to describe.
    workers = Attempts(campaign.folder).count() or any(
        campaign.outcome(task).on for task in campaign.tasks()
    )
    nothing_counts = not workers and campaign.progress().statuses.keys() <= set(again)
    if campaign.instances.first and nothing_counts:
        campaign.instances.replace(here)
    else:
        campaign.instances.admit(here)
