"""Models trained on measured kernels, for queries: interface, and the graph network in numpy.

The network is that of "A Learned Performance Model for Tensor Processing Units" (Section
3.2). All tiles of a kernel are evaluated together: its graph is encoded once, and only the parts
that a tile changes are computed for each. In torch it is `indexer.training.tensors.network`.

Nodes are float32[n,c,h]: n operations, c tiles of one kernel, h numbers each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from embeddb.core.errors import ModelError
from embeddb.core.files import model_file
from embeddb.core.files.safe_read import refusing
from embeddb.core.nn_numpy import check_weights, linear, relu
from embeddb.tensors.encoding.features import (
    NODE,
    STATIC,
    TILE,
    KernelGraph,
    encoding_version,
    graph_of,
    hidden,
    tile_rows,
)
from embeddb.tensors.encoding.operation_rows import OPCODES
from embeddb.tensors.tensor_graph import TensorGraph

Floats = NDArray[np.float32]
_OF_ROWS = ("trees", "operations")


class KernelPredictor(ABC):
    """Weights and their card, ready for inference. Deterministic, and callable from any thread."""

    def __init__(
        self, card: Mapping[str, Any], weights: Mapping[str, NDArray[Any]], *, where: str = ""
    ) -> None:
        """Check weights against their card. Raises: ModelError, naming `where`."""
        self.card: dict[str, Any] = dict(card)
        with refusing(ModelError, where=where, hint=TRAIN_AGAIN):
            self._open(self.card["network"], weights)

    @abstractmethod
    def _open(self, network: Mapping[str, Any], weights: Mapping[str, NDArray[Any]]) -> None:
        """Check and store the weights of a card's `network`. Raises: ModelError."""

    @property
    @abstractmethod
    def task(self) -> str:
        """`tile` or `fused`."""

    @abstractmethod
    def scores(self, kernel: TensorGraph, tiles: Sequence[Mapping[str, Any]]) -> Floats:
        """float32[c]: lower is faster; comparable only among tiles of one kernel, unless the model
        predicts seconds, of which these are then the natural logarithms."""

    @abstractmethod
    def without(self, kernel: TensorGraph, tiles: Sequence[Mapping[str, Any]]) -> Floats:
        """float32[n,c]: `scores` with the n-th operation hidden."""

    def seconds(self, kernel: TensorGraph) -> float:
        """Predicted seconds of a fused kernel. Raises: ModelError for a model that ranks tiles."""
        if self.task != "fused":
            raise ModelError(
                "this model ranks tiles and does not predict seconds",
                hint="`embeddb train kernels --task fused` trains one that does",
            )
        return float(np.exp(np.float64(self.scores(kernel, [{}])[0])))


class GraphPredictor(KernelPredictor):
    """A predictor that reads a kernel as a graph, and each tile as a row."""

    @abstractmethod
    def predicted(self, graph: KernelGraph, rows: Floats) -> Floats:
        """float32[c] under tiles float32[c,t] as `rows` returns them."""

    def rows(self, kernel: TensorGraph, tiles: Sequence[Mapping[str, Any]]) -> Floats:
        """float32[c,t]: input beside the graph of a kernel."""
        return tile_rows(kernel, tiles)

    def scores(self, kernel: TensorGraph, tiles: Sequence[Mapping[str, Any]]) -> Floats:
        return self.predicted(graph_of(kernel), self.rows(kernel, tiles))

    def without(self, kernel: TensorGraph, tiles: Sequence[Mapping[str, Any]]) -> Floats:
        """Scores with each operation hidden except for its edges (`hidden`)."""
        graph, rows = graph_of(kernel), self.rows(kernel, tiles)
        return np.stack([self.predicted(hidden(graph, at), rows) for at in range(len(graph))])


def reads_rows(card: Mapping[str, Any]) -> bool:
    """Return true if the model of a card reads rows of numbers, not graphs."""
    settings = card.get("settings")
    return isinstance(settings, dict) and settings.get("predictor") in _OF_ROWS


# The network of tensor kernels, and the shapes of its weights.
#
#     opcode embedding, node features, kernel features  ->  f1  ->  GraphSAGE layers
#         ->  final layers  ->  column-wise mean and max  ->  one number
#
# "A Learned Performance Model for Tensor Processing Units", Section 3.2 and Table 5: of its 24
# models the one with GraphSAGE and the column-wise reduction (`reproductions.tpu_paper` trains the
# others). No layer has a bias; messages from operands and from users have weights of their own
# (Section 6.1). Own choices, since the paper does not state them: every layer but the last ends in
# ReLU; one layer joins a node with the means of both; training hides a twentieth of the opcodes,
# so that an unseen one has an embedding.

TASKS = ("tile", "fused")
#: Size of an opcode's embedding, number of graph layers, and of layers after them (Table 5).
OPCODE, LAYERS, FINAL = 256, 3, 3
#: Directions of messages.
WAYS = ("operands", "users")

#: Hint for a model that cannot be read.
TRAIN_AGAIN = "train it again with `embeddb train kernels`"
_HIDDEN = (4, 4096)
#: Keys of a card that distinguish this network from the paper's other ones.
_FIXED = {
    "gnn": "sage",
    "reduction": "column-wise",
    "static": "nodes",
    "directed": True,
    "norm": False,
    "opcode": OPCODE,
    "layers": LAYERS,
    "module": 0,
    "final": FINAL,
    "attention": 1,
    "heads": 4,
    "gat_heads": 4,
}


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """`task` is one of `TASKS`, `hidden` the size of a node's state."""

    task: str = "tile"
    hidden: int = 128

    def __post_init__(self) -> None:
        """Check the fields. Raises: ModelError for another task or a size out of range."""
        if self.task not in TASKS:
            raise ModelError(f"its network has task {self.task!r}", hint=f"one of {TASKS}")
        least, most = _HIDDEN
        if type(self.hidden) is not int or not least <= self.hidden <= most:
            raise ModelError(
                f"its network has hidden {self.hidden!r}", hint=f"a number from {least} to {most}"
            )

    @classmethod
    def of(cls, card: Mapping[str, Any]) -> Self:
        """Read a card's `network`. Raises: ModelError for another of the paper's networks or
        another encoding."""
        spec = cls(card.get("task", ""), card.get("hidden", 0))
        own = spec.card
        if card.get("encoding") != own["encoding"]:
            reason = "its network has another encoding of kernels"
            raise ModelError(reason, hint=TRAIN_AGAIN)
        for name in sorted(own.keys() | card.keys()):
            if type(card.get(name)) is not type(own.get(name)) or card[name] != own[name]:
                raise ModelError(
                    f"its network has {name} {card.get(name)!r}, which queries do not support",
                    hint="`python -m reproductions.tpu_paper` trains and judges it; else "
                    + TRAIN_AGAIN,
                )
        return spec

    @property
    def card(self) -> dict[str, Any]:
        """The `network` of a card, as `of` reads it."""
        tile = "nodes" if self.task == "tile" else "none"
        own = {"task": self.task, "hidden": self.hidden, "tile": tile}
        return {**_FIXED, **own, "encoding": encoding_version()}

    @property
    def in_nodes(self) -> int:
        """Number of kernel features that every node has."""
        return len(TILE) * (self.task == "tile") + len(STATIC)

    @property
    def embedding(self) -> int:
        """Size of a kernel's embedding."""
        return 2 * self.hidden


def shapes_of(spec: NetworkSpec) -> dict[str, tuple[int, ...]]:
    """Shape of every weight by name. `scale.X` are minimum and maximum of `X` in the training set;
    `scale.target` mean and deviation of the target (0, 1 for ranking)."""
    h = spec.hidden
    shapes: dict[str, tuple[int, ...]] = {
        "opcode.weight": (len(OPCODES), OPCODE),
        "first.opcode.weight": (h, OPCODE),
        "first.node.weight": (h, len(NODE)),
        "first.kernel.weight": (h, spec.in_nodes),
        "scale.node": (2, len(NODE)),
        "scale.tile": (2, len(TILE)),
        "scale.static": (2, len(STATIC)),
        "scale.target": (2,),
        "head.weight": (1, spec.embedding),
    }
    for at in range(LAYERS):
        shapes |= {f"graph.{at}.{way}.weight": (h, h) for way in WAYS}
        shapes[f"graph.{at}.join.weight"] = (h, h * (1 + len(WAYS)))
    return shapes | {f"final.{at}.weight": (h, h) for at in range(FINAL)}


# -- the graph network -----------------------------------------------------------------------------


#: Range to which features scaled by the training set are clipped.
CLIP = (-1.0, 2.0)
#: Number of nodes times tiles computed together, to fit into a core's caches.
_TOGETHER = 4096


def scaled(rows: Floats, scale: Floats) -> Floats:
    """[..., f] in [0, 1] by the minimum and maximum float32[2,f] of the training set; 0 for a
    constant feature."""
    span = scale[1] - scale[0]
    plain = np.where(span > 0, (rows - scale[0]) / np.where(span > 0, span, 1), 0)
    return np.clip(plain, *CLIP).astype(np.float32)


class KernelNetwork(GraphPredictor):
    """The graph network. `version` is that of its file, empty without one."""

    version = ""

    def _open(self, network: Mapping[str, Any], weights: Mapping[str, Floats]) -> None:
        self.spec = NetworkSpec.of(network)
        check_weights(weights, shapes_of(self.spec))
        # In the memory order of products with many rows.
        self._weights = {name: np.asfortranarray(array) for name, array in weights.items()}
        first = self._weights["first.opcode.weight"]
        self._opcodes = linear(weights["opcode.weight"], first)

    @classmethod
    def load(cls, path: str | Path) -> KernelNetwork:
        """The network of a file. Raises: ModelError naming the file."""
        file = model_file.read(path, kind="kernels")
        network = cls(file.card, file.tensors, where=str(path))
        network.version = file.version
        return network

    @property
    def task(self) -> str:
        return self.spec.task

    def predicted(self, graph: KernelGraph, tiles: Floats) -> Floats:
        mean, deviation = self._weights["scale.target"]
        head = self._weights["head.weight"]
        parts = [linear(kernels, head)[:, 0] for kernels in self._parts(graph, tiles)]
        out: Floats = np.concatenate(parts) * deviation + mean
        return out

    def embeddings(self, graph: KernelGraph, tiles: Floats) -> Floats:
        """float32[c,e]"""
        return np.concatenate(list(self._parts(graph, tiles)))

    def _parts(self, graph: KernelGraph, tiles: Floats) -> Iterator[Floats]:
        """`embeddings` of the tiles, in groups computed together."""
        step = max(1, _TOGETHER // max(len(graph), 1))
        flows = [_mean_of(edges, len(graph)) for edges in (graph.operands, graph.users)]
        for start in range(0, max(len(tiles), 1), step):
            x = self._first(graph, tiles[start : start + step])
            for at in range(LAYERS):
                x = self._passed(f"graph.{at}", x, flows)
            for at in range(FINAL):
                x = relu(linear(x, self._weights[f"final.{at}.weight"]))
            yield np.concatenate([x.mean(axis=0), x.max(axis=0)], axis=1)

    def _first(self, graph: KernelGraph, tiles: Floats) -> Floats:
        """f1: terms that are the same for all tiles, or for all nodes, are computed once."""
        weights = self._weights
        own = self._opcodes[graph.opcodes] + linear(
            scaled(graph.features, weights["scale.node"]), weights["first.node.weight"]
        )
        static = scaled(graph.static, weights["scale.static"])
        kernel = np.broadcast_to(static, (len(tiles), len(static)))
        if self.task == "tile":
            kernel = np.concatenate([scaled(tiles, weights["scale.tile"]), kernel], axis=1)
        return relu(own[:, None] + linear(kernel, weights["first.kernel.weight"])[None])

    def _passed(self, name: str, x: Floats, flows: Sequence[csr_array]) -> Floats:
        """One layer of GraphSAGE: a node joined with the means of its neighbours' messages."""
        h, join = self.spec.hidden, self._weights[f"{name}.join.weight"]
        joined = linear(x, join[:, :h])
        for part, (way, flow) in enumerate(zip(WAYS, flows, strict=True), start=1):
            sent = relu(linear(x, self._weights[f"{name}.{way}.weight"]))
            mean = np.asarray(flow @ sent.reshape(len(x), -1), dtype=np.float32).reshape(x.shape)
            joined += linear(mean, join[:, part * h : (part + 1) * h])
        return relu(joined)


def _mean_of(edges: NDArray[np.int64], count: int) -> csr_array:
    """float32[n,n] that averages over the sources of each node's edges int64[2,e]; 0 for a node
    without edges."""
    order = np.argsort(edges[1], kind="stable")
    sources, goals = edges[0][order], edges[1][order]
    degrees = np.bincount(goals, minlength=count).astype(np.float32)
    share = 1 / np.maximum(degrees, 1)
    return csr_array((share[goals], (goals, sources)), shape=(count, count))
