"""Values of an answer that text, page and notebook show alike; each of them only formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from embeddb.core.config import Config
from embeddb.core.sizes import Sizes
from embeddb.explain.explanation import fails, paid_off
from embeddb.ranking.order_reason import rests_on
from embeddb.ranking.recommendation import Recommendation


class RankRow(NamedTuple):
    """A candidate at its `rank` from 1, or the default (None). Gains are factors over the default,
    `low` to `high` is the 10..90 % interval; `seconds` and `measured_gain` are of runs made for
    this answer."""

    rank: int | None
    config: dict[str, Any]
    gain: float | None
    low: float | None = None
    high: float | None = None
    rests_on: str = "default"
    fails: str = "-"
    pays_off: str = "-"
    seconds: float | None = None
    status: str = ""
    measured_gain: float | None = None


class Ranking(NamedTuple):
    """The candidates of an answer, and the default as `last` row where it is none of them. The
    flags tell which columns hold anything."""

    rows: list[RankRow]
    last: list[RankRow]
    measured: bool
    fails: bool
    pays_off: bool

    @classmethod
    def of(cls, answer: Recommendation) -> Ranking:
        candidates, base = answer.candidates, answer.default_seconds
        rows = [
            RankRow(
                rank,
                c.config,
                c.expected_gain,
                c.gain_low,
                c.gain_high,
                rests_on(c, answer.default),
                fails(c),
                paid_off(c.break_even_calls),
                c.seconds,
                c.status or "",
                base / c.seconds if base and c.seconds else None,
            )
            for rank, c in enumerate(candidates, 1)
        ]
        own = RankRow(None, answer.default, 1.0, seconds=base, measured_gain=base and 1.0)
        return cls(
            rows,
            [] if answer.default in [c.config for c in candidates] else [own],
            any(c.status for c in candidates),
            any(c.failure is not None for c in candidates),
            any(c.break_even_calls is not None for c in candidates),
        )


def differing(config: Mapping[str, Any], answer: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Parameters whose value differs from the answer's, with the value; None: not used."""
    # A stored answer has lists for permutations: as configurations the two compare.
    there, here = Config(config), Config(answer)
    return [(n, there.get(n)) for n in sorted({*there, *here}) if there.get(n) != here.get(n)]


def subject_line(name: str, sizes: Sizes) -> str:
    """A workload's name and sizes: `G14: 800 x 800, 4,694 nonzeros`."""
    if sizes.named:
        return f"{name}: {sizes}"
    if min(sizes) < 0:
        return f"{name} (sizes unknown)"
    return f"{name}: {sizes.m:,} x {sizes.n:,}, {sizes.nnz:,} nonzeros"
