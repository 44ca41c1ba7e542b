"""Expected gains, their intervals and the order of ranks, of random evidence of each kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import measured_kernels
import measured_nests
import msgspec
import numpy as np
import pytest
from builders import OP, band, fill, patterns, runs_of, tiny
from fit_policies import fit_policy
from hypothesis import given, settings
from hypothesis import strategies as st
from queries import changed, random_evidence, sampled_queries

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.database import Database
from embeddb.index.vote import VoteSettings
from embeddb.platforms.platform import Platform
from embeddb.ranking.order_reason import rank_notes, rests_on, with_order_reasons
from embeddb.ranking.query import Query, VoteQuality
from embeddb.ranking.rankers.base import Ranker, StaticBest
from embeddb.ranking.rankers.cost_model import CostModelRanker
from embeddb.ranking.rankers.joint import JointRanker
from embeddb.ranking.rankers.neighbour_vote import NeighbourVote
from embeddb.ranking.rankers.search import SearchRanker
from embeddb.ranking.recommendation import Candidate, Recommendation
from indexer.embed import embed

SEEDS = st.integers(0, 2**32 - 1)
RANKERS: tuple[Callable[[Query], Ranker], ...] = (
    NeighbourVote,
    CostModelRanker,
    JointRanker,
    StaticBest,
    SearchRanker,
)


def contained(candidates: Iterable[Candidate]) -> None:
    """Every expected gain lies in its interval."""
    for one in candidates:
        low, gain, high = one.gain_low, one.expected_gain, one.gain_high
        assert (low is None) == (high is None)
        if low is not None and high is not None:
            assert gain is not None
            assert low * (1 - 1e-12) <= gain <= high * (1 + 1e-12)


def explained(made: Recommendation) -> None:
    """Of two candidates out of the order of their expected gain one has a reason."""
    for at, one in enumerate(made.candidates):
        for other in made.candidates[at + 1 :]:
            if (other.expected_gain or 0.0) > (one.expected_gain or math.inf) * (1 + 1e-9):
                assert one.order_reason or other.order_reason
    in_order = sorted(made.candidates, key=lambda c: -(c.expected_gain or 0.0))
    if in_order == made.candidates:
        assert not any(one.order_reason for one in made.candidates)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_a_gain_lies_in_its_interval_whoever_ranks(seed: int) -> None:
    for query in sampled_queries().values():
        random = random_evidence(query, np.random.default_rng(seed))
        for ranker in RANKERS:
            contained(ranker(random).candidates())


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_the_correction_of_a_promise_lies_in_its_interval(seed: int) -> None:
    """By heavy-tailed gains, where a few first choices go far wrong."""
    rng = np.random.default_rng(seed)
    gains = rng.standard_t(1.2, size=(40, 5)).clip(-8, 8)
    gains[:, 0] = 0.0
    gains[rng.random(gains.shape) < 0.2] = np.nan
    raw = rng.normal(size=(40, 3)).astype(np.float32)
    groups = np.array([f"g{at // 4}" for at in range(40)])
    policy = fit_policy(raw, gains, groups).policy
    if math.isfinite(policy.bias):
        assert policy.low <= policy.bias <= policy.high


def test_settings_with_a_correction_outside_its_interval_are_refused() -> None:
    good = VoteSettings(3, 1.0, loss=0.1, static_loss=0.2, bias=0.1, low=0.0, high=0.2, short=0.05)
    assert VoteSettings.from_json(good.to_json()) == good
    with pytest.raises(ValueError, match="interval"):
        VoteSettings.from_json(replace(good, bias=0.3).to_json())


def test_shrunk_votes_scatter_about_the_shrunk_gain() -> None:
    """The fault: the point was shrunk and its quantiles were not, 8.61x (11.18x to 58.64x)."""
    query = sampled_queries()["neighbours"]
    c = len(query.vote.configs)
    at = next(i for i, config in enumerate(query.vote.configs) if config != query.default)
    gains = np.zeros((5, c))
    gains[:, at] = np.log([11.0, 15.0, 20.0, 40.0, 60.0])
    far = changed(query, gains=gains, levels=gains.mean(axis=1), prior=np.zeros(c), shrink=4.0)
    wanted = dict(query.vote.configs[at])
    one = next(x for x in NeighbourVote(far).candidates() if x.config == wanted)
    assert one.expected_gain is not None and 1.0 < one.expected_gain < 15.0
    assert one.gain_low is not None and one.gain_high is not None
    assert one.gain_low < one.expected_gain < one.gain_high and one.gain_high > 15.0


def test_nothing_is_answered_that_is_expected_to_be_slower_than_the_default() -> None:
    query = sampled_queries()["neighbours"]
    gains = np.tile(np.linspace(0.0, 0.1, len(query.vote.configs)), (5, 1))
    asked = changed(
        query,
        gains=gains,
        levels=gains.mean(axis=1),
        prior=gains[0] - gains[0].mean(),
        quality=VoteQuality(bias=-0.5, low=-0.6, high=-0.4),
    )
    first = next(NeighbourVote(asked).candidates())
    assert first.expected_gain == 1.0
    assert first.gain_low is not None and first.gain_low < 1.0


# -- whole answers, of each kind of workload -------------------------------------------------------


def _scattered(runs: Iterable[Run], rng: np.random.Generator, default: Config) -> list[Run]:
    """The runs with other times: most by little, few by much; some of them fail."""
    found = []
    for run in runs:
        took = 1e-3 * float(np.exp(rng.standard_t(2.0)).clip(1e-3, 1e3))
        failed = rng.random() < 0.15 and run.config != default
        m = Measurement(status="timeout") if failed else Measurement(times_s=(took, 1.02 * took))
        found.append(replace(run, measurement=m))
    return found


def _matrices(rng: np.random.Generator) -> Recommendation:
    db = fill(Database.in_memory(), tiny(), [], indexed=False)
    for p in patterns(6):
        db.store.put_structure(p, WorkloadInfo.whole(p))
        db.store.append(_scattered(runs_of(p, tiny()), rng, Config({"variant": "a"})))
    embed(db.index)
    asked: Pattern = band(137, 14, name="new", group="new")
    return db.query(asked, platform="tiny", op=OP)


def _nests(rng: np.random.Generator) -> Recommendation:
    law = measured_nests
    return _structures(law, law.measured(), law.asked(), rng)


def _kernels(rng: np.random.Generator) -> Recommendation:
    law = measured_kernels
    return _structures(law, law.measured()[::2], law.asked(), rng)


def _structures(law: Any, measured: Iterable[Any], asked: Any, rng: Any) -> Recommendation:
    db, here = _measured(law, measured, rng)
    return db.query(asked, platform=here, op=law.OP, k=20)


def _measured(law: Any, measured: Iterable[Any], rng: Any) -> tuple[Database, Platform]:
    db, here = Database.in_memory(), law.here()
    db.store.put_platform(here)
    for one in measured:
        db.store.put_structure(one, WorkloadInfo.whole(one))
        runs = law.runs_of(one, here)
        db.store.append(_scattered(runs, rng, runs[0].config))
    embed(db.index)
    return db, here


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", [_matrices, _nests, _kernels], ids=["matrix", "nest", "tile"])
def test_answers_of_every_kind(kind: Callable[[Any], Recommendation], seed: int) -> None:
    made = kind(np.random.default_rng(seed))
    assert made.link != "default" and len(made.candidates) > 1
    contained(made.candidates)
    explained(made)


# -- the order of ranks ----------------------------------------------------------------------------


def _answer(*candidates: Candidate, link: str = "neighbours") -> Recommendation:
    made = msgspec.structs.replace(_any_answer(), candidates=list(candidates), link=link)
    return with_order_reasons(made)


@cache
def _any_answer() -> Recommendation:
    return _matrices(np.random.default_rng(0))


def _one(gain: float | None, **more: Any) -> Candidate:
    return Candidate(
        config={"variant": "b"}, score=0.0, origin="3 neighbours", expected_gain=gain, **more
    )


def _default(gain: float) -> Candidate:
    return Candidate(config={"variant": "a"}, score=0.0, origin="", expected_gain=gain)


@pytest.mark.parametrize(
    ("candidates", "reasons"),
    [
        ([_one(1.4), _one(1.3), _one(1.3)], ["", "", ""]),
        ([_one(2.4), _one(0.9), _one(2.2)], ["", "explores", ""]),
        ([_default(1.0), _one(1.1)], ["default kept", ""]),
        ([_one(1.0), _one(1.1)], ["ran elsewhere", ""]),
        ([_one(1.0), _one(1.1, failure=0.7)], ["", "failure risk"]),
        ([_one(1.2, seconds=1.0), _one(1.4)], ["", "unmeasured"]),
        (
            [_one(1.2, seconds=1.0, status="ok"), _one(1.4, status="crash")],
            ["", "failed"],
        ),
        ([_one(1.2, seconds=1.0), _one(1.4, seconds=1.1)], ["measured", ""]),
        ([_one(None), _one(1.1)], ["", ""]),
    ],
)
def test_each_reason(candidates: list[Candidate], reasons: list[str]) -> None:
    made = _answer(*candidates)
    assert [c.order_reason for c in made.candidates] == reasons
    explained(made)
    assert len(rank_notes(made.candidates)) == len({r for r in reasons if r})
    for one, reason in zip(made.candidates, reasons, strict=True):
        assert rests_on(one, made.default).endswith(reason)
        assert made.document()["candidates"][0]["order_reason"] == reasons[0]


@pytest.mark.parametrize(("law", "seed"), [(measured_kernels, 1), (measured_nests, 2)])
def test_a_reason_does_not_depend_on_the_number_of_ranks(law: Any, seed: int) -> None:
    """An answer of few ranks has the reasons of the first ranks of a longer one."""
    db, here = _measured(law, law.measured()[::2], np.random.default_rng(seed))

    def reasons(k: int) -> list[str]:
        made = db.query(law.asked(), platform=here, op=law.OP, k=k)
        return [c.order_reason for c in made.candidates]

    whole = reasons(20)
    assert "explores" in whole
    assert all(reasons(k) == whole[:k] for k in range(1, 9))


def test_a_tuner_that_was_named_gives_the_order() -> None:
    made = _answer(_one(1.0), _one(1.1), link="tuner")
    assert [c.order_reason for c in made.candidates] == ["tuner", ""]


def test_a_fused_kernel_has_nothing_to_choose() -> None:
    """Of op `fused` the one configuration is the default: no interval to be outside of."""
    query = sampled_queries()["nothing known"]
    (only,) = NeighbourVote(changed(query, op=Op("fused"))).candidates()
    assert (only.expected_gain, only.gain_low, only.gain_high) == (1.0, None, None)
