"""Equal scores come in the same order every time."""

from __future__ import annotations

import numpy as np
from builders import CONFIGS, DEFAULT
from queries import changed

from embeddb.core.config import Config
from embeddb.index.conversion import PreparationCost
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.order import settled
from embeddb.testing.tuners import sample_queries
from tuners.ranking import TransferTuner


def bare() -> Query:
    return changed(sample_queries()["nothing known"], default=DEFAULT)


def test_equal_ones_by_preparation_then_deviations_then_text() -> None:
    gain = np.array([0.5, 1.0, 1.0, 1.0 - 1e-12])
    assert settled(bare(), CONFIGS, [3, 2, 1, 0], gain).tolist() == [1, 2, 3, 0]
    log_ratio = {("b",): 1.0, ("c",): 0.0, ("d",): -np.inf}
    dear = changed(bare(), preparation=PreparationCost(("variant",), log_ratio, 0.1))
    assert settled(dear, CONFIGS, [1, 2, 3, 0], gain).tolist() == [3, 2, 1, 0]
    near = Config({"variant": "c", "more": 1})
    other = (near, CONFIGS[2], DEFAULT)
    assert settled(bare(), other, [0, 1, 2], np.ones(3)).tolist() == [2, 1, 0]


def test_what_is_better_stays_ahead() -> None:
    gain = np.array([1.0, 1.0 + 1e-6, 0.9, 1.1])
    assert settled(bare(), CONFIGS, [3, 2, 0, 1], gain).tolist() == [3, 2, 0, 1]
    assert settled(bare(), CONFIGS, [2, 3, 0, 1], gain).tolist() == [3, 2, 0, 1]


def test_where_nothing_tells_them_apart_the_default_is_first() -> None:
    query = sample_queries()["all alike"]
    first = TransferTuner(query, rng=np.random.default_rng(0)).ask(1)[0]
    assert Config(first.config) == query.default
