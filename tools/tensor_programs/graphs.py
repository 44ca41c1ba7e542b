"""Networks over graphs, sets and points, with dense adjacency."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from tools.tensor_programs.given import Array, Given, Models, forward, training
from tools.tensor_programs.layers import (
    dense,
    gru_step,
    layer_norm,
    mlp,
    multi_head,
    relu,
    softmax,
)

__all__ = ["MODELS"]


def gcn(given: Given, nodes: int, features: int, width: int, layers: int) -> Array:
    """Kipf and Welling 2016: the adjacency scaled on both sides."""
    adjacency, x = given.data(nodes, nodes), given.data(nodes, features)
    scale = lax.rsqrt(jnp.sum(adjacency * adjacency, -1) + 1.0)
    scaled = adjacency * scale[:, None] * scale
    for _ in range(layers):
        x = relu(scaled @ dense(given, x, width, bias=False))
    return softmax(scaled @ dense(given, x, 7, bias=False))


def gat(given: Given, nodes: int, features: int, heads: int, width: int) -> Array:
    """Velickovic et al. 2017: shares of neighbours by leaky relu."""
    mask, x = given.data(nodes, nodes), given.data(nodes, features)
    for _ in range(2):
        made = dense(given, x, heads * width, bias=False).reshape(nodes, heads, width)
        ends = [jnp.einsum("nhd,hd->hn", made, given.weights(heads, width)) for _ in range(2)]
        scores = ends[0][:, :, None] + ends[1][:, None, :]
        scores = jnp.maximum(scores, 0.2 * scores)
        share = softmax(jnp.where(mask > 0.0, scores, -1e9))
        x = relu(jnp.einsum("hnm,mhd->nhd", share, made).reshape(nodes, -1))
    return x


def graphsage(given: Given, nodes: int, features: int, width: int, layers: int) -> Array:
    """Hamilton et al. 2017: means of neighbours beside the node, of length one."""
    adjacency, x = given.data(nodes, nodes), given.data(nodes, features)
    count = jnp.sum(adjacency, -1, keepdims=True) + 1.0
    for _ in range(layers):
        around = adjacency @ x / count
        x = relu(dense(given, jnp.concatenate([x, around], -1), width))
        x = x * lax.rsqrt(jnp.sum(x * x, -1, keepdims=True) + 1e-6)
    return jnp.mean(x, 0)


def message_passing(given: Given, batch: int, nodes: int, width: int, rounds: int) -> Array:
    """Gilmer et al. 2017, with gated updates (Li et al. 2015)."""
    adjacency = given.data(batch, nodes, nodes)
    x = given.data(batch * nodes, width)
    send = given.weights(width, width)
    gates = [
        given.weights(width, 3 * width),
        given.weights(width, 3 * width),
        given.weights(3 * width),
    ]
    for _ in range(rounds):
        sent = (x @ send).reshape(batch, nodes, width)
        x = gru_step(gates, (adjacency @ sent).reshape(x.shape), x)
    return mlp(given, jnp.sum(x.reshape(batch, nodes, width), 1), (width, 12))


def deep_sets(given: Given, batch: int, members: int, width: int) -> Array:
    """Zaheer et al. 2017."""
    x = given.data(batch, members, 3)
    for _ in range(2):
        x = jnp.tanh(dense(given, x - jnp.max(x, 1, keepdims=True), width))
    return mlp(given, jnp.sum(x, 1), (width, 40))


def set_transformer(given: Given, batch: int, members: int, width: int) -> Array:
    """Lee et al. 2018: through few induced points."""
    x = dense(given, given.data(batch, members, 8), width)
    for _ in range(2):
        points = jnp.broadcast_to(given.weights(16, width), (batch, 16, width))
        points = layer_norm(given, points + multi_head(given, points, 4, x))
        x = layer_norm(given, x + multi_head(given, x, 4, points))
        x = layer_norm(given, x + relu(dense(given, x, width)))
    return dense(given, jnp.max(x, 1), 40)


def point_net(given: Given, batch: int, points: int, width: int) -> Array:
    """Qi et al. 2016, with the transform of its input."""
    x = given.data(batch, points, 3)
    turn = jnp.max(relu(mlp(given, x, (width, 2 * width))), 1)
    turn = mlp(given, turn, (width, 9)).reshape(batch, 3, 3)
    x = jnp.einsum("bpc,bcd->bpd", x, turn)
    x = relu(mlp(given, x, (width, width, 2 * width, 8 * width)))
    return mlp(given, jnp.max(x, 1), (4 * width, 40))


def relation(given: Given, batch: int, things: int, width: int) -> Array:
    """Santoro et al. 2017: a network of every pair."""
    x = given.data(batch, things, 24)
    dims = (batch, things, things, 24)
    pairs = jnp.concatenate(
        [jnp.broadcast_to(x[:, :, None], dims), jnp.broadcast_to(x[:, None], dims)], -1
    )
    made = relu(mlp(given, pairs, (width, width, width)))
    return mlp(given, jnp.sum(made, (1, 2)), (width, 28))


MODELS: Models = {
    "gcn": {
        "small": forward(gcn, nodes=512, features=256, width=64, layers=2),
        "large": forward(gcn, nodes=1024, features=400, width=128, layers=2),
        "train": training(gcn, nodes=384, features=128, width=64, layers=1),
    },
    "gat": {
        "small": forward(gat, nodes=256, features=128, heads=4, width=16),
        "large": forward(gat, nodes=512, features=256, heads=8, width=16),
    },
    "graphsage": {
        "small": forward(graphsage, nodes=512, features=128, width=96, layers=2),
        "large": forward(graphsage, nodes=1024, features=200, width=160, layers=3),
    },
    "message_passing": {
        "small": forward(message_passing, batch=16, nodes=24, width=64, rounds=3),
        "large": forward(message_passing, batch=32, nodes=32, width=128, rounds=4),
    },
    "deep_sets": {
        "small": forward(deep_sets, batch=16, members=128, width=128),
        "large": forward(deep_sets, batch=32, members=256, width=256),
        "train": training(deep_sets, batch=16, members=100, width=96),
    },
    "set_transformer": {
        "small": forward(set_transformer, batch=4, members=128, width=64),
        "large": forward(set_transformer, batch=8, members=256, width=128),
    },
    "point_net": {
        "small": forward(point_net, batch=4, points=256, width=64),
        "large": forward(point_net, batch=8, points=512, width=64),
    },
    "relation": {
        "small": forward(relation, batch=4, things=25, width=128),
        "large": forward(relation, batch=8, things=36, width=192),
    },
}
