"""Tiles of neighbours whose result has other dimensions, as votes for what they become here.

A tile of a kernel with as many dimensions in the same order votes as it is. Where no neighbour has
such, all that is known are tiles with other parameters: their sizes are carried over by the role of
each dimension (`embeddb.tensors.tiles`). They are worth a measurement and no more: the default
stays first (docs/explanation/decisions.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.index.answer_index import AnswerIndex
from embeddb.nests.matching.transfer import StepOutcome
from embeddb.ranking.query import Query, Transferred
from embeddb.ranking.transferred import with_votes
from embeddb.tensors.tensor_graph import TensorGraph
from embeddb.tensors.tiles import TransferredSize, transferred_sizes, transferred_tile

#: The nearest neighbours whose tiles are carried over, and how many of each, fastest first.
NEIGHBOURS, MOST_CARRIED = 10, 4


def with_carried_tiles(
    query: Query,
    partition: AnswerIndex,
    kernel: TensorGraph,
    *,
    known: Callable[[str], TensorGraph | None],
) -> Query:
    """The query with the best tiles of its neighbours, and their untiled forms, as votes on what
    these are here, if nothing else votes; `known` gives a neighbour's kernel by its id."""
    near = query.vote.neighbours[:NEIGHBOURS]
    if np.isfinite(query.vote.gains).any() or not near:
        return query
    view = partition.view(query.platform, calls=query.calls)
    rows = np.array([partition.place_of(n.pattern_id) for n in query.vote.neighbours])
    gains, configs = view.gains[rows], partition.evidence.configs
    votes: list[tuple[int, int, Config]] = []
    told: list[Transferred] = []
    for at, one in enumerate(near):
        source = known(one.pattern_id)
        if source is None:
            continue
        for column in _worth(gains[at], configs):
            made = transferred_tile(configs[column], source, kernel)
            if query.space.reason(made) is not None:
                continue
            votes.append((at, column, made))
            if made != query.default:
                steps = tuple(map(_step, transferred_sizes(configs[column], source, kernel)))
                gain = float(gains[at, column])
                told.append(Transferred(made, one.pattern_id, configs[column], gain, steps))
    if not votes:
        return query
    vote = with_votes(query.vote, votes, gains, view.averages.prior)
    quality = vote.quality._replace(guard=math.inf)
    return replace(query, vote=replace(vote, transfers=tuple(told), quality=quality))


def _worth(gains: NDArray[np.float64], configs: Sequence[Config]) -> Iterator[int]:
    """Columns of the fastest tiles, and of the untiled form."""
    order = np.argsort(np.where(np.isfinite(gains), -gains, np.inf), kind="stable").tolist()
    yield from (at for at in order[:MOST_CARRIED] if gains[at] > 0.0)
    whole = (at for at in np.flatnonzero(gains == 0.0).tolist() if not any(configs[at].values()))
    yield from list(whole)[:1]


def _step(one: TransferredSize) -> StepOutcome:
    """As answers tell it."""
    text = f"{one.source}={one.wanted}" if one.source else ""
    return StepOutcome(text, (), f"{one.parameter}={one.size} ({one.role})", one.reason)
