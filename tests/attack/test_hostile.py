"""Links, pipes and devices in folders that came from somewhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attack.conftest import Attack
from attack.hostile import KINDS

Found = dict[str, list[str]]
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", KINDS)
def test_the_likeliest_verb(attack: Attack, tmp_path: Path, kind: str) -> None:
    """`make kill` tries every verb."""
    found = _tried(attack, tmp_path, "--first", "--kind", kind)
    assert found
    assert {name: faults for name, faults in found.items() if faults} == {}


def _tried(attack: Attack, folder: Path, *words: str) -> Found:
    out = folder / "found.json"
    ended = attack("hostile", "--json", str(out), *words)
    assert out.is_file(), ended.stderr[-2000:]
    found: Found = json.loads(out.read_text())
    return found
