"""Links, pipes and devices in folders that came from somewhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attack.conftest import Attack
from attack.hostile import KINDS, first

PAIRS = [(kind, what) for kind, (plants, _) in KINDS.items() for what in plants]
Found = dict[str, list[str]]


@pytest.fixture(scope="module")
def likeliest(attack: Attack, tmp_path_factory: pytest.TempPathFactory) -> Found:
    return _tried(attack, tmp_path_factory.mktemp("found"), "--first")


@pytest.mark.parametrize(("kind", "what"), PAIRS)
def test_the_likeliest_verb(likeliest: Found, kind: str, what: str) -> None:
    assert likeliest[f"{kind}: {what}: {first(kind, what)}"] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_verb(attack: Attack, tmp_path: Path, kind: str) -> None:
    found = _tried(attack, tmp_path, "--kind", kind)
    assert {name: faults for name, faults in found.items() if faults} == {}


def _tried(attack: Attack, folder: Path, *words: str) -> Found:
    out = folder / "found.json"
    ended = attack("hostile", "--json", str(out), *words)
    assert out.is_file(), ended.stderr[-2000:]
    found: Found = json.loads(out.read_text())
    return found
