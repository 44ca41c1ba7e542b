"""Training the network of nests on made-up counters: what is learned, kept, gone on with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nest_weights import predicted

from embeddb.nests.examples import sample_nests

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from embeddb.core.errors import InputError  # noqa: E402
from embeddb.nests.counters import COUNTERS, CounterVector  # noqa: E402
from embeddb.nests.encoding.forward import NestNetwork  # noqa: E402
from embeddb.nests.nest import Nest  # noqa: E402
from indexer.training.folder import checkpoint_of, curve_of, folder_of  # noqa: E402
from indexer.training.nests.samples import (  # noqa: E402
    TARGETS,
    NestSample,
    held_out,
    sample_of,
)
from indexer.training.nests.train import NestTraining, pearson, train_nests  # noqa: E402
from indexer.training.trainer import Settings  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
HOW = NestTraining(Settings(epochs=6, patience=6, seed=1), layers=2, batch=10)


def quiet(what: str, done: int, of: int) -> None:
    pass


def counted(nest: Nest) -> CounterVector:
    """Loads are known exactly, misses are not; stores are absent."""
    rng = np.random.default_rng(nest.points)
    loads = nest.points * len(nest.accesses())
    counts = {"instructions": 4 * loads, "loads": loads, "l1_lines_in": loads * rng.random()}
    row = [counts.get(name, np.nan if name == "stores" else 1.0) for name in COUNTERS]
    return CounterVector.of_threads(np.array([row]), "model")


@pytest.fixture(scope="module")
def samples() -> list[NestSample]:
    nests = [nest for size in SIZES for nest in sample_nests(size).values()]
    grouped = [replace(n, group=f"{n.group}_{at // 12}") for at, n in enumerate(nests)]
    return [sample_of(nest, counted(nest), 1e-9 * nest.points) for nest in grouped]


def trained(samples: Sequence[NestSample], out: Path, **changed: Any) -> dict[str, Any]:
    how = replace(HOW, **changed)
    return train_nests(samples, how, out, progress=quiet)


@pytest.fixture(scope="module")
def learned(
    samples: list[NestSample], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """A card and its file."""
    out = tmp_path_factory.mktemp("learned") / "nests.safetensors"
    return trained(samples, out), out


def test_it_learns_what_there_is_to_learn(
    samples: list[NestSample], learned: tuple[dict[str, Any], Path]
) -> None:
    card, out = learned
    assert card["samples"]["train"] + card["samples"]["valid"] == len(samples)
    assert card["groups"]["valid"] == 6
    # Absent in all: not learned. Present: told both ways.
    names = card["network"]["targets"]
    assert set(names) == set(TARGETS) - {"store_rate"}
    for way in ("counters", "static"):
        assert list(card["pearson"]["valid"][way]) == names
    assert card["pearson"]["valid"]["static"]["runtime"] > 0.8
    assert card["pearson"]["valid"]["counters"]["runtime"] > 0.8
    assert not checkpoint_of(folder_of(out)).exists() and curve_of(folder_of(out)).exists()


def test_the_file_predicts_what_was_measured(
    samples: list[NestSample], learned: tuple[dict[str, Any], Path]
) -> None:
    card, out = learned
    network = NestNetwork.load(out)
    at = network.spec["targets"].index("runtime")
    out_of = held_out(samples, HOW.settings.seed)
    part = [s for s in samples if s.group in out_of]
    said = np.array([predicted(network, s.graph, s.counters)[at] for s in part])
    real = np.array([s.targets[TARGETS.index("runtime")] for s in part])
    found = pearson(said, real)
    assert found == pytest.approx(card["pearson"]["valid"]["counters"]["runtime"], abs=1e-3)


def test_a_training_that_was_cut_ends_with_the_same_weights(
    samples: list[NestSample], tmp_path: Path
) -> None:
    def cut(what: str, done: int, of: int) -> None:
        if done == of // 2:
            raise KeyboardInterrupt

    few = samples[:30]
    whole = train_nests(few, HOW, tmp_path / "whole.safetensors", progress=quiet)
    out = tmp_path / "cut.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train_nests(few, HOW, out, progress=cut)
    assert checkpoint_of(folder_of(out)).exists() and not out.exists()
    resumed = train_nests(few, HOW, out, progress=quiet)
    assert resumed["metrics"] == whole["metrics"]
    one, two = (NestNetwork.load(tmp_path / f"{name}.safetensors") for name in ("whole", "cut"))
    np.testing.assert_array_equal(one.embedding(few[0].graph), two.embedding(few[0].graph))


def test_a_network_of_one_branch_does_not_see_the_other(
    samples: list[NestSample], tmp_path: Path
) -> None:
    one, two = samples[0], samples[-1]
    assert one.counters is not None and two.counters is not None
    static = tmp_path / "static.safetensors"
    trained(samples[:30], static, inputs="static", settings=Settings(epochs=1))
    network = NestNetwork.load(static)
    assert np.array_equal(network.embedding(one.graph), network.embedding(one.graph, one.counters))
    assert not np.allclose(network.embedding(one.graph), network.embedding(two.graph))
    dynamic = tmp_path / "dynamic.safetensors"
    trained(samples[:30], dynamic, inputs="dynamic", hidden=0.0, settings=Settings(epochs=1))
    network = NestNetwork.load(dynamic)
    assert np.array_equal(network.embedding(one.graph), network.embedding(two.graph))
    counted = network.embedding(one.graph, one.counters)
    assert not np.allclose(counted, network.embedding(one.graph, two.counters))


def test_groups_are_held_out_whole_and_by_seed(samples: list[NestSample]) -> None:
    out = held_out(samples, 1)
    assert out == held_out(samples[::-1], 1) != held_out(samples, 2)
    few = [s for s in samples if s.group.endswith("_0")]
    with pytest.raises(InputError, match="nests of 6 groups are too few"):
        held_out(few, 1)


def test_absent_counters_are_nan(samples: list[NestSample]) -> None:
    found = samples[0].counters
    stores = slice(5 * COUNTERS.index("stores"), 5 * COUNTERS.index("stores") + 5)
    assert np.isnan(found[stores]).all() and np.isnan(found).sum() == 5


def test_correlations_by_hand() -> None:
    one = np.array([1, 2, 3, 9], dtype=np.float32)
    two = np.array([1, 3, 2, np.nan], dtype=np.float32)
    assert pearson(one, two) == pytest.approx(0.5)
    assert pearson(one, np.array([1, 1, 1, np.nan], dtype=np.float32)) is None
    assert pearson(one[:2], two[:2]) is None
