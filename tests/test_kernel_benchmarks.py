"""What `benchmarks/tiles.py` and `benchmarks/fused.py` make of rows, worked out by hand."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiled_kernels import tiled_samples

from indexer.training.tensors.figures import kendall, program_seconds

pytest.importorskip("torch_geometric")
FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def test_rows_are_gone_on_from(script: Any, tmp_path: Path) -> None:
    rows = script("kernel_rows")
    file = tmp_path / "rows.jsonl"
    first = rows.Rows(file, minutes=1)
    assert first.of({"method": "a", "seed": 0}, lambda: {"x": 1.5}) == {"x": 1.5}
    again = rows.Rows(file, minutes=0)
    assert again.of({"seed": 0, "method": "a"}, lambda: pytest.fail("known")) == {"x": 1.5}
    assert again.of({"method": "b", "seed": 0}, lambda: pytest.fail("no time")) is None
    assert again.left == [{"method": "b", "seed": 0}]
    assert len(file.read_text().splitlines()) == 1


def test_a_line_that_was_cut_off_is_made_again(script: Any, tmp_path: Path) -> None:
    rows = script("kernel_rows")
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"key": {"a": 1}, "value": 2}) + '\n{"key": {"a": 2}, "va')
    found = rows.Rows(file, minutes=1)
    assert found.of({"a": 1}, lambda: 9) == 2
    assert found.of({"a": 2}, lambda: 9) == 9
    assert rows.Rows(file, minutes=1).of({"a": 2}, lambda: 8) == 9


def test_seeds_count_the_same_and_errors_are_over_all_programs(script: Any) -> None:
    rows = script("kernel_rows")
    told = [{"p": {"ape": 1.0}, "q": {"ape": 3.0, "tau": 0.5}}, {"p": {"ape": 8.0}}]
    found = rows.over_seeds(told)
    assert found["ape"] == 5.0  # 2 and 8
    assert found["tau"] == 0.5
    assert found["ape_median"] == 5.0
    assert found["ape_error"] == pytest.approx(np.std([1, 3, 8], ddof=1) / math.sqrt(3))
    assert found["tau_error"] == 0.0


def test_methods_are_compared_program_by_program(script: Any) -> None:
    rows = script("kernel_rows")
    ours = [{"p": {"ape": 1.0}, "q": {"ape": 3.0}}, {"p": {"ape": 2.0}, "only": {"ape": 50.0}}]
    others = [{"p": {"ape": 2.0}, "q": {"ape": 3.0}}, {"p": {"ape": 4.0}}]
    found = rows.ahead(ours, others, "ape")
    assert found == {"mean": -1.0, "error": pytest.approx(1 / math.sqrt(3)), "pairs": 3}


def test_programs_are_faster_than_untiled_by_the_geometric_mean(script: Any) -> None:
    tiles = script("tiles")
    seconds = {"untiled": 8.0, "1": 4.0, "10": 2.0, "exhaustive": 1.0}
    other = {"untiled": 2.0, "1": 4.0, "10": 2.0, "exhaustive": 1.0}
    found = tiles.figure_4([{"p": seconds}, {"p": other}])
    assert found == {
        "1": pytest.approx(1.0),
        "10": pytest.approx(2.0),
        "exhaustive": pytest.approx(4.0),
    }


def test_the_ceiling_of_equal_rounds_is_perfect(script: Any) -> None:
    tiles = script("tiles")
    samples = tiled_samples(4)
    found = tiles.ceiling(samples, [sample.seconds for sample in samples])
    assert found["ape"] == 0.0 and found["tau"] == pytest.approx(1.0)


def test_a_program_takes_what_its_kernels_take() -> None:
    samples = tiled_samples(4)
    scores = [-sample.seconds for sample in samples]  # the slowest first
    found = program_seconds(samples, scores)
    assert sum(found.values()) == pytest.approx(sum(s.seconds.max() for s in samples))
    least = program_seconds(samples, scores, k=len(samples[0].seconds))
    assert sum(least.values()) == pytest.approx(sum(s.seconds.min() for s in samples))


def test_tiles_that_nobody_knows_are_ties() -> None:
    said = np.array([0.0, np.inf, np.inf])
    found = kendall(said, np.array([1.0, 2.0, 3.0]))
    assert found == pytest.approx(2 / math.sqrt(2 * 3))


def test_tables_have_every_method_and_what_another_round_says(script: Any) -> None:
    told = {"ape": 3.0, "ape_median": 2.0, "ape_error": 0.5, "tau": 0.8, "tau_median": 0.85}
    four = {"1": 1.5, "10": 1.6, "exhaustive": 1.7}
    result = {
        "splits": {"program": {"trees": {**told, "figure_4": four}}, "family": {}},
        "ceiling": {**told, "ape": 1.0},
        "grid": {
            "sage-lstm": {**told, "training": {"train_cpu_s": 61.4}},
            "vanilla": {
                **told,
                "training": {"train_cpu_s": 9.0},
                "above": {"mean": -0.0234, "error": 0.004, "pairs": 3},
            },
        },
    }
    lines = list(script("kernel_tables").tables(result))
    assert "| trees | 3.0 ± 0.5 | 2.0 | 0.80 | 0.85 |" in lines
    assert any(line.startswith("| another round") and "| 1.0 ± 0.5 |" in line for line in lines)
    assert "| trees | 1.500× | 1.600× | 1.700× |" in lines
    assert "| sage-lstm | 3.0 | 2.0 | 0.800 | - | 61 |" in lines
    assert "| vanilla | 3.0 | 2.0 | 0.800 | -0.023 ± 0.004 | 9 |" in lines
