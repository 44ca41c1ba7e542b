"""Inputs whose meaning was kept or altered; `make fuzz KIND=meaning` has hours of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from attack.meaning import MEANINGS, Difference, check, module_of, sampled

#: Seeds of each, in seconds.
COUNT = 60


@pytest.mark.parametrize("name", MEANINGS)
def test_an_input_is_read_as_it_means(name: str, tmp_path: Path) -> None:
    for seed in range(COUNT):
        folder = tmp_path / str(seed)
        folder.mkdir()
        check(module_of(name), seed, folder)


@pytest.mark.parametrize("name", MEANINGS)
def test_every_change_keeps_or_alters_alone(name: str, tmp_path: Path) -> None:
    meaning = module_of(name)
    for at, (kept, changes) in enumerate(((True, meaning.KEEPS), (False, meaning.ALTERS))):
        for number, change in enumerate(changes.values()):
            folder = tmp_path / f"{at}-{number}"
            folder.mkdir()
            check(_Alone(meaning, change, kept), 1, folder)


class _Alone:
    """A meaning with one change, made of every input."""

    def __init__(self, meaning: object, change: object, kept: bool) -> None:
        self.__name__ = "alone"
        self.KEEPS = {}
        self.ALTERS = {} if kept else {"change": lambda rng, form: form}
        self._meaning, self._change = meaning, change

    def draw(self, rng: object) -> object:
        return self._change(rng, self._meaning.draw(rng))  # type: ignore[operator, attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._meaning, name)


def test_what_means_the_same_answers_the_same(tmp_path: Path) -> None:
    """Repeats in one cell are left out: their median is taken first."""
    logs = module_of("logs")
    kept = [change for name, change in logs.KEEPS.items() if name != "repeats in one cell"]
    for seed in range(8):
        rng = random.Random(seed)
        plain = form = logs.draw(rng)
        for change in rng.sample(kept, 4):
            form = change(rng, form)
        folders = [tmp_path / f"{seed}-{name}" for name in ("plain", "changed")]
        for folder in folders:
            folder.mkdir()
        assert logs.answers(form, folders[1]) == logs.answers(plain, folders[0]), seed


def test_a_seed_makes_one_input() -> None:
    meaning = module_of("logs")
    assert sampled(meaning, 5)[1:] == sampled(meaning, 5)[1:]
    assert len({tuple(sampled(meaning, seed)[1]) for seed in range(20)}) > 10


def test_the_harness_sees_what_is_read_wrongly(tmp_path: Path) -> None:
    class Wrong(_Alone):
        def read(self, form: object, folder: Path) -> object:
            return {}

    with pytest.raises(Difference, match="instead of"):
        check(Wrong(module_of("logs"), lambda rng, form: form, True), 1, tmp_path)
