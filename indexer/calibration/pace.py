"""How long a task will take, told from those before, so that none is begun that does not fit."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import NamedTuple

from embeddb.core.config import Op

__all__ = ["Pace", "Timer", "largest_nnz"]

#: Before anything was measured: seconds to compile a configuration; to run one, warm-up and repeats
#: together, whatever the matrix; and where a matrix of so much work more.
_COMPILE_S, _RUN_S, _WORK_S, _WORK = 0.4, 0.005, 0.02, 8e6
#: Work is non-zeros times dense columns and these, for the matrix itself is read too. What leaves
#: the caches takes longer by more than its size.
_COLUMNS, _POWER = 8, 1.5
#: The last tasks of an op that foretell the next, and the caution with which they do.
_LATELY, _CAUTION = 5, 1.3


class Timer:
    """The time given. `clock` tells seconds that never run backwards."""

    def __init__(self, clock: Callable[[], float], total_s: float) -> None:
        self._clock, self.total_s = clock, total_s
        self._began = clock()

    @property
    def spent_s(self) -> float:
        return self._clock() - self._began

    @property
    def left_s(self) -> float:
        return self.total_s - self.spent_s


class _Sample(NamedTuple):
    """`expected_s` by the first guess and `seconds` in truth."""

    expected_s: float
    seconds: float


class Pace:
    """Learns by what factor the first guess is wrong, for compiling and for each op."""

    def __init__(self) -> None:
        self._compiled: list[_Sample] = []
        self._measured: dict[Op, list[_Sample]] = {}

    def compiled(self, configs: int, seconds: float) -> None:
        """So many configurations, not compiled before, took that long."""
        if configs:
            self._compiled.append(_Sample(configs * _COMPILE_S, seconds))

    def measured(self, op: Op, configs: int, nnz: int, seconds: float) -> None:
        """As `compiled`, for running them on a matrix and keeping the runs."""
        if configs:
            guess = _Sample(guessed_s(op, configs, nnz), seconds)
            self._measured.setdefault(op, []).append(guess)

    def expected_s(self, op: Op, configs: int, nnz: int, *, fresh: int) -> float:
        """Seconds for `configs` on a matrix, `fresh` of them to be compiled first."""
        lately = self._measured.get(op) or [s for held in self._measured.values() for s in held]
        run = guessed_s(op, configs, nnz) * _factor(lately)
        return run + fresh * _COMPILE_S * _factor(self._compiled)


def guessed_s(op: Op, configs: int, nnz: int) -> float:
    """Seconds to run `configs` on a matrix, before anything is known of the machine."""
    work = nnz * (op.width + _COLUMNS)
    return float(configs * (_RUN_S + _WORK_S * (work / _WORK) ** _POWER))


def largest_nnz(op: Op, configs: int, seconds: float) -> int:
    """Non-zeros of the largest matrix for which that is guessed; 0 where there is none."""
    rest = max(seconds / configs - _RUN_S, 0.0)
    return int(_WORK * (rest / _WORK_S) ** (1 / _POWER) / (op.width + _COLUMNS))


def _factor(samples: list[_Sample]) -> float:
    if not samples:
        return 1.0
    return _CAUTION * statistics.median(s.seconds / s.expected_s for s in samples[-_LATELY:])
