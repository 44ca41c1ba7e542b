"""The layers of a network of kernels as plain arrays.

Nodes are float32[n,c,h]: of n operations, under c tiles of one kernel, h numbers each. So graphs
are read once for all tiles, and a step of the LSTM is one product for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

__all__ = ["Flow", "attended", "linear", "lstm", "relu", "transformer", "unit"]

Floats = NDArray[np.float32]
Weights = Mapping[str, Floats]

#: Multiplications up to which OpenBLAS stays on one thread (`model_file.product`).
_ONE_THREAD = 4 * 65536
_NORM_EPSILON = np.float32(1e-5)
#: What torch divides by at least where it makes lengths 1.
_SHORTEST = np.float32(1e-12)
_SLOPE = np.float32(0.2)


def relu(x: Floats) -> Floats:
    """In place."""
    return np.maximum(x, 0, out=x)


def unit(x: Floats) -> Floats:
    """Rows of length 1."""
    length = np.sqrt(np.square(x).sum(axis=-1, keepdims=True))
    out: Floats = x / np.maximum(length, _SHORTEST)
    return out


def linear(x: Floats, weight: Floats) -> Floats:
    """[..., out] of [..., in] by weight float32[in,out], contiguous. In parts so small that
    OpenBLAS leaves each to one thread: numpy goes over a stack of them without coming back."""
    rows = x.reshape(-1, x.shape[-1])
    at_once = max(1, _ONE_THREAD // weight.size)
    out = np.empty((len(rows), weight.shape[1]), dtype=np.float32)
    whole = len(rows) // at_once * at_once
    if whole:
        parts = rows[:whole].reshape(-1, at_once, rows.shape[1])
        np.matmul(parts, weight, out=out[:whole].reshape(-1, at_once, out.shape[1]))
    if whole < len(rows):
        np.matmul(rows[whole:], weight, out=out[whole:])
    return out.reshape(*x.shape[:-1], -1)


class Flow:
    """Edges int64[2,e] between n nodes, by the node that each leads to."""

    def __init__(self, edges: NDArray[np.int64], count: int, *, loops: bool = False) -> None:
        """With `loops` there is one more from every node to itself."""
        own = np.arange(count)
        both = np.concatenate([edges, np.stack([own, own])], axis=1) if loops else edges
        order = np.argsort(both[1], kind="stable")
        self.sources, self.goals = both[0][order], both[1][order]
        degrees = np.bincount(self.goals, minlength=count).astype(np.float32)
        share = 1 / np.maximum(degrees, 1)
        places = (self.goals, self.sources)
        self._mean = csr_array((share[self.goals], places), shape=(count, count))
        self._starts = np.flatnonzero(np.diff(self.goals, prepend=-1))

    def mean(self, x: Floats) -> Floats:
        """[n,c,h]: of the nodes that lead to each; 0 where none does."""
        found = self._mean @ x.reshape(len(x), -1)
        return np.asarray(found, dtype=np.float32).reshape(x.shape)

    def softmax(self, scores: Floats) -> Floats:
        """[e,...] that sum to 1 over the edges to each node; every node must have one."""
        most = np.maximum.reduceat(scores, self._starts)
        shares = np.exp(scores - most[self.goals])
        out: Floats = shares / np.add.reduceat(shares, self._starts)[self.goals]
        return out

    def sums(self, values: Floats) -> Floats:
        """[n,...] of [e,...]; every node must have an edge."""
        out: Floats = np.add.reduceat(values, self._starts)
        return out


def attended(x: Floats, flow: Flow, weights: Weights, name: str) -> Floats:
    """A layer of GAT without bias (Velickovic et al., "Graph Attention Networks", ICLR 2018)."""
    source, goal = weights[f"{name}.att_src"], weights[f"{name}.att_dst"]
    passed = linear(x, weights[f"{name}.lin.weight"]).reshape(*x.shape[:2], *source.shape[1:])
    scores = (passed * source).sum(axis=-1)[flow.sources] + (passed * goal).sum(axis=-1)[flow.goals]
    shares = flow.softmax(np.where(scores > 0, scores, _SLOPE * scores))
    found = flow.sums(shares[..., None] * passed[flow.sources])
    return np.asarray(found.reshape(x.shape), dtype=np.float32)


def lstm(x: Floats, weights: Weights) -> Floats:
    """float32[c,h]: the last state over the nodes in order (Hochreiter & Schmidhuber, 1997)."""
    inputs = linear(x, weights["lstm.weight_ih_l0"])
    state: Floats = np.zeros_like(x[0])
    cell = state
    for step in inputs:
        gates = step + linear(state, weights["lstm.weight_hh_l0"])
        entry, forget, candidate, out = np.split(gates, 4, axis=1)
        cell = _sigmoid(forget) * cell + _sigmoid(entry) * np.tanh(candidate)
        state = _sigmoid(out) * np.tanh(cell)
    return state


def transformer(x: Floats, weights: Weights, name: str, heads: int) -> Floats:
    """A layer of a Transformer's encoder over the nodes, without biases (Vaswani et al., 2017);
    returns [n,c,h]. Takes and gives float32[n,c,h]."""
    count, tiles, hidden = x.shape
    mixed = linear(x, weights[f"{name}.self_attn.in_proj_weight"])
    # [c,heads,n,d]
    query, key, value = (
        part.reshape(count, tiles, heads, -1).transpose(1, 2, 0, 3)
        for part in np.split(mixed, 3, axis=2)
    )
    scores = query @ key.swapaxes(2, 3) / np.float32(np.sqrt(hidden // heads))
    shares = np.exp(scores - scores.max(axis=3, keepdims=True))
    shares /= shares.sum(axis=3, keepdims=True)
    summed = np.ascontiguousarray((shares @ value).transpose(2, 0, 1, 3)).reshape(x.shape)
    x = _normed(
        x + linear(summed, weights[f"{name}.self_attn.out_proj.weight"]),
        weights[f"{name}.norm1.weight"],
    )
    inner = relu(linear(x, weights[f"{name}.linear1.weight"]))
    return _normed(
        x + linear(inner, weights[f"{name}.linear2.weight"]), weights[f"{name}.norm2.weight"]
    )


def _normed(x: Floats, weight: Floats) -> Floats:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    out: Floats = centred / np.sqrt(variance + _NORM_EPSILON) * weight
    return out


def _sigmoid(x: Floats) -> Floats:
    # Of large negative numbers the exponential overflows to what the quotient makes 0 of.
    out: Floats = np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * x))
    return out
