"""Networks that rank and rate things for people, and plain ones over tables."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from tools.tensor_programs.given import Array, Given, Models, forward, training
from tools.tensor_programs.layers import dense, embedding, mlp, relu, sigmoid, softmax

__all__ = ["MODELS"]

_ROWS = 5000


def dlrm(given: Given, batch: int, tables: int, width: int) -> Array:
    """Naumov et al. 2019: products of all pairs of embeddings."""
    first = relu(mlp(given, given.data(batch, 13), (512, 256, width)))
    ids = given.ids(tables, batch)
    rows = [embedding(given, ids[at], _ROWS, width) for at in range(tables)]
    stacked = jnp.stack([first, *rows], 1)
    pairs = jnp.einsum("bid,bjd->bij", stacked, stacked).reshape(batch, -1)
    return sigmoid(mlp(given, jnp.concatenate([first, pairs], -1), (512, 256, 1)))


def wide_deep(given: Given, batch: int, crossed: int, tables: int, width: int) -> Array:
    """Cheng et al. 2016."""
    wide = dense(given, given.data(batch, crossed), 1)
    ids = given.ids(tables, batch)
    rows = [embedding(given, ids[at], _ROWS, width) for at in range(tables)]
    deep = mlp(given, jnp.concatenate(rows, -1), (512, 256, 128, 1))
    return sigmoid(wide + deep)


def two_tower(given: Given, batch: int, features: int, width: int) -> Array:
    """Yi et al. 2019: each user against each item of the batch."""

    def tower() -> Array:
        made = mlp(given, given.data(batch, features), (2 * width, width, width // 2))
        return made * lax.rsqrt(jnp.sum(made * made, -1, keepdims=True) + 1e-6)

    return softmax(tower() @ tower().T * 20.0)


def deep_fm(given: Given, batch: int, fields: int, width: int) -> Array:
    """Guo et al. 2017: a factorisation machine (Rendle 2010) beside a network."""
    values = given.data(batch, fields)
    rows = values[:, :, None] * given.weights(fields, width)
    total = jnp.sum(rows, 1)
    second = 0.5 * jnp.sum(total * total - jnp.sum(rows * rows, 1), -1, keepdims=True)
    deep = mlp(given, rows.reshape(batch, -1), (256, 128, 1))
    return sigmoid(dense(given, values, 1) + second + deep)


def deep_cross(given: Given, batch: int, width: int, layers: int) -> Array:
    """Wang et al. 2021 (DCN-V2)."""
    x0 = x = given.data(batch, width)
    for _ in range(layers):
        x = x0 * dense(given, x, width) + x
    return sigmoid(dense(given, jnp.concatenate([x, relu(dense(given, x0, width))], -1), 1))


def interest(given: Given, batch: int, history: int, width: int) -> Array:
    """Zhou et al. 2018 (DIN): what was bought, weighed by its likeness to what is offered."""
    past, offer = given.data(batch, history, width), given.data(batch, width)
    wide = jnp.broadcast_to(offer[:, None], past.shape)
    pairs = jnp.concatenate([past, wide, past - wide, past * wide], -1)
    share = mlp(given, pairs, (80, 40, 1))
    user = jnp.sum(share * past, 1)
    return sigmoid(mlp(given, jnp.concatenate([user, offer], -1), (200, 80, 1)))


def perceptron(given: Given, batch: int, inputs: int, widths: tuple[int, ...]) -> Array:
    """Rumelhart et al. 1986, with relu."""
    return softmax(mlp(given, given.data(batch, inputs), widths))


MODELS: Models = {
    "dlrm": {
        "small": forward(dlrm, batch=128, tables=6, width=32),
        "large": forward(dlrm, batch=512, tables=10, width=64),
        "train": training(dlrm, batch=128, tables=3, width=32),
    },
    "wide_deep": {
        "small": forward(wide_deep, batch=128, crossed=1000, tables=6, width=32),
        "large": forward(wide_deep, batch=512, crossed=2000, tables=8, width=64),
    },
    "two_tower": {
        "small": forward(two_tower, batch=128, features=256, width=128),
        "large": forward(two_tower, batch=512, features=400, width=256),
        "train": training(two_tower, batch=192, features=256, width=128),
    },
    "deep_fm": {
        "small": forward(deep_fm, batch=256, fields=40, width=16),
        "large": forward(deep_fm, batch=1024, fields=64, width=16),
        "train": training(deep_fm, batch=256, fields=32, width=8),
    },
    "deep_cross": {
        "small": forward(deep_cross, batch=256, width=256, layers=3),
        "large": forward(deep_cross, batch=512, width=640, layers=3),
    },
    "interest": {
        "small": forward(interest, batch=32, history=50, width=36),
        "large": forward(interest, batch=128, history=80, width=64),
    },
    "perceptron": {
        "small": forward(perceptron, batch=64, inputs=784, widths=(512, 256, 10)),
        "large": forward(perceptron, batch=256, inputs=1024, widths=(1024, 1024, 512, 100)),
        "train": training(perceptron, batch=128, inputs=784, widths=(384, 128, 10)),
    },
}
