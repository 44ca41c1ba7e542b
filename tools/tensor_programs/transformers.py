"""Networks of attention, and those that do without it in the same frame."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from tools.tensor_programs.given import Array, Given, Models, forward, training
from tools.tensor_programs.layers import (
    attention,
    conv,
    dense,
    embedding,
    feed_forward,
    gelu,
    layer_norm,
    multi_head,
    relu,
    softmax,
    swish,
)

__all__ = ["MODELS"]


def transformer(given: Given, batch: int, steps: int, width: int, heads: int, layers: int) -> Array:
    """Vaswani et al. 2017: encoder and decoder, norm after the sum, relu."""

    def forward_part(x: Array) -> Array:
        made = dense(given, relu(dense(given, x, 4 * width)), width)
        return layer_norm(given, x + made)

    x, y = given.data(batch, steps, width), given.data(batch, steps, width)
    for _ in range(layers):
        x = layer_norm(given, x + multi_head(given, x, heads))
        x = forward_part(x)
    for _ in range(layers):
        y = layer_norm(given, y + multi_head(given, y, heads, causal=True))
        y = layer_norm(given, y + multi_head(given, y, heads, x))
        y = forward_part(y)
    return y


def bert(given: Given, batch: int, steps: int, width: int, heads: int, layers: int) -> Array:
    """Devlin et al. 2018: words, places and segments summed; words guessed back."""
    x = embedding(given, given.ids(batch, steps), 2000, width)
    x = layer_norm(given, x + given.weights(steps, width) + given.weights(width))
    for _ in range(layers):
        x = layer_norm(given, x + multi_head(given, x, heads))
        x = layer_norm(given, x + feed_forward(given, x))
    return dense(given, layer_norm(given, gelu(dense(given, x, width))), 2000)


def gpt(given: Given, batch: int, steps: int, width: int, heads: int, layers: int) -> Array:
    """Radford et al. 2019: norm before each part, causal."""
    x = given.data(batch, steps, width) + given.weights(steps, width)
    for _ in range(layers):
        x = x + multi_head(given, layer_norm(given, x), heads, causal=True)
        x = x + feed_forward(given, layer_norm(given, x))
    return softmax(dense(given, layer_norm(given, x)[:, -1], 2000, bias=False))


def llama(given: Given, batch: int, steps: int, width: int, heads: int, layers: int) -> Array:
    """Touvron et al. 2023: RMS norm, rotary places (Su et al. 2021), SwiGLU (Shazeer 2020)."""

    def normed(x: Array) -> Array:
        scale = lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)
        return x * scale * given.weights(width)

    size = width // heads
    angle = given.data(steps, 1, size // 2)
    sine, cosine = jnp.sin(angle), jnp.cos(angle)

    def turned(x: Array) -> Array:
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * cosine - b * sine, a * sine + b * cosine], -1)

    x = given.data(batch, steps, width)
    for _ in range(layers):
        y = normed(x)
        q, k, v = (
            dense(given, y, width, bias=False).reshape(batch, steps, heads, size) for _ in range(3)
        )
        made = attention(turned(q), turned(k), v, causal=True).reshape(x.shape)
        x = x + dense(given, made, width, bias=False)
        y = normed(x)
        gate = swish(dense(given, y, 3 * width, bias=False))
        x = x + dense(given, gate * dense(given, y, 3 * width, bias=False), width, bias=False)
    return normed(x)


def vit(given: Given, batch: int, side: int, width: int, heads: int, layers: int) -> Array:
    """Dosovitskiy et al. 2020: patches of 16 as words."""
    x = conv(given, given.data(batch, side, side, 3), width, 16, 16).reshape(batch, -1, width)
    x = x + given.weights(x.shape[1], width)
    for _ in range(layers):
        x = x + multi_head(given, layer_norm(given, x), heads)
        x = x + feed_forward(given, layer_norm(given, x))
    return dense(given, jnp.mean(layer_norm(given, x), 1), 1000)


def mixer(given: Given, batch: int, patches: int, width: int, layers: int) -> Array:
    """Tolstikhin et al. 2021: across patches, then across channels."""
    x = dense(given, given.data(batch, patches, 192), width)
    for _ in range(layers):
        y = layer_norm(given, x).swapaxes(1, 2)
        y = dense(given, gelu(dense(given, y, 2 * patches)), patches)
        x = x + y.swapaxes(1, 2)
        x = x + feed_forward(given, layer_norm(given, x))
    return dense(given, jnp.mean(layer_norm(given, x), 1), 100)


def linear_attention(
    given: Given, batch: int, steps: int, width: int, heads: int, layers: int
) -> Array:
    """Katharopoulos et al. 2020: elu + 1 in place of the softmax."""

    def positive(x: Array) -> Array:
        return jnp.where(x > 0, x + 1.0, jnp.exp(jnp.minimum(x, 0.0)))

    x = given.data(batch, steps, width)
    for _ in range(layers):
        y = layer_norm(given, x)
        q, k, v = (dense(given, y, width).reshape(batch, steps, heads, -1) for _ in range(3))
        q, k = positive(q), positive(k)
        summed = jnp.einsum("bthd,bthe->bhde", k, v)
        scale = 1.0 / jnp.einsum("bthd,bhd->bth", q, jnp.sum(k, 1))
        made = jnp.einsum("bthd,bhde->bthe", q, summed) * scale[..., None]
        x = x + dense(given, made.reshape(x.shape), width)
        x = x + feed_forward(given, layer_norm(given, x))
    return x


def multi_query(given: Given, batch: int, past: int, width: int, heads: int, layers: int) -> Array:
    """Shazeer 2019: one new word, keys and values of all heads shared."""
    x, size = given.data(batch, width), width // heads
    for _ in range(layers):
        keys, values = given.data(batch, past, size), given.data(batch, past, size)
        q = dense(given, layer_norm(given, x), width, bias=False).reshape(batch, heads, size)
        share = softmax(jnp.einsum("bhd,btd->bht", q, keys) * size**-0.5)
        made = jnp.einsum("bht,btd->bhd", share, values).reshape(batch, width)
        x = x + dense(given, made, width, bias=False)
        x = x + feed_forward(given, layer_norm(given, x))
    return dense(given, x, 2000, bias=False)


def experts(given: Given, batch: int, width: int, count: int, layers: int) -> Array:
    """Shazeer et al. 2017, all experts computed and weighed by the gate."""
    x = given.data(batch, width)
    for _ in range(layers):
        share = softmax(dense(given, x, count, bias=False))
        inner = relu(jnp.einsum("bd,edf->ebf", x, given.weights(count, width, 2 * width)))
        made = jnp.einsum("ebf,efd->ebd", inner, given.weights(count, 2 * width, width))
        x = x + jnp.einsum("be,ebd->bd", share, made)
    return x


def perceiver(given: Given, batch: int, inputs: int, width: int, slots: int) -> Array:
    """Jaegle et al. 2021: few latent vectors attend to many inputs."""
    x = dense(given, given.data(batch, inputs, 64), width)
    latent = jnp.broadcast_to(given.weights(slots, width), (batch, slots, width))
    for _ in range(2):
        latent = latent + multi_head(given, layer_norm(given, latent), 4, layer_norm(given, x))
        latent = latent + feed_forward(given, layer_norm(given, latent), 2)
    return dense(given, jnp.mean(latent, 1), 100)


MODELS: Models = {
    "transformer": {
        "small": forward(transformer, batch=2, steps=32, width=128, heads=4, layers=2),
        "large": forward(transformer, batch=4, steps=64, width=256, heads=8, layers=2),
        "train": training(transformer, batch=2, steps=32, width=128, heads=4, layers=1),
    },
    "bert": {
        "small": forward(bert, batch=2, steps=64, width=192, heads=6, layers=2),
        "large": forward(bert, batch=4, steps=128, width=256, heads=8, layers=2),
        "train": training(bert, batch=2, steps=32, width=128, heads=4, layers=1),
    },
    "gpt": {
        "small": forward(gpt, batch=1, steps=128, width=192, heads=6, layers=2),
        "large": forward(gpt, batch=2, steps=160, width=320, heads=10, layers=2),
        "train": training(gpt, batch=1, steps=96, width=144, heads=4, layers=1),
    },
    "llama": {
        "small": forward(llama, batch=1, steps=64, width=192, heads=6, layers=2),
        "large": forward(llama, batch=2, steps=128, width=320, heads=5, layers=2),
    },
    "vit": {
        "small": forward(vit, batch=1, side=128, width=192, heads=4, layers=2),
        "large": forward(vit, batch=4, side=160, width=256, heads=8, layers=2),
    },
    "mixer": {
        "small": forward(mixer, batch=2, patches=64, width=192, layers=2),
        "large": forward(mixer, batch=8, patches=100, width=256, layers=2),
        "train": training(mixer, batch=2, patches=49, width=128, layers=1),
    },
    "linear_attention": {
        "small": forward(linear_attention, batch=2, steps=128, width=128, heads=4, layers=2),
        "large": forward(linear_attention, batch=2, steps=384, width=256, heads=8, layers=2),
    },
    "multi_query": {
        "small": forward(multi_query, batch=8, past=256, width=256, heads=8, layers=2),
        "large": forward(multi_query, batch=16, past=512, width=512, heads=8, layers=2),
    },
    "experts": {
        "small": forward(experts, batch=64, width=128, count=8, layers=2),
        "large": forward(experts, batch=128, width=256, count=8, layers=2),
        "train": training(experts, batch=64, width=128, count=4, layers=1),
    },
    "perceiver": {
        "small": forward(perceiver, batch=1, inputs=1024, width=128, slots=32),
        "large": forward(perceiver, batch=2, inputs=2048, width=192, slots=64),
    },
}
