"""Cost models of other papers: their networks, and the command that trains and judges them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from builders import fill, patterns, tiny  # noqa: E402
from costmodel_samples import quick, samples  # noqa: E402
from torch.nn import functional  # noqa: E402

from embeddb.core.config import Op  # noqa: E402
from embeddb.core.errors import ModelError, UsageError  # noqa: E402
from embeddb.core.sizes import Sizes  # noqa: E402
from embeddb.cost_model import Problem  # noqa: E402
from embeddb.cost_model.encoders.latent import from_tensors  # noqa: E402
from embeddb.cost_model.encoders.own_parameters import Layout  # noqa: E402
from embeddb.cost_model.model import CostModel  # noqa: E402
from embeddb.cost_model.network_numpy import FORMS  # noqa: E402
from embeddb.database import Database  # noqa: E402
from embeddb.platforms.platform import load_platform  # noqa: E402
from indexer.training.cost_model import losses  # noqa: E402
from indexer.training.cost_model.train import train  # noqa: E402
from reproductions.cost_models import MODELS, main, settings_of  # noqa: E402
from reproductions.cost_networks import Augmented, WacoNetwork, WacoShape  # noqa: E402

SPADE, OP = load_platform("spade"), Op.parse("spmm:32")
pytestmark = pytest.mark.usefixtures("one_thread")


def gain_of(model: CostModel) -> Any:
    """float64[c] of one matrix of the samples."""
    known = samples()
    configs = [known.configs[c] for c in known.column[known.part(0)]]
    return model.score(Problem(known.vectors[0], SPADE, OP, known.rows[0].sizes), configs)[0]


@pytest.mark.slow
@pytest.mark.parametrize("predictor", ["lstm", "gru", "transformer", "waco-fm", "waco-fa", "every"])
def test_every_network_trains_scores_and_is_read_again(predictor: str, tmp_path: Path) -> None:
    latent = "fa" if predictor.startswith(("waco", "every")) else "pca"
    how = quick(epochs=1, predictor=predictor, latent=latent, residual=False, bilinear=False)
    made = train(samples(), how)
    made.save(tmp_path / "m.safetensors")
    gain = gain_of(made)
    assert np.isfinite(gain).all() and np.ptp(gain) > 0
    np.testing.assert_array_equal(gain, gain_of(CostModel.load(tmp_path / "m.safetensors")))


@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_model_has_cognates_table_but_for_what_it_changes(model: str) -> None:
    plain = settings_of(model)
    assert (plain.lr, plain.epochs, plain.members) == (1e-4, 100, 1)
    if model != "without-featurizer":
        whole = settings_of(model, whole=True)
        assert whole.encoder == ("waco" if model.startswith("waco") else "cognate")
        assert whole.every_pair and whole.plain


@pytest.mark.slow
def test_a_second_platform_has_places_of_its_own() -> None:
    how = replace(settings_of("waco-fa"), members=1, epochs=1, few_epochs=1, passes=1)
    source = train(samples("cpu", configs=40, matrices=16), how)
    made = train(samples(matrices=16), how, start=source)
    first, second = source.encoder.to_tensors()["place"], made.encoder.to_tensors()["place"]
    assert second[1] == first[0] + first[1]
    with pytest.raises(UsageError, match="fusion add"):
        train(samples(), quick(latent="fa", fusion="add"))


def test_tensors_of_feature_augmentation() -> None:
    good = Augmented(10, 60, 70)
    assert from_tensors("fa", good.to_tensors()) == good
    z = Augmented(6, 31, 64).encode(np.ones((2, 6), dtype=np.float32))
    assert (z.nonzero()[1].min(), z.nonzero()[1].max(), z.sum()) == (31, 36, 12)
    for place in ([5, 62, 64], [5, 0, 1 << 40], [(1 << 63) - 1, 1, 64]):
        with pytest.raises(ModelError):
            from_tensors("fa", {"place": np.array(place)})
    with pytest.raises(ModelError):
        from_tensors("fa", {"place": np.zeros(3)})


def test_each_value_of_a_parameter_has_a_column_of_its_own() -> None:
    kernel, space = SPADE.kernel(OP), SPADE.space(OP, Sizes(9, 9, 9))
    layout = FORMS["waco-fa"].layout(kernel)
    raw = layout.raw(list(space.enumerate()))
    assert layout.width == 4 + 4 + 2 + 3 * 2
    assert set(np.unique(raw)) == {0.0, 1.0}
    assert (raw.sum(axis=1) == 6).all()
    assert len(np.unique(raw, axis=0)) == len(raw) == 256
    assert Layout(kernel).width < FORMS["every"].layout(kernel).width < layout.width


def test_the_first_layer_of_waco_is_a_sum_of_embeddings() -> None:
    """As many look-ups as parameters, joined side by side and through one layer, are that sum."""
    torch.manual_seed(0)
    layer = WacoNetwork(WacoShape(4, 256, "concat", False)).program[0]
    nest, latent = torch.zeros(1, 65), torch.zeros(1, 256)
    latent[0, [3, 40]] = 1
    tables = layer.weight[:, 65:].T
    wanted = functional.embedding(torch.tensor([3, 40]), tables).sum(0) + layer.bias
    torch.testing.assert_close(layer(torch.cat([nest, latent], 1))[0], wanted)


def test_the_logistic_loss_prefers_the_right_order() -> None:
    gains = torch.linspace(-1, 1, 20)[None].repeat(3, 1)
    right, wrong = (
        losses.loss_of("logistic", told, gains, noise=0.0, every_pair=True)
        for told in (gains.clone(), -gains)
    )
    assert right < wrong


@pytest.mark.slow
@pytest.mark.parametrize("words", ["--model gru", "--model waco-fm --whole --sites 8"])
def test_the_command_judges(
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("indexer.training.cost_model.latent_autoencoder.EPOCHS", 5)
    with Database.create(tmp_path / "runs.db") as db:
        fill(db, tiny(), patterns(4))
    base = f"{tmp_path / 'runs.db'} --platform tiny --op spmm:32 --epochs 1"
    main([*base.split(), *words.split(), "--folder", str(tmp_path / "work")])
    card = json.loads(capsys.readouterr().out)
    assert "rank" in card["held_out"]["spmm:32"]
    with Database.open(tmp_path / "runs.db", readonly=True) as db:
        assert not list(db.store.models.entries())
