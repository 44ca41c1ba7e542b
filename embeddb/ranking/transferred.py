"""Schedules and tiles of neighbours, transferred to the queried workload as votes.

For a matrix, the configurations that neighbours ran are candidates unchanged. A nest has loops of
its own: a neighbour's schedule is a recipe for its loops, and becomes a schedule of the queried
nest by matching the nodes of both ("Performance Embeddings", Section 5.1;
`embeddb.nests.matching.transfer`). A tile of a tensor kernel whose result has other dimensions is
transferred by the role of each dimension (`embeddb.tensors.tiles`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.index.answer_index import AnswerIndex
from embeddb.nests.check import legality_of
from embeddb.nests.matching.transfer import Matcher, StepOutcome, at_once, raw_vectors, transfer
from embeddb.nests.nest import Nest
from embeddb.nests.recipe import recipe_of
from embeddb.nests.schedule import KNOWN, Schedule
from embeddb.platforms.space.space import ConfigSpace
from embeddb.ranking.query import Neighbour, Query, Vote
from embeddb.ranking.recommendation import TransferredSchedule, TransferredStep
from embeddb.tensors.tensor_graph import TensorGraph
from embeddb.tensors.tiles import TransferredSize, transferred_sizes, transferred_tile

Floats = NDArray[np.float64]
#: From a source and a target nest to the matcher of their nodes.
Matching = Callable[[Nest, Nest], Matcher]

#: Number of nearest neighbours that are read, and of schedules and tiles of each, fastest first.
#: The paper takes one schedule of each of 5 or 10 neighbours (Section 6.1).
NEIGHBOURS, SCHEDULES, TILES = 10, 2, 4


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredGains:
    """All x measured configurations, their log gains float64[k,x] on the k neighbours of a vote and
    their averages float64[x] on the platform."""

    configs: Sequence[Config]
    gains: Floats
    averages: Floats

    @classmethod
    def of(cls, query: Query, partition: AnswerIndex) -> MeasuredGains:
        view = partition.view(query.platform, calls=query.calls)
        ids = [near.pattern_id for near in query.vote.neighbours]
        rows = partition.places_of(ids)
        averages = view.averages.by(query.vote.shrink)
        return cls(partition.evidence.configs, view.gains[rows], averages)

    def fastest(self, row: int, count: int) -> list[int]:
        """Columns of at most `count` configurations faster than the default, the fastest first."""
        gains = self.gains[row]
        order = np.argsort(np.where(np.isfinite(gains), -gains, np.inf), kind="stable")
        return [at for at in order[:count].tolist() if gains[at] > 0.0]


# -- loop nests ------------------------------------------------------------------------------------


def transfer_schedules(
    query: Query, partition: AnswerIndex, nest: Nest, *, nest_of: Callable[[str], Nest | None]
) -> Query:
    """Add the neighbours' schedules, transferred to the queried nest, to the vote; `nest_of`
    returns a neighbour's nest by its id."""
    vote = with_transfers(
        query.vote,
        MeasuredGains.of(query, partition),
        nest,
        nest_of=nest_of,
        space=query.space,
        # Loops are matched by all features of the graph. Learned vectors were no better; four
        # features selected by hand were better at ten tries and far worse at one
        # (docs/results/index.md).
        matching=partial(at_once, vectors=raw_vectors),
    )
    return replace(query, vote=vote)


def with_transfers(
    vote: Vote,
    measured: MeasuredGains,
    nest: Nest,
    *,
    nest_of: Callable[[str], Nest | None],
    space: ConfigSpace,
    matching: Matching,
) -> Vote:
    """The vote with a column for each legal transferred schedule.

    `nest_of` returns a neighbour's nest by its id. Where a transferred schedule is in the vote
    already, the neighbour votes for it with the gain of its own schedule.
    """
    names = {param.name for param in space.params}
    if not names <= KNOWN:
        return vote  # a platform's own parameters have no meaning for other loops
    rules = legality_of(nest)
    votes: list[tuple[int, int, Config]] = []
    transfers: list[TransferredSchedule] = []
    for row, near in enumerate(vote.neighbours[:NEIGHBOURS]):
        source = nest_of(near.pattern_id)
        columns = measured.fastest(row, SCHEDULES)
        if source is None or not columns:
            continue
        matcher = matching(source, nest)
        for column in columns:
            config, gain = measured.configs[column], float(measured.gains[row, column])
            steps = recipe_of(source, Schedule.of(config, source.depth), whole=True)
            outcome = transfer(steps, source, target=nest, legal=rules.reason, matcher=matcher)
            values = outcome.schedule.config
            target = space.canonical(Config({n: values[n] for n in values if n in names}))
            if space.reason(target) is None:
                votes.append((row, column, target))
                transfers.append(_transferred(near, target, config, gain, outcome.steps))
    if not votes:
        return vote
    return replace(with_votes(vote, votes, measured), transfers=tuple(transfers))


# -- tiles of tensor kernels -----------------------------------------------------------------------


def transfer_tiles(
    query: Query,
    partition: AnswerIndex,
    kernel: TensorGraph,
    *,
    kernel_of: Callable[[str], TensorGraph | None],
) -> Query:
    """Add the best tiles of the neighbours, and their untiled forms, transferred to the queried
    kernel, to a vote that is otherwise empty; `kernel_of` returns a neighbour's kernel by its id.

    Tiles of kernels with the same dimensions are in the vote unchanged. Transferred ones are worth
    a measurement and no more, so the default stays first (docs/explanation/decisions.md).
    """
    near = query.vote.neighbours[:NEIGHBOURS]
    if np.isfinite(query.vote.gains).any() or not near:
        return query
    measured = MeasuredGains.of(query, partition)
    votes: list[tuple[int, int, Config]] = []
    transfers: list[TransferredSchedule] = []
    for row, one in enumerate(near):
        source = kernel_of(one.pattern_id)
        if source is None:
            continue
        for column in (*measured.fastest(row, TILES), *_untiled(measured, row)):
            config = measured.configs[column]
            target = transferred_tile(config, source, kernel)
            if query.space.reason(target) is not None:
                continue
            votes.append((row, column, target))
            if target != query.default:
                steps = map(_step, transferred_sizes(config, source, kernel))
                gain = float(measured.gains[row, column])
                transfers.append(_transferred(one, target, config, gain, steps))
    if not votes:
        return query
    vote = with_votes(query.vote, votes, measured)
    quality = vote.quality._replace(guard=math.inf)
    return replace(query, vote=replace(vote, transfers=tuple(transfers), quality=quality))


def _untiled(measured: MeasuredGains, row: int) -> list[int]:
    """The column of the untiled form, if it ran."""
    columns = np.flatnonzero(measured.gains[row] == 0.0).tolist()
    return [at for at in columns if not any(measured.configs[at].values())][:1]


def _step(one: TransferredSize) -> StepOutcome:
    text = f"{one.source}={one.wanted}" if one.source else ""
    return StepOutcome(text, (), f"{one.parameter}={one.size} ({one.role})", one.reason)


# -- votes -----------------------------------------------------------------------------------------


def _transferred(
    near: Neighbour, config: Config, source: Config, gain: float, steps: Iterable[StepOutcome]
) -> TransferredSchedule:
    """The configuration that a neighbour's `source`, of that log gain there, becomes here."""
    return TransferredSchedule(
        config=dict(config),
        pattern_id=near.pattern_id,
        name=near.name,
        source=dict(source),
        gain=math.exp(gain),
        steps=[
            TransferredStep(
                text=step.text,
                target_text=step.target_text,
                reason=step.reason,
                matched=[(pair.source, pair.target, pair.distance) for pair in step.pairs],
            )
            for step in steps
        ],
    )


def with_votes(
    vote: Vote, votes: Sequence[tuple[int, int, Config]], measured: MeasuredGains
) -> Vote:
    """The vote with a column for each transferred configuration; `votes` are the neighbour's row,
    the column of its source in `measured`, and the transferred configuration."""
    configs = tuple(dict.fromkeys([*vote.configs, *(config for _, _, config in votes)]))
    place = {config: at for at, config in enumerate(configs)}
    added = len(configs) - len(vote.configs)
    gains, trust = _wider(vote.gains, added), _wider(vote.trust, added)
    prior = np.concatenate([vote.prior, np.zeros(added)])
    for row, column, config in reversed(votes):  # the fastest source of a neighbour overrides
        at = place[config]
        gains[row, at] = measured.gains[row, column]
        if len(trust):
            trust[row, at] = 1.0
        if at >= len(vote.configs):
            prior[at] = measured.averages[column]
    return replace(
        vote,
        configs=configs,
        gains=gains,
        trust=trust,
        prior=prior,
        mean=np.concatenate([vote.mean, np.zeros(added)]),
        failing=_wider(vote.failing, added, 0.0),
        machine_effects=_wider(vote.machine_effects, added, 0.0),
    )


def _wider(values: Floats, added: int, fill: float = np.nan) -> Floats:
    """Values float64[r,c+added]; unchanged without rows."""
    if not len(values):
        return values
    return np.hstack([values, np.full((len(values), added), fill)])
