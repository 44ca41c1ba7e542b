"""Schedules of neighbours carried over to a nest, as votes for what they become there.

A matrix is asked about configurations that neighbours ran as they are. A nest has loops of its own:
what a neighbour ran is a recipe for its loops, and becomes a schedule of the asked nest by matching
the nodes of both ("Performance Embeddings", Section 5.1; `embeddb.nests.matching.transfer`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.index.answer_index import AnswerIndex
from embeddb.nests.check import legality_of
from embeddb.nests.matching.transfer import (
    Matcher,
    Transfer,
    at_once,
    raw_vectors,
    remembered,
    transfer,
)
from embeddb.nests.nest import Nest
from embeddb.nests.recipe import recipe_of
from embeddb.nests.schedule import KNOWN, Schedule
from embeddb.platforms.space.space import ConfigSpace
from embeddb.ranking.query import Query, Transferred, Vote

Floats = NDArray[np.float64]
#: From a source and a target to what matches their nodes.
Matching = Callable[[Nest, Nest], Matcher]

#: The nearest neighbours whose schedules are carried over, and how many of each, fastest first. The
#: paper takes one of each of 5 or 10 neighbours (Section 6.1).
NEIGHBOURS, SCHEDULES = 10, 2

#: What loops are matched by: all features of the graph. Learned vectors were no better; four made
#: by hand were better at ten tries and far worse at one (docs/results/index.md).
_VECTORS = remembered(raw_vectors())


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredGains:
    """All x configurations that were measured, the log gains float64[k,x] of them on the k
    neighbours of a vote and their averages float64[x] on the platform."""

    configs: Sequence[Config]
    gains: Floats
    averages: Floats


@dataclass(frozen=True, slots=True)
class _Carried:
    """One schedule of a neighbour: its row and column in the vote of all that was measured, and
    what became of it."""

    neighbour: int
    column: int
    source: Config
    config: Config
    transfer: Transfer


def carried_over(
    query: Query, partition: AnswerIndex, nest: Nest, *, known: Callable[[str], Nest | None]
) -> Query:
    """The query with its neighbours' schedules, as schedules of the asked nest, among what is voted
    on; `known` gives a neighbour's nest by its id."""
    view = partition.view(query.platform, calls=query.calls)
    ids = [near.pattern_id for near in query.vote.neighbours]
    rows = np.array([partition.place_of(i) for i in ids], dtype=np.int64)
    whole = ((i, known(i)) for i in ids[:NEIGHBOURS])
    vote = with_transfers(
        query.vote,
        MeasuredGains(partition.evidence.configs, view.gains[rows], view.averages.prior),
        nest,
        known={i: found for i, found in whole if found is not None},
        space=query.space,
        matching=partial(at_once, vectors=_VECTORS),
    )
    return replace(query, vote=vote)


def with_transfers(
    vote: Vote,
    ran: MeasuredGains,
    nest: Nest,
    *,
    known: Mapping[str, Nest],
    space: ConfigSpace,
    matching: Matching,
) -> Vote:
    """The vote with a column for each schedule that a neighbour's becomes here.

    `known` are the neighbours' nests by id. Where a neighbour's schedule becomes one that is voted
    on anyway, the neighbour votes for that with the gain of its own schedule.
    """
    carried = list(_carried(vote, ran, nest, known=known, space=space, matching=matching))
    if not carried:
        return vote
    told = [(one.neighbour, one.column, one.config) for one in carried]
    transfers = _told(vote, carried, ran.gains)
    return replace(with_votes(vote, told, ran.gains, ran.averages), transfers=transfers)


def with_votes(
    vote: Vote, carried: Sequence[tuple[int, int, Config]], gains: Floats, averages: Floats
) -> Vote:
    """The vote with a column for each configuration that one of a neighbour becomes here; given are
    the neighbour's place, the column of `gains` float64[k,x] that it ran, and what became of it."""
    configs = tuple(dict.fromkeys([*vote.configs, *(config for _, _, config in carried)]))
    place = {config: at for at, config in enumerate(configs)}
    added = len(configs) - len(vote.configs)
    voted, trust = _wider(vote.gains, added), _wider(vote.trust, added)
    prior = np.concatenate([vote.prior, np.zeros(added)])
    for neighbour, column, config in reversed(carried):  # its fastest has the last word
        at = place[config]
        voted[neighbour, at] = gains[neighbour, column]
        if len(trust):
            trust[neighbour, at] = 1.0
        if at >= len(vote.configs):
            prior[at] = averages[column]
    return replace(
        vote,
        configs=configs,
        gains=voted,
        trust=trust,
        prior=prior,
        mean=np.concatenate([vote.mean, np.zeros(added)]),
        failing=_wider(vote.failing, added, 0.0),
        machine_effects=_wider(vote.machine_effects, added, 0.0),
    )


def _carried(
    vote: Vote,
    ran: MeasuredGains,
    nest: Nest,
    *,
    known: Mapping[str, Nest],
    space: ConfigSpace,
    matching: Matching,
) -> Iterator[_Carried]:
    names = {param.name for param in space.params}
    if not names <= KNOWN:
        return  # what a platform's own parameters mean for other loops, nobody can say
    rules, gains = legality_of(nest), ran.gains
    for row, near in enumerate(vote.neighbours[:NEIGHBOURS]):
        source = known.get(near.pattern_id)
        if source is None:
            continue
        fastest = np.argsort(np.where(np.isfinite(gains[row]), -gains[row], np.inf), kind="stable")
        gaining = [at for at in fastest[:SCHEDULES].tolist() if gains[row, at] > 0.0]
        if not gaining:
            continue
        matcher = matching(source, nest)
        for column in gaining:
            config = ran.configs[column]
            steps = recipe_of(source, Schedule.of(config, source.depth), whole=True)
            found = transfer(steps, source, target=nest, legal=rules.reason, matcher=matcher)
            told = found.schedule.config
            made = space.canonical(Config({n: told[n] for n in told if n in names}))
            if space.reason(made) is None:
                yield _Carried(row, column, config, made, found)


def _told(vote: Vote, carried: Sequence[_Carried], gains: Floats) -> tuple[Transferred, ...]:
    return tuple(
        Transferred(
            one.config,
            vote.neighbours[one.neighbour].pattern_id,
            one.source,
            float(gains[one.neighbour, one.column]),
            one.transfer.steps,
        )
        for one in carried
    )


def _wider(values: Floats, added: int, fill: float = np.nan) -> Floats:
    """float64[r,c+added]; what has no rows stays as it is."""
    if not len(values):
        return values
    return np.hstack([values, np.full((len(values), added), fill)])
