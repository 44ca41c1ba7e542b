"""Networks that give images, boxes or poses for images."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from tools.tensor_programs.given import Array, Given, Models, forward, training
from tools.tensor_programs.layers import (
    conv,
    dense,
    mlp,
    pool,
    relu,
    sigmoid,
    softmax,
    upsample,
)

__all__ = ["MODELS"]


def unet(given: Given, batch: int, side: int, width: int, depth: int) -> Array:
    """Ronneberger et al. 2015, padded."""
    x, kept = given.data(batch, side, side, 1), []
    for level in range(depth):
        x = relu(conv(given, relu(conv(given, x, width << level)), width << level))
        kept.append(x)
        x = pool(x)
    x = relu(conv(given, x, width << depth))
    for level in reversed(range(depth)):
        x = jnp.concatenate([kept[level], upsample(given, x, width << level, 2)], -1)
        x = relu(conv(given, relu(conv(given, x, width << level)), width << level))
    return conv(given, x, 2, 1)


def ssd(given: Given, batch: int, side: int, width: int, levels: int) -> list[Array]:
    """Liu et al. 2015: boxes and classes from maps of several scales."""
    x, found = given.data(batch, side, side, 3), []
    for at in range(2):
        x = pool(relu(conv(given, x, width << at)))
    for _ in range(levels):
        x = relu(conv(given, relu(conv(given, x, 2 * width, 1)), 4 * width, 3, 2))
        boxes = conv(given, x, 4 * 4).reshape(batch, -1, 4)
        classes = conv(given, x, 4 * 21).reshape(batch, -1, 21)
        found.append(jnp.concatenate([boxes, softmax(classes)], -1))
    return found


def autoencoder(given: Given, batch: int, side: int, width: int, depth: int) -> Array:
    """Convolutional: Masci et al. 2011."""
    x = given.data(batch, side, side, 3)
    for level in range(depth):
        x = relu(conv(given, x, width << level, 3, 2))
    code = dense(given, x.reshape(batch, -1), 128)
    x = relu(dense(given, code, x.size // batch)).reshape(x.shape)
    for level in reversed(range(depth)):
        x = relu(upsample(given, x, width << level))
    return sigmoid(conv(given, x, 3))


def super_resolution(given: Given, batch: int, side: int, width: int, factor: int) -> Array:
    """Shi et al. 2016: sub-pixel convolution."""
    x = jnp.tanh(conv(given, given.data(batch, side, side, 1), width, 5))
    x = jnp.tanh(conv(given, x, width // 2, 3))
    x = conv(given, x, factor * factor, 3).reshape(batch, side, side, factor, factor)
    return x.transpose(0, 1, 3, 2, 4).reshape(batch, side * factor, side * factor)


def style_transfer(given: Given, batch: int, side: int, width: int, blocks: int) -> Array:
    """Johnson et al. 2016 with instance norm (Ulyanov et al. 2016)."""

    def normed(x: Array) -> Array:
        mean = jnp.mean(x, (1, 2), keepdims=True)
        variance = jnp.mean((x - mean) ** 2, (1, 2), keepdims=True)
        return (x - mean) * lax.rsqrt(variance + 1e-5) * given.weights(x.shape[-1])

    x = relu(normed(conv(given, given.data(batch, side, side, 3), width, 9)))
    x = relu(normed(conv(given, x, 2 * width, 3, 2)))
    for _ in range(blocks):
        y = relu(normed(conv(given, x, 2 * width)))
        x = x + normed(conv(given, y, 2 * width))
    x = relu(normed(upsample(given, x, width)))
    return jnp.tanh(conv(given, x, 3, 9))


def capsules(given: Given, batch: int, side: int, width: int, rounds: int) -> Array:
    """Sabour et al. 2017: routing by agreement, 10 capsules of 16."""

    def squashed(x: Array) -> Array:
        square = jnp.sum(x * x, -1, keepdims=True)
        return x * (square / (1.0 + square) * lax.rsqrt(square + 1e-7))

    x = relu(conv(given, given.data(batch, side, side, 1), width, 9, padding="VALID"))
    x = conv(given, x, width, 9, 2, padding="VALID").reshape(batch, -1, 8)
    votes = jnp.einsum("bid,ijde->bije", squashed(x), given.weights(x.shape[1], 10, 8, 16))
    logits = jnp.zeros(votes.shape[:3])
    for at in range(rounds):
        out = squashed(jnp.einsum("bij,bije->bje", softmax(logits), votes))
        if at + 1 < rounds:
            logits = logits + jnp.einsum("bije,bje->bij", votes, out)
    return jnp.sqrt(jnp.sum(out * out, -1))


def pose(given: Given, batch: int, side: int, width: int, depth: int) -> Array:
    """Newell et al. 2016: one stacked hourglass, and the expected place of each joint."""
    x = relu(conv(given, given.data(batch, side, side, 3), width, 7, 2))

    def hourglass(x: Array, left: int) -> Array:
        inner = relu(conv(given, pool(x), width))
        inner = hourglass(inner, left - 1) if left else relu(conv(given, inner, width))
        return relu(conv(given, x, width, 1)) + jnp.repeat(jnp.repeat(inner, 2, 1), 2, 2)

    maps = conv(given, hourglass(x, depth), 16, 1)
    weights = softmax(maps.reshape(batch, -1, 16), 1).reshape(maps.shape)
    along = lax.broadcasted_iota(jnp.float32, maps.shape, 1)
    across = lax.broadcasted_iota(jnp.float32, maps.shape, 2)
    found = [jnp.sum(weights * place, (1, 2)) for place in (along, across)]
    return jnp.stack(found, -1)


def radiance(given: Given, rays: int, samples: int, width: int, layers: int) -> Array:
    """Mildenhall et al. 2020: positions encoded, a network, colours summed along each ray."""
    places = given.data(rays, samples, 3)
    turns = [places * (2.0**k) for k in range(6)]
    x = jnp.concatenate([f(turn) for turn in turns for f in (jnp.sin, jnp.cos)], -1)
    made = mlp(given, x, (*[width] * layers, 4))
    solid = 1.0 - jnp.exp(-relu(made[..., 3]))
    below = lax.broadcasted_iota(jnp.int32, (samples, samples), 0)
    earlier = jnp.where(below < lax.broadcasted_iota(jnp.int32, (samples, samples), 1), 1.0, 0.0)
    left = jnp.exp(jnp.log(1.0 - solid + 1e-6) @ earlier)
    return jnp.sum((left * solid)[..., None] * sigmoid(made[..., :3]), 1)


MODELS: Models = {
    "unet": {
        "small": forward(unet, batch=1, side=96, width=16, depth=3),
        "large": forward(unet, batch=1, side=160, width=16, depth=4),
        "train": training(unet, batch=1, side=48, width=8, depth=2),
    },
    "ssd": {
        "small": forward(ssd, batch=1, side=128, width=24, levels=4),
        "large": forward(ssd, batch=2, side=192, width=32, levels=5),
    },
    "autoencoder": {
        "small": forward(autoencoder, batch=4, side=64, width=16, depth=3),
        "large": forward(autoencoder, batch=8, side=64, width=24, depth=4),
        "train": training(autoencoder, batch=8, side=32, width=16, depth=2),
    },
    "super_resolution": {
        "small": forward(super_resolution, batch=1, side=96, width=64, factor=3),
        "large": forward(super_resolution, batch=2, side=160, width=64, factor=2),
    },
    "style_transfer": {
        "small": forward(style_transfer, batch=1, side=96, width=16, blocks=2),
        "large": forward(style_transfer, batch=1, side=128, width=32, blocks=2),
    },
    "capsules": {
        "small": forward(capsules, batch=4, side=28, width=64, rounds=3),
        "large": forward(capsules, batch=8, side=28, width=96, rounds=2),
    },
    "pose": {
        "small": forward(pose, batch=1, side=128, width=32, depth=2),
        "large": forward(pose, batch=1, side=192, width=48, depth=3),
    },
    "radiance": {
        "small": forward(radiance, rays=128, samples=32, width=64, layers=4),
        "large": forward(radiance, rays=256, samples=64, width=96, layers=4),
    },
}
