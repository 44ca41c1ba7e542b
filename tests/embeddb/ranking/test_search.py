"""Search guided by predictions, against predicting everything and against luck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from queries import changed

from embeddb.core.config import Config, Op
from embeddb.core.records import WorkloadInfo
from embeddb.cost_model.encoders.loop_nest import homogeneous
from embeddb.cost_model.encoders.own_parameters import Layout
from embeddb.platforms.platform import load_platform
from embeddb.ranking.fallback import answer
from embeddb.ranking.prediction import predict_by
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.search import POOL, Predicted, drawn, one_value_apart, search
from tuners.ranking import RankTuner, SearchTuner

INFO = WorkloadInfo(id="0" * 32, m=20_000, n=20_000, nnz=200_000)
SPMM = Op("spmm", 128)


class Network:
    """A random network over loop nest and own parameters: a rugged law, the same for a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def score(self, problem: Any, configs: Sequence[Config]) -> tuple[Any, Any]:
        _, platform, op, sizes, _ = problem
        nests = homogeneous(platform, op, configs, sizes=sizes).astype(np.float64)
        nests[:, :4] /= 8
        x = np.hstack([nests, Layout(platform.kernel(op)).raw(configs)])
        rng = np.random.default_rng(self.seed)
        gain = np.tanh(x @ rng.normal(size=(x.shape[1], 64))) @ rng.normal(size=64) / 8
        return gain - gain.mean(), np.full(len(configs), 0.1)


def _query(name: str, op: Op = SPMM, seed: int = 0) -> Query:
    platform = load_platform(name)
    bare = Query(
        INFO, platform, op, platform.space(op, INFO.sizes), platform.default(op, INFO.sizes)
    )
    return predict_by(bare, Network(seed), np.zeros(1, np.float32))


def _everything(query: Query) -> tuple[Any, int]:
    assert query.prediction.predict is not None
    gain = query.prediction.predict(query.prediction.configs)[0]
    return gain, len(gain)


@pytest.mark.parametrize("name", ["cpu", "gpu-sparsetir"])
def test_it_comes_close_with_a_part_of_the_predictions(name: str) -> None:
    lost, luck = [], []
    for seed in range(5):
        query = _query(name, seed=seed)
        gain, size = _everything(query)
        seen = Predicted(query, size)
        search(seen, query.space.sample(size // 8, rng=np.random.default_rng(seed)))
        assert seen.count <= 0.65 * size
        lost.append(gain.max() - max(seen.gain.values()))
        luck.append(gain.max() - np.sort(gain)[::-1][1:].mean())
    assert np.mean(lost) < 0.05 * np.mean(luck)


@pytest.mark.parametrize("op", [SPMM, Op("spmv")])
def test_in_a_space_of_millions_it_beats_as_many_draws(op: Op) -> None:
    query = _query("waco-cpu", op, seed=1)
    assert len(query.prediction.configs) == 1
    lucky = Predicted(query, 1500)
    lucky.of(query.space.sample(1500, rng=np.random.default_rng(0)))
    seen = Predicted(query, 1500)
    search(seen, drawn(query.space))
    assert max(seen.gain.values()) > max(lucky.gain.values())
    assert all(query.space.reason(config) is None for config in seen.gain)


def test_the_tuner_searches_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embeddb.ranking.rankers.search._BUDGET", 600)
    query = _query("waco-cpu", seed=2)
    found = SearchTuner(query, rng=np.random.default_rng(3)).ask(20)
    again = SearchTuner(query, rng=np.random.default_rng(3)).ask(20)
    assert found == again and len(found) == 20
    # What ran nowhere is never first, however much is promised of it.
    first, second = found[:2]
    assert Config(first.config) in query.prediction.configs and first.origin == "cost model"
    assert second.origin == "cost model, searched" and second.score == first.score
    assert second.expected_gain is not None and second.expected_gain > 1
    assert second.gain_low is not None and second.gain_low < second.expected_gain
    assert all(found[i].score <= found[i + 1].score for i in range(6, 19))
    assert first.score == min(c.score for c in found)
    default = SearchTuner(query, rng=np.random.default_rng(3)).ask(600)
    assert len(default) <= 600


def test_where_everything_is_predicted_there_is_nothing_to_search() -> None:
    query = _query("gpu-sparsetir")
    found = SearchTuner(query, rng=np.random.default_rng(0)).ask(9)
    assert found == RankTuner(query, rng=np.random.default_rng(0)).ask(9)
    alone = replace(query, prediction=replace(query.prediction, predict=None, configs=()))
    asked = SearchTuner(alone, rng=np.random.default_rng(0)).ask(9)
    assert [c.config for c in asked] == [dict(query.default)]


def test_a_budget_is_kept_and_repeats_are_free() -> None:
    query = _query("gpu-sparsetir")
    seen = Predicted(query, 3)
    configs = query.prediction.configs
    first = seen.of(configs[:2])
    assert seen.of(configs[:2]).tolist() == first.tolist() and seen.count == 2
    assert np.isneginf(seen.of(configs[2:6])).tolist() == [False, True, True, True]
    search(seen, drawn(query.space))
    assert seen.count == 3


@pytest.mark.parametrize("name", ["cpu", "spade", "waco-cpu"])
def test_steps_are_legal_and_change_one_value(name: str) -> None:
    space = load_platform(name).space(SPMM, INFO.sizes)
    for config in space.sample(20, rng=np.random.default_rng(0)):
        steps = list(one_value_apart(space, config))
        assert all(space.reason(step) is None for step in steps)
        assert all(sum(step[n] != config[n] for n in config) == 1 for step in steps)
        assert len(set(steps)) == len(steps)
        every = [config.replace(**{p.name: v}) for p in space.params for v in p.values
                 if type(v) is type(config.get(p.name)) and v != config[p.name]]  # fmt: skip
        legal = {step for step in every if space.reason(step) is None}
        assert legal <= set(steps)


def test_every_question_about_a_space_starts_from_the_same_draws() -> None:
    query = _query("waco-cpu")
    pool = drawn(query.space)
    assert len(set(pool)) == POOL and all(query.space.reason(config) is None for config in pool)
    assert drawn(query.space) is pool and drawn(_query("waco-cpu").space) == pool


def test_one_answer_costs_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def searched(*_: object, **__: object) -> None:
        raise AssertionError("nobody asked for a second one")

    monkeypatch.setattr("embeddb.ranking.rankers.search.search", searched)
    query = _query("waco-cpu")
    assert len(SearchTuner(query, rng=np.random.default_rng(0)).ask(1)) == 1
    assert len(answer(changed(query, judged={"rank": 0.9}), 1).candidates) == 1


def test_a_query_searches_where_the_model_ranks_a_space_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("embeddb.ranking.rankers.search._BUDGET", 300)
    for name, tuner in (("waco-cpu", "search"), ("gpu-sparsetir", "rank")):
        query = changed(_query(name), judged={"rank": 0.9})
        found = answer(query, 5)
        assert (found.source, found.strategy) == ("model", tuner)
        assert Config(found.candidates[0].config) in query.prediction.configs
