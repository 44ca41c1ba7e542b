"""What ran nowhere is never the first answer, unless hidden configurations say that it should be.

The fault this was: a model trained on a campaign that had run 69 of 392 configurations ranked all
392, and its first answer was, on every matrix, one that had never run anywhere.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import CONFIGS, DEFAULT, OP, band, tiny
from command_line import run_verb
from queries import changed

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.core.sizes import Sizes
from embeddb.cost_model.model import CostModel
from embeddb.database import Database
from embeddb.platforms.platform import Platform, load_platform
from embeddb.ranking.build import build_query
from embeddb.ranking.prediction import with_judgement
from embeddb.ranking.query import Prediction, Query, Vote
from embeddb.ranking.rankers.order import ran_first
from indexer.campaign.plan import choose_configs
from indexer.embed import embed
from tuners.evaluation.learned import Seen, Truth, hidden_figures
from tuners.ranking import RankTuner, TransferRankTuner

SPMV = Op("spmv")


def _asked(unrun_first: bool) -> Query:
    """Four variants of which the last, predicted best, ran nowhere."""
    where = tiny()
    info = WorkloadInfo(id="f" * 32, m=10, n=10, nnz=20)
    ran = CONFIGS[:3]
    return Query(
        info,
        where,
        OP,
        where.space(OP),
        DEFAULT,
        vote=Vote(
            configs=ran,
            gains=np.tile([0.0, 0.3, 0.2], (3, 1)),
            trust=np.ones((3, 3)),
            levels=np.zeros(3),
            weights=np.ones(3),
            prior=np.array([0.0, 0.3, 0.2]),
            mean=np.array([0.0, 0.3, 0.2]),
            shrink=1.0,
        ),
        prediction=Prediction(
            configs=CONFIGS,
            gain=np.array([0.0, 0.3, 0.2, 0.9]),
            spread=np.full(4, 0.05),
            unrun_first=unrun_first,
            weight=1.0,
        ),
    )


@pytest.mark.parametrize("tuner", [RankTuner, TransferRankTuner])
def test_the_first_is_one_that_ran(tuner: type) -> None:
    rng = np.random.default_rng(0)
    asked = [c.config["variant"] for c in tuner(_asked(False), rng=rng).ask(4)]
    assert asked[0] == "b" and sorted(asked) == ["a", "b", "c", "d"]
    scores = [c.score for c in tuner(_asked(False), rng=rng).ask(4)]
    assert min(scores) == scores[0]  # nothing behind the first promises a better score
    assert tuner(_asked(True), rng=rng).ask(1)[0].config["variant"] == "d"


def test_where_nothing_ran_the_prediction_decides() -> None:
    order, gain = np.array([2, 0, 1]), np.array([0.2, 0.1, 0.3])
    configs = [Config({"variant": v}) for v in "abc"]
    query = changed(_asked(False), configs=(), well_tried=None)
    assert ran_first(query, configs, order, gain).tolist() == [2, 0, 1]
    query = changed(query, configs=(configs[1],))
    assert ran_first(query, configs, order, gain).tolist() == [1, 2, 0]
    assert ran_first(query, configs, order, gain, unrun_first=True).tolist() == [2, 0, 1]


@pytest.mark.parametrize(("right", "first"), [(True, True), (False, False)])
def test_hidden_configurations_decide(right: bool, first: bool) -> None:
    """`d` was hidden; the model says that it is the fastest, and it is that or the slowest."""
    seen = []
    for at in range(10):
        query = changed(
            _asked(False),
            configs=CONFIGS,
            gains=np.zeros((0, 4)),
            weights=np.zeros(0),
            prior=np.zeros(4),
            mean=np.zeros(4),
            trust=np.zeros((0, 4)),
            levels=np.zeros(0),
        )
        query = replace(
            query,
            pattern=WorkloadInfo(id=f"{at:032x}", group=f"g{at}"),
        )
        times = {CONFIGS[0]: 1.0, CONFIGS[1]: 0.7, CONFIGS[2]: 0.8}
        times[CONFIGS[3]] = 0.5 if right else 2.0
        seen.append(Seen(query, Truth(times, 1.0)))
    found = hidden_figures([(seen, {CONFIGS[3]})])
    assert found["unrun_first"] is first
    assert (found["all"] > found["known"]) is right
    assert hidden_figures([]) == {"unrun_first": False}


# -- from a campaign to an answer --------------------------------------------------------------


def _law(platform: Platform, pattern: Pattern, config: Config) -> float:
    """Seconds that depend on parameters, the matrix, and a good deal of chance."""
    length = math.log2(pattern.nnz / pattern.shape[0])
    cost = {"csr": 0.0, "sell": -0.4 + 0.1 * length, "bcsr": 0.5 - 0.2 * length}
    words = f"{pattern.name}{config.json}".encode()
    chance = np.random.default_rng(zlib.crc32(words)).normal(0.0, 0.25)
    threads = 0.0 if config.get("threads") == "all" else 0.4
    return 1e-8 * pattern.nnz * math.exp(cost.get(config["format"], 0.2) + threads + chance)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 sampled configurations of some 390, on 16 matrices of 16 families."""
    folder = tmp_path_factory.mktemp("campaign") / "runs.db"
    platform = load_platform("cpu").at("here", {"cpu": "one"})
    space = platform.space(SPMV, Sizes(4000, 4000, 40_000))
    default = platform.default(SPMV, Sizes(4000, 4000, 40_000))
    configs = choose_configs(space, default, 60, rng=np.random.default_rng(0))
    with Database.create(folder) as db:
        db.store.put_platform(platform)
        for at in range(16):
            pattern = band(4000 + at, 2 + 3 * (at % 6), name=f"m{at}", group=f"g{at}")
            db.store.put_structure(pattern, WorkloadInfo.whole(pattern))
            db.store.append(
                Run(pattern.id, SPMV, platform.id, c, Measurement(times_s=(t,)))
                for c in configs
                if (t := _law(platform, pattern, c))
            )
        embed(db.index)
    return folder


@pytest.mark.slow
def test_a_model_of_a_sampled_campaign_answers_what_ran(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lightgbm")
    args = ["--platform", "cpu@here", "--op", "spmv", "--predictor", "trees"]
    assert run_verb(["train", "costmodel", str(campaign), *args]) == 0, capsys.readouterr().err
    model = CostModel.load(next((campaign / "models").glob("costmodel-*.safetensors")))
    assert model.instance == "cpu@here"
    figures = model.card["hidden"]["spmv"]
    assert set(figures) == {"known", "all", "unrun_first"} and 0 < figures["all"] <= 1
    with Database.open(campaign) as db:
        platform = db.platform("cpu@here")
        ran = {run.config for run in db.store.runs(platform.id, SPMV)}
        for length in (3, 9, 15):
            pattern = band(4400, length, name=f"new{length}")
            query = build_query(db.index, pattern, platform, SPMV)
            assert len(query.prediction.configs) > 300 > len(ran)
            made = RankTuner(query, rng=np.random.default_rng(0)).ask(1)[0]
            assert figures["unrun_first"] or Config(made.config) in ran
            first = Config(db.query(pattern, platform=platform, op=SPMV).candidates[0].config)
            assert figures["unrun_first"] or first in ran
            # Whatever the hidden configurations said of this model: without their consent, none.
            unsure = replace(query, prediction=replace(query.prediction, unrun_first=False))
            for tuner in (RankTuner, TransferRankTuner):
                guarded = tuner(unsure, rng=np.random.default_rng(0)).ask(1)[0]
                assert Config(guarded.config) in ran


def test_a_model_of_one_machine_does_not_rank_on_another(campaign: Path) -> None:
    """The first fault: judged at home, it ranked everywhere by that figure."""

    class Card:
        version, instance, plain = "f" * 16, "", False
        card = {  # noqa: RUF012
            "featurizer": {"name": "stats"},
            "held_out": {"spmv": {"rank": {"of_optimum@1": 0.99}}},
        }

    with Database.open(campaign, readonly=True) as db:
        platform = db.platform("cpu@here")
        here = build_query(db.index, band(4400, 9, name="new"), platform, SPMV)
        away = build_query(db.index, band(4400, 9, name="new"), platform.at("away"), SPMV)
    assert with_judgement(here, Card()).prediction.judged == {"rank": 0.99}  # type: ignore[arg-type]
    told = with_judgement(away, Card())  # type: ignore[arg-type]
    assert told.prediction.judged == {} and "another machine" in told.prediction.note
