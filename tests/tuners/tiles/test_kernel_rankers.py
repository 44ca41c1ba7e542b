"""`eval --op tile --learned`: trees of kernels beside neighbours and fixed choices."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command_line import run_verb
from tiled_database import tiled_database
from tiled_kernels import kernels, tiles

from embeddb.core.config import Op
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.sizes import UNKNOWN
from embeddb.cost_model import Problem

pytest.importorskip("torch")
pytest.importorskip("lightgbm")

from tuners.evaluation.learned_rankers import kernel_rankers

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_learned_model_has_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board = tiled_database(tmp_path / "tiled.db", each=3)
    assert run_verb(["embed", str(board)]) == 0
    capsys.readouterr()
    asked = ["eval", str(board), "--op", "tile", "--seeds", "1", "--learned", "--json"]
    assert run_verb(asked) == 0
    rows = {row["method"]: row for row in json.loads(capsys.readouterr().out)}
    assert {"default", "static-best", "embeddb", "kernel-trees", "oracle"} <= set(rows)
    assert 0 < rows["kernel-trees"]["of_optimum@1"] <= 1
    assert rows["kernel-trees"]["of_optimum@1"] > rows["default"]["of_optimum@1"]


def test_features_of_nothing_known_are_told() -> None:
    made = list(kernels(1))[:4]
    configs = tiles(made[0])[:4]
    row = SimpleNamespace(column=range(4), seconds=[1.0, 2.0, 3.0, 4.0])
    rows = [SimpleNamespace(pattern_id=one.id) for one in made]
    evidence: Any = SimpleNamespace(rows=rows, configs=configs, row=lambda _: row)
    somewhere: Any = SimpleNamespace(name="tile-cpu", environment={})
    fit = kernel_rankers({one.id: one for one in made}.get, {})["kernel-trees"]
    learned = fit(evidence, {}, {}, somewhere, Op("tile"), {})
    with pytest.raises(NothingFound, match="structure of every kernel"):
        learned.score(Problem(np.zeros(1, np.float32), somewhere, Op("tile"), UNKNOWN), configs)
    with pytest.raises(UsageError, match="rank tiles"):
        fit(evidence, {}, {}, somewhere, Op("fused"), {})
    nobody = kernel_rankers(lambda _: None, {})["kernel-trees"]
    with pytest.raises(NothingFound, match="fewer than two"):
        nobody(evidence, {}, {}, somewhere, Op("tile"), {})
