"""What tuning one subject on the hardware came to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median

from embeddb.core.config import Config
from embeddb.core.subject import Subject

__all__ = ["Tuned"]


@dataclass(slots=True, kw_only=True)
class Tuned:
    """Of a kernel or a matrix. `by` says who chose what to try, of `ranked` configurations; `model`
    is the version of the one that was asked, which spent `model_s`.

    `tried` are seconds by configuration of the first turn, infinite for what `failed`, which tells
    why; `rounds` those of the default and the fastest after it, the `finalists`. Seconds:
    `hardware_s` of the first turn count against the budget, those of earlier sessions too;
    `rounds_s` is what rounds cost now. `fresh` runs were made now. `warning`: the machine was in
    another state than usual. `exact` times are the same every time, and nothing is repeated.
    """

    subject: Subject
    default: Config
    by: str
    ranked: int
    model: str = ""
    model_s: float = 0.0
    tried: dict[Config, float] = field(default_factory=dict)
    failed: dict[Config, str] = field(default_factory=dict)
    finalists: tuple[Config, ...] = ()
    rounds: dict[Config, list[float]] = field(default_factory=dict)
    fresh: int = 0
    hardware_s: float = 0.0
    rounds_s: float = 0.0
    warning: str = ""
    exact: bool = False

    @property
    def best(self) -> Config:
        """What was fastest again, of the fastest of the first turn and the default."""
        return min((*self.finalists, self.default), key=self.again_s)

    def again_s(self, config: Config) -> float:
        """The median of its rounds, else what it took at first; infinite without."""
        held = [one for one in self.rounds.get(config, ()) if math.isfinite(one)]
        return median(held) if held else self.tried.get(config, math.inf)

    @property
    def gain(self) -> float | None:
        """Of the best over the default; None where either failed."""
        default_s, best_s = self.again_s(self.default), self.again_s(self.best)
        both = math.isfinite(default_s) and math.isfinite(best_s)
        return default_s / best_s if both else None

    @property
    def apart(self) -> bool:
        """Whether the best was faster than the default in every pair of rounds, or exactly."""
        if self.exact:
            return self.best != self.default
        best, default = self.rounds.get(self.best, ()), self.rounds.get(self.default, ())
        return bool(best) and bool(default) and max(best) < min(default)
