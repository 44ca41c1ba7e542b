"""Layers that several models are made of. Images are N, H, W, C; sequences N, T, D."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax

from tools.tensor_programs.given import Array, Given

__all__ = [
    "attention",
    "batch_norm",
    "conv",
    "conv1d",
    "dense",
    "embedding",
    "feed_forward",
    "gelu",
    "global_pool",
    "gru_step",
    "layer_norm",
    "lstm_step",
    "mlp",
    "multi_head",
    "pool",
    "relu",
    "sigmoid",
    "softmax",
    "swish",
    "upsample",
]

_IMAGES = ("NHWC", "HWIO", "NHWC")
_SEQUENCES = ("NWC", "WIO", "NWC")


def relu(x: Array) -> Array:
    return jnp.maximum(x, 0.0)


def sigmoid(x: Array) -> Array:
    return lax.logistic(x)


def swish(x: Array) -> Array:
    return x * sigmoid(x)


def gelu(x: Array) -> Array:
    """Hendrycks and Gimpel 2016, by tanh."""
    return 0.5 * x * (1.0 + jnp.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def softmax(x: Array, axis: int = -1) -> Array:
    # The greatest is taken off for range alone: it has no slope.
    top = lax.stop_gradient(jnp.max(x, axis, keepdims=True))
    e = jnp.exp(x - top)
    return e / jnp.sum(e, axis, keepdims=True)


def dense(given: Given, x: Array, width: int, *, bias: bool = True) -> Array:
    """The last dimension to `width`."""
    made = jnp.tensordot(x, given.weights(x.shape[-1], width), 1)
    return made + given.weights(width) if bias else made


def mlp(given: Given, x: Array, widths: Sequence[int]) -> Array:
    """Dense layers with relu between them."""
    for at, width in enumerate(widths):
        x = dense(given, relu(x) if at else x, width)
    return x


def conv(
    given: Given,
    x: Array,
    features: int,
    size: int | tuple[int, int] = 3,
    stride: int = 1,
    *,
    groups: int = 1,
    dilation: int = 1,
    padding: str = "SAME",
) -> Array:
    h, w = (size, size) if isinstance(size, int) else size
    kernel = given.weights(h, w, x.shape[-1] // groups, features)
    return lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        padding,
        rhs_dilation=(dilation, dilation),
        dimension_numbers=_IMAGES,
        feature_group_count=groups,
    ) + given.weights(features)


def conv1d(
    given: Given, x: Array, features: int, size: int = 3, *, dilation: int = 1, causal: bool = True
) -> Array:
    reach = (size - 1) * dilation
    padding = [(reach, 0)] if causal else [(reach // 2, reach - reach // 2)]
    return lax.conv_general_dilated(
        x,
        given.weights(size, x.shape[-1], features),
        (1,),
        padding,
        rhs_dilation=(dilation,),
        dimension_numbers=_SEQUENCES,
    ) + given.weights(features)


def upsample(given: Given, x: Array, features: int, size: int = 4) -> Array:
    """A transposed convolution that doubles the side."""
    kernel = given.weights(size, size, x.shape[-1], features)
    made = lax.conv_transpose(x, kernel, (2, 2), "SAME", dimension_numbers=_IMAGES)
    return made + given.weights(features)


def pool(x: Array, size: int = 2, stride: int = 2, *, mean: bool = False) -> Array:
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    if mean:
        made = lax.reduce_window(x, 0.0, lax.add, window, strides, "SAME")
        return made * (1.0 / (size * size))
    return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, "SAME")


def global_pool(x: Array) -> Array:
    return jnp.mean(x, (1, 2))


def batch_norm(given: Given, x: Array) -> Array:
    """As at inference: mean and deviation are given, so that no number is illegal."""
    mean, deviation = given.data(x.shape[-1]), given.data(x.shape[-1])
    scale = given.weights(x.shape[-1]) * lax.rsqrt(deviation * deviation + 1e-3)
    return (x - mean) * scale + given.weights(x.shape[-1])


def layer_norm(given: Given, x: Array) -> Array:
    mean = jnp.mean(x, -1, keepdims=True)
    apart = x - mean
    variance = jnp.mean(apart * apart, -1, keepdims=True)
    scale, shift = given.weights(x.shape[-1]), given.weights(x.shape[-1])
    return apart * lax.rsqrt(variance + 1e-6) * scale + shift


def embedding(given: Given, ids: Array, rows: int, width: int) -> Array:
    return jnp.take(given.weights(rows, width), ids, axis=0, mode="clip")


def attention(q: Array, k: Array, v: Array, *, causal: bool = False) -> Array:
    """N, T, heads, D each."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (q.shape[-1] ** -0.5)
    if causal:
        n = scores.shape[-1]
        behind = lax.broadcasted_iota(jnp.int32, (n, n), 0)
        scores = jnp.where(
            behind >= lax.broadcasted_iota(jnp.int32, (n, n), 1), scores, jnp.float32(-1e9)
        )
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(scores), v)


def multi_head(
    given: Given, x: Array, heads: int, memory: Array | None = None, *, causal: bool = False
) -> Array:
    """Vaswani et al. 2017, Section 3.2.2; of `memory` where there is one."""
    batch, steps, width = x.shape
    source = x if memory is None else memory

    def split(of: Array) -> Array:
        made = dense(given, of, width)
        return made.reshape(batch, of.shape[1], heads, width // heads)

    made = attention(split(x), split(source), split(source), causal=causal)
    return dense(given, made.reshape(batch, steps, width), width)


def feed_forward(given: Given, x: Array, wider: int = 4) -> Array:
    return dense(given, gelu(dense(given, x, wider * x.shape[-1])), x.shape[-1])


def lstm_step(weights: Sequence[Array], x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    """Hochreiter and Schmidhuber 1997 with a forget gate; weights of x, of h, and biases."""
    i, g, f, o = jnp.split(x @ weights[0] + h @ weights[1] + weights[2], 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(g)
    return sigmoid(o) * jnp.tanh(c), c


def gru_step(weights: Sequence[Array], x: Array, h: Array) -> Array:
    """Cho et al. 2014; the product with h of all gates is taken at once."""
    of_x, of_h = x @ weights[0] + weights[2], h @ weights[1]
    size = h.shape[-1]
    z = sigmoid(of_x[:, :size] + of_h[:, :size])
    r = sigmoid(of_x[:, size : 2 * size] + of_h[:, size : 2 * size])
    new = jnp.tanh(of_x[:, 2 * size :] + r * of_h[:, 2 * size :])
    return (1.0 - z) * h + z * new
