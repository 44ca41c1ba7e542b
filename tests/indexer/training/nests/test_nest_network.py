"""The network in torch-geometric against the same one in plain arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nest_weights import predicted

from embeddb.nests.examples import sample_nests

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from embeddb.core.errors import ModelError  # noqa: E402
from embeddb.core.files import model_file  # noqa: E402
from embeddb.nests.encoding.forward import DIM, NestNetwork, encoding_version, shapes_of  # noqa: E402
from embeddb.nests.encoding.graph import NestGraph, graph_of  # noqa: E402
from embeddb.nests.schedule import Schedule  # noqa: E402
from indexer.training.nests.train import TrainedNetwork, collate, counter_inputs  # noqa: E402

SPEC: dict[str, Any] = {
    "layers": 3,
    "heads": 4,
    "counters": 6,
    "targets": ["runtime", "l1_miss_ratio"],
    "inputs": "both",
    "encoding": encoding_version(),
}


@pytest.fixture(scope="module")
def graphs() -> list[NestGraph]:
    nests = sample_nests().values()
    found = [graph_of(n, Schedule(tuple(range(n.depth)), (0,) * n.depth)) for n in nests]
    return found + [graph_of(n, Schedule(tuple(range(n.depth)), (4,) * n.depth)) for n in nests]


def counters_of(count: int) -> np.ndarray[Any, Any]:
    """float32[count,6]; some are absent, and all those of the first."""
    rng = np.random.default_rng(1)
    found = rng.lognormal(12, 4, (count, 6)).astype(np.float32)
    found[rng.random((count, 6)) < 0.3] = np.nan
    found[0] = np.nan
    return found


def both(
    spec: dict[str, Any], graphs: list[NestGraph], folder: Path
) -> tuple[TrainedNetwork, NestNetwork]:
    """A network of random weights, and what is read of its file."""
    torch.manual_seed(3)
    network = TrainedNetwork(spec)
    targets = np.random.default_rng(2).normal(5, 3, (len(graphs), 2)).astype(np.float32)
    network.standardise(graphs, counters_of(len(graphs)), targets)
    network.eval()
    file = folder / "nests.safetensors"
    model_file.save(file, network.state_dict(), {"kind": "nests", "network": spec})
    return network, NestNetwork.load(file)


@pytest.mark.parametrize("inputs", ["both", "static", "dynamic"])
def test_numpy_says_what_torch_says(inputs: str, graphs: list[NestGraph], tmp_path: Path) -> None:
    trained, plain = both(SPEC | {"inputs": inputs}, graphs, tmp_path)
    counters = counters_of(len(graphs))
    batch = collate(graphs, counter_inputs(trained, counters))
    with torch.no_grad():
        nodes = trained.node_embeddings(batch.features, batch.edges).numpy()
        nests = trained.embedding(batch).numpy()
        said = (trained(batch) * trained.target_scale + trained.target_mean).numpy()
    at = 0
    for graph, counted, nest, targets in zip(graphs, counters, nests, said, strict=True):
        mine = nodes[at : at + len(graph.nodes)]
        at += len(graph.nodes)
        np.testing.assert_allclose(plain.node_embeddings(graph), mine, atol=1e-4)
        np.testing.assert_allclose(plain.embedding(graph, counted), nest, atol=1e-4)
        np.testing.assert_allclose(predicted(plain, graph, counted), targets, atol=1e-4)


def test_absent_counters_are_no_counters(graphs: list[NestGraph], tmp_path: Path) -> None:
    _, plain = both(SPEC, graphs, tmp_path)
    absent = np.full(6, np.nan, dtype=np.float32)
    without = plain.embedding(graphs[0])
    assert np.array_equal(plain.embedding(graphs[0], absent), without)
    assert without.shape == (DIM,)
    absent[2] = 0
    assert not np.allclose(plain.embedding(graphs[0], absent), without)


def test_the_order_of_edges_and_nodes_does_not_matter(
    graphs: list[NestGraph], tmp_path: Path
) -> None:
    _, plain = both(SPEC, graphs, tmp_path)
    graph = graphs[0]
    rng = np.random.default_rng(0)
    order, edges = rng.permutation(len(graph.nodes)), rng.permutation(graph.edges.shape[1])
    place = np.argsort(order)
    other = NestGraph(
        tuple(graph.nodes[at] for at in order),
        graph.features[order],
        place[graph.edges[:, edges]],
    )
    np.testing.assert_allclose(plain.embedding(other), plain.embedding(graph), atol=1e-5)
    np.testing.assert_allclose(
        plain.node_embeddings(other), plain.node_embeddings(graph)[order], atol=1e-5
    )


def test_every_weight_is_where_it_is_said(graphs: list[NestGraph], tmp_path: Path) -> None:
    trained, _ = both(SPEC, graphs, tmp_path)
    assert {n: tuple(t.shape) for n, t in trained.state_dict().items()} == shapes_of(SPEC)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"layers": 0}, "layers 0"),
        ({"layers": 10**9}, "layers 1000000000"),
        ({"heads": 3}, "3 heads"),
        ({"counters": "6"}, "counters '6'"),
        ({"targets": []}, "names no targets"),
        ({"inputs": "everything"}, "reads 'everything'"),
        ({"encoding": "00000000"}, "another encoding"),
        ({"layers": 2}, "'layers.2.lin_key.bias' does not fit"),
    ],
)
def test_what_is_no_such_network_is_refused(
    changed: dict[str, Any], said: str, graphs: list[NestGraph], tmp_path: Path
) -> None:
    trained, _ = both(SPEC, graphs, tmp_path)
    file = tmp_path / "other.safetensors"
    card = {"kind": "nests", "network": SPEC | changed}
    model_file.save(file, trained.state_dict(), card)
    with pytest.raises(ModelError, match=said) as raised:
        NestNetwork.load(file)
    assert "other.safetensors" in str(raised.value)
