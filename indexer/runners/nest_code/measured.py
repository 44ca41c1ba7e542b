"""A nest as what schedules are measured of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embeddb.nests.nest import Nest
from embeddb.nests.schedule import Schedule
from indexer.runners.harness.building import Built
from indexer.runners.nest_code import library, reference
from indexer.runners.nest_code.job import bytes_needed
from indexer.runners.nest_code.rounding import checked_nest, tolerance_of
from indexer.runners.nest_code.sending import parts_of

__all__ = ["MeasuredNest"]


class MeasuredNest:
    """Keeps `indexer.runners.harness.measuring.Measured`; a call is made once, for what it writes
    may be what it reads."""

    called = "nest"
    least_s = 0.0

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.parts: Sequence[Any] = parts_of(nest)
        self.tolerance = tolerance_of(nest)

    def bytes_needed(self, *, check: bool) -> int:
        return bytes_needed(self.nest, check=check)

    def restored_bytes(self) -> int:
        return sum(self.nest.arrays[a].bytes for a in self.nest.written)

    def reference(self, folder: Path) -> str:
        """Compiled for nests that numpy would take too long for."""
        if reference.suits(self.nest):
            return ""
        return str(library.build_reference(checked_nest(self.nest).nest, folder))

    def build(self, variants: Sequence[Schedule], folder: Path) -> dict[Schedule, Built]:
        return library.build_all(self.nest, variants, folder)
