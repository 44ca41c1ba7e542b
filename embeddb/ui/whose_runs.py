"""Whose runs something rests on, in words, for text and pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from embeddb.core.wording import shown, when
from embeddb.store.provenance import HERE, Provenance

__all__ = ["each_source", "whose_runs"]

_MOST_NAME = 40


def whose_runs(provenance: Sequence[Provenance]) -> str:
    """Who brought how many of some runs: `ann@cluster7 12, run or read in here 3`."""
    return ", ".join(f"{shown(p.source or HERE, _MOST_NAME)} {p.runs:,}" for p in provenance)


def each_source(provenance: Iterable[Provenance]) -> list[str]:
    """A line for each source and machine: how many runs, by whom they were pushed, when they were
    measured."""
    every: dict[tuple[str, str], list[Provenance]] = {}
    for one in provenance:
        every.setdefault((one.source, one.machine), []).append(one)
    return [_line(held) for _, held in sorted(every.items())]


def _line(held: Sequence[Provenance]) -> str:
    whens = [moment for one in held for moment in (one.first, one.last) if moment > 0]
    days = sorted({when(min(whens))[:10], when(max(whens))[:10]}) if whens else []
    both = msgspec.structs.replace(held[0], runs=sum(one.runs for one in held))
    return shown(both.words + (f", measured {' to '.join(days)}" if days else ""), 400)
