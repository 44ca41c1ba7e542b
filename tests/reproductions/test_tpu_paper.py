"""The 24 networks of the TPU paper: their table, their parts, and the command that trains them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from tensors import conv, dot_add, row_sum  # noqa: E402
from tiled_database import tiled_database  # noqa: E402
from tiled_kernels import fused_samples, tiled_samples  # noqa: E402

from embeddb.core.errors import ModelError, UsageError  # noqa: E402
from embeddb.tensors.encoding.features import graph_of, tile_rows  # noqa: E402
from embeddb.tensors.encoding.predictor import NetworkSpec  # noqa: E402
from indexer.training.tensors.fitting import KernelTraining, fitted_network, recipe  # noqa: E402
from indexer.training.tensors.network import TrainedNetwork, collate  # noqa: E402
from reproductions import tpu_paper  # noqa: E402
from reproductions.tpu_networks import GNNS, PLACES, REDUCTIONS, PaperNetwork, PaperSpec  # noqa: E402
from reproductions.tpu_paper import judged, main, model_names, paper_recipe  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

KERNELS = [dot_add(), row_sum(), conv(), dot_add(7, 5, 3)]
TILES = [{}, {"t1": 8, "tr": 2}, {"t1": 1, "t2": 4}, {"t2": 2}]


def scores(spec: PaperSpec) -> np.ndarray:
    """Of an untrained network, all kernels and tiles together, and each kernel by itself."""
    torch.manual_seed(0)
    network = PaperNetwork(spec)
    graphs, tiles = [graph_of(k) for k in KERNELS], [tile_rows(k, TILES) for k in KERNELS]
    network.standardise(graphs, tiles, np.array([-9.0, -3.0]))
    network.eval()
    with torch.no_grad():
        together = network(collate(graphs, tiles)).numpy()
        alone = [network(collate([g], [t])).numpy() for g, t in zip(graphs, tiles, strict=True)]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-4, atol=1e-5)
    return together


def test_the_table_is_the_papers() -> None:
    assert len(model_names()) == 12
    for task in ("tile", "fused"):
        for name in model_names():
            assert paper_recipe(task, name, 64).spec.hidden == 64
    row = paper_recipe("tile", "sage-lstm")
    assert (row.spec.hidden, row.lr, row.decay, row.clip) == (1024, 0.000386, 0.98, 1.0)
    row = paper_recipe("fused", "gat-transformer")
    assert (row.spec.gat_heads, row.spec.attention, row.loss_name) == (2, 2, "squared")
    assert paper_recipe("tile", "sage-column-wise").loss_name == "logistic"
    with pytest.raises(UsageError):
        paper_recipe("tile", "sage-sum")


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("gnn", GNNS)
def test_every_network_scores_kernels_alone_as_together(gnn: str, reduction: str) -> None:
    said = scores(PaperSpec(hidden=16, gnn=gnn, reduction=reduction, attention=2))
    assert np.isfinite(said).all() and np.ptp(said) > 1e-3


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_features_in_either_place(place: str, reduction: str) -> None:
    other = {"none": "nodes", "nodes": "kernel", "kernel": "none"}[place]
    own = {"tile": place, "static": other, "module": 2, "norm": True, "directed": False}
    said = scores(PaperSpec(hidden=8, reduction=reduction, **own)).reshape(4, 4)
    assert (np.ptp(said, axis=1).max() > 1e-6) == (place != "none")


def test_one_of_them_is_the_one_that_ships() -> None:
    torch.manual_seed(3)
    paper = PaperNetwork(PaperSpec(hidden=8)).state_dict()
    torch.manual_seed(3)
    own = TrainedNetwork(NetworkSpec(hidden=8)).state_dict()
    assert paper.keys() == own.keys()
    assert all(torch.equal(paper[name], own[name]) for name in own)
    assert NetworkSpec.of(PaperSpec(hidden=8).card) == NetworkSpec(hidden=8)


def test_queries_refuse_the_others_by_name() -> None:
    with pytest.raises(ModelError) as caught:
        NetworkSpec.of(PaperSpec(hidden=8, gnn="gat").card)
    assert "reproductions" in str(caught.value.hint)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "name"), [("tile", "sage-column-wise"), ("fused", "gat-lstm")])
def test_training_ranks_or_predicts(task: str, name: str, tmp_path: Path) -> None:
    samples = tiled_samples(6) if task == "tile" else fused_samples(6)
    own = replace(paper_recipe(task, name, 16), lr=2e-3, dropout=0.0)
    row = judged(samples, KernelTraining(own, epochs=25, patience=25, kernels=4), tmp_path)
    assert row["tau"] > (0.4 if task == "tile" else 0.0)
    assert recipe(task).loss_name == ("hinge" if task == "tile" else "squared")


def test_what_ends_the_training_is_not_what_it_is_judged_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[set[str]] = []

    def fitted(train, valid, *rest, **named):  # type: ignore[no-untyped-def]
        parts.extend({s.group for s in part} for part in (train, valid))
        return fitted_network(train, valid, *rest, **named)

    def figures(task, tests, predictions):  # type: ignore[no-untyped-def]
        parts.append({s.group for s in tests})
        return {}

    monkeypatch.setattr(tpu_paper, "fitted_network", fitted)
    monkeypatch.setattr(tpu_paper, "figures_of", figures)
    own = paper_recipe("tile", "none-per-node", 8)
    judged(tiled_samples(2), KernelTraining(own, epochs=1), tmp_path)
    train, valid, tests = parts
    assert train and valid and tests
    assert not train & valid and not tests & (train | valid)


@pytest.mark.parametrize("changes", ["", " --squared --static-features none"])
def test_the_command(changes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.json"
    asked = f"{tiled_database(tmp_path / 'kernels.db')} --model none-per-node --hidden 8 --epochs 1"
    asked += changes
    main([*asked.split(), "--folder", str(tmp_path / "work"), "--json", str(rows)])
    (row,) = json.loads(rows.read_text())
    assert row["model"] == "none-per-node" and row == json.loads(capsys.readouterr().out)
