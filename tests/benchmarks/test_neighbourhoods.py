"""Performance similarity of embeddings, on neighbourhoods worked out by hand."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from counted_database import counted_database

from benchmarks.neighbourhoods import (
    chosen_by_chance,
    clustered_error,
    local_variation,
    nearest_others,
)
from embeddb.core.files import model_file
from embeddb.featurizers.nest_embedding import SHIPPED
from indexer.training.nests.synthetic import families

ROOT = Path(__file__).parents[2]
GROUPS = np.array(["a", "a", "b", "c", "c"])
EVERY = np.arange(5)


def test_the_nearest_are_of_other_groups() -> None:
    line = np.array([[0.0], [1.0], [2.0], [4.0], [8.0]], dtype=np.float32)
    found = nearest_others(line, GROUPS, EVERY, 2)
    # The last stands next to 4, which is of its own group.
    assert found.tolist() == [[2, 3], [2, 3], [1, 0], [2, 1], [2, 1]]
    assert nearest_others(line, GROUPS, np.array([4]), 1).tolist() == [[2]]


def test_a_column_counts_by_what_it_varies() -> None:
    """In the units of the columns the third is nearest to the first. Beside how much each column
    varies, it is the last, which has the same in the second."""
    rows = [[0, 0], [180, 1e-6], [100, 1e-6], [200, 1e-6], [140, 0]]
    plane = np.array(rows, dtype=np.float32)
    groups = np.array(list("abcde"))
    assert nearest_others(plane, groups, np.array([0]), 1).tolist() == [[4]]
    plane[:, 1] = 0
    assert nearest_others(plane, groups, np.array([0]), 1).tolist() == [[2]]


def test_of_equals_the_first() -> None:
    same = np.zeros((5, 3), dtype=np.float32)
    assert nearest_others(same, GROUPS, np.array([4, 0]), 2).tolist() == [[0, 1], [2, 3]]


def test_more_rows_than_are_taken_at_once(rng: np.random.Generator) -> None:
    vectors = rng.normal(size=(600, 3)).astype(np.float32)
    groups = np.array([str(at % 7) for at in range(600)])
    found = nearest_others(vectors, groups, np.arange(600))
    scaled = (vectors - vectors.mean(axis=0)) / vectors.std(axis=0)
    for at in (0, 255, 256, 599):
        apart = np.linalg.norm(scaled - scaled[at], axis=1)
        apart[groups == groups[at]] = np.inf
        assert found[at].tolist() == np.argsort(apart)[:3].tolist()


def test_too_few_others() -> None:
    with pytest.raises(ValueError, match="fewer than 3"):
        nearest_others(np.zeros((4, 1), dtype=np.float32), GROUPS[:4], np.arange(4))
    with pytest.raises(ValueError, match="larger sample"):
        chosen_by_chance(GROUPS[:4], np.arange(4), np.random.default_rng(0))


def test_by_chance_every_other_comes_up(rng: np.random.Generator) -> None:
    drawn = np.concatenate([chosen_by_chance(GROUPS, np.array([3]), rng, 2) for _ in range(300)])
    assert (drawn[:, 0] != drawn[:, 1]).all()
    counts = np.bincount(drawn.ravel(), minlength=5)
    assert counts[3:].tolist() == [0, 0]
    assert counts[:3].min() > 150


def test_deviation_over_mean() -> None:
    metric = np.array([1.0, 1.0, 1.0, 5.0, 0.0])
    around = np.array([[1, 2, 3], [0, 2, 1]])
    # Mean 2, squares 1, 1, 1 and 9 over four.
    found = local_variation(metric, np.array([0, 0]), around)
    assert found.tolist() == pytest.approx([math.sqrt(3) / 2, 0.0])
    # One of four moves anything: the most there can be.
    assert local_variation(np.array([0.0, 0, 0, 7]), np.array([3]), np.array([[0, 1, 2]])) == (
        pytest.approx(math.sqrt(3))
    )


def test_nothing_at_all_varies_by_nothing_and_an_absent_value_has_no_figure() -> None:
    metric = np.array([0.0, 0.0, 0.0, 0.0, math.nan])
    found = local_variation(metric, np.array([0, 0]), np.array([[1, 2, 3], [1, 2, 4]]))
    assert found[0] == 0 and math.isnan(found[1])


def test_the_error_of_what_stands_together() -> None:
    values = np.array([0.0, 0.0, 2.0, 2.0])
    # Sums off the mean -2 and 2, of two groups: sqrt(8 * 2 / 1) / 4.
    assert clustered_error(values, np.array(list("aabb"))) == pytest.approx(1.0)
    # Each by itself: the plain standard error.
    alone = clustered_error(values, np.array(list("abcd")))
    assert alone == pytest.approx(values.std(ddof=1) / 2)
    assert math.isnan(clustered_error(values, np.array(list("aaaa"))))


def benchmark(*words: str | Path) -> subprocess.CompletedProcess[str]:
    script = ROOT / "benchmarks" / "nest_similarity.py"
    return subprocess.run(
        [sys.executable, script, *words],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        check=False,
    )


def test_the_benchmark_asks_only_about_families_that_the_network_did_not_see(
    tmp_path: Path,
) -> None:
    """Every nest moves lines in proportion to its turns and its time: bandwidths do not vary."""
    seed = model_file.read_card(SHIPPED, kind="nests")["seed"]
    db = counted_database(tmp_path / "made.db", 2 * len(families()))
    document = json.loads(benchmark(db, "--networks", SHIPPED).stdout)
    table = document["sets"]["made"]
    assert [card["seed"] for card in document["networks"]] == [seed]
    # A fifth of the families, two nests of each.
    assert table["asked"] == [2 * round(len(families()) / 5)]
    rows = {row["method"]: row for row in table["rows"]}
    assert {"ours", "ours, counters hidden", "raw counters", "random"} < rows.keys()
    for row in rows.values():
        assert row["all"]["l2_bandwidth"]["mean"] == pytest.approx(0, abs=1e-4)
        assert row["seeds"] == 1
    assert rows["ours"]["all"]["l2_locality"]["above_ours"] == 0
    best, chance = (rows[name]["all"]["l2_locality"] for name in ("the metric itself", "random"))
    assert best["mean"] < chance["mean"]


def test_the_benchmark_takes_one_network_of_a_seed(tmp_path: Path) -> None:
    done = benchmark(tmp_path / "none.db", "--networks", SHIPPED, SHIPPED)
    assert done.returncode == 1 and not done.stdout
    assert "another network has its seed" in done.stderr
    assert len(done.stderr.splitlines()) == 1
