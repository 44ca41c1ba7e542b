"""Tiles of neighbours whose result has other dimensions, as votes for what they become here.

A tile of a kernel with as many dimensions in the same order votes as it is. One of another has
other parameters: its sizes are carried over by the role of each dimension
(`embeddb.tensors.matching`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.index.answer_index import AnswerIndex
from embeddb.nests.matching.transfer import StepOutcome
from embeddb.query.query import Query, Transferred
from embeddb.query.transferred import with_votes
from embeddb.tensors.computation import Computation
from embeddb.tensors.matching import Carried, carried, carried_tile, same_dimensions

__all__ = ["MOST_CARRIED", "NEIGHBOURS", "with_carried_tiles"]

#: The nearest neighbours whose tiles are carried over, and how many of each, fastest first.
NEIGHBOURS, MOST_CARRIED = 10, 4


def with_carried_tiles(
    query: Query,
    partition: AnswerIndex,
    kernel: Computation,
    *,
    known: Callable[[str], Computation | None],
    by: str = "role",
) -> Query:
    """The query with the best tiles of neighbours of other dimensions among what is voted on;
    `known` gives a neighbour's kernel by its id, `by` how dimensions are matched."""
    view, near = partition.view(query.platform, calls=query.calls), query.vote.neighbours
    rows = np.array([partition.place_of(one.pattern_id) for one in near], dtype=np.int64)
    gains = view.gains[rows]
    votes: list[tuple[int, int, Config]] = []
    told: list[Transferred] = []
    for at, one in enumerate(near[:NEIGHBOURS]):
        source = known(one.pattern_id)
        if source is None or same_dimensions(source, kernel):
            continue
        for column in _fastest(gains[at]):
            tile = partition.evidence.configs[column]
            made = carried_tile(tile, source, kernel, by=by)
            if query.space.reason(made) is None:
                steps = tuple(map(_step, carried(tile, source, kernel, by=by)))
                votes.append((at, column, made))
                gain = float(gains[at, column])
                told.append(Transferred(made, one.pattern_id, tile, gain, steps))
    vote = with_votes(query.vote, votes, gains, view.averages.prior)
    return replace(query, vote=replace(vote, transfers=tuple(told)))


def _step(one: Carried) -> StepOutcome:
    """As answers tell it."""
    text = f"{one.source}={one.wanted}" if one.source else ""
    return StepOutcome(text, (), f"{one.parameter}={one.size} ({one.role})", one.reason)


def _fastest(gains: NDArray[np.float64]) -> Iterator[int]:
    order = np.argsort(np.where(np.isfinite(gains), -gains, np.inf), kind="stable")
    return (at for at in order[:MOST_CARRIED].tolist() if gains[at] > 0.0)
