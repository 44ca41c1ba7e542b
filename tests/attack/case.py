"""One input of the fuzzer, and what a kind of inputs must offer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Case:
    """`how` tells who shall read the bytes, in the kind's own words (a suffix, a reader)."""

    how: str
    data: bytes


class Kind(Protocol):
    """A module of `kinds/`. Imports of its own are those of the child that feeds."""

    def seeds(self) -> list[Case]:
        """Small valid inputs of every format, and cases that were found before."""
        ...

    def mutate(self, rng: random.Random, case: Case, seeds: Sequence[Case]) -> Case:
        """One that is probably bad."""
        ...

    def feed(self, case: Case, scratch: Path, state: Any) -> None:
        """Read it as a user would; nothing but an `EmbeddbError` may come out. It writes below
        `scratch` alone. `state` is what `prepare` gave."""
        ...

    def prepare(self, scratch: Path) -> Any:
        """Once per child: what reading needs."""
        ...
