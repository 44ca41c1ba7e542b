"""Boosted trees of kernels: kept, read again, and chosen where they are better."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")
pytest.importorskip("lightgbm")

from tiled_kernels import fused_samples, kernels, predictor_of, tiled_samples  # noqa: E402

from embeddb.core.errors import ModelError, UsageError  # noqa: E402
from embeddb.core.files import model_file  # noqa: E402
from embeddb.cost_model.graph_model import KernelTrees  # noqa: E402
from embeddb.featurizers.kernel_embedding import KernelEmbedding  # noqa: E402
from embeddb.learning.boosting import weights  # noqa: E402
from embeddb.tensors.encoding.features import flat_rows  # noqa: E402
from embeddb.tensors.roofline.analysis import ANALYSIS_VERSION, Analysis  # noqa: E402
from indexer.training.tensors.figures import kendall  # noqa: E402
from indexer.training.tensors.fitting import KernelTraining, recipe  # noqa: E402
from indexer.training.tensors.grown_trees import (  # noqa: E402
    boosted_by_family,
    grown,
    tree_predictions,
    tree_weights,
    trees_card,
)
from indexer.training.tensors.operations import summed  # noqa: E402
from indexer.training.tensors.samples import split  # noqa: E402
from indexer.training.tensors.train import KernelData, train_kernels  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def quiet(what: str, done: int, of: int) -> None:
    pass


def how(task: str, predictor: str, epochs: int = 1) -> KernelTraining:
    own = replace(recipe(task, 8), dropout=0.0)
    return KernelTraining(own, epochs=epochs, kernels=8, predictor=predictor)


def test_they_say_what_lightgbm_says() -> None:
    tiled = tiled_samples(4)
    table = np.concatenate([flat_rows(s.graph, s.tiles) for s in tiled])
    wanted = np.concatenate([s.logs - s.logs.mean() for s in tiled])
    booster = boosted_by_family(table, wanted, [s.group for s in tiled for _ in s.configs], 0)
    own = KernelTrees(trees_card(), weights(booster))
    said = np.concatenate([own.predicted(s.graph, s.tiles) for s in tiled])
    np.testing.assert_allclose(said, booster.predict(table), rtol=1e-5, atol=1e-6)
    with pytest.raises(ModelError, match="does not predict seconds"):
        own.seconds(next(iter(kernels(1))))


def test_trees_tell_what_an_analysis_misses(tmp_path: Path) -> None:
    """Of a kernel what they say of its sample; the machine is in the file."""
    analysis, made = Analysis({"l2_bytes": "1048576"}), list(kernels(6))
    samples = tiled_samples(6, analysis)
    out = tmp_path / "models" / "kernels-tile-cpu-tile.safetensors"
    out.parent.mkdir()
    asked = how("tile", "trees")
    card = train_kernels(KernelData(samples, analysis=analysis), asked, out, progress=quiet)
    assert card["network"]["machine"] == {"l2_bytes": "1048576"}
    assert card["network"]["analysis"] == ANALYSIS_VERSION
    again, own = predictor_of(out), grown(split(samples, "family", 0)[0], 0, analysis)
    for kernel, sample in zip(made, samples, strict=True):
        told = tree_predictions(own, sample, analysed=True)
        np.testing.assert_array_equal(again.scores(kernel, sample.configs), told.astype(np.float32))
        # Of a tile alone what is said of it among others.
        alone = [again.scores(kernel, [config])[0] for config in sample.configs]
        np.testing.assert_allclose(alone, told, rtol=1e-6)
    valid = split(samples, "family", 0)[1]
    mended, alone = (
        np.mean([kendall(said, s.seconds) or 0.0 for s, said in zip(valid, told, strict=True)])
        for told in (
            [tree_predictions(own, s, analysed=True) for s in valid],
            [s.analysed_logs for s in valid],
        )
    )
    assert mended > alone + 0.1


def test_samples_without_an_analysis_are_no_ground_for_trees_beyond_it() -> None:
    with pytest.raises(AssertionError, match="analysis"):
        grown(tiled_samples(3), 0, Analysis({}))


def test_the_better_one_is_kept_and_the_card_tells_of_the_other(tmp_path: Path) -> None:
    samples = fused_samples(12)
    out = tmp_path / "fused.safetensors"
    card = train_kernels(KernelData(samples), how("fused", "auto"), out, progress=quiet)
    assert card["settings"]["predictor"] == "operations" and "curve" not in card
    assert card["figures"]["valid"]["mape"] < card["others"]["network"]["valid"]["mape"]
    # What was held out is not learned from.
    train, valid = split(samples, "family", 0)
    again, own = predictor_of(out), summed(train)
    assert again.task == "fused"
    by_id = {kernel.id: kernel for kernel in kernels(12)}
    said = [again.seconds(by_id[sample.id]) for sample in valid]
    np.testing.assert_array_equal(said, [own.seconds(by_id[sample.id]) for sample in valid])
    longer = how("fused", "auto", epochs=60)
    longer = replace(longer, recipe=replace(recipe("fused", 24), dropout=0.0))
    card = train_kernels(
        KernelData(samples), longer, tmp_path / "other.safetensors", progress=quiet
    )
    own_error = card["figures"]["valid"]["mape"]
    assert all(own_error <= other["valid"]["mape"] for other in card["others"].values())
    asked = train_kernels(
        KernelData(samples), how("fused", "network"), tmp_path / "n.st", progress=quiet
    )
    assert asked["settings"]["predictor"] == "sage-column-wise" and "others" not in asked


def test_sums_are_of_fused_kernels_alone(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="rank no tiles"):
        train_kernels(
            KernelData(tiled_samples(3)), how("tile", "operations"), tmp_path / "no", progress=quiet
        )
    out = tmp_path / "fused.safetensors"
    card = train_kernels(
        KernelData(fused_samples(8)), how("fused", "operations"), out, progress=quiet
    )
    assert card["settings"]["predictor"] == "operations" and "trees" in card["settings"]
    assert predictor_of(out).task == "fused"
    assert KernelEmbedding.for_database(tmp_path) is None


def test_trees_of_tiles_are_judged_and_are_no_featurizer(tmp_path: Path) -> None:
    samples, judged = tiled_samples(4), []

    def judge(card: dict[str, Any], tensors: dict[str, Any], families: Any) -> dict[str, Any]:
        judged.append((card["kernel"], sorted(tensors), list(families)))
        return {"judged_kernels": 3}

    out = tmp_path / "models" / "kernels-tile-cpu-tile.safetensors"
    out.parent.mkdir()
    card = train_kernels(
        KernelData(samples, judge=judge), how("tile", "trees"), out, progress=quiet
    )
    assert card["judged_kernels"] == 3 and judged[0][2] == card["parts"]["valid"]["families"]
    assert card["calibration"]["slope"] > 0 and card["figures"]["valid"]["tau"] > 0.3
    assert KernelEmbedding.for_database(tmp_path) is None


def test_files_that_are_no_trees_are_refused(tmp_path: Path) -> None:
    made = {n: torch.from_numpy(a) for n, a in tree_weights(tiled_samples(3)).items()}
    card = {"kind": "kernels", "kernel": "tile", **trees_card()}
    file = tmp_path / "a.safetensors"
    for name, wrong, told in (
        ("kernel", {"network": {"task": "taste", "encoding": ""}}, "taste"),
        ("encoding", {"network": {"task": "tile", "encoding": "00000000"}}, "encoded otherwise"),
        ("fused", {"network": {**trees_card()["network"], "task": "fused"}}, "'fused'"),
        ("nothing", {"network": {}}, "a.safetensors"),
        ("machine", {"network": {**trees_card()["network"], "machine": 3}}, "machine"),
        ("facts", {"network": {**trees_card()["network"], "machine": {"a": 1}}}, "machine"),
        ("older", {"network": {**trees_card()["network"], "machine": {}}}, "another version"),
    ):
        model_file.save(file, made, {**card, **wrong})
        with pytest.raises(ModelError, match=told):
            predictor_of(file)
        assert name
    model_file.save(file, {**made, "value": made["value"][:-1]}, card)
    with pytest.raises(ModelError, match="value"):
        predictor_of(file)
