"""A file system without a free byte."""

from __future__ import annotations

import pytest

from attack.conftest import Attack
from attack.full import SYSTEMS, missing


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_verb_on_a_full_disk(attack: Attack, system: str) -> None:
    if missing(system):
        pytest.skip(missing(system))
    ended = attack("full", "--system", system)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]
