"""Verbs that write, stopped at some system call; `make kill` has thousands of rounds of it."""

from __future__ import annotations

import pytest

from attack.conftest import Attack


def test_stopped_at_some_call(attack: Attack) -> None:
    _stopped(attack, "--verb", "init", "--verb", "ingest", "--verb", "query", "--rounds", "3")


@pytest.mark.slow
def test_every_verb_stopped_again_and_again(attack: Attack) -> None:
    _stopped(attack, "--rounds", "48", "--seed", "2", "--seconds", "60")


@pytest.mark.slow
def test_the_creation_of_a_database_is_stopped_at_every_call(attack: Attack) -> None:
    _stopped(attack, "--verb", "init", "--every", "--how", "kill")


def _stopped(attack: Attack, *words: str) -> None:
    ended = attack("kill", *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]
