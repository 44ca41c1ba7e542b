"""The embedding of kernels by the database's own model of tiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_models import card_of, weights_of
from tensors import dot_add

pytest.importorskip("torch")

import torch
from fit_policies import fit_policy

from embeddb.core.errors import ModelError
from embeddb.core.files import model_file
from embeddb.core.records import WorkloadInfo
from embeddb.featurizers import COSTLY, Featurizers, learned_from, reads
from embeddb.featurizers.base import Occluding
from embeddb.featurizers.kernel_embedding import KernelEmbedding
from embeddb.index.features import Features
from embeddb.index.trial import Trial
from embeddb.tensors.encoding.predictor import NetworkSpec
from embeddb.testing.featurizers import KernelFeaturizerContract


def install(folder: Path, spec: NetworkSpec, **card: Any) -> Path:
    file = folder / "models" / "kernels-tile-cpu-tile.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    weights = {name: torch.from_numpy(array) for name, array in weights_of(spec).items()}
    model_file.save(file, weights, card_of(spec, **card))
    return file


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parts = {"train": {"families": ["mlp", 3]}}
    return install(tmp_path_factory.mktemp("own"), NetworkSpec(hidden=8), parts=parts)


class TestContract(KernelFeaturizerContract):
    @pytest.fixture(autouse=True)
    def weights(self, file: Path) -> None:
        self.file = file

    def make(self) -> KernelEmbedding:
        return KernelEmbedding(self.file)


def test_a_database_has_it_where_it_has_a_model(file: Path, tmp_path: Path) -> None:
    folder = file.parent.parent
    plug = Featurizers(folder)["kernel-embedding"]
    assert reads(plug, "kernel") and not reads(plug, "matrix") and plug.name in COSTLY
    assert plug.dim == len(plug.embed(dot_add())) == 16
    assert "kernel-embedding" not in Featurizers(tmp_path)
    assert "kernel-embedding" not in Featurizers(None)


def test_each_operation_can_be_hidden(file: Path) -> None:
    plug, kernel = KernelEmbedding(file), dot_add()
    assert isinstance(plug, Occluding)
    found = plug.without(kernel)
    assert len(found) == len(kernel.operations)
    assert all(not np.array_equal(one, plug.embed(kernel)) for one in found)


def test_it_says_whose_runs_it_was_made_of(file: Path, tmp_path: Path) -> None:
    assert learned_from(KernelEmbedding(file)) == {"mlp"}
    for wrong in ({}, {"parts": 3}, {"parts": {"train": {"families": "mlp"}}}):
        assert (
            learned_from(KernelEmbedding(install(tmp_path, NetworkSpec(hidden=8), **wrong)))
            == set()
        )


def test_damaged_weights_are_told(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "models" / file.name
    copy.parent.mkdir()
    copy.write_bytes(file.read_bytes()[:-100])
    plugs = Featurizers(tmp_path)
    assert "kernel-embedding" not in plugs
    assert any("kernel-embedding" in line for line in plugs.problems())
    with pytest.raises(ModelError):
        plugs.named("kernel-embedding")
    assert KernelEmbedding(file).from_info(WorkloadInfo(id="x")) is None


def test_it_is_not_judged_by_what_it_learned_from() -> None:
    rng = np.random.default_rng(0)
    raw = rng.standard_normal((40, 3)).astype(np.float32)
    gains = np.c_[np.zeros(40), rng.standard_normal((40, 4))]
    groups = np.array([f"g{at // 2}" for at in range(40)])
    judged = np.arange(40) >= 20
    found = fit_policy(raw, gains, groups, judged=judged)
    losses = Trial.of(Features.plain(raw, judged), gains, groups).losses
    assert np.isnan(losses[:20]).all() and np.isfinite(losses[20:]).all()
    assert (found.near.places[:20] == -1).all() and (found.near.places[20:] >= 0).any()
    # Those that are not judged are neighbours of the others.
    assert (found.near.places[20:] < 20).any()
    assert found.policy.rows == 20 if hasattr(found.policy, "rows") else True
    nowhere = np.zeros(40, dtype=np.bool_)
    assert np.isnan(Trial.of(Features.plain(raw, nowhere), gains, groups).losses).all()
    assert not fit_policy(raw, gains, groups, judged=nowhere).far.size
