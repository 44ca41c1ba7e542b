"""A file system without a free byte."""

from __future__ import annotations

import pytest

from attack.conftest import Attack
from attack.full import CANNOT


@pytest.mark.slow
def test_every_verb_on_a_full_disk(attack: Attack) -> None:
    """`make kill` tries ext4 too."""
    ended = attack("full", "--system", "tmpfs")
    if ended.returncode == CANNOT:
        pytest.skip(ended.stdout.strip())
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]
