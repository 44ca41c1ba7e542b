"""Neighbours' schedules as votes on the asked nest, worked by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from measured_nests import OP, here
from nest_shapes import product, stencil

from benchmarks.nest_matchers import loop_vectors, step_by_step
from embeddb.core.config import Config
from embeddb.nests.matching.transfer import Matcher
from embeddb.nests.nest import Nest
from embeddb.nests.schedule import Schedule
from embeddb.platforms.platform import space_of
from embeddb.ranking.query import Neighbour, Vote
from embeddb.ranking.transferred import NEIGHBOURS, SCHEDULES, MeasuredGains, with_transfers

NAN = math.nan
#: The same three schedules of a product whose loops are written i, j, k, by slot: the row of B
#: innermost; that in blocks; as it stands.
ROWS = Schedule((0, 2, 1), (0, 0, 0), "outer").config
BLOCKS = Schedule((0, 2, 1), (32, 0, 0), "outer").config
STANDS = Schedule((0, 1, 2), (0, 0, 0), "outer").config
RAN = (STANDS, ROWS, BLOCKS)
#: What they are where the loops are written j, i, k.
ROWS_HERE = Schedule((1, 2, 0), (0, 0, 0), "outer").config
BLOCKS_HERE = Schedule((1, 2, 0), (0, 32, 0), "outer").config


def matching(source: Nest, target: Nest) -> Matcher:
    return step_by_step(source, target, loop_vectors)


def near(nest: Nest) -> Neighbour:
    return Neighbour(nest.id, "nest-cpu", nest.name, nest.group, 1.0, 0.5, str(OP))


def vote_of(neighbours: Sequence[Nest], voted: Sequence[Config], gains: list[list[float]]) -> Vote:
    """A vote in which every neighbour counts the same."""
    told = np.array(gains, dtype=np.float64).reshape(len(neighbours), len(voted))
    return Vote(
        configs=tuple(voted),
        gains=told,
        levels=np.zeros(len(neighbours)),
        weights=np.full(len(neighbours), 1.0 / len(neighbours)),
        prior=np.zeros(len(voted)),
        mean=np.zeros(len(voted)),
        trust=np.where(np.isfinite(told), 1.0, NAN),
        failing=np.zeros(told.shape),
        machine_effects=np.zeros((0, 0)),
        neighbours=tuple(map(near, neighbours)),
    )


def carried(
    vote: Vote, known: Sequence[Nest], gains: list[list[float]], target: Nest, ran: object = RAN
) -> Vote:
    found = with_transfers(
        vote,
        MeasuredGains(
            RAN if ran is RAN else tuple(ran),  # type: ignore[arg-type]  # configurations
            np.array(gains, dtype=np.float64),
            np.array([0.1, 0.2, 0.3]),
        ),
        target,
        nest_of={nest.id: nest for nest in known}.get,
        space=space_of(here(), OP, target),
        matching=matching,
    )
    assert found.gains.shape == (len(vote.neighbours), len(found.configs))
    for array in (found.prior, found.mean):
        assert array.shape == (len(found.configs),)
    for table in (found.trust, found.failing):
        assert table.shape == found.gains.shape
    return found


def test_a_schedule_follows_the_loops_and_not_the_slots() -> None:
    source, target = product("ijk"), product("jik")
    vote = vote_of([source], [], [[]])
    found = carried(vote, [source], [[0.0, 1.5, 2.0]], target)
    assert found.configs == (BLOCKS_HERE, ROWS_HERE)
    assert found.gains.tolist() == [[2.0, 1.5]]
    assert found.trust.tolist() == [[1.0, 1.0]]
    assert found.prior.tolist() == [0.3, 0.2]  # their averages where they were measured
    assert [one.source for one in found.transfers] == [dict(BLOCKS), dict(ROWS)]
    assert [(one.config, one.gain) for one in found.transfers] == [
        (dict(BLOCKS_HERE), math.exp(2.0)),
        (dict(ROWS_HERE), math.exp(1.5)),
    ]
    pairs = {p[:2] for one in found.transfers for step in one.steps for p in step.matched}
    assert pairs == {("i", "i"), ("j", "j"), ("k", "k")}


def test_what_is_voted_on_already_keeps_its_place_and_takes_the_gain() -> None:
    source, target = product("ijk"), product("jik")
    vote = vote_of([source], [STANDS, ROWS_HERE], [[0.0, 0.4]])
    found = carried(vote, [source], [[0.0, 1.5, NAN]], target)
    assert found.configs == (STANDS, ROWS_HERE)
    assert found.gains.tolist() == [[0.0, 1.5]]
    assert found.prior.tolist() == [0.0, 0.0]  # that of a column which was there is not touched
    assert len(found.transfers) == 1


def test_each_neighbour_votes_for_its_own_with_its_own_gain() -> None:
    one, other, target = product("ijk"), product("ijk", combine="min="), product("jik")
    vote = vote_of([one, other], [STANDS], [[0.0], [0.0]])
    found = carried(vote, [one, other], [[0.0, 1.0, NAN], [0.0, NAN, 3.0]], target)
    assert found.configs == (STANDS, ROWS_HERE, BLOCKS_HERE)
    assert np.array_equal(found.gains, [[0.0, 1.0, NAN], [0.0, NAN, 3.0]], equal_nan=True)
    assert np.array_equal(found.trust, [[1.0, 1.0, NAN], [1.0, NAN, 1.0]], equal_nan=True)
    assert not found.failing.any()
    assert [t.pattern_id for t in found.transfers] == [one.id, other.id]


def test_only_what_gained_is_carried_and_the_fastest_has_the_last_word() -> None:
    """Two schedules that become one here: the vote is that of the faster."""
    source, target = product("ijk", n=256), product("ijk", n=48)
    wide = Schedule((0, 2, 1), (128, 0, 0), "outer").config
    narrow = Schedule((0, 2, 1), (64, 0, 0), "outer").config
    smaller = Schedule((0, 2, 1), (16, 0, 0), "outer").config  # half of 48 turns is the most
    vote = vote_of([source], [], [[]])
    ran = (STANDS, wide, narrow)
    found = carried(vote, [source], [[-0.5, 2.0, 1.0]], target, ran)
    assert found.configs == (smaller,)
    assert found.gains.tolist() == [[2.0]]
    assert carried(vote, [source], [[0.0, -1.0, NAN]], target, ran) is vote


def test_a_neighbour_that_is_not_kept_votes_as_before() -> None:
    source, target = product("ijk"), product("jik")
    vote = vote_of([source], [STANDS], [[0.3]])
    assert carried(vote, [], [[0.0, 1.5, 2.0]], target) is vote


def test_a_neighbour_of_another_depth_is_carried_as_far_as_it_goes() -> None:
    target = stencil(256)
    source = product("ijk")
    found = carried(vote_of([source], [], [[]]), [source], [[0.0, 1.0, NAN]], target)
    (one,) = found.transfers
    assert one.config["parallel"] == "outer" and "order_3" not in one.config
    assert space_of(here(), OP, target).reason(Config(one.config)) is None


@pytest.mark.parametrize("count", [1, 3])
def test_at_most_so_many_of_each_and_only_the_nearest(count: int) -> None:
    source, target = product("ijk"), product("jik")
    ran = (ROWS, BLOCKS, Schedule((2, 0, 1), (0, 0, 0)).config)
    gains = [[1.0, 2.0, 0.5]] * count
    others = [product("ijk", n=256 + 8 * at) for at in range(count)]
    found = carried(vote_of(others, [], [[]] * count), others, gains, target, ran)
    assert len(found.transfers) == SCHEDULES * count
    many = [product("ijk", n=64 + 8 * at) for at in range(NEIGHBOURS + 2)]
    vote = vote_of(many, [], [[]] * len(many))
    found = carried(vote, [*many, source], [[1.0, NAN, NAN]] * len(many), target, ran)
    assert [t.pattern_id for t in found.transfers] == [n.id for n in many[:NEIGHBOURS]]
