"""Nests under the judge: each on what ran on it, with schedules carried over and without."""

from __future__ import annotations

from pathlib import Path

import pytest
from measured_nests import OP, make

from embeddb.database import open_database
from tuners.evaluation.bench import Bench
from tuners.evaluation.evaluate import evaluate


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("nests") / "nests.db")


def test_a_nest_is_asked_among_what_ran_on_it(folder: Path) -> None:
    with open_database(folder) as db:
        bench = Bench(db, OP, "nest-cpu")
        assert bench.ready and bench.own_grids
        asked = list(bench.queries(3, 0))
        assert len(asked) == len(bench.counted)
        for row, query in asked:
            ran = bench.truth(row).times
            assert query.vote.configs and set(query.vote.configs) <= set(ran)
            assert query.vote.gains.shape[1] == len(query.vote.configs) == query.vote.prior.size
            assert query.default in ran


def test_the_table_has_slots_copied_beside_what_is_carried_over(folder: Path) -> None:
    with open_database(folder) as db:
        rows = {row.method: row for row in evaluate(db, seeds=[0], folds=3)}
    assert {"default", "static-best", "knn-stats", "slot-copy", "embeddb", "oracle"} <= set(rows)
    assert rows["oracle"].figures["of_optimum@1"] == 1.0
    assert rows["embeddb"].figures["illegal"] == 0
    assert rows["embeddb"].figures["of_optimum@5"] > rows["default"].figures["of_optimum@5"]
    # The same shapes ran at other sizes: five tries find most of the gain.
    assert rows["embeddb"].figures["of_optimum@5"] > 0.8
