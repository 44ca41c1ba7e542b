"""Tuners: the contract, honest baselines, and the fallback chain of the product's own answer."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import CONFIGS, DEFAULT, OP, patterns, runs_of, sized, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from queries import changed

from embeddb.core import plugins
from embeddb.core.config import Config, Op
from embeddb.core.records import Measurement, WorkloadInfo
from embeddb.core.sizes import Sizes
from embeddb.core.timing import TimingSummary, summarise_runs
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.fit import FitInput
from embeddb.index.run_matrix import MatrixRow, RunMatrix, join
from embeddb.ranking.build import with_evidence
from embeddb.ranking.confidence import confidence_of
from embeddb.ranking.fallback import answer
from embeddb.ranking.query import LINKS, OwnTimings, Query, VoteOrigin, VoteQuality
from embeddb.ranking.rankers.choose import Rankers
from embeddb.ranking.rankers.neighbour_vote import scores
from embeddb.ranking.recommendation import Candidate
from embeddb.testing.tuners import TunerContract, check_tuner, sample_queries
from tuners.base import tune
from tuners.ranking import RankedTuner, StaticBestTuner, StaticTopKTuner, TransferTuner

NAMES = ("default", "random", "static-best", "static-top-k", "transfer")


def ok(seconds: float, conversion_s: float = 0.0) -> TimingSummary:
    return TimingSummary(seconds, 0.0, conversion_s, 1, "ok")


FAILED = TimingSummary(math.inf, 0.0, 0.0, 1, "crash")


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_every_tuner_is_found() -> None:
    assert set(NAMES) <= set(plugins.available("tuner"))


@pytest.mark.parametrize("name", plugins.available("tuner"))
class TestShipped(TunerContract):
    @pytest.fixture(autouse=True)
    def _named(self, name: str) -> None:
        self.name = name

    def make(self, query: Query, rng: np.random.Generator) -> Any:
        return plugins.load("tuner", self.name)(query, rng=rng)


class _Bad(RankedTuner):
    """Breaks one requirement, chosen by a class attribute."""

    fault = ""

    def rank(self) -> Any:
        configs = list(self.query.space.enumerate())
        if self.fault == "illegal":
            configs.insert(1, Config({"tile": 64, "order": "ij"}))
        if self.fault == "twice":
            configs.append(configs[0])
        for at, config in enumerate(configs):
            score = -at if self.fault == "order" else at
            yield Candidate(config=dict(config), score=float(score), origin="test")

    def ask(self, count: int) -> list[Candidate]:
        if self.fault == "told":
            return list(itertools.islice(self._ranked, count))
        return super().ask(count + (self.fault == "many"))

    def tell(self, config: Config, measurement: Measurement) -> None:
        if self.fault == "raises" and not measurement.ok:
            raise ValueError("failed")
        super().tell(config, measurement)


@pytest.mark.parametrize("fault", ["illegal", "twice", "order", "told", "many", "raises", ""])
def test_the_contract_finds_each_fault(fault: str) -> None:
    made = type("Made", (_Bad,), {"fault": fault})
    query = sample_queries()["neighbours"]

    def check() -> None:
        check_tuner(lambda q, r: made(q, rng=r), query)

    if fault:
        with pytest.raises((AssertionError, ValueError)):
            check()
    else:
        check()


class _Copies(RankedTuner):
    """What neighbours ran, be it legal for the asked nest or not."""

    def rank(self) -> Any:
        for at, config in enumerate((*self.query.configs, *self.query.vote.rejected)):
            yield Candidate(config=dict(config), score=float(at), origin="copied")


def test_the_contract_finds_schedules_that_a_nest_forbids() -> None:
    query = sample_queries()["a nest (triangular), neighbours"]
    assert query.vote.rejected and query.space.size() is None
    with pytest.raises(AssertionError, match="illegal"):
        check_tuner(lambda q, r: _Copies(q, rng=r), query)


# -- baselines against brute force -------------------------------------------------------------


def _evidence(times: np.ndarray, default: int = 0) -> RunMatrix:
    """Evidence from seconds [r,c]: nan not run, inf failed."""
    rows = []
    for i, row in enumerate(times):
        curve = {
            CONFIGS[c]: FAILED if math.isinf(t) else ok(float(t))
            for c, t in enumerate(row)
            if not math.isnan(t)
        }
        rows.append((MatrixRow(f"{i:032x}", "tiny", f"g{i}"), CONFIGS[default], curve))
    return join(OP, rows)


def _query(evidence: RunMatrix, vectors: dict[str, Any] | None = None, **changes: Any) -> Query:
    found = vectors or {r.pattern_id: np.zeros(2, np.float32) for r in evidence.rows}
    partition = AnswerIndex.build(FitInput(evidence, {"test": found}), scope="tiny")
    info = WorkloadInfo(id="f" * 32, m=10, n=10, nnz=20)
    platform = tiny()
    bare = Query(info, platform, OP, platform.space(OP), DEFAULT)
    return with_evidence(changed(bare, **changes), partition, np.zeros(2, np.float32))


_TIMES = st.lists(
    st.lists(st.sampled_from([1.0, 2.0, 3.0, 5.0, math.inf, math.nan]), min_size=4, max_size=4),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(_TIMES)
def test_static_best_is_the_highest_mean_gain(times: list[list[float]]) -> None:
    table = np.array(times)
    table = np.where(np.isnan(table), 2.0, table)  # tests/embeddb/index/test_vote.py: without these
    table[:, 0] = np.where(np.isfinite(table[:, 0]), table[:, 0], 2.0)  # the default always ran
    query = _query(_evidence(table))
    means = {}
    for c, config in enumerate(CONFIGS):
        spent = np.where(np.isfinite(table[:, c]), table[:, c], table[:, 0])
        means[config] = float(np.mean(np.log(table[:, 0] / spent)))
    asked = StaticBestTuner(query, rng=rng()).ask(10)
    assert {Config(c.config) for c in asked} == set(means)
    got = [means[Config(c.config)] for c in asked]
    assert got == pytest.approx(sorted(got, reverse=True))
    assert [c.expected_gain for c in asked] == pytest.approx([math.exp(g) for g in got])


@settings(max_examples=60, deadline=None)
@given(_TIMES)
def test_static_top_k_is_greedy_on_the_mean_best_gain(times: list[list[float]]) -> None:
    table = np.array(times)
    table[:, 0] = np.where(np.isfinite(table[:, 0]), table[:, 0], 2.0)
    query = _query(_evidence(table))
    gain = np.log(table[:, :1] / np.where(np.isfinite(table), table, table[:, :1]))

    def value(chosen: list[int]) -> float:
        return float(gain[:, chosen].max(axis=1).mean())

    ran = [c for c in range(4) if not np.isnan(table[:, c]).all()]
    chosen = [CONFIGS.index(Config(c.config)) for c in StaticTopKTuner(query, rng=rng()).ask(9)]
    assert sorted(chosen) == ran
    for at, pick in enumerate(chosen):
        others = [value([*chosen[:at], c]) for c in ran if c not in chosen[:at]]
        assert value([*chosen[:at], pick]) == pytest.approx(max(others))


def test_transfer_on_a_hand_computed_vote() -> None:
    """Two neighbours of weights 2 and 1, one pseudo-neighbour, three configurations."""
    gains = np.log(np.array([[1.0, 2.0, 4.0], [1.0, 0.5, np.nan]]))
    levels, prior = np.array([0.5, -0.2]), np.array([0.0, 0.1, -0.1])
    info = WorkloadInfo(id="f" * 32)
    platform = tiny()
    query = changed(
        Query(info, platform, OP, platform.space(OP), DEFAULT),
        configs=CONFIGS[:3],
        gains=gains,
        levels=levels,
        weights=np.array([2.0, 1.0]),
        prior=prior,
        mean=prior,
        shrink=1.0,
    )
    votes = [[-0.5, math.log(2) - 0.5, math.log(4) - 0.5], [0.2, math.log(0.5) + 0.2]]
    off = [v - p for vote in votes for v, p in zip(vote, prior, strict=False)]
    spread = math.sqrt(sum(x * x for x in off) / 5)
    doubt = spread * (math.sqrt(1.5 / 3) - math.sqrt(1.5 / 4))  # 1.5: the weight of one neighbour
    want = [
        (2 * votes[0][0] + votes[1][0] + 0.0) / 4,
        (2 * votes[0][1] + votes[1][1] + 0.1) / 4,
        (2 * votes[0][2] - 0.1) / 3 - doubt,
    ]
    got, voters = scores(query)
    assert got == pytest.approx(want)
    assert voters.tolist() == [2, 2, 1]
    first = TransferTuner(query, rng=rng()).ask(1)[0]
    assert Config(first.config) == CONFIGS[2]
    assert first.expected_gain == pytest.approx(math.exp(want[2] - want[0]))


def test_a_lucky_vote_of_one_does_not_beat_a_good_one_of_all() -> None:
    """b is twice as fast on ten neighbours; d a little more on the one that ran it."""
    query = _voted()
    gains = query.vote.gains.copy()
    gains[1:, 3], gains[0, 3] = np.nan, gains[0, 1] + 0.1
    sparse = replace(query, vote=replace(query.vote, gains=gains, shrink=0.01))
    assert TransferTuner(sparse, rng=rng()).ask(1)[0].config["variant"] == "b"


def test_one_odd_neighbour_does_not_fill_the_list() -> None:
    """Nine neighbours agree on b, the nearest one is fast with c and d: b stays first, and the
    second proposal is what helps the odd one most."""
    gains = np.tile(np.log([1.0, 2.0, 0.9, 0.8]), (10, 1))
    gains[0] = np.log([1.0, 0.8, 2.0, 3.0])
    info, platform = WorkloadInfo(id="f" * 32), tiny()
    query = changed(
        Query(info, platform, OP, platform.space(OP), DEFAULT),
        configs=CONFIGS,
        gains=gains,
        levels=gains.mean(axis=1),
        weights=np.array([4.0, *[1.0] * 9]),
        prior=np.zeros(4),
        mean=np.zeros(4),
        shrink=0.0,
    )
    asked = [c.config["variant"] for c in TransferTuner(query, rng=rng()).ask(2)]
    assert asked == ["b", "d"]


# -- the chain ---------------------------------------------------------------------------------


def _voted(**changes: Any) -> Query:
    """Ten neighbours on which b is twice as fast as the default."""
    times = np.tile([2.0, 1.0, 4.0, 4.0], (10, 1)) * np.arange(1, 11)[:, None]
    return _query(_evidence(times), **changes)


def test_measured_here_comes_first() -> None:
    query = _voted(timings={DEFAULT: ok(3.0), CONFIGS[3]: ok(1.0), CONFIGS[2]: ok(2.0)})
    found = answer(query, 5)
    assert (found.source, found.strategy) == ("measured", "lookup")
    assert [c.config["variant"] for c in found.candidates] == ["d", "c", "a", "b"]
    assert found.candidates[0].expected_gain == pytest.approx(3.0)
    assert found.candidates[0].seconds == 1.0
    assert confidence_of(Rankers(query).chosen, found.source) == ("high", [])


def test_the_default_alone_is_not_a_choice_measured() -> None:
    assert answer(_voted(timings={DEFAULT: ok(3.0)}), 5).source == "neighbours"


def test_what_failed_on_this_pattern_is_not_proposed() -> None:
    for own in ({CONFIGS[1]: FAILED}, {DEFAULT: ok(3.0), CONFIGS[2]: ok(2.0), CONFIGS[1]: FAILED}):
        found = answer(_voted(timings=own), 5)
        assert "b" not in [c.config["variant"] for c in found.candidates]


def test_other_width_then_neighbours() -> None:
    width = {DEFAULT: ok(3.0), CONFIGS[2]: ok(1.0), CONFIGS[3]: FAILED}
    query = _voted(other_width=width, other_op=Op("spmm", 64))
    found = answer(query, 3)
    assert found.source == "other-width"
    assert [c.config["variant"] for c in found.candidates] == ["c", "a", "b"]
    assert found.candidates[0].seconds is None and "spmm:64" in found.candidates[0].origin
    assert confidence_of(Rankers(query).chosen, found.source)[0] == "medium"


def test_neighbours() -> None:
    query = _voted()
    found = answer(query, 2)
    assert (found.source, found.strategy) == ("neighbours", "transfer")
    assert len(found.candidates) == 2
    assert found.candidates[0].config == {"variant": "b"}
    assert found.candidates[0].expected_gain == pytest.approx(2.0, rel=0.1)


def test_two_neighbours_are_too_few() -> None:
    query = _query(_evidence(np.array([[2.0, 1.0, 4.0, 4.0]] * 2)))
    assert len(query.vote.neighbours) == 2
    found = answer(query, 5)
    assert found.source == "static-best"
    assert [c.config["variant"] for c in found.candidates] == ["b"]
    assert confidence_of(Rankers(query).chosen, found.source)[0] == "low"


def test_what_nobody_ran_is_not_doubted_without_bound() -> None:
    """With no pull to the average its support is nothing: its gain must not become 0 or infinite.
    (A random example found it.)"""
    query = _query(_evidence(np.array([[1.0, 2.0, 4.0, 3.0], [1.0, 0.5, 0.2, 2.0]] * 3)))
    gains, unrun = query.vote.gains.copy(), 2
    gains[:, unrun] = np.nan
    query = replace(query, vote=replace(query.vote, gains=gains, shrink=0.0))
    got, voters = scores(query)
    assert voters[unrun] == 0
    spread = math.sqrt(
        np.nanmean((query.vote.gains - query.vote.levels[:, None] - query.vote.prior) ** 2)
    )
    worst = spread * math.sqrt(query.vote.weights.mean() / query.vote.weights.min())
    assert query.vote.prior[unrun] - worst <= got[unrun] <= query.vote.prior[unrun]
    for candidate in TransferTuner(query, rng=rng()).ask(4):
        assert 0.01 < (candidate.expected_gain or 0.0) < 100.0


def test_the_default_where_nothing_is_better_on_average() -> None:
    query = _query(_evidence(np.array([[1.0, 2.0, 4.0, 4.0]] * 2)))
    found = answer(query, 5)
    assert (found.source, [c.config for c in found.candidates]) == ("default", [dict(DEFAULT)])


def test_the_default_where_nothing_is_known() -> None:
    info, platform = WorkloadInfo(id="f" * 32), tiny()
    bare = Query(info, platform, OP, platform.space(OP), DEFAULT)
    found = answer(bare, 5)
    assert (found.source, [c.config for c in found.candidates]) == ("default", [dict(DEFAULT)])
    assert confidence_of(Rankers(bare).chosen, found.source)[0] == "low"


def test_the_default_wins_a_vote_in_which_it_is_best() -> None:
    """Never worse than the default: it takes part as the configuration it is."""
    query = _query(_evidence(np.array([[1.0, 2.0, 3.0, 4.0]] * 10)))
    found = answer(query, 5)
    assert found.candidates[0].config == dict(DEFAULT)
    assert found.candidates[0].expected_gain == 1.0


def test_few_calls_do_not_pay_for_a_conversion() -> None:
    """d is fastest but must convert for 10 s; from eleven calls on it pays."""
    own = {DEFAULT: ok(3.0), CONFIGS[1]: ok(2.0), CONFIGS[3]: ok(1.0, conversion_s=10.0)}
    best = {
        calls: answer(_voted(timings=own, calls=calls), 1).candidates[0].config["variant"]
        for calls in (1.0, 9.0, 11.0, math.inf)
    }
    assert best == {1.0: "b", 9.0: "b", 11.0: "d", math.inf: "d"}


@pytest.mark.parametrize("shrink", [1.0, math.inf])
def test_few_calls_change_a_vote(shrink: float) -> None:
    """The neighbours' conversions count as well, however far they are believed."""
    rows = [
        (
            MatrixRow(f"{i:032x}", "tiny", f"g{i}"),
            DEFAULT,
            {DEFAULT: ok(3.0), CONFIGS[1]: ok(2.0), CONFIGS[3]: ok(1.0, conversion_s=10.0)},
        )
        for i in range(10)
    ]
    evidence = join(OP, rows)
    vectors = {r.pattern_id: np.zeros(2, np.float32) for r in evidence.rows}
    partition = AnswerIndex.build(FitInput(evidence, {"test": vectors}), scope="tiny")
    partition = replace(partition, policy=replace(partition.policy, shrink=shrink))
    info, platform = WorkloadInfo(id="f" * 32), tiny()
    bare = Query(info, platform, OP, platform.space(OP), DEFAULT)
    best = {}
    for calls in (5.0, 100.0, math.inf):
        query = with_evidence(
            replace(bare, calls=calls),
            partition,
            np.zeros(2, np.float32),
        )
        best[calls] = answer(query, 1).candidates[0].config["variant"]
    assert best == {5.0: "b", 100.0: "d", math.inf: "d"}


def test_no_default_anywhere_ranks_but_promises_no_gain() -> None:
    times = np.tile([np.nan, 1.0, 4.0, 2.0], (10, 1))
    query = _query(_evidence(times))
    found = answer(query, 3)
    assert found.candidates[0].config == {"variant": "b"}
    assert found.candidates[0].expected_gain is None
    assert any("default" in line for line in confidence_of(Rankers(query).chosen, found.source)[1])


_SIZED = sized()
_ALL_SIZED = [
    Config({"rows": r, "cols": c}) for r in (1, 16, 256) for c in (8, 64, "NUM_MATRIX_COLS")
]


@st.composite
def _chains(draw: st.DrawFn) -> Query:
    """Any evidence of any other matrices, anything measured on this one, any size."""
    m, n = draw(st.sampled_from([(-1, -1), (4, 8), (20, 64), (300, 100)]))
    info = WorkloadInfo(id="f" * 32, m=m, n=n, nnz=m)
    space = _SIZED.space(OP, Sizes(m, n, m))
    default = _SIZED.default(OP, Sizes(m, n, m))
    curve = st.dictionaries(
        st.sampled_from(_ALL_SIZED),
        st.builds(ok, st.floats(1e-6, 1e3), st.floats(0, 10)) | st.just(FAILED),
        max_size=9,
    )
    query = Query(
        info,
        _SIZED,
        OP,
        space,
        default,
        calls=draw(st.sampled_from([1.0, 100.0, math.inf])),
        own=OwnTimings(timings=draw(curve), other_width=draw(curve), other_op=Op("spmm", 64)),
    )
    curves = draw(st.lists(curve.filter(bool), max_size=6))
    if not curves:
        return query
    rows = [
        (MatrixRow(f"{i:032x}", "sized", f"g{i % 3}"), _SIZED.default(OP), c)
        for i, c in enumerate(curves)
    ]
    evidence = join(OP, rows)
    vectors = {r.pattern_id: np.array([i, i % 2], np.float32) for i, r in enumerate(evidence.rows)}
    partition = AnswerIndex.build(FitInput(evidence, {"test": vectors}), scope="sized")
    return with_evidence(query, partition, np.array(draw(st.sampled_from([[0, 0], [9, 1]]))))


@settings(max_examples=150, deadline=None)
@given(_chains(), st.integers(1, 12))
def test_nothing_illegal_is_ever_proposed(query: Query, count: int) -> None:
    found = answer(query, count)
    assert found.source in LINKS
    assert 1 <= len(found.candidates) <= count
    proposed = [Config(c.config) for c in found.candidates]
    assert len({query.space.canonical(c) for c in proposed}) == len(proposed)
    for candidate, config in zip(found.candidates, proposed, strict=True):
        assert query.space.reason(config) is None
        assert math.isfinite(candidate.score)
        assert candidate.expected_gain is None or 0 < candidate.expected_gain < math.inf
    legal = [
        c
        for c, v in query.own.timings.items()
        if v.status == "ok" and query.space.reason(c) is None
    ]
    assert (found.source == "measured") == (len(legal) >= 2)
    confidence, doubts = confidence_of(Rankers(query).chosen, found.source)
    assert confidence in ("high", "medium", "low") and all(doubts)


# -- the loop ----------------------------------------------------------------------------------


def test_the_loop_spends_its_budget_and_tells() -> None:
    pattern = patterns(1)[2]
    curve = summarise_runs(runs_of(pattern, tiny()))
    asked: list[Config] = []

    def run(configs: Any) -> Any:
        asked.extend(configs)
        return [(c, Measurement(times_s=(curve[c].seconds,))) for c in configs]

    tuner = TransferTuner(_voted(), rng=rng())
    done = tune(tuner, run, budget=3, batch=2)
    assert [c for c, _ in done] == asked and len(set(asked)) == 3
    assert set(tuner.measured) == set(asked)
    assert len(tune(tuner, run, budget=10, batch=3)) == 1  # one configuration is left


@pytest.mark.parametrize(
    ("held_out", "short", "sure", "said"),
    [
        (0.95, 0.08, "high", ""),
        (0.95, 0.28, "medium", "up to 28 % of them"),
        (0.53, 0.99, "medium", "only 53 %"),
        (math.nan, math.nan, "medium", "too few matrices"),
    ],
)
def test_how_sure_depends_on_how_good_held_out_answers_were(
    held_out: float, short: float, sure: str, said: str
) -> None:
    query = sample_queries()["neighbours"]
    quality, origin = VoteQuality(held_out, groups=30, short=short), VoteOrigin(query.op)
    vote = replace(query.vote, quality=quality, origin=origin)
    query = replace(query, vote=vote)
    level, doubts = confidence_of(Rankers(query).chosen, "neighbours")
    assert level == sure
    assert said in " ".join(doubts) and bool(doubts) == bool(said)
