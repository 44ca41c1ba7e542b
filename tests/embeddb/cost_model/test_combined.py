"""A model of every machine and one of a machine's own runs predict together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from builders import CONFIGS, OP, tiny

from embeddb.cost_model import Problem
from embeddb.cost_model.combined import Combined, own_share


@dataclass
class Fixed:
    """A model with the same predictions for any workload; it records the vectors it reads."""

    gain: tuple[float, ...]
    spread: float
    reads_lengths: bool = False
    guard: float = 0.25
    correlation: Any = None

    def score(self, problem: Problem, _configs: Any) -> tuple[Any, Any]:
        self.read = problem.vector.tolist()
        return np.array(self.gain), np.full(len(self.gain), self.spread)


def combined(every: Fixed, own: Fixed) -> Combined:
    return Combined(every, own, np.array([7.0], dtype=np.float32))  # type: ignore[arg-type]


def problem() -> Problem:
    return Problem(np.array([1.0, 2.0], dtype=np.float32), tiny(), OP)


@pytest.mark.parametrize(
    ("spreads", "share"), [((0.2, 0.2), 0.5), ((0.3, 0.1), 0.9), ((0.1, 0.3), 0.1)]
)
def test_the_mean_is_weighted_by_precision(spreads: tuple[float, float], share: float) -> None:
    every, own = Fixed((1.0, 0.0, -1.0), spreads[0]), Fixed((-0.5, 0.5, 0.0), spreads[1])
    gain, spread = combined(every, own).score(problem(), CONFIGS[:3])
    want = (1.0 - share) * np.array(every.gain) + share * np.array(own.gain)
    assert gain == pytest.approx(want)
    assert spread == pytest.approx((1.0 - share) * spreads[0] + share * spreads[1])


def test_each_model_reads_its_own_features() -> None:
    every, own = Fixed((0.0,), 0.1), Fixed((0.0,), 0.1, reads_lengths=True)
    both = combined(every, own)
    both.score(problem(), CONFIGS[:1])
    assert (every.read, own.read) == ([1.0, 2.0], [7.0])
    assert both.reads_lengths and not combined(every, every).reads_lengths
    assert both.guard == every.guard and both.correlation is None


def test_errors_correlate_as_those_of_the_own_runs() -> None:
    def correlation(asked: Problem, configs: Any) -> Any:
        return np.eye(len(configs)) * asked.vector[0]

    own = Fixed((0.0,), 0.1, correlation=correlation)
    found = combined(Fixed((0.0,), 0.1), own).correlation
    assert found is not None and found(problem(), CONFIGS[:2]).tolist() == [[7.0, 0.0], [0.0, 7.0]]


def test_a_spread_of_zero_is_no_certainty_beyond_the_least() -> None:
    assert own_share(np.zeros(3), np.zeros(3)) == 0.5
    assert own_share(np.zeros(0), np.zeros(0)) == 0.0
    assert own_share(np.full(3, 0.1), np.zeros(3)) == pytest.approx(1.0)
