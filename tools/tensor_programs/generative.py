"""Networks that make things up: their forward passes, noise given."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from tools.tensor_programs.given import Array, Given, Models, forward, training
from tools.tensor_programs.layers import (
    batch_norm,
    conv,
    dense,
    mlp,
    relu,
    sigmoid,
    swish,
    upsample,
)

__all__ = ["MODELS"]


def vae(given: Given, batch: int, inputs: int, width: int, code: int) -> tuple[Array, Array]:
    """Kingma and Welling 2013: what is drawn again, and the distance to the prior."""
    x = given.data(batch, inputs)
    hidden = jnp.tanh(dense(given, x, width))
    mean, spread = dense(given, hidden, code), dense(given, hidden, code)
    drawn = mean + jnp.exp(0.5 * spread) * given.data(batch, code)
    made = sigmoid(dense(given, jnp.tanh(dense(given, drawn, width)), inputs))
    return made, -0.5 * jnp.sum(1.0 + spread - mean * mean - jnp.exp(spread), -1)


def generator(given: Given, batch: int, width: int, doublings: int) -> Array:
    """Radford et al. 2015 (DCGAN)."""
    top = width << (doublings - 1)
    x = dense(given, given.data(batch, 100), 16 * top).reshape(batch, 4, 4, top)
    for level in reversed(range(doublings - 1)):
        x = upsample(given, relu(batch_norm(given, x)), width << level)
    return jnp.tanh(upsample(given, relu(batch_norm(given, x)), 3))


def discriminator(given: Given, batch: int, side: int, width: int, layers: int) -> Array:
    """Radford et al. 2015: strides, leaky relu."""
    x = given.data(batch, side, side, 3)
    for level in range(layers):
        x = conv(given, x, width << level, 4, 2)
        x = jnp.maximum(x, 0.2 * x)
    return sigmoid(dense(given, x.reshape(batch, -1), 1))


def convdraw(given: Given, batch: int, side: int, width: int, rounds: int) -> Array:
    """Gregor et al. 2016: an image drawn in rounds by convolutional LSTMs."""
    image, size = given.data(batch, side, side, 3), side // 2
    canvas = jnp.zeros((batch, size, size, width))
    h = c = jnp.zeros((batch, size, size, width))
    seen = relu(conv(given, image, width, 5, 2))
    for _ in range(rounds):
        code = conv(given, jnp.concatenate([seen, h], -1), 2 * 8)
        drawn = code[..., :8] + jnp.exp(code[..., 8:]) * given.data(batch, size, size, 8)
        i, g, f, o = jnp.split(conv(given, jnp.concatenate([drawn, h], -1), 4 * width), 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(g)
        h = sigmoid(o) * jnp.tanh(c)
        canvas = canvas + conv(given, h, width, 1)
    return sigmoid(upsample(given, canvas, 3))


def coupling_flow(given: Given, batch: int, width: int, inner: int, layers: int) -> Array:
    """Dinh et al. 2016 (Real NVP): the log-likelihood."""
    x, volume = given.data(batch, width), jnp.zeros((batch,))
    half = width // 2
    for _ in range(layers):
        a, b = x[:, :half], x[:, half:]
        scale = jnp.tanh(mlp(given, a, (inner, inner, half)))
        b = b * jnp.exp(scale) + mlp(given, a, (inner, inner, half))
        x, volume = jnp.concatenate([b, a], -1), volume + jnp.sum(scale, -1)
    return volume - 0.5 * jnp.sum(x * x, -1)


def diffusion(given: Given, batch: int, side: int, width: int, blocks: int) -> Array:
    """Ho et al. 2020: one step of taking noise away, group norm, the time embedded."""

    def normed(x: Array) -> Array:
        parts = x.reshape(*x.shape[:3], 8, -1)
        mean = jnp.mean(parts, (1, 2, 4), keepdims=True)
        variance = jnp.mean((parts - mean) ** 2, (1, 2, 4), keepdims=True)
        made = ((parts - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape)
        return made * given.weights(x.shape[-1]) + given.weights(x.shape[-1])

    noisy = given.data(batch, side, side, 3)
    angle = given.data(batch, 1) * given.data(32)
    time = swish(dense(given, jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1), width))
    x = conv(given, noisy, width)
    for _ in range(blocks):
        y = conv(given, swish(normed(x)), width) + dense(given, time, width)[:, None, None]
        x = x + conv(given, swish(normed(y)), width)
    return 1.02 * noisy - 0.1 * conv(given, swish(normed(x)), 3)


def pixel_cnn(given: Given, batch: int, side: int, width: int, blocks: int) -> Array:
    """van den Oord et al. 2016: masked convolutions."""

    def masked(x: Array, features: int) -> Array:
        dims = (3, 3, x.shape[-1], features)
        place = 3 * lax.broadcasted_iota(jnp.int32, dims, 0)
        before = place + lax.broadcasted_iota(jnp.int32, dims, 1) <= 4
        kernel = jnp.where(before, given.weights(*dims), 0.0)
        form = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=form)

    x = conv(given, given.data(batch, side, side, 1), 2 * width, 7)
    for _ in range(blocks):
        y = relu(conv(given, relu(x), width, 1))
        x = x + conv(given, relu(masked(y, width)), 2 * width, 1)
    return conv(given, relu(x), 256, 1)


def quantised(given: Given, batch: int, side: int, width: int, codes: int) -> Array:
    """van den Oord et al. 2017 (VQ-VAE): distances to all codes, the nearest by a sharp softmax."""
    x = relu(conv(given, given.data(batch, side, side, 3), width, 4, 2))
    flat = conv(given, x, 64, 1).reshape(-1, 64)
    table = given.weights(codes, 64)
    far = jnp.sum(flat * flat, -1, keepdims=True) - 2.0 * (flat @ table.T)
    far = far + jnp.sum(table * table, -1)
    near = jnp.exp(-(far - jnp.min(far, -1, keepdims=True)))
    chosen = (near / jnp.sum(near, -1, keepdims=True)) @ table
    return upsample(given, relu(conv(given, chosen.reshape(*x.shape[:3], 64), width)), 3)


MODELS: Models = {
    "vae": {
        "small": forward(vae, batch=64, inputs=784, width=400, code=20),
        "large": forward(vae, batch=256, inputs=1600, width=512, code=32),
        "train": training(vae, batch=96, inputs=784, width=256, code=16),
    },
    "gan": {
        "generator": forward(generator, batch=2, width=32, doublings=4),
        "discriminator": forward(discriminator, batch=4, side=64, width=32, layers=4),
        "train": training(generator, batch=2, width=16, doublings=3),
    },
    "convdraw": {
        "small": forward(convdraw, batch=2, side=32, width=32, rounds=3),
        "large": forward(convdraw, batch=4, side=48, width=48, rounds=3),
    },
    "coupling_flow": {
        "small": forward(coupling_flow, batch=128, width=64, inner=128, layers=4),
        "large": forward(coupling_flow, batch=512, width=128, inner=256, layers=4),
        "train": training(coupling_flow, batch=128, width=48, inner=96, layers=2),
    },
    "diffusion": {
        "small": forward(diffusion, batch=1, side=32, width=64, blocks=2),
        "large": forward(diffusion, batch=2, side=48, width=96, blocks=2),
    },
    "pixel_cnn": {
        "small": forward(pixel_cnn, batch=1, side=28, width=32, blocks=3),
        "large": forward(pixel_cnn, batch=4, side=32, width=64, blocks=3),
    },
    "quantised": {
        "small": forward(quantised, batch=2, side=32, width=64, codes=256),
        "large": forward(quantised, batch=4, side=64, width=96, codes=512),
    },
}
