"""The network of kernels in torch and in numpy: the same weights say the same."""

import numpy as np
import pytest
from tensors import conv, dot_add, row_sum

from embeddb.core.errors import ModelError
from embeddb.core.files import model_file
from embeddb.tensors.encoding.features import encoding_version, graph_of, tile_rows
from embeddb.tensors.encoding.predictor import TASKS, KernelNetwork, NetworkSpec, shapes_of

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from indexer.training.tensors.network import TrainedNetwork, collate  # noqa: E402

KERNELS = [dot_add(), row_sum(), conv(), dot_add(7, 5, 3)]
TILES = [{}, {"t1": 8, "tr": 2}, {"t1": 1, "t2": 4}, {"t2": 2}]


def both(spec: NetworkSpec, tmp_path, seed: int = 0):
    """The network in torch, untrained but scaled, and the same read back in numpy."""
    torch.manual_seed(seed)
    network = TrainedNetwork(spec)
    graphs = [graph_of(k) for k in KERNELS]
    tiles = [tile_rows(k, TILES) for k in KERNELS]
    network.standardise(graphs, tiles, np.array([-9.0, -3.0]))
    network.eval()
    file = tmp_path / "kernels.safetensors"
    model_file.save(file, network.state_dict(), {"kind": "kernels", "network": spec.card})
    return network, KernelNetwork.load(file), graphs, tiles


def agree(spec: NetworkSpec, tmp_path) -> None:
    network, plain, graphs, tiles = both(spec, tmp_path)
    assert {n: tuple(t.shape) for n, t in network.state_dict().items()} == shapes_of(spec)
    with torch.no_grad():
        said = network(collate(graphs, tiles)).numpy() * 3.0 - 6.0
    found = np.concatenate([plain.predicted(g, t) for g, t in zip(graphs, tiles, strict=True)])
    assert np.ptp(said) > 1e-3
    np.testing.assert_allclose(found, said, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("hidden", [8, 16])
@pytest.mark.parametrize("task", TASKS)
def test_numpy_says_what_torch_says(task, hidden, tmp_path):
    agree(NetworkSpec(task, hidden), tmp_path)


def test_tiles_asked_together_are_as_each_alone(tmp_path):
    _, plain, graphs, tiles = both(NetworkSpec(hidden=8), tmp_path)
    together = plain.predicted(graphs[0], np.repeat(tiles[0], 300, axis=0))
    alone = np.concatenate([plain.predicted(graphs[0], t[None]) for t in tiles[0]])
    np.testing.assert_allclose(together[::300], alone, rtol=1e-5, atol=1e-6)
    assert len(together) == 1200


def test_a_network_that_is_not_the_cards_is_refused(tmp_path):
    spec = NetworkSpec(hidden=8)
    network, *_ = both(spec, tmp_path)
    weights = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    card = {"kind": "kernels", "network": spec.card}
    KernelNetwork(card, weights)
    with pytest.raises(ModelError, match="does not fit"):
        KernelNetwork(card, {**weights, "head.weight": np.zeros((1, 3), np.float32)})
    with pytest.raises(ModelError, match="finite"):
        KernelNetwork(card, {**weights, "head.weight": np.full((1, 16), np.nan, np.float32)})
    for wrong in ({"hidden": "8"}, {"gnn": "gat"}, {"encoding": "0"}, {"heads": 3}, {"new": 1}):
        with pytest.raises(ModelError):
            KernelNetwork({**card, "network": {**spec.card, **wrong}}, weights)
    assert len(encoding_version()) == 8
