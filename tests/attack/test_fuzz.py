"""A little of every kind of input; `make fuzz` has hours of it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from attack.conftest import Attack
from attack.fuzz import KINDS, case_of, module_of
from attack.mutate import MOST, mutated, mutated_json

#: Of these a second gives hundreds.
QUICK = ("matrices", "runs", "platforms", "expressions", "words", "meaning")


def test_bad_input_is_refused_in_one_line(attack: Attack, tmp_path: Path) -> None:
    _fed(attack, tmp_path, QUICK, "--count", "300", "--seconds", "6")


@pytest.mark.slow
def test_of_every_kind_for_seconds(attack: Attack, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("starlette")
    _fed(attack, tmp_path, KINDS, "--seconds", "30", "--seed", "2")


def _fed(attack: Attack, folder: Path, kinds: Sequence[str], *words: str) -> None:
    out = folder / "found.json"
    chosen = [word for kind in kinds for word in ("--kind", kind)]
    ended = attack("fuzz", *chosen, "--out", str(folder), "--json", str(out), *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]
    for row in json.loads(out.read_text())["kinds"]:
        assert row["inputs"] == row["read"] + row["refused"] > 0


def test_an_input_is_made_from_its_number() -> None:
    kind = module_of("words")
    seeds = kind.seeds()
    made = [case_of(kind, seeds, 7, at) for at in range(50)]
    assert made == [case_of(kind, seeds, 7, at) for at in range(50)]
    assert made[::2][: len(seeds)] == seeds
    assert made[1::2] != [case_of(kind, seeds, 8, at) for at in range(1, 50, 2)]


def test_mutations_are_bounded_and_differ() -> None:
    rng = random.Random(1)
    data = b'{"a": [1, 2, {"b": "text"}], "n": 12345}\n' * 40
    made = [mutated(rng, data, [b"other"]) for _ in range(300)]
    assert max(map(len, made)) <= MOST
    assert len(set(made)) > 250
    assert any(json.loads(one) != json.loads(data[:41]) for one in _sound(rng, data[:41]))


def _sound(rng: random.Random, data: bytes) -> list[bytes]:
    """Trees that are still JSON."""
    found = []
    for _ in range(50):
        made = mutated_json(rng, data)
        try:
            json.loads(made)
        except ValueError:
            continue
        found.append(made)
    return found


def test_a_fault_is_found_kept_and_fed_again(attack: Attack, tmp_path: Path) -> None:
    """The harness itself: a reader that does everything wrong is caught, its input made small."""
    ended = attack("broken", str(tmp_path))
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]
