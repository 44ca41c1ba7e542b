"""The default goes first unless the promise over it exceeds what held-out answers called for; and
how far a pattern counts that other machines ran."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from builders import OP, by_chance, fill, patterns, tiny
from numpy.typing import NDArray

from embeddb.core.records import WorkloadInfo
from embeddb.database import Database
from embeddb.index.guards import gain_errors, short_bound, usual_guard
from embeddb.index.vote import (
    VoteSettings,
)
from embeddb.index.vote_fit import LeftOut
from embeddb.platforms.platform import Platform
from embeddb.ranking.build import with_evidence
from embeddb.ranking.fallback import answer
from embeddb.ranking.query import Query, VoteQuality
from indexer.embed import embed


def firsts(pairs: list[tuple[float, float]]) -> NDArray[np.float64]:
    """Promised and got, as `embeddb.index.vote` collects them."""
    return np.array(pairs, dtype=np.float64)


def test_no_guard_where_first_choices_gain() -> None:
    assert usual_guard([firsts([(0.3, 0.2), (0.05, 0.04), (0.02, 0.01)] * 10)]) == 0.0


def test_small_promises_that_lose_are_guarded_against() -> None:
    """Promises of 0.08 lose as often as not and gain little: they are not worth the losses."""
    lucky = [(0.5, 0.4)] * 20 + [(0.08, 0.03)] * 10 + [(0.08, -0.03)] * 10
    assert usual_guard([firsts(lucky)]) == 0.1


def test_a_guard_never_costs_more_than_it_may() -> None:
    """One answer of forty is slower, and keeping it back would cost all the others' gains."""
    assert usual_guard([firsts([(0.4, 0.4)] * 39 + [(0.4, -0.1)])]) == 0.0


def test_machines_count_alike() -> None:
    many = firsts([(0.1, 0.09)] * 1000)
    bad = firsts([(0.1, -0.5)] * 10)
    assert usual_guard([many]) == 0.0
    assert usual_guard([many, bad]) == 0.1


@pytest.mark.parametrize(
    ("short", "groups", "bound"), [(0, 10, 0.2057), (0, 22, 0.0994), (1, 38, 0.0985), (5, 5, 1.0)]
)
def test_how_many_answers_may_fall_short(short: int, groups: int, bound: float) -> None:
    """Bounds of Clopper and Pearson; two rows of a group are one trial."""
    loss = np.repeat(np.where(np.arange(groups) < short, 0.2, 0.05), 2)
    group = np.repeat(np.arange(groups), 2)
    assert short_bound(loss, group) == pytest.approx(bound, abs=2e-4)


def test_errors_are_known_from_three_groups_on() -> None:
    off, group = np.full(20, -0.1), np.arange(20)
    assert gain_errors(off, group)[:3] == pytest.approx((-0.1, -0.1, -0.1))
    assert np.isnan(gain_errors(off, group % 2)[:3]).all()
    assert np.isnan(gain_errors(np.full(20, np.nan), group)[:3]).all()


def test_few_groups_widen_the_interval() -> None:
    """The same errors, of as many matrices in ever fewer groups."""
    off = np.random.default_rng(0).normal(0.1, 0.3, 60)
    widths = [
        each.high - each.low
        for each in (gain_errors(off, np.arange(60) % n) for n in (3, 5, 10, 60))
    ]
    assert all(few > 1.05 * many for few, many in pairwise(widths))


@pytest.mark.parametrize("groups", [5, 10, 20, 100])
@pytest.mark.parametrize("law", ["normal", "laplace", "lognormal"])
def test_intervals_cover_what_they_promise_whatever_the_number_of_groups(
    groups: int, law: str
) -> None:
    rng = np.random.default_rng(groups)
    hits = []
    for _ in range(1000):
        *seen, new = getattr(rng, law)(0.0, 0.5, groups + 1)
        errors = gain_errors(np.array(seen), np.arange(groups))
        hits.append(errors.low <= new <= errors.high)
    assert 0.73 <= np.mean(hits) <= 0.92


def test_a_policy_keeps_its_guard() -> None:
    assert VoteSettings.from_json(VoteSettings(3, 1.0, guard=0.05).to_json()).guard == 0.05


def test_the_default_goes_first_behind_the_guard() -> None:
    db = fill(Database.in_memory(), tiny())
    asked = patterns(1, first=9)[2]
    platform = tiny()
    partition = db.index.partition(OP, platform)
    assert partition is not None
    space, default = platform.space(OP), platform.default(OP)
    bare = Query(WorkloadInfo.of(asked), platform, OP, space, default)
    vector = db.index.featurizers()[partition.featurizer].embed(asked)
    query = with_evidence(bare, partition, vector)
    free = replace(query, vote=replace(query.vote, quality=VoteQuality()))
    first = answer(free, 4).candidates
    assert first[0].config != dict(default) and first[0].expected_gain > 1.0
    held = replace(query, vote=replace(query.vote, quality=VoteQuality(guard=9.0)))
    behind = answer(held, 4).candidates
    assert behind[0].config == dict(default) and behind[0].expected_gain == 1.0
    assert behind[1].config == first[0].config
    assert all(a.score <= b.score for a, b in pairwise(behind))


# -- a pattern that other machines ran -----------------------------------------------------------


def _three_machines(scale: float) -> tuple[Database, Platform]:
    """Three machines of which the third is the target: gains have nothing to do with the pattern's
    features, and agree between machines but for `scale` (standard deviation of a log gain)."""
    db, platform = Database.in_memory(), tiny(portable=True)
    among, shared = patterns(10), by_chance(1, 0.5)
    for seed, name in enumerate(("one", "two", "three"), 2):
        own = by_chance(seed, scale)
        fill(
            db,
            platform.at(name, {"threads": "2"}),
            among,
            times=lambda p, v, own=own: shared(p, v) * own(p, v) * 1e3,
            indexed=False,
        )
    embed(db.index)
    return db, platform


@pytest.mark.parametrize(("scale", "agree"), [(0.02, True), (1.0, False)])
def test_what_others_ran_of_the_very_pattern_counts_as_far_as_they_agree(
    scale: float, agree: bool
) -> None:
    db, platform = _three_machines(scale)
    partition = db.index.partition(OP, platform)
    assert partition is not None and partition.left_out is not None
    assert LeftOut.from_json(partition.left_out.to_json()) == partition.left_out
    nobody = platform.at("four", {"threads": "2"})
    strangers, known = partition.view(nobody).policy, partition.shared_policy(nobody)
    # By features nothing can be told; by the pattern itself all, if machines agree.
    assert (known.loss < 0.3 * strangers.loss) == agree
    assert known.across and partition.shared_policy(nobody) is known
    here = partition.shared_policy(platform.at("three", {"threads": "2"}))
    assert not here.across and (here.loss < 0.3 * strangers.loss) == agree
    hits = 0
    shared = by_chance(1, 0.5)
    for pattern in patterns(10):
        found = db.query(pattern, platform=nobody, op=OP)
        best = min(range(4), key=lambda v: shared(pattern, v))
        hits += found.candidates[0].config["variant"] == "abcd"[best]
    assert (hits >= 32) == agree


@pytest.mark.parametrize(("backend", "held"), [("cuda", False), ("omp", True)])
def test_one_other_machine_alone_is_believed_as_far_as_it_is_alike(
    backend: str, held: bool
) -> None:
    """A promise of 1.5 exceeds what GPUs differ by, and not what a CPU and a GPU do."""
    db, platform = Database.in_memory(), tiny(portable=True)
    fill(db, platform.at("one", {"backend": "cuda"}))
    here = platform.at("two", {"backend": backend})
    (asked,) = [p for p in patterns(1, first=9) if p.name.endswith("b")]
    first = db.query(asked, platform=here, op=OP).candidates[0]
    assert (first.config["variant"] == "a") == held
