"""The network of "Performance Embeddings" (Section 3.3) in numpy, for queries without torch.

Graph transformer layers (Shi et al., "Masked Label Prediction", IJCAI 2021) map the nodes of a
nest's graph to 128 numbers each; attentional pooling (Li et al., "Gated Graph Sequence Neural
Networks", ICLR 2016) maps the graph to 128 numbers, a linear layer the counters to 128; an MLP
joins both to the embedding of the nest, from which a linear layer predicts the targets.

Own choices, since the paper states only 44 layers of all kinds and 862,000 parameters: 6 layers of
4 heads of 32, each followed by ReLU, a sum with its input and layer normalisation; edges in both
directions; two linear layers in the MLP (559,382 parameters in all); counters as logarithms,
standardised, 0 with a flag where absent, so that one network reads nests with all, some or no
counters. `indexer.training.nests.train` is the same in torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import ModelError
from embeddb.core.files import model_file
from embeddb.core.files.safe_read import refusing
from embeddb.core.nn_numpy import check_weights, dense, layer_norm, relu
from embeddb.nests.encoding.features import FEATURES
from embeddb.nests.encoding.graph import NestGraph

#: Dimension of the embeddings of a node, a graph and a nest.
DIM = 128
#: Inputs of the network; the ablations set one branch to zeros.
INPUTS = ("both", "static", "dynamic")

_MOST = {"layers": 64, "heads": DIM, "counters": 4096, "targets": 256}
_TRAIN = "train weights anew with `embeddb train nests`"

Floats = NDArray[np.float32]


def encoding_version() -> str:
    """8 hex digits that identify the coordinates of a node; weights fit one encoding only."""
    return hashlib.blake2b("\n".join(FEATURES).encode(), digest_size=4).hexdigest()


def shapes_of(spec: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shape of every weight by name. `spec` is a card's `network`: integers `layers` and `heads` (a
    divisor of 128), `counters` (their number), names `targets`, `inputs`, one of `INPUTS`, and
    `encoding`. Raises: ModelError naming an invalid entry."""
    layers, heads, counters = (_count(spec, key) for key in ("layers", "heads", "counters"))
    targets = spec.get("targets")
    if not isinstance(targets, list) or not 0 < len(targets) <= _MOST["targets"]:
        raise ModelError("its network names no targets", hint=_TRAIN)
    if DIM % heads:
        raise ModelError(f"its network has {heads} heads, which do not divide {DIM}", hint=_TRAIN)
    if spec.get("inputs") not in INPUTS:
        raise ModelError(f"its network reads {spec.get('inputs')!r}", hint=_TRAIN)
    if spec.get("encoding") != encoding_version():
        raise ModelError("its network has another encoding of nests", hint=_TRAIN)
    linear = {"first": (DIM, len(FEATURES))}
    for at in range(layers):
        names = ("key", "query", "value", "skip")
        linear |= {f"layers.{at}.lin_{name}": (DIM, DIM) for name in names}
    linear |= {"pool.gate_nn": (1, DIM), "pool.nn": (DIM, DIM), "dynamic": (DIM, 2 * counters)}
    linear |= {"join.0": (2 * DIM, 2 * DIM), "join.2": (DIM, 2 * DIM), "head": (len(targets), DIM)}
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in linear.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in linear.items()}
    for at in range(layers):
        shapes |= {f"norms.{at}.{part}": (DIM,) for part in ("weight", "bias")}
    shapes["feature_scale"] = (len(FEATURES),)
    shapes |= {f"counter_{part}": (counters,) for part in ("mean", "scale")}
    shapes |= {f"target_{part}": (len(targets),) for part in ("mean", "scale")}
    return shapes


def _count(spec: Mapping[str, Any], key: str) -> int:
    value = spec.get(key)
    if type(value) is not int or not 1 <= value <= _MOST[key]:
        raise ModelError(f"its network has {key} {value!r}", hint=_TRAIN)
    return value


class NestNetwork:
    """Weights and their card, ready for inference. Deterministic, and callable from any thread.
    `version` is that of the file, empty without one."""

    version = ""

    def __init__(
        self, card: Mapping[str, Any], weights: Mapping[str, Floats], *, where: str = ""
    ) -> None:
        """Check weights against their card. Raises: ModelError for weights of another network."""
        self.card = dict(card)
        self.spec: Mapping[str, Any] = card["network"]
        with refusing(ModelError, where=where, hint=_TRAIN):
            check_weights(weights, shapes_of(self.spec))
        self.weights = dict(weights)
        self._heads = int(self.spec["heads"])

    @classmethod
    def load(cls, path: str | Path) -> NestNetwork:
        """The network of a file. Raises: ModelError naming the file."""
        file = model_file.read(path, kind="nests")
        network = cls(file.card, file.tensors, where=str(path))
        network.version = file.version
        return network

    def node_embeddings(self, graph: NestGraph) -> Floats:
        """float32[n,128], one row for each node, of the static encoding alone."""
        x = self._dense("first", graph.features / self.weights["feature_scale"])
        flow = _Flow(graph)
        for at in range(int(self.spec["layers"])):
            passed = self._attended(f"layers.{at}", x, flow)
            x = layer_norm(x + relu(passed), self.weights, f"norms.{at}")
        return x

    def embedding(self, graph: NestGraph, counters: Floats | None = None) -> Floats:
        """float32[128] of the nest; `counters` float32[c], nan where absent (None: all are)."""
        static, dynamic = np.zeros(DIM, np.float32), np.zeros(DIM, np.float32)
        if self.spec["inputs"] != "dynamic":
            static = self._pooled(self.node_embeddings(graph))
        if self.spec["inputs"] != "static":
            dynamic = self._dense("dynamic", self._counted(counters)[None])[0]
        joined = np.concatenate([static, dynamic])[None]
        out: Floats = self._dense("join.2", relu(self._dense("join.0", joined)))[0]
        return out

    def _attended(self, name: str, x: Floats, flow: _Flow) -> Floats:
        """One graph transformer layer: each node sums up the values of its in-neighbours, weighted
        by the softmax of (query . key) / sqrt(d) per head, and its own value."""
        parts = ("query", "key", "value")
        query, key, value = (
            self._dense(f"{name}.lin_{part}", x).reshape(len(x), self._heads, -1) for part in parts
        )
        scores = (query[flow.goals] * key[flow.sources]).sum(axis=2)
        shares = flow.softmax(scores / np.float32(np.sqrt(DIM // self._heads)))
        summed = flow.sums(shares[:, :, None] * value[flow.sources])
        return summed.reshape(len(x), DIM) + self._dense(f"{name}.lin_skip", x)

    def _pooled(self, x: Floats) -> Floats:
        gate = self._dense("pool.gate_nn", x)
        shares = np.exp(gate - gate.max())
        out: Floats = (shares / shares.sum() * self._dense("pool.nn", x)).sum(axis=0)
        return out

    def _counted(self, counters: Floats | None) -> Floats:
        """float32[2c]: standardised counters, and flags of those present."""
        if counters is None:
            return np.zeros(2 * int(self.spec["counters"]), np.float32)
        there = ~np.isnan(counters)
        logs = np.log2(1 + np.where(there, counters, 0))
        plain = (logs - self.weights["counter_mean"]) / self.weights["counter_scale"]
        return np.concatenate([np.where(there, plain, 0), there]).astype(np.float32)

    def _dense(self, name: str, rows: Floats) -> Floats:
        return dense(rows, self.weights, name)


class _Flow:
    """Edges of a graph by target node. Every node has an incoming edge."""

    def __init__(self, graph: NestGraph) -> None:
        order = np.argsort(graph.edges[1], kind="stable")
        self.sources, self.goals = graph.edges[0][order], graph.edges[1][order]
        self._starts = np.flatnonzero(np.diff(self.goals, prepend=-1))

    def softmax(self, scores: Floats) -> Floats:
        """float32[e,h] that sum to 1 over the edges to each node."""
        most = np.maximum.reduceat(scores, self._starts)[self.goals]
        shares = np.exp(scores - most)
        out: Floats = shares / self.sums(shares)[self.goals]
        return out

    def sums(self, values: Floats) -> Floats:
        """[n,...] of [e,...], over the edges to each node."""
        out: Floats = np.add.reduceat(values, self._starts)
        return out
