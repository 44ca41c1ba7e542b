"""From values to pixels, and the ticks between."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

__all__ = ["LARGEST", "Scale", "drawable"]

#: Anything beyond has no place on an axis: differences and ratios of it overflow.
LARGEST = 1e100


def drawable(value: float, *, log: bool = False) -> bool:
    return math.isfinite(value) and abs(value) < LARGEST and (not log or value > 1 / LARGEST)


class Scale(NamedTuple):
    """`low` is at pixel `start`, `high` at `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def over(
        cls, values: Iterable[float], start: float, end: float, *, log: bool = False, pad: bool
    ) -> Scale:
        """Around all that is drawable of some values; `pad` leaves room on both sides."""
        held = [v for v in values if drawable(v, log=log)] or [1.0]
        low, high = min(held), max(held)
        size = max(abs(low), abs(high))
        if high - low <= max(1e-12 * size, 1 / LARGEST):
            by = 0.2 * size if size > 1 / LARGEST else 0.5
            return cls(low - by, high + by, start, end, log)
        if not pad:
            return cls(low, high, start, end, log)
        if log:
            by = (high / low) ** 0.05
            return cls(low / by, high * by, start, end, True)
        by = 0.05 * (high - low)
        return cls(low - by, high + by, start, end)

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        share = (
            math.log(value / low) / math.log(high / low)
            if self.log
            else (value - low) / (high - low)
        )
        return self.start + share * (self.end - self.start)

    def ticks(self, spacing: float) -> list[tuple[float, str]]:
        """Values with their labels, about `spacing` pixels apart: 1, 2 or 5 times powers of ten."""
        most = max(2.0, abs(self.end - self.start) / spacing)
        values = self._log_ticks(most) if self.log else []
        if len(values) < 2:
            values = self._linear_ticks(most)
        return list(zip(values, _labels(values), strict=True))

    def _linear_ticks(self, most: float) -> list[float]:
        rough = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(s * power for s in (1, 2, 5, 10) if s * power >= rough * (1 - 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [at * step for at in range(first, last + 1) if at * step > 0 or not self.log]

    def _log_ticks(self, most: float) -> list[float]:
        decades = math.log10(self.high / self.low)
        for parts in ((1, 2, 5), (1, 3), (1,)):
            if len(parts) * decades <= most:
                return list(self._powers(parts, 1))
        return list(self._powers((1,), math.ceil(decades / most)))

    def _powers(self, parts: Sequence[int], every: int) -> Iterator[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for power in range(first, last + 1):
            for part in parts if power % every == 0 else ():
                value = float(f"{part}e{power}")
                if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9):
                    yield value


def _labels(values: Sequence[float]) -> list[str]:
    """With as many decimals as tell them apart."""
    largest = max((abs(v) for v in values), default=0.0)
    gap = min((abs(b - a) for a, b in pairwise(values)), default=largest or 1)
    if largest >= 1e7 or 0 < largest < 1e-4:
        return [_scientific(v, gap) for v in values]
    return [_plain(v, gap) for v in values]


def _plain(value: float, gap: float) -> str:
    of = min(gap, abs(value)) if value else gap
    decimals = max(0, -math.floor(math.log10(of) + 1e-9)) if of > 0 else 0
    text = f"{value:,.{min(decimals, 8)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scientific(value: float, gap: float) -> str:
    if not value:
        return "0"
    figures = max(0, math.floor(math.log10(abs(value))) - math.floor(math.log10(gap) + 1e-9))
    mantissa, power = f"{value:.{min(figures, 12)}e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.') if figures else mantissa}e{int(power)}"
