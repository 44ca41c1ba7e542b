"""A rule: a choice among a few configurations for a matrix, without a database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from tuners.rule.features import features_of
from tuners.rule.header import rule_header, rule_symbol
from tuners.rule.trees import Forest


@dataclass(frozen=True, slots=True)
class HeldOutRow:
    """Figures of a method on held-out groups: the share of the best that ran (`of_optimum`) and the
    gain over the default (`speedup`), geometric means, and the share of patterns that ran slower
    than the default."""

    method: str
    of_optimum: float
    slower: float
    speedup: float

    def document(self) -> dict[str, Any]:
        """The released JSON form."""
        return {
            "method": self.method,
            "of_optimum@1": self.of_optimum,
            "slower_than_default": self.slower,
            "speedup@1": self.speedup,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A rule for one operation on one platform.

    `configs`, the default first, the deciding `forest`, the features `used`, `held_out` figures on
    `judged` patterns, the number of training patterns and groups, the number of patterns `left_out`
    for missing features, and the `environment` of the runs. The chosen configuration may be illegal
    on a platform for some sizes; the default never is.
    """

    platform: str
    op: Op
    configs: tuple[Config, ...]
    forest: Forest
    used: tuple[str, ...]
    patterns: int
    groups: int
    left_out: int
    environment: Mapping[str, str]
    simulated: bool = False
    held_out: tuple[HeldOutRow, ...] = ()
    judged: int = 0

    def index(self, pattern: Pattern) -> int:
        """The position in `configs`; 0, the default, without a non-zero."""
        if not pattern.nnz:
            return 0
        return int(self.forest.choose(features_of(pattern)[None, :])[0])

    def choose(self, pattern: Pattern) -> Config:
        """The configuration to run on a pattern."""
        return self.configs[self.index(pattern)]

    @property
    def symbol(self) -> str:
        """The function's name in C."""
        return rule_symbol(self.platform, self.op)

    def header(self) -> str:
        """The rule as a C header, C11 and C++11."""
        return rule_header(self.platform, self.op, self.configs, self.forest, _summary_lines(self))

    def document(self) -> dict[str, Any]:
        """The released JSON form, without the trees."""
        return {
            "platform": self.platform,
            "op": str(self.op),
            "patterns": self.patterns,
            "groups": self.groups,
            "left_out": self.left_out,
            "simulated": self.simulated,
            "judged": self.judged,
            "held_out": [row.document() for row in self.held_out],
            "features": list(self.used),
            "trees": len(self.forest.root),
            "configs": [dict(config) for config in self.configs],
        }


def _summary_lines(rule: Rule) -> list[str]:
    """Lines about the scope and the accuracy of a rule."""
    op, simulated = str(rule.op), " (simulated)" if rule.simulated else ""
    lines = [f"{op} on {rule.platform}{simulated}, learned from {rule.patterns} matrices in"]
    lines[-1] += f" {rule.groups} groups."
    if rule.left_out:
        lines.append(f"{rule.left_out} more were left out: too little is known of them.")
    lines += ["", f"On {rule.judged} matrices, each with its whole group held out:", ""]
    lines.append(f"{'':26}{'of the best that ran':>22}{'slower than default':>22}{'speed-up':>10}")
    for row in rule.held_out:
        lines.append(
            f"{row.method:26}{row.of_optimum:22.3f}{100 * row.slower:20.1f} %{row.speedup:10.2f}"
        )
    if rule.environment:
        lines += ["", "It holds for this, and says nothing of other machines:"]
        lines += [f"  {key}: {value}" for key, value in sorted(rule.environment.items())]
    return lines


#: Least contribution of a configuration, in mean log gain, to be worth its code.
_LEAST = 1e-3


def greedy_portfolio(gains: NDArray[np.float64], default: int, most: int) -> list[int]:
    """At most `most` positions of configurations, the default first: each next one is that which
    raises the geometric mean of the best of them the most. `gains` float64[r,c] are log gains over
    the default; nan, where a configuration was not run, counts as no gain.

    Greedy submodular maximisation (Nemhauser, Wolsey, Fisher 1978), as for algorithm portfolios.
    """
    filled = np.nan_to_num(gains, nan=0.0)
    chosen, best = [default], filled[:, default].copy()
    while len(chosen) < most:
        means = np.maximum(best[:, None], filled).mean(axis=0)
        at = int(means.argmax())
        if means[at] < best.mean() + _LEAST:
            break
        chosen.append(at)
        best = np.maximum(best, filled[:, at])
    return chosen
