"""Inputs whose meaning was kept or altered (`attack.meaning`): data is a seed in digits."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attack.case import Case
from attack.meaning import MEANINGS, check, module_of


def seeds() -> list[Case]:
    return [Case(name, str(number).encode()) for number in range(4) for name in MEANINGS]


def mutate(rng: random.Random, case: Case, seeds: Sequence[Case]) -> Case:
    return Case(case.how, str(rng.randrange(1 << 48)).encode())


def prepare(scratch: Path) -> Any:
    return None


def feed(case: Case, scratch: Path, state: Any) -> None:
    digits = case.data.decode("ascii", "replace")
    folder = scratch / "meaning"
    folder.mkdir()
    try:
        check(module_of(case.how), int(digits) if digits.isdigit() else 0, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
