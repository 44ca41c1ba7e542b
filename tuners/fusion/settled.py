"""Which of the cuts that ran is the fastest: the first of thousands of sums of kernels that were
timed once is the one with the luckiest timings."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from statistics import mean

from embeddb.tensors.edges import Cut
from tuners.fusion.outcome import Tried

__all__ = ["MOST_AGAIN", "settled"]

#: Cuts that are looked at, and cuts that run again at most.
_MOST, MOST_AGAIN = 300, 5


def settled(
    tried: Sequence[Tried],
    kernels: Callable[[Cut], Sequence[str]],
    told: Callable[[str], Sequence[float]],
    again: Callable[[Cut], object],
) -> Cut | None:
    """The fastest of the fastest `_MOST` that ran: it runs `again`, its kernels timed anew, and the
    sums of all cuts that have these kernels go by what is `told` of each since (seconds by kernel
    id, the first of them those that the search went by, which is what made it lucky); so on, until
    the fastest is one that ran again. Of `MOST_AGAIN` such none of which stays the fastest, the
    fastest. None where nothing ran."""
    first = heapq.nsmallest(_MOST, tried, key=lambda one: one.seconds)
    parts = {one.cut: kernels(one.cut) for one in first}
    seconds = {name: _seconds(told(name)) for names in parts.values() for name in names}
    done: list[Cut] = []
    while parts and len(done) < MOST_AGAIN:
        best = _fastest(list(parts), parts, seconds)
        if best in done:
            break
        again(best)
        done.append(best)
        seconds |= {name: _seconds(told(name)) for name in parts[best]}
    return _fastest(done, parts, seconds) if done else None


def _seconds(told: Sequence[float]) -> float:
    first, *since = told
    return mean(since) if since else first


def _fastest(
    cuts: Sequence[Cut], parts: Mapping[Cut, Sequence[str]], seconds: Mapping[str, float]
) -> Cut:
    return min(cuts, key=lambda cut: sum(seconds[name] for name in parts[cut]))
