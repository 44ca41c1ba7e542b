"""Programs under the judge: cuts that ran, in the order of what their kernels are said to take."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import run_verb
from played_xla import HERE, Played, crowded_s, played
from tensors import op

from embeddb.core.config import Op
from embeddb.core.errors import NothingFound
from embeddb.database import Database
from embeddb.tensors.check import computation
from embeddb.tensors.tensor_graph import TensorGraph
from indexer.tensor_runs import FusionJob, FusionRequest
from tuners.evaluation.evaluate import EvalOptions, evaluate

FAMILIES = 6


def program(family: int, length: int) -> TensorGraph:
    """Operations in a row, of a size of the family."""
    shape = (64 * (family + 1),)
    operations = [op("parameter", shape, number=0)]
    words = ("exponential", "negate", "tanh", "abs")
    operations += [op(words[(at + family) % 4], shape, at) for at in range(length)]
    name = f"row{family}.{length}"
    return computation(operations, [length], kind="program", name=name, group=f"row{family}")


def filled(db: Database, families: int = FAMILIES) -> Database:
    """Kernels of four operations are best: the default, all in one, is slow."""
    programs = [program(family, length) for family in range(families) for length in (9, 12)]
    runner = Played(crowded_s)
    request = FusionRequest(cuts=30, chained=0.0)
    FusionJob(played(db.index, runner), request).programs(programs)
    return db


@pytest.fixture
def db() -> Iterator[Database]:
    with Database.in_memory() as opened:
        yield filled(opened)


def test_fixed_choices_and_the_roofline_have_rows(db: Database) -> None:
    rows = {row.method: row for row in evaluate(db.index, EvalOptions(seeds=[0], folds=3))}
    assert set(rows) == {"default", "random", "single", "roofline", "oracle"}
    assert {row.matrices for row in rows.values()} == {2 * FAMILIES}
    assert {(row.op, row.platform) for row in rows.values()} == {("fusion", HERE.id)}
    assert rows["oracle"].figures["of_optimum@1"] == 1.0
    assert rows["default"].figures["speedup@1"] == 1.0
    # All in one moves least, which is what a roofline of so small arrays sees.
    assert rows["roofline"].figures["of_optimum@1"] < rows["oracle"].figures["of_optimum@1"]


def test_sums_learn_from_other_families_what_the_roofline_misses(db: Database) -> None:
    pytest.importorskip("lightgbm")
    pytest.importorskip("torch")
    learned = {"costmodel": lambda *_: None}  # no op of matrices is here: it is never asked
    rows = {
        row.method: row
        for row in evaluate(db.index, EvalOptions(seeds=[0], folds=3), rankers=learned)
    }  # type: ignore[arg-type]
    sums, roofline = (rows[name].figures for name in ("kernel-sums", "roofline"))
    assert sums["of_optimum@1"] > roofline["of_optimum@1"] and sums["tau"] > roofline["tau"]
    assert sums["of_optimum@1"] > 0.9 and sums["opa"] > 0.8


def test_judging_without_what_is_learned_loads_no_torch() -> None:
    asked = "import sys, tuners.evaluation.evaluate; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0


def test_one_family_is_not_judged() -> None:
    with Database.in_memory() as db, pytest.raises(NothingFound, match="two or more groups"):
        evaluate(filled(db, families=1).index, EvalOptions(seeds=[0]))


def test_the_verb_tells_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Database.create(tmp_path / "programs.db") as db:
        filled(db, families=3)
    asked = ["eval", str(tmp_path / "programs.db"), "--op", "fusion", "--seeds", "1"]
    assert run_verb([*asked, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["method"] for row in rows} >= {"roofline", "oracle"}
    assert all(Op.parse(row["op"]) == Op("fusion") for row in rows)
    assert run_verb(asked) == 0
    assert "6 tensor programs" in capsys.readouterr().out
