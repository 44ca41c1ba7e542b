"""A campaign folder that somebody else packed: nothing outside it is written, cut or waited for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from campaign_board import LawRunner, go, plan

from embeddb.core.errors import InputError
from embeddb.database import Database
from indexer.campaign.folder import Campaign
from indexer.campaign.results import TaskStates
from indexer.campaign.run import Settle

SAID = "a link|a link or file"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Files of the user, of the names that a campaign would write."""
    (tmp_path / "home").mkdir()
    file = tmp_path / "home" / "thesis.tex"
    file.write_text("years of work")
    for task in Campaign(Campaign.create(tmp_path / "other", plan()).folder).tasks():
        os.link(file, tmp_path / "home" / f"{task.id}.jsonl")
    return file


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_lock_that_is_a_link(
    folder: Path, victim: Path, link: Callable[[Path, Path], None]
) -> None:
    link(victim, folder / "lock")
    with pytest.raises(OSError, match="a link where a file of ours would be") as caught:
        go(folder, Database.in_memory(), LawRunner())
    assert caught.value.filename == str(folder / "lock")
    assert victim.read_text() == "years of work"


@pytest.mark.parametrize("what", ["plan.json", "measured-on.json", "settle.json"])
def test_a_file_that_is_a_link(folder: Path, victim: Path, what: str) -> None:
    (folder / what).unlink(missing_ok=True)
    (folder / what).symlink_to(victim)
    with pytest.raises(InputError, match=what):
        go(folder, Database.in_memory(), LawRunner(spoilt=["m0a", "m1a"]), Settle(rounds=1))
    with pytest.raises(InputError):
        Campaign.create(folder, plan(seed=4))
    assert victim.read_text() == "years of work"


def test_results_elsewhere(folder: Path, victim: Path) -> None:
    (folder / "results").rmdir()
    (folder / "results").symlink_to(victim.parent)
    with pytest.raises(InputError, match="a link or file where a folder of ours would be"):
        go(folder, Database.in_memory(), LawRunner())
    assert victim.read_text() == "years of work"


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_result_that_is_no_file(folder: Path, victim: Path, kind: str) -> None:
    task = Campaign(folder).tasks()[0]
    file = folder / "results" / f"{task.id}.jsonl"
    if kind == "link":
        file.symlink_to(victim)
    else:
        os.mkfifo(file)
    with pytest.raises(InputError, match=file.name):
        go(folder, Database.in_memory(), LawRunner())
    assert victim.read_text() == "years of work"


def test_states_elsewhere(folder: Path, victim: Path) -> None:
    (folder / "states").symlink_to(victim.parent)
    task = Campaign(folder).tasks()[0]
    states = TaskStates(folder / "states" / f"{task.id}.jsonl")
    with pytest.raises(OSError, match=SAID):
        states.note(0, {"stream": 1.0})
    with pytest.raises(InputError, match=SAID):
        states.moments()
    assert victim.read_text() == "years of work"


def test_the_folder_itself_may_be_reached_by_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    done = go(tmp_path / "link", Database.in_memory(), LawRunner())
    assert done.measured == done.points
