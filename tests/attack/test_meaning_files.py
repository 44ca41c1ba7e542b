"""Matrix and platform files that were changed in form are read as before; `make fuzz` has more."""

from __future__ import annotations

from pathlib import Path

import pytest

from attack.meaning import check, module_of, sampled


@pytest.mark.parametrize("name", ["matrices", "platforms"])
def test_a_change_of_form_keeps_the_meaning(name: str, tmp_path: Path) -> None:
    meaning = module_of(name)
    for seed in range(60):
        folder = tmp_path / str(seed)
        folder.mkdir()
        check(meaning, seed, folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["matrices", "platforms"])
def test_many_changes_of_form(name: str, tmp_path: Path) -> None:
    meaning = module_of(name)
    for seed in range(1000, 1500):
        folder = tmp_path / str(seed)
        folder.mkdir()
        check(meaning, seed, folder)


@pytest.mark.parametrize("name", ["matrices", "platforms"])
def test_every_change_is_drawn_and_most_are_of_form(name: str) -> None:
    meaning = module_of(name)
    drawn = [sampled(meaning, seed) for seed in range(400)]
    assert {name for _, names, _ in drawn for name in names} == {*meaning.KEEPS, *meaning.ALTERS}
    assert 50 < sum(altered for _, _, altered in drawn) < 200


def test_each_format_is_written() -> None:
    from attack.meanings import matrices

    assert {matrices._format(sampled(matrices, seed)[0]) for seed in range(400)} == set(
        matrices._FORMATS
    )
