"""Nests under the judge: each on what ran on it, with schedules carried over and without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from measured_nests import OP, make, measured, runs_of

from embeddb.core.records import WorkloadInfo
from embeddb.database import Database, open_database
from embeddb.platforms.platform import load_platform
from indexer.embed import embed
from tuners.evaluation.across import evaluate_across
from tuners.evaluation.bench import Bench
from tuners.evaluation.evaluate import EvalOptions, evaluate


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("nests") / "nests.db")


def test_a_nest_is_asked_among_what_ran_on_it(folder: Path) -> None:
    with open_database(folder) as db:
        bench = Bench(db.index, OP, "nest-cpu")
        assert bench.ready
        asked = list(bench.queries(3, 0))
        assert len(asked) == len(bench.counted)
        for row, query in asked:
            ran = bench.truth(row).times
            assert query.vote.configs and set(query.vote.configs) <= set(ran)
            assert query.vote.gains.shape[1] == len(query.vote.configs) == query.vote.prior.size
            assert query.default in ran


def test_the_table_has_slots_copied_beside_what_is_carried_over(folder: Path) -> None:
    with open_database(folder) as db:
        rows = {row.method: row for row in evaluate(db.index, EvalOptions(seeds=[0], folds=3))}
    assert {"default", "static-best", "knn-stats", "slot-copy", "embeddb", "oracle"} <= set(rows)
    assert rows["oracle"].figures["of_optimum@1"] == 1.0
    assert rows["embeddb"].figures["illegal"] == 0
    assert rows["embeddb"].figures["of_optimum@5"] > rows["default"].figures["of_optimum@5"]
    # The same shapes ran at other sizes: five tries find most of the gain.
    assert rows["embeddb"].figures["of_optimum@5"] > 0.8


def test_machines_whose_nests_ran_nothing_in_common_are_held_out_too() -> None:
    """Of every nest other schedules ran: no configuration is one that most nests tried."""
    db = Database.in_memory()
    for number, name in enumerate(("one", "two")):
        platform = load_platform("nest-cpu").at(name, {"cpu": name})
        db.store.put_platform(platform)
        for at, nest in enumerate(measured()):
            own = replace(nest, group=f"program {at}")
            db.store.put_structure(own, WorkloadInfo.whole(own))
            default, *others = runs_of(own, platform, count=60)
            db.store.append([default, *others[(at + number) % 4 :: 4]])
    embed(db.index)
    rows = evaluate_across(db.index, curve=(0, 3), folds=2)
    assert {row.instance for row in rows} == {"nest-cpu@one", "nest-cpu@two"}
    for instance in ("nest-cpu@one", "nest-cpu@two"):
        told = {(r.method, r.local): r for r in rows if r.instance == instance}
        assert told["oracle", -1].of_optimum_1 == pytest.approx(1.0)
        assert told["oracle", -1].matrices == len(measured())
        for local in (0, 3):
            assert told["embeddb", local].of_optimum_5 > told["default", -1].of_optimum_5
