"""The learned vectors of nests: the contract, weights, counters, and that torch is not needed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nest_weights import SPEC, counted, write_weights

from embeddb.core.errors import ModelError
from embeddb.database import Database
from embeddb.featurizers import Featurizers, nest_embedding
from embeddb.featurizers.nest_embedding import OWN, NestEmbedding, install
from embeddb.nests.check import canonical_schedule
from embeddb.nests.encoding.forward import DIM
from embeddb.nests.encoding.graph import graph_of
from embeddb.nests.examples import nest_of, sample_nests
from embeddb.testing.featurizers import NestFeaturizerContract


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("weights") / "mine.safetensors")


class TestNestEmbedding(NestFeaturizerContract):
    @pytest.fixture(autouse=True)
    def _weights(self, weights: Path) -> None:
        self.weights = weights

    def make(self) -> NestEmbedding:
        return NestEmbedding(self.weights)


def test_it_is_the_network_on_the_canonical_schedule(weights: Path) -> None:
    featurizer = NestEmbedding(weights)
    for nest in sample_nests().values():
        graph = graph_of(nest, canonical_schedule(nest))
        assert np.array_equal(featurizer.embed(nest), featurizer.network.embedding(graph))


def test_counters_move_the_vector(weights: Path) -> None:
    featurizer, nest = NestEmbedding(weights), sample_nests()["spmv"]
    without = featurizer.embed(nest)
    assert np.array_equal(featurizer.embed_counted(nest, None), without)
    few, many = (featurizer.embed_counted(nest, counted(loads=n)) for n in (1e3, 1e9))
    assert not np.allclose(few, without) and not np.allclose(few, many)


def test_counters_of_another_source_are_refused(weights: Path) -> None:
    with pytest.raises(ModelError, match="trained with counters of model, these are of perf"):
        NestEmbedding(weights).embed_counted(sample_nests()["spmv"], counted("perf"))


def test_what_an_index_array_holds_is_seen(weights: Path) -> None:
    """The copies of the paper's Section 4: an indirect copy in order and one at random."""

    def copy(fill: str) -> Any:
        arrays = [["f32", [64]], ["f32", [64]], ["i32", [64], fill]]
        read = ["read", 1, {"plus": [0], "of": [2, [0, 1]]}]
        return nest_of([64], arrays, [["=", [0, [0, 1]], read, None]])

    featurizer = NestEmbedding(weights)
    vectors = [featurizer.embed(copy(fill)) for fill in ("range", "permutation")]
    assert not np.allclose(vectors[0], vectors[1])


def test_weights_of_the_database_come_first(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nest_embedding, "SHIPPED", tmp_path / "none")
    assert NestEmbedding.for_database(tmp_path) is None
    assert "nest-embedding" not in Featurizers(tmp_path)
    monkeypatch.setattr(nest_embedding, "SHIPPED", weights)
    shipped = NestEmbedding.for_database(tmp_path)
    assert shipped is not None and shipped.version == NestEmbedding(weights).version
    own = write_weights(tmp_path / "own.safetensors", seed=1)
    version = install(own, tmp_path)
    found = Featurizers(tmp_path)["nest-embedding"]
    assert found.version == version != shipped.version
    assert found.names[0] == f"{version[:8]}.0" and found.dim == DIM


def test_a_database_takes_weights_for_what_they_are(weights: Path, tmp_path: Path) -> None:
    with Database.create(tmp_path / "runs.db") as db:
        version = db.index.use_weights(weights)
        assert (tmp_path / "runs.db" / OWN).read_bytes() == weights.read_bytes()
        assert [(e.version, e.file) for e in db.store.models.entries()] == [(version, OWN.name)]


def test_weights_that_cannot_be_used_are_refused(weights: Path, tmp_path: Path) -> None:
    other = write_weights(tmp_path / "other.safetensors", network=SPEC | {"heads": 5})
    with pytest.raises(ModelError, match="5 heads"):
        install(other, tmp_path)
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(ModelError, match=r"cut\.safetensors"):
        install(cut, tmp_path)
    assert not (tmp_path / OWN).exists()
    huge = NestEmbedding(write_weights(tmp_path / "huge.safetensors", scale=1e30))
    with pytest.raises(ModelError, match="not finite"):
        huge.embed(sample_nests()["matmul"])


def test_names_and_schedules_leave_the_vectors_of_a_nest(weights: Path) -> None:
    network = NestEmbedding(weights).network
    nest = sample_nests()["matmul"]
    still = canonical_schedule(nest)
    vectors = network.node_embeddings(graph_of(nest, still))
    assert vectors.shape == (len(graph_of(nest, still).nodes), DIM)
    tiled = replace(still, tiles=(4, 0, 0))
    assert len(network.node_embeddings(graph_of(nest, tiled))) > len(vectors)


def test_neither_torch_nor_its_graphs_are_needed(weights: Path) -> None:
    code = (
        "import sys;"
        "sys.modules['torch'] = sys.modules['torch_geometric'] = None;"
        "from pathlib import Path;"
        "from embeddb.featurizers.nest_embedding import NestEmbedding;"
        "from embeddb.nests.examples import sample_nests;"
        "f = NestEmbedding(Path(sys.argv[1]));"
        "print([f.embed(nest).size for nest in sample_nests().values()])"
    )
    run = [sys.executable, "-c", code, str(weights)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([DIM] * 6)
