"""A model from few samples: as a file, with figures of groups left out, and in queries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from costmodel_samples import samples

from embeddb.core.errors import ModelError, UsageError
from embeddb.cost_model.gaussian import GaussianProcess
from embeddb.cost_model.model import CostModel
from embeddb.learning import left_out
from embeddb.learning.few_samples import process_card
from embeddb.learning.process import expected_figures, learn


@pytest.fixture(scope="module")
def model() -> CostModel:
    own = samples(matrices=12, configs=20)
    return learn(own, process_card(own))


def test_it_ranks_matrices_that_it_never_saw(model: CostModel) -> None:
    whole = samples(matrices=20, configs=20)
    taus = []
    for row in range(12, 20):
        score, spread = model.score(whole.problem(row), whole.ran(row))
        taus.append(np.corrcoef(score, whole.gain[whole.part(row)])[0, 1])
        assert (spread > 0).all()
    assert np.mean(taus) > 0.5


def test_it_knows_which_of_its_errors_correlate(model: CostModel) -> None:
    own = samples(matrices=13, configs=20)
    problem, configs = own.problem(12), own.ran(12)
    assert model.correlation is not None
    correlation = model.correlation(problem, [configs[0], configs[0], *configs[1:9]])
    assert correlation.shape == (10, 10)
    assert np.allclose(correlation, correlation.T) and np.allclose(np.diag(correlation), 1.0)
    assert correlation[0, 1] == pytest.approx(1.0, abs=1e-4)
    assert correlation[0, 2:].min() < 0.99


def test_correlations_after_scores_are_those_of_a_model_that_scored_nothing(
    model: CostModel,
) -> None:
    own = samples(matrices=13, configs=20)
    problem, configs = own.problem(12), own.ran(12)
    model.score(problem, configs[:12])
    for some in (configs[3:9], configs[6:18], configs[14:]):
        fresh = CostModel(model.card, model.tensors)
        assert model.correlation is not None and fresh.correlation is not None
        found, expected = (one.correlation(problem, some) for one in (model, fresh))
        assert np.allclose(found, expected, atol=1e-4)
    other = own.problem(11)
    found, expected = (one.correlation(other, configs[3:9]) for one in (model, fresh))
    assert np.allclose(found, expected, atol=1e-4)
    assert not np.allclose(found, model.correlation(problem, configs[3:9]), atol=1e-3)


def test_the_gain_over_a_slow_default_is_as_large_as_predicted() -> None:
    """Gains far below the mean of a matrix are no smaller in the prediction, and of matrices that
    it never saw an 80 % interval holds most, not all."""
    whole = samples(matrices=24, configs=20)
    default = whole.platform.default(whole.ops[0], whole.rows[0].sizes)
    slow = np.array([config == default for config in whole.configs])[whole.column]
    whole = replace(whole, gain=whole.gain - 3.0 * slow)
    few = whole.take(range(12))
    model, errors, covered = learn(few, process_card(few)), [], []
    for row in range(12, 24):
        ran, gain = whole.ran(row), whole.gain[whole.part(row)]
        at = ran.index(default)
        score, spread = model.score(whole.problem(row), ran)
        error = (gain - gain[at]) - (score - score[at])
        errors.append(error[int(score.argmax())])
        covered += (np.abs(error) <= 1.2816 * np.hypot(spread, spread[at])).tolist()
    assert abs(np.mean(errors)) < 0.3
    assert 0.75 < np.mean(covered) < 1.0
    assert 0.75 < model.card["metrics"]["coverage_80"] < 1.0


def test_its_card_has_figures_of_groups_left_out(model: CostModel) -> None:
    figures = model.card["held_out"]["spmm:32"]["rank"]
    assert 0 < figures["of_optimum@1"] <= figures["of_optimum@5"] <= 1
    assert figures["error@1"] >= 0 and figures["groups"] == 6
    expected = expected_figures(model, samples(matrices=12, configs=20))
    assert 0 < expected["of_optimum@1"] <= expected["of_optimum@5"] <= 1
    alone = samples(matrices=2, configs=40)  # one group
    assert expected_figures(learn(alone, process_card(alone)), alone) == {}
    assert model.card["hidden"]["spmm:32"]["unrun_first"] in (True, False)


def test_a_file_holds_all_of_it(model: CostModel, tmp_path: Path) -> None:
    own = samples(matrices=12, configs=20)
    file = tmp_path / "m.safetensors"
    version = model.save(file)
    read = CostModel.load(file)
    assert read.version == version
    score, again = (m.score(own.problem(0), own.ran(0))[0] for m in (model, read))
    assert np.allclose(score, again)


def test_a_file_that_lacks_a_tensor_is_refused(model: CostModel) -> None:
    name = next(n for n in model.tensors if n.endswith(".target"))
    with pytest.raises(ModelError):
        CostModel(model.card, {n: a for n, a in model.tensors.items() if n != name})


def test_other_derived_quantities_are_another_model(model: CostModel) -> None:
    from dataclasses import replace

    own = samples(matrices=12, configs=20)
    made = (model.card["featurizer"]["name"], model.card["featurizer"]["version"])
    assert not model.mismatch(own.platform, own.ops[0], *made)
    other = CostModel({**model.card, "derived": "0" * 16}, model.tensors)
    assert "derived quantities" in other.mismatch(own.platform, own.ops[0], *made)
    elsewhere = replace(own.platform, instance="another")
    named = {**model.card, "platform": {**model.card["platform"], "id": "spade@one"}}
    of_one = CostModel(named, model.tensors)
    assert "spade@one" in of_one.mismatch(elsewhere, own.ops[0], *made)
    assert not of_one.mismatch(replace(own.platform, instance=""), own.ops[0], *made)


def test_of_many_runs_it_reads_some_and_is_judged_by_some(monkeypatch: pytest.MonkeyPatch) -> None:
    own = samples(matrices=30, configs=20)
    monkeypatch.setattr(left_out, "MOST_SAMPLES", 40)  # of 20 of the 30 rows, two each
    monkeypatch.setattr(left_out, "_MOST_JUDGED", 100)  # of 5 rows
    chosen = left_out.measured(own, range(30), 0)
    count = np.bincount(chosen.row, minlength=30)
    assert len(chosen.gain) == 40 and set(count.tolist()) == {0, 2}
    for row in np.flatnonzero(count).tolist():
        assert set(chosen.gain[chosen.row == row]) <= set(own.gain[own.part(row)])
    process = GaussianProcess.fit(chosen)
    predicted = left_out.left_out(process, own, range(30))
    assert len(predicted) == 5
    assert all(len(gain) == len(own.ran(row)) for row, (gain, _) in predicted.items())
    card = learn(own, process_card(own)).card
    assert 0 < card["held_out"]["spmm:32"]["rank"]["of_optimum@1"] <= 1


def test_too_few_samples_are_refused_with_what_to_do() -> None:
    own = samples(matrices=2, configs=5)
    with pytest.raises(UsageError, match="too few"):
        learn(own, process_card(own))
