"""A model of tiles beside neighbours, on families that were held out."""

from __future__ import annotations

import math
from collections.abc import Iterator

import measured_kernels as law
import pytest
from kernel_models import Knowing, card_of, weights_of

from embeddb.core.errors import UsageError
from embeddb.cost_model.graph_model import GraphModel
from embeddb.database import Database
from embeddb.tensors.encoding.predictor import KernelNetwork, NetworkSpec
from tuners.evaluation import kernel_models
from tuners.evaluation.kernel_models import held_out_kernels, judged_tiles, judgement


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    folder = law.make(tmp_path_factory.mktemp("kernels") / "kernels.db")
    with Database.open(folder, readonly=True) as opened:
        yield opened


#: All but a few: the guard needs 49 to believe anything.
FAMILIES = [one.group for one in law.measured()[3:]]


def test_who_knows_the_law_wins(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_models, "_PARTS", 50)  # with fewer the others are below 49
    told = judged_tiles(db.index, Knowing(), law.here(), FAMILIES)
    assert told["kernels"] >= 50 and told["guard"] <= 0.02
    rank, transfer = told["held_out"]["rank"], told["held_out"]["transfer"]
    assert rank["of_optimum@1"] > 0.99 > transfer["of_optimum@1"]
    both = told["held_out"]["transfer+rank"]
    assert 0 < both["weight"] < 1 and both["guard"] >= 0
    assert {"known", "all", "unrun_first"} == set(told["hidden"])


def test_who_says_the_opposite_is_never_believed(db: Database) -> None:
    told = judged_tiles(db.index, Knowing(sign=-1.0), law.here(), FAMILIES)
    assert told["guard"] >= 1.5  # more than it ever promises
    # Behind its guard it is the default.
    held = held_out_kernels(db.index, Knowing(), law.here(), FAMILIES)
    default = [one.truth.best_s / one.truth.default_s for one in held]
    mean = math.exp(sum(map(math.log, default)) / len(default))
    assert told["held_out"]["rank"]["of_optimum@1"] == pytest.approx(mean)


def test_neighbours_are_of_other_families(db: Database) -> None:
    few = FAMILIES[:6]
    for one in held_out_kernels(db.index, Knowing(), law.here(), few):
        assert one.group in few
        assert not {near.group for near in one.query.vote.neighbours} & set(few)
        assert set(one.query.prediction.configs) <= set(one.truth.times)
        assert one.query.prediction.configs[0] == one.query.default


def test_every_method_is_judged(db: Database) -> None:
    held = held_out_kernels(db.index, Knowing(), law.here(), FAMILIES)
    document = judgement(held)
    assert set(document["held_out"]) == {"transfer", "rank", "transfer+rank"}
    assert all(
        0 < f["of_optimum@1"] <= f["of_optimum@5"] <= 1 for f in document["held_out"].values()
    )


def test_nothing_to_judge_by(db: Database) -> None:
    assert judged_tiles(db.index, Knowing(), law.here(), []) == {}
    assert judged_tiles(db.index, Knowing(), law.here(), FAMILIES[:1]) == {}
    spec = NetworkSpec(task="fused", hidden=8)
    fused = GraphModel(KernelNetwork(card_of(spec), weights_of(spec)))
    with pytest.raises(UsageError, match="ranks no tiles"):
        judged_tiles(db.index, fused, law.here(), FAMILIES)
