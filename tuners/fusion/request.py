"""What is asked of a tuning of fusion."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from embeddb.core.errors import UsageError
from indexer.runners.base import RunOptions

__all__ = ["STARTS", "TuneRequest"]

#: Where annealing begins: the cut nearest to what the compiler fuses, or one by chance.
STARTS = ("default", "random")


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest:
    """So many seconds of a model and of hardware, the latter for what is tried; `rounds` of the
    winner beside the defaults come after. `seed` is that of the walk and of a start by chance.

    Raises: UsageError for budgets that are none.
    """

    start: str = "default"
    model_s: float = 60.0
    hardware_s: float = 60.0
    rounds: int = 3
    seed: int = 0
    options: RunOptions = field(default_factory=lambda: RunOptions(threads=1))

    def __post_init__(self) -> None:
        if self.start not in STARTS:
            raise UsageError(f"no start {self.start!r}", hint=f"there are: {', '.join(STARTS)}")
        for budget in (self.model_s, self.hardware_s):
            if not 0 <= budget < math.inf:
                raise UsageError(f"a budget is 0 seconds or more, not {budget}")
        if not self.model_s and not self.hardware_s:
            raise UsageError("both budgets are 0: there is nothing to tune by")
