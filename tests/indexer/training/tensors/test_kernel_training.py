"""Training the network of kernels on made-up times: what is learned, kept, gone on with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from tiled_kernels import fused_samples, kernels, tiled_samples  # noqa: E402

from embeddb.core.errors import InputError, UsageError  # noqa: E402
from embeddb.tensors.encoding.features import graph_of, tile_rows  # noqa: E402
from embeddb.tensors.encoding.predictor import KernelNetwork  # noqa: E402
from indexer.training.folder import checkpoint_of, curve_of, folder_of  # noqa: E402
from indexer.training.tensors.figures import fused_figures, kendall, summary, tile_figures  # noqa: E402
from indexer.training.tensors.fitting import KernelTraining, recipe  # noqa: E402
from indexer.training.tensors.samples import KernelSample, split  # noqa: E402
from indexer.training.tensors.train import KernelData, train_kernels  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def quiet(what: str, done: int, of: int) -> None:
    pass


def small(task: str, hidden: int = 24, **changed: Any) -> KernelTraining:
    own = replace(recipe(task, hidden), dropout=0.0)
    return replace(KernelTraining(own, epochs=40, patience=40, kernels=4), **changed)


@pytest.fixture(scope="module")
def samples() -> list[KernelSample]:
    return tiled_samples(8)


@pytest.fixture(scope="module")
def learned(
    samples: Sequence[KernelSample], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    out = tmp_path_factory.mktemp("learned") / "kernels.safetensors"
    return train_kernels(KernelData(samples), small("tile"), out, progress=quiet), out


def test_it_ranks_tiles_of_families_that_it_never_saw(
    samples: Sequence[KernelSample], learned: tuple[dict[str, Any], Path]
) -> None:
    card, out = learned
    figures = card["figures"]["valid"]
    assert figures["tau"] > 0.7
    assert card["parts"]["valid"]["families"] and not set(card["parts"]["valid"]["families"]) & set(
        card["parts"]["train"]["families"]
    )
    assert card["patterns"] == 64 and card["groups"] == 8
    assert "held_out" not in card  # nobody judged it beside neighbours
    # Scores say log seconds when they are multiplied by the slope.
    assert card["calibration"]["slope"] > 0 and card["calibration"]["floor"] < 0.3
    assert not checkpoint_of(folder_of(out)).exists() and curve_of(folder_of(out)).exists()
    # The untiled kernel alone, which is what a query would begin with, does far worse.
    _, valid = split(samples, "family", 0)
    first = [np.where(np.arange(len(s.seconds)) == s.default, 0.0, 1.0) for s in valid]
    untiled = tile_figures(valid, first)
    assert np.mean([f["ape"] for f in untiled.values()]) > 2 * figures["ape"]


def test_the_file_says_what_was_trained(
    samples: Sequence[KernelSample], learned: tuple[dict[str, Any], Path]
) -> None:
    card, out = learned
    network = KernelNetwork.load(out)
    by_id = {made.id: made for made in kernels(8)}
    _, valid = split(samples, "family", 0)
    said = [network.scores(by_id[s.id], s.configs).astype(np.float64) for s in valid]
    found = tile_figures(valid, said)
    assert np.mean([f["tau"] for f in found.values()]) == pytest.approx(
        card["figures"]["valid"]["tau"], abs=2e-3
    )
    kernel = by_id[valid[0].id]
    embeddings = network.embeddings(graph_of(kernel), tile_rows(kernel, [{}]))
    assert embeddings.shape == (1, network.spec.embedding)


def test_seconds_of_kernels_are_learned(tmp_path: Path) -> None:
    out = tmp_path / "fused.safetensors"
    samples = fused_samples(16)
    card = train_kernels(
        KernelData(samples), small("fused", kernels=16, epochs=60), out, progress=quiet
    )
    figures = card["figures"]["valid"]
    train, valid = split(samples, "family", 0)
    mean = float(np.exp(np.mean([s.logs[0] for s in train])))
    constant = summary(fused_figures(valid, [mean] * len(valid)))
    assert figures["mape"] < constant["mape"] / 2 and figures["tau"] > 0.85
    network, one = KernelNetwork.load(out), next(iter(kernels(16)))
    assert network.seconds(one) == pytest.approx(
        np.exp(float(network.scores(one, [{}])[0])), rel=1e-6
    )


def test_a_training_that_was_cut_ends_with_the_same_weights(
    samples: Sequence[KernelSample], tmp_path: Path
) -> None:
    def cut(what: str, done: int, of: int) -> None:
        if done == of // 2:
            raise KeyboardInterrupt

    own = replace(recipe("tile", 8), decay=0.9, clip=0.1, dropout=0.2)
    how = KernelTraining(own, epochs=4, patience=4, kernels=8, tiles=6, by="program")
    few = samples[:40]
    whole = train_kernels(KernelData(few), how, tmp_path / "whole.safetensors", progress=quiet)
    out = tmp_path / "cut.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train_kernels(KernelData(few), how, out, progress=cut)
    assert checkpoint_of(folder_of(out)).exists() and not out.exists()
    resumed = train_kernels(KernelData(few), how, out, progress=quiet)
    assert resumed["metrics"] == whole["metrics"]
    one, two = (KernelNetwork.load(tmp_path / f"{name}.safetensors") for name in ("whole", "cut"))
    graph, tiles = few[0].graph, few[0].tiles
    np.testing.assert_array_equal(one.predicted(graph, tiles), two.predicted(graph, tiles))


def test_squared_errors_rank_too_and_orders_tell_no_seconds(
    samples: Sequence[KernelSample], tmp_path: Path
) -> None:
    squared = small("tile", hidden=8, epochs=2)
    squared = replace(
        squared, recipe=replace(squared.recipe, loss=recipe("fused").loss, loss_name="squared")
    )
    card = train_kernels(
        KernelData(samples), squared, tmp_path / "squared.safetensors", progress=quiet
    )
    assert card["settings"]["loss"] == "squared" and "ape" in card["figures"]["valid"]
    how = small("fused")
    with pytest.raises(UsageError, match="squared"):
        train_kernels(
            KernelData(samples),
            replace(how, recipe=replace(how.recipe, loss_name="hinge")),
            tmp_path / "a.safetensors",
            progress=quiet,
        )


def test_too_few_families_are_refused(samples: Sequence[KernelSample], tmp_path: Path) -> None:
    few = [s for s in samples if s.group in ("mlp", "relu")]
    with pytest.raises(InputError, match="2 families are too few"):
        train_kernels(KernelData(few), small("tile"), tmp_path / "a.safetensors", progress=quiet)
    with pytest.raises(UsageError, match="split"):
        split(samples, "colour", 0)


def test_kendall_is_tau_b() -> None:
    # Of 6 pairs 4 agree, one is tied in each: 4 / sqrt(5 * 5).
    assert kendall(np.array([1.0, 2, 2, 3]), np.array([1.0, 2, 3, 3])) == pytest.approx(0.8)
    infinite = np.array([1.0, np.inf, np.inf, 3])
    assert kendall(infinite, np.array([2.0, 5, 5, 5])) == pytest.approx(3 / 15**0.5)
    assert kendall(np.zeros(4), np.arange(4.0)) is None
    assert kendall(np.zeros(1), np.zeros(1)) is None
