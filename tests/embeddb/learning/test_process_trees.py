"""Trees beside the process of a model from few samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from costmodel_samples import samples

from embeddb.core.errors import MissingDependency, ModelError
from embeddb.cost_model.model import CostModel
from embeddb.learning import process
from embeddb.learning.few_samples import process_card
from embeddb.learning.process import learn

pytest.importorskip("lightgbm")


@pytest.fixture(scope="module")
def model() -> CostModel:
    own = samples(matrices=24, configs=20)
    return learn(own, process_card(own))


def without_trees(model: CostModel) -> CostModel:
    return CostModel(
        {**model.card, "settings": {**model.card["settings"], "trees": 0.0}}, model.tensors
    )


def test_the_gains_are_averaged_and_the_spread_is_the_process(model: CostModel) -> None:
    own, share = samples(matrices=24, configs=20), model.card["settings"]["trees"]
    assert share == 0.25
    problem, ran = own.problem(0), own.ran(0)
    (gain, spread), (alone, own_spread) = (
        m.score(problem, ran) for m in (model, without_trees(model))
    )
    settings = {**model.card["settings"], "trees": 1.0}
    grown = CostModel({**model.card, "settings": settings}, model.tensors).score(problem, ran)[0]
    assert gain == pytest.approx((1.0 - share) * alone + share * grown)
    assert np.abs(grown - alone).max() > 0.01 and spread == pytest.approx(own_spread)


@pytest.mark.parametrize(("configs", "share"), [(10, 0.0), (20, 0.25), (42, 0.5)])
def test_few_samples_have_none(configs: int, share: float) -> None:
    own = samples(matrices=24, configs=configs)
    found = learn(own, process_card(own))
    assert found.card["settings"]["trees"] == share
    assert any(name.startswith("trees.") for name in found.tensors) is (share > 0.0)


def test_without_lightgbm_the_process_answers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> None:
        raise MissingDependency("boosted trees need lightgbm", hint="pip install lightgbm")

    monkeypatch.setattr(process, "boosted", absent)
    own = samples(matrices=24, configs=20)
    found = learn(own, process_card(own))
    assert "trees" not in found.card["settings"]
    assert np.isfinite(found.score(own.problem(0), own.ran(0))[0]).all()


def test_a_file_holds_them(model: CostModel, tmp_path: Path) -> None:
    own, file = samples(matrices=24, configs=20), tmp_path / "m.safetensors"
    model.save(file)
    again = CostModel.load(file).score(own.problem(0), own.ran(0))[0]
    assert again == pytest.approx(model.score(own.problem(0), own.ran(0))[0])


@pytest.mark.parametrize("share", [2.0, -0.1, "half", True, None, float("nan")])
def test_a_file_with_another_weight_is_refused(model: CostModel, share: object) -> None:
    settings = {**model.card["settings"], "trees": share}
    with pytest.raises(ModelError, match="weight of its trees"):
        CostModel({**model.card, "settings": settings}, model.tensors)


def test_a_file_that_lacks_their_tensors_is_refused(model: CostModel) -> None:
    tensors = {n: a for n, a in model.tensors.items() if n != "trees.spmm:32.splits"}
    with pytest.raises(ModelError):
        CostModel(model.card, tensors)
