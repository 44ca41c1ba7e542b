"""Ranking with a cost model: alone, with the neighbours, and where it may not be used."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import CONFIGS, DEFAULT, OP, VARIANTS, band, fill, patterns, tiny, winner
from hypothesis import given, settings
from hypothesis import strategies as st
from queries import changed

from embeddb.core.config import Config, Op
from embeddb.core.errors import ModelError
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.core.sizes import Sizes
from embeddb.cost_model.model import CostModel
from embeddb.database import Database
from embeddb.index.scopes import nearest_widths
from embeddb.platforms.platform import Platform, load_platform
from embeddb.ranking.confidence import confidence_of
from embeddb.ranking.fallback import answer
from embeddb.ranking.prediction import _expected, _fastest, judged, predict_by, with_judgement
from embeddb.ranking.query import Query, Vote, VoteOrigin, VoteQuality
from embeddb.ranking.rankers.choose import Rankers, ranker_of
from embeddb.ranking.rankers.cost_model import CostModelRanker
from embeddb.ranking.rankers.joint import JointRanker
from embeddb.ranking.rankers.neighbour_vote import NeighbourVote, doubt_of_unrun, scores
from embeddb.ranking.recommendation import Recommendation
from embeddb.testing.tuners import sample_queries
from tuners.evaluation.figures import Truth
from tuners.evaluation.learned import Seen, _first
from tuners.ranking import RankTuner, TransferRankTuner, TransferTuner

JUDGED = {"transfer": 0.8, "rank": 0.9, "transfer+rank": 0.95}
FILE = "costmodel-tiny-spmm.safetensors"


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


class Law:
    """A scorer that knows what it is told, by the first value of a configuration."""

    def __init__(self, gains: dict[str, float], spread: float = 0.1) -> None:
        self.gains, self.spread = gains, spread
        self.asked: list[tuple[Config, ...]] = []

    def score(self, _problem: Any, configs: Sequence[Config]) -> tuple[Any, Any]:
        self.asked.append(tuple(configs))
        gain = np.array([self.gains.get(str(next(iter(c.values()))), 0.0) for c in configs])
        return gain - (gain.mean() if np.isfinite(gain).all() else 0.0), np.full(
            len(configs), self.spread
        )


class Fake(Law):
    """A model as `CostModel.load` gives it, without a file's contents."""

    version = "feedc0de"
    instance = "tiny"
    plain = False
    machines = ()
    source = None
    reads_lengths = False

    def __init__(self, gains: dict[str, float], **held_out: float) -> None:
        super().__init__(gains)
        methods = {m.replace("_", "+"): {"of_optimum@1": v} for m, v in held_out.items()}
        self.card = {"featurizer": {"name": "stats", "version": "1"}, "held_out": {}}
        if methods:
            self.card["held_out"] = {"spmm:32": methods}
        self.refusal = ""

    def mismatch(self, platform: Platform, op: Op, name: str, version: str) -> str:
        return self.refusal

    def imputed(self, platform: Platform) -> list[str]:
        return []


def _bare(platform: Platform | None = None) -> Query:
    where = platform or tiny()
    info = WorkloadInfo(id="f" * 32, m=10, n=10, nnz=20)
    return Query(info, where, OP, where.space(OP), DEFAULT)


def _known(gains: dict[str, float], **changes: Any) -> Query:
    """Four variants, three neighbours that rank b first, and a prediction."""
    table = np.log(np.tile([1.0, 1.5, 1.0, 0.9], (3, 1)))
    table[0, 3] = np.nan
    near = sample_queries()["neighbours"].vote.neighbours[:3]
    query = changed(
        _bare(),
        configs=CONFIGS,
        gains=table,
        levels=np.nanmean(table, axis=1),
        weights=np.array([2.0, 1.0, 1.0]),
        prior=np.zeros(4),
        mean=np.zeros(4),
        shrink=1.0,
        neighbours=near,
        origin=VoteOrigin(OP),
        version="m",
        judged=JUDGED,
    )
    return changed(predict_by(query, Law(gains), np.zeros(1, np.float32)), **changes)


def _variants(candidates: Sequence[Any]) -> str:
    return "".join(c.config["variant"] for c in candidates)


# -- rank --------------------------------------------------------------------------------------


def test_rank_orders_by_prediction_and_tells_gains_over_the_default() -> None:
    query = _known({"a": 0.2, "b": 0.1, "c": 0.5, "d": -1.0})
    found = RankTuner(query, rng=rng()).ask(9)
    assert _variants(found) == "cabd"
    assert [c.expected_gain for c in found] == pytest.approx(
        [math.exp(0.3), 1.0, math.exp(-0.1), math.exp(-1.2)]
    )
    wide = 1.2815515655446004 * math.hypot(0.1, 0.1)
    assert (found[0].gain_low, found[0].gain_high) == pytest.approx(
        (math.exp(0.3 - wide), math.exp(0.3 + wide))
    )
    assert (found[1].gain_low, found[1].gain_high) == (1.0, 1.0)


def test_rank_without_a_model_or_a_known_default() -> None:
    assert [c.config for c in RankTuner(_bare(), rng=rng()).ask(9)] == [dict(DEFAULT)]
    found = RankTuner(_known({"c": 1.0}, knows_default=False), rng=rng()).ask(1)[0]
    assert (found.config, found.expected_gain) == ({"variant": "c"}, None)
    unsure = predict_by(_bare(), Law({"c": 1.0}, math.nan), np.zeros(1))
    found = RankTuner(unsure, rng=rng()).ask(1)[0]
    assert (found.config, found.gain_low) == ({"variant": "c"}, None)


# -- both --------------------------------------------------------------------------------------


def test_one_neighbour_is_told_in_the_singular() -> None:
    query = _known({"a": 0.0, "b": 0.2, "c": 1.0, "d": 0.4})
    gains = query.vote.gains.copy()
    gains[:2, 2] = np.nan
    query = replace(query, vote=replace(query.vote, gains=gains))
    voted, joined = (
        {c.config["variant"]: c.origin for c in ranker.candidates()}
        for ranker in (NeighbourVote(query), JointRanker(query))
    )
    assert (voted["b"], voted["c"]) == ("3 neighbours", "1 neighbour")
    assert (joined["b"], joined["c"]) == ("3 neighbours, cost model", "1 neighbour, cost model")


def test_vote_and_prediction_joined_by_hand() -> None:
    """Only a and b were ever measured; d is judged by the model alone, and doubted."""
    query = _known({"a": 0.0, "b": 0.2, "c": 1.0, "d": 0.4}, weight=0.75)
    gains = query.vote.gains.copy()
    gains[:, 2:] = np.nan
    query = replace(query, vote=replace(query.vote, gains=gains))
    vote, voters = scores(query)
    assert voters.tolist() == [3, 3, 0, 0]
    both = JointRanker(query)
    predicted = np.array([0.0, 0.2, 1.0, 0.4]) - 0.4
    want = 0.25 * (vote - vote.mean()) + 0.75 * predicted
    want[2:] = predicted[2:] - 0.25 * doubt_of_unrun(query)
    assert doubt_of_unrun(query) > 0.01
    assert both.score == pytest.approx(want)
    first = TransferRankTuner(query, rng=rng()).ask(1)[0]
    assert first.config == {"variant": "c"} and first.voters == 0
    assert first.expected_gain == pytest.approx(math.exp(want[2] - want[0]))


def test_what_is_well_tried_is_not_doubted_where_no_neighbour_ran_it() -> None:
    query = _known({"a": 0.0, "b": 0.2, "c": 1.0, "d": 0.4}, weight=0.75)
    gains = query.vote.gains.copy()
    gains[:, 2:] = np.nan
    query = replace(query, vote=replace(query.vote, gains=gains))
    tried = changed(query, well_tried=frozenset([CONFIGS[0], CONFIGS[2]]))
    before, after = JointRanker(query).score, JointRanker(tried).score
    doubt = 0.25 * doubt_of_unrun(query)
    assert after - before == pytest.approx([0.0, 0.0, doubt, 0.0])


def test_at_the_ends_of_the_weight_one_of_them_decides() -> None:
    query = _known({"a": 0.2, "b": 0.1, "c": 0.5, "d": -1.0})
    alone = TransferRankTuner(
        replace(query, prediction=replace(query.prediction, weight=1.0)), rng=rng()
    ).ask(9)
    assert _variants(alone) == _variants(RankTuner(query, rng=rng()).ask(9)) == "cabd"
    voted = JointRanker(replace(query, prediction=replace(query.prediction, weight=0.0))).score
    assert np.argsort(-voted).tolist() == np.argsort(-scores(query)[0]).tolist()


@pytest.mark.parametrize("weight", [0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("over", [True, False])
def test_the_guard_counts_as_far_as_the_model_and_the_judge_answers_alike(
    weight: float, over: bool
) -> None:
    """The guard lies a little under or over what is promised."""
    query = _known({"a": 0.2, "b": 0.0, "c": 1.5, "d": -1.0}, weight=weight)
    score = JointRanker(query).score
    promised = float(score.max() - score[query.vote.configs.index(query.default)])
    assert promised > 0
    guard = promised / weight + (-0.01 if over else 0.01)
    query = replace(query, prediction=replace(query.prediction, guard=guard))
    told = TransferRankTuner(query, rng=rng()).ask(9)
    found = [Config(c.config) for c in told]
    assert (found[0] == query.default) != over
    assert told[0].score == min(c.score for c in told)
    assert len(set(found)) == len(query.vote.configs)
    ran = Truth(dict.fromkeys(query.vote.configs, 1.0), 1.0)
    assert found[0] == _first(Seen(query, ran), score, weight)[0]
    if weight == 1.0:
        alone = RankTuner(query, rng=rng()).ask(9)
        assert found == [Config(c.config) for c in alone]
        assert alone[0].score == min(c.score for c in alone)


def test_what_was_not_predicted_counts_by_its_votes() -> None:
    query = _known({"a": 0.0, "b": 0.1})
    some = replace(
        query,
        prediction=replace(
            query.prediction,
            configs=CONFIGS[:2],
            gain=query.prediction.gain[:2],
            spread=query.prediction.spread[:2],
        ),
    )
    both = JointRanker(some)
    assert np.isnan(both.spread).tolist() == [False, False, True, True]
    vote = scores(query)[0]
    assert both.score[2] == pytest.approx(vote[2] - vote[:2].mean())
    found = {c.config["variant"]: c for c in TransferRankTuner(some, rng=rng()).ask(4)}
    assert found["c"].gain_low is None and found["b"].gain_low is not None


def test_what_held_out_answers_say_of_intervals_narrows_those_of_both() -> None:
    query = _known({"a": 0.0, "b": 0.1})
    narrow = replace(query, prediction=replace(query.prediction, joint_width=0.5))
    wide, half = (TransferRankTuner(asked, rng=rng()).ask(1)[0] for asked in (query, narrow))
    assert wide.config == half.config and wide.expected_gain == half.expected_gain
    assert wide.gain_low is not None and half.gain_low is not None and wide.expected_gain
    assert math.log(wide.expected_gain / half.gain_low) == pytest.approx(
        0.5 * math.log(wide.expected_gain / wide.gain_low)
    )
    spread = np.full(len(query.prediction.configs), 100.0)
    known = replace(query.prediction, joint_width=100.0, spread=spread)
    far = TransferRankTuner(replace(query, prediction=known), rng=rng()).ask(1)[0]
    assert far.gain_high is not None and math.isfinite(far.gain_high)


def test_without_a_model_the_neighbours_answer() -> None:
    query = sample_queries()["neighbours"]
    told = TransferRankTuner(query, rng=rng()).ask(50)
    assert told == TransferTuner(query, rng=rng()).ask(50)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-3, 3), min_size=4, max_size=4),
    st.floats(0, 1),
    st.sampled_from(["rank", "transfer+rank"]),
)
def test_the_first_answer_is_never_predicted_slower_than_the_default(
    gains: list[float], weight: float, best: str
) -> None:
    query = _known(dict(zip(VARIANTS, gains, strict=True)), weight=weight)
    found = answer(
        replace(query, prediction=replace(query.prediction, judged={**JUDGED, best: 1.0})),
        5,
    )
    assert found.strategy == best.replace("transfer+rank", "transfer-rank")
    first = found.candidates[0]
    assert (first.expected_gain or 0.0) >= 1.0 - 1e-12
    assert all(query.space.reason(c.config) is None for c in found.candidates)


# -- which of them answers ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figures", "method"),
    [
        ({}, "transfer"),
        ({"transfer": 0.9, "rank": 0.8, "transfer+rank": 0.85}, "transfer"),
        ({"transfer": 0.8, "rank": 0.9, "transfer+rank": 0.85}, "rank"),
        ({"transfer": 0.8, "rank": 0.9, "transfer+rank": 0.95}, "transfer+rank"),
        ({"transfer": 0.9, "rank": 0.9, "transfer+rank": 0.9}, "transfer"),
        ({"rank": 0.5}, "rank"),
    ],
)
def test_the_best_by_the_cards_evidence_answers(figures: dict[str, float], method: str) -> None:
    query = _known({"c": 1.0}, judged=figures)
    assert ranker_of(query).card_name() == method
    found = answer(query, 3)
    assert found.source == ("model" if method == "rank" else "neighbours")
    assert found.model == ("" if method == "transfer" else "m")


def test_calls_change_no_ranker_where_no_run_has_a_preparation() -> None:
    """The vote knows no more of it than the model; without any evidence nothing is known of it."""
    query = _known({"c": 1.0}, calls=100.0)
    assert query.vote.preparation is None
    assert ranker_of(query) is ranker_of(replace(query, calls=math.inf)) is JointRanker
    nothing = replace(query, vote=replace(query.vote, configs=(), neighbours=()))
    assert ranker_of(nothing) is NeighbourVote


def test_the_model_answers_where_there_are_too_few_neighbours() -> None:
    query = _known({"c": 1.0})
    few = replace(query, vote=replace(query.vote, neighbours=query.vote.neighbours[:2]))
    assert (answer(few, 3).source, ranker_of(few)) == ("model", CostModelRanker)
    nothing = changed(predict_by(_bare(), Law({"c": 1.0}), np.zeros(1)), judged=JUDGED, version="m")
    found = answer(nothing, 3)
    assert (found.source, found.candidates[0].config["variant"]) == ("model", "c")
    level, doubts = confidence_of(Rankers(nothing).chosen, "model")
    assert level == "medium" and "cost model alone" in " ".join(doubts)
    unproven = replace(nothing, prediction=replace(nothing.prediction, judged={}))
    assert answer(unproven, 3).source == "default"


def test_how_sure_depends_on_how_good_the_model_was() -> None:
    query = _known({"c": 1.0}, judged={"rank": 0.7}, quality=VoteQuality(0.99))
    assert "reach only 70 %" in " ".join(confidence_of(Rankers(query).chosen, "model")[1])
    # The share of the best sample of a matrix chooses the ranker; confidence is of all that ran.
    query = _known({"c": 1.0}, judged={"rank": 0.97}, expected=0.7, quality=VoteQuality(0.9))
    doubts = " ".join(confidence_of(Rankers(query).chosen, "model")[1])
    assert "are expected to reach only 70 %" in doubts


def test_another_width_of_this_machine_is_not_another_machine() -> None:
    quality = VoteQuality(0.99, groups=30, short=0.01, judged_by="elsewhere")
    for others in (False, True):
        query = _known({"b": 1.0}, quality=quality, origin=VoteOrigin(OP, {}, 3, others), judged={})
        _, doubts = confidence_of(NeighbourVote(query), "neighbours")
        assert ("another machine only" in " ".join(doubts)) == others


def test_further_ranks_have_the_scatter_of_their_neighbours_in_their_intervals() -> None:
    """Errors of held-out first choices hold for first choices: neighbours disagree more on b."""
    query = _known({"b": 1.0}, quality=VoteQuality(0.9, bias=0.0, low=-0.01, high=0.01))
    gains = query.vote.gains.copy()
    gains[:, 1] = np.log([1.2, 1.0, 1.9])
    gains[:, 2] = np.log(1.6)
    vote = NeighbourVote(replace(query, vote=replace(query.vote, gains=gains)))
    widths = {c.config["variant"]: c.gain_high / c.gain_low for c in vote.candidates()}  # type: ignore[operator]  # all have intervals
    assert next(iter(widths)) == "c" and widths["c"] == pytest.approx(math.exp(0.02))
    assert widths["b"] > 1.3


@pytest.mark.parametrize(
    "expected", [None, 3, {"spmm:32": {"of_optimum@1": 7}}, {"spmm:32": [0.5]}, {"spmv": {}}]
)
def test_an_expected_share_that_is_none_is_unknown(expected: Any) -> None:
    assert math.isnan(_expected({"expected": expected}, Op("spmm", 32)))
    good = {"expected": {"spmm:32": {"of_optimum@1": 0.8, "of_optimum@5": 0.9}}}
    assert _expected(good, Op("spmm", 32)) == 0.8


def test_what_was_measured_comes_first_and_the_model_fills_up() -> None:
    query = _known({"c": 1.0})
    from embeddb.core.timing import TimingSummary

    own = {
        c: TimingSummary(s, 0.0, 0.0, 1, "ok") for c, s in zip(CONFIGS[:2], (2.0, 1.0), strict=True)
    }
    found = answer(replace(query, own=replace(query.own, timings=own)), 3)
    assert (found.source, _variants(found.candidates), found.model) == (
        "measured",
        "bac",
        "m",
    )
    assert answer(replace(query, own=replace(query.own, timings=own)), 2).model == ""


# -- what is predicted -------------------------------------------------------------------------


def test_a_small_space_is_predicted_whole_and_only_differences_count() -> None:
    law = Law({"a": 0.2, "b": 0.1, "c": 0.5})
    query = predict_by(_bare(), law, np.zeros(1, np.float32))
    assert set(query.prediction.configs) == set(CONFIGS)
    assert query.prediction.predict is not None
    assert query.prediction.predict([CONFIGS[2]])[0] == pytest.approx([0.3])
    assert query.prediction.predict([DEFAULT])[0] == pytest.approx([0.0])


def test_numbers_that_are_none_are_refused() -> None:
    with pytest.raises(ModelError, match="not finite"):
        predict_by(_bare(), Law({"b": math.nan}), np.zeros(1))
    with pytest.raises(ModelError, match="too large"):
        predict_by(_bare(), Law({"b": 1e4}), np.zeros(1))
    wide = Law({"b": 0.1})
    wide.spread = 1e4
    with pytest.raises(ModelError, match="too large"):
        predict_by(_bare(), wide, np.zeros(1))


def test_a_model_that_says_nonsense_later_is_held_to_what_can_be_told() -> None:
    law = Law({"b": 0.1})
    query = predict_by(_bare(), law, np.zeros(1, np.float32))
    assert query.prediction.predict is not None
    law.gains = {"b": 1e300, "c": math.nan}
    gain, spread = query.prediction.predict(CONFIGS)
    assert np.isfinite(np.exp(gain + spread)).all()


def test_of_a_large_space_what_is_known_is_predicted() -> None:
    """What was fastest on this pattern on another platform enters as a legal configuration."""
    here, there, op = load_platform("waco-cpu"), load_platform("cpu"), Op("spmm", 128)
    pattern = band(300, 6, name="x")
    with Database.in_memory() as db:
        db.store.put_platform(there)
        db.store.put_structure(pattern, WorkloadInfo.whole(pattern))
        slow, fast = there.space(op, Sizes(300, 300, 1800)).sample(2, rng=rng())
        db.store.append(
            Run(pattern.id, op, there.id, config, Measurement(times_s=(t,)))
            for config, t in ((slow, 2.0), (fast, 1.0))
        )
        space, default = (
            here.space(op, Sizes(300, 300, 1800)),
            here.default(op, Sizes(m=300, n=300)),
        )
        query = Query(WorkloadInfo.whole(pattern), here, op, space, default)
        found = predict_by(query, Law({}), np.zeros(1, np.float32), store=db.store)
        ran = tuple(space.sample(8, rng=rng()))
        with_runs = replace(query, vote=Vote(configs=ran))
        beside = predict_by(with_runs, Law({}), np.zeros(1, np.float32), store=db.store)
    assert found.prediction.configs[0] == default
    assert 1 <= len(found.prediction.configs) <= 2
    assert {*beside.prediction.configs} == {default, *ran}
    assert all(space.reason(c) is None for c in found.prediction.configs)
    assert len(predict_by(query, Law({}), np.zeros(1)).prediction.configs) == 1


@pytest.mark.parametrize(
    "held",
    [
        None,
        [],
        {"spmm:32": None},
        {"nonsense": {"rank": {"of_optimum@1": 0.9}}},
        {"spmm:32": {"rank": {"of_optimum@1": "0.9"}}},
        {"spmm:32": {"rank": {"of_optimum@1": math.nan}}},
        {"spmm:32": {"rank": {"of_optimum@1": 0.9}, "transfer+rank": {"of_optimum@1": 0.9,
                                                                      "weight": 7}}},
    ],
)  # fmt: skip
def test_a_card_whose_figures_make_no_sense_judges_nothing(held: Any) -> None:
    model = Fake({})
    model.card["held_out"] = held
    assert judged(model.card, OP) == judged(model.card, OP, near=True) == {}
    told = with_judgement(_bare(), model)  # type: ignore[arg-type]  # a stand-in
    assert "never judged" in told.prediction.note and told.prediction.judged == {}


def test_the_nearest_judged_width_speaks_where_there_is_no_evidence() -> None:
    card = {
        "held_out": {
            "spmm:512": {"rank": {"of_optimum@1": 0.5}},
            "spmm:64": {"rank": {"of_optimum@1": 0.9}},
            "sddmm:32": {"rank": {"of_optimum@1": 0.1}},
        }
    }
    assert judged(card, OP, near=True)["rank"]["of_optimum@1"] == 0.9
    assert judged(card, OP) == {}
    model = Fake({})
    model.card |= card
    assert with_judgement(_bare(), model).prediction.judged == {"rank": 0.9}  # type: ignore[arg-type]  # a stand-in
    measured = with_judgement(changed(_bare(), origin=VoteOrigin(OP)), model)  # type: ignore[arg-type]  # a stand-in
    assert (
        measured.prediction.judged == {} and "never judged at spmm:32" in measured.prediction.note
    )
    wide = nearest_widths([Op("spmm", 8), Op("spmm", 128), Op("spmm", 16), Op("sddmm", 32)], OP)
    assert wide == [Op("spmm", 16), Op("spmm", 128), Op("spmm", 8)]


# -- in a database -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "runs.db"
    with Database.create(path) as db:
        fill(db, tiny())
    (path / "models").mkdir(exist_ok=True)
    return path


@pytest.fixture
def place(made_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made_once, tmp_path / "runs.db"))


def _use(place: Path, model: Fake, monkeypatch: pytest.MonkeyPatch) -> Fake:
    (place / "models" / FILE).write_bytes(b"stands for a model")
    monkeypatch.setattr(CostModel, "load", lambda path: model)
    return model


def _ask(place: Path, **more: Any) -> Recommendation:
    with Database.open(place) as db:
        return db.query(band(137, 6, name="new"), platform="tiny", op=OP, **more)


def test_the_model_of_a_database_ranks_and_is_named(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(place, Fake({"d": 2.0}, transfer=0.8, rank=0.9, transfer_rank=0.85), monkeypatch)
    made = _ask(place)
    assert (made.link, made.tuner, made.model) == ("model", "rank", "feedc0de")
    assert made.model_featurizer == "stats" and made.candidates[0].config == {"variant": "d"}
    assert "model" in made.stages_s and made.document()["model"] == "feedc0de"
    assert _ask(place, calls=10.0).candidates[0].config == {"variant": "d"}
    (place / "models" / FILE).unlink()
    plain = _ask(place)
    assert (plain.tuner, plain.model) == ("transfer", "")
    new = band(137, 6)
    assert plain.candidates[0].config == {"variant": VARIANTS[winner(new)]}


def test_a_replaced_file_is_read_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    def load(path: Path) -> Fake:
        reads.append(path)
        return Fake({"d": 2.0}, rank=0.9)

    monkeypatch.setattr(CostModel, "load", load)
    with Database.open(place) as db:
        assert db.index.cost_model(tiny(), OP) is None and not reads
        (place / "models" / FILE).write_bytes(b"one")
        assert db.index.cost_model(tiny(), OP) is db.index.cost_model(tiny(), OP)
        assert len(reads) == 1
        (place / "models" / FILE).write_bytes(b"another")
        assert db.index.cost_model(tiny(), OP) is not None and len(reads) == 2
        assert db.index.cost_model(tiny(), Op("spmv")) is None


def test_a_model_that_cannot_be_used_is_one_warning(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _ask(place)
    (place / "models" / FILE).write_bytes(b"not a model")
    made = _ask(place)
    lines = [line for line in made.warnings if FILE in line]
    assert len(lines) == 1 and "\n" not in lines[0]
    assert made.candidates == before.candidates and made.model == ""
    assert made.confidence == before.confidence
    model = _use(place, Fake({"d": 2.0}, rank=0.99), monkeypatch)
    model.refusal = "trained for another space"
    assert any("another space" in line for line in _ask(place).warnings)
    model.refusal = ""
    model.card["featurizer"]["name"] = "nobody"  # type: ignore[index]
    made = _ask(place)
    assert any("nobody" in line for line in made.warnings) and made.tuner == "transfer"


def test_a_model_that_fails_or_was_never_judged_does_not_rank(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(place, Fake({"d": math.inf}, rank=0.99), monkeypatch)
    made = _ask(place)
    assert made.tuner == "transfer" and any("not finite" in line for line in made.warnings)
    _use(place, Fake({"d": 1e6}, rank=0.99), monkeypatch)
    made = _ask(place)
    assert made.tuner == "transfer" and any("too large" in line for line in made.warnings)
    monkeypatch.setattr(Fake, "score", lambda *_: 1 // 0)
    made = _ask(place)
    assert made.tuner == "transfer" and any("division" in line for line in made.warnings)
    monkeypatch.undo()
    _use(place, Fake({"d": 2.0}), monkeypatch)
    made = _ask(place)
    assert made.tuner == "transfer" and any("never judged" in line for line in made.warnings)


def test_a_pattern_known_by_name_only_is_answered_without_the_model(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own runs answer; the vector that the model needs cannot be had."""
    _use(place, Fake({"d": 2.0}, rank=0.99), monkeypatch)
    stub = WorkloadInfo(id="e" * 32, name="stub", m=10, n=10, nnz=20)
    with Database.open(place) as db:
        db.store.put_patterns([stub])
        db.store.append(
            Run(stub.id, OP, "tiny", c, Measurement(times_s=(t,)))
            for c, t in zip(CONFIGS[:2], (2.0, 1.0), strict=True)
        )
        made = db.query(stub, platform="tiny", op=OP)
    assert made.link == "measured" and made.model == ""
    assert any("only known by name" in line for line in made.warnings)


def test_an_answer_is_explained_without_the_model(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(place, Fake({"d": 2.0}, rank=0.9, transfer_rank=0.95), monkeypatch)
    made = _ask(place)
    (place / "models" / FILE).unlink()
    monkeypatch.undo()
    with Database.open(place, readonly=True) as db:
        found = db.explain(made.id).recommendation
    assert (found.tuner, found.model) == ("transfer-rank", "feedc0de")
    assert (found.featurizer, found.model_featurizer) == (made.featurizer, "stats")


def test_people_read_what_ranked(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from embeddb.ui.cli.verbs.query import query_verb
    from embeddb.ui.cli.verbs.report import explain_verb

    _use(place, Fake({"d": 2.0}, rank=0.9, transfer_rank=0.95), monkeypatch)
    known = patterns()[1].name
    ask = [str(place), known, "--platform", "tiny", "--op", "spmm:64"]
    query_verb.main(ask, standalone_mode=False)
    query_verb.main([*ask, "--json"], standalone_mode=False)
    text, _, document = capsys.readouterr().out.partition("\n{")
    line = next(line for line in text.splitlines() if line.startswith("ranked by: "))
    made = json.loads("{" + document)
    assert (made["model"], made["model_featurizer"]) == ("feedc0de", "stats")
    assert made["tuner"] in line and f"neighbours by {made['featurizer']}" in line
    assert "cost model feedc0de on stats" in line
    explain_verb.main([str(place), "last"], standalone_mode=False)
    assert line in " ".join(capsys.readouterr().out.split())


def test_what_a_database_can_answer_names_the_model(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from embeddb.ui.cli.verbs.db import show_states
    from indexer.coverage import scope_states

    with Database.open(place) as db:
        assert scope_states(db.index)[0]["cost_model"] is None
        _use(place, Fake({}, rank=0.9), monkeypatch)
        states = scope_states(db.index)
    assert states[0]["cost_model"]["of_optimum_held_out"] == {"rank": 0.9}
    show_states(states)
    assert "cost model feedc0de on stats, held out: rank" in capsys.readouterr().out


def test_without_a_model_nothing_of_it_is_imported(tmp_path: Path) -> None:
    """There are too few groups to learn one from."""
    place = tmp_path / "few"
    with Database.create(place) as db:
        fill(db, tiny(), patterns(4))
    code = f"""
        import sys
        from embeddb.database import Database
        with Database.open({str(place)!r}) as db:
            info = next(iter(db.store.patterns()))
            db.query(info, platform="tiny", op="spmm:32")
        told = ("embeddb.cost_model.model", "embeddb.cost_model.encoders", "torch", "safetensors")
        print([m for m in sys.modules if m.startswith(told)])
    """
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.strip() == "[]"


def test_preparation_counts_when_measured_answers_are_ranked_for_few_calls() -> None:
    """1 s a call after 60 s of preparation is 7 s a call when there are ten."""
    from builders import band, fill

    from embeddb.core.timing import TimingSummary
    from embeddb.database import Database
    from embeddb.ranking.measure import ranked_by_time

    with fill(Database.in_memory(), tiny()) as db:
        few, many = (
            db.query(band(137, 14, name="n", group="n"), platform="tiny", op=OP, **asked)
            for asked in ({"calls": 10}, {})
        )
    times = zip(CONFIGS, (4, 2, 1, 3), (0, 0, 60, 0), strict=True)
    took = {c: TimingSummary(s, 0.0, prepared, 1, "ok") for c, s, prepared in times}
    first = [Config(ranked_by_time(made, took).candidates[0].config) for made in (few, many)]
    assert first == [CONFIGS[1], CONFIGS[2]]


@pytest.mark.parametrize(("default_s", "others"), [(1.0, 2.0), (1.0, math.inf), (3.0, 2.0)])
def test_a_measured_default_that_is_the_fastest_is_the_answer(
    default_s: float, others: float
) -> None:
    from builders import fill

    from embeddb.core.timing import TimingSummary
    from embeddb.database import Database
    from embeddb.ranking.measure import ranked_by_time

    with fill(Database.in_memory(), tiny()) as db:
        made = db.query(band(137, 14, name="n", group="n"), platform="tiny", op=OP, k=2)
    assert made.default not in [one.config for one in made.candidates]
    status = "ok" if math.isfinite(others) else "oom"
    took = {c: TimingSummary(others, 0.0, 0.0, 1, status) for c in CONFIGS}
    took[Config(made.default)] = TimingSummary(default_s, 0.0, 0.0, 1, "ok")
    done = ranked_by_time(made, took)
    assert (done.best == made.default) is (default_s < others)
    assert done.default_seconds == default_s
    extra = int(default_s < others)
    assert len(done.candidates) == len(made.candidates) + extra


def test_the_fastest_elsewhere_ran_there_and_no_more_are_read_than_are_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    db, three = Database.in_memory(), patterns(3)
    db.store.put_platform(tiny())
    runs = [
        Run(three[0].id, OP, "tiny", CONFIGS[0], Measurement("crash")),
        Run(three[1].id, OP, "tiny", CONFIGS[1], Measurement(times_s=(2.0,))),
        Run(three[1].id, OP, "tiny", CONFIGS[2], Measurement("oom")),
        Run(three[2].id, OP, "tiny", CONFIGS[3], Measurement(times_s=(2.0,))),
    ]
    for pattern in three:
        own = [run for run in runs if run.pattern_id == pattern.id]
        db.index.record(own, pattern, tiny())
    ids, read = [pattern.id for pattern in three], list[str]()
    assert _fastest(db.store, "tiny", OP, ids, 8) == [CONFIGS[1], CONFIGS[3]]
    stored = db.store.runs
    monkeypatch.setattr(db.store, "runs", lambda *at: read.append(at[2]) or stored(*at))
    assert _fastest(db.store, "tiny", OP, ids, 1) == [CONFIGS[1]]
    assert read == ids[:2]
