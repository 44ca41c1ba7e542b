"""Networks and models that see a whole sequence at once, without attention."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from tools.tensor_programs.given import Array, Given, Models, forward, training
from tools.tensor_programs.layers import (
    batch_norm,
    conv,
    conv1d,
    dense,
    embedding,
    gelu,
    layer_norm,
    relu,
    sigmoid,
    softmax,
)

__all__ = ["MODELS"]


def wavenet(given: Given, batch: int, steps: int, width: int, layers: int) -> Array:
    """van den Oord et al. 2016: gated dilated causal convolutions, skips summed."""
    x = conv1d(given, given.data(batch, steps, 1), width, 2)
    skipped = jnp.zeros((batch, steps, 2 * width))
    for at in range(layers):
        dilation = 1 << at
        gate = sigmoid(conv1d(given, x, width, 2, dilation=dilation))
        y = jnp.tanh(conv1d(given, x, width, 2, dilation=dilation)) * gate
        skipped = skipped + conv1d(given, y, 2 * width, 1)
        x = x + conv1d(given, y, width, 1)
    return softmax(dense(given, relu(dense(given, relu(skipped), 2 * width)), 256))


def tcn(given: Given, batch: int, steps: int, width: int, layers: int) -> Array:
    """Bai et al. 2018."""
    x = given.data(batch, steps, width)
    for at in range(layers):
        y = relu(conv1d(given, x, width, dilation=1 << at))
        x = relu(x + relu(conv1d(given, y, width, dilation=1 << at)))
    return dense(given, x[:, -1], 10)


def highway(given: Given, batch: int, width: int, layers: int) -> Array:
    """Srivastava et al. 2015."""
    x = given.data(batch, width)
    for _ in range(layers):
        gate = sigmoid(dense(given, x, width))
        x = gate * relu(dense(given, x, width)) + (1.0 - gate) * x
    return dense(given, x, 10)


def memory_network(given: Given, batch: int, facts: int, width: int, hops: int) -> Array:
    """Sukhbaatar et al. 2015: sentences are sums of their words' vectors."""
    words = given.ids(batch, facts, 6)
    state = given.data(batch, width)
    for _ in range(hops):
        keys = jnp.sum(embedding(given, words, 1000, width), 2)
        values = jnp.sum(embedding(given, words, 1000, width), 2)
        share = softmax(jnp.einsum("bfd,bd->bf", keys, state))
        found = jnp.einsum("bf,bfd->bd", share, values)
        state = dense(given, state, width, bias=False) + found
    return softmax(dense(given, state, 1000))


def state_space(given: Given, batch: int, steps: int, width: int, layers: int) -> Array:
    """Gu et al. 2021 (S4D) with real diagonal states, as a scan in log(steps) doublings."""
    x, states = given.data(batch, steps, width), 4
    for _ in range(layers):
        decay = jnp.exp(-jnp.exp(given.weights(width, states)))
        y = layer_norm(given, x)[..., None] * given.weights(width, states)
        reach = 1
        while reach < steps:
            shifted = jnp.pad(y, ((0, 0), (reach, 0), (0, 0), (0, 0)))[:, :steps]
            y = y + decay * shifted
            decay, reach = decay * decay, 2 * reach
        y = jnp.sum(y * given.weights(width, states), -1)
        x = x + dense(given, gelu(y), width)
    return dense(given, x, 32)


def hidden_markov(given: Given, batch: int, steps: int, states: int) -> Array:
    """Rabiner 1989: the forward algorithm, scaled at every step."""
    moves = softmax(given.weights(states, states))
    seen = given.data(steps, batch, states)
    share = softmax(given.data(batch, states))
    likely = jnp.zeros((batch,))
    for t in range(steps):
        share = (share @ moves) * jnp.exp(seen[t])
        total = jnp.sum(share, -1)
        share = share / total[:, None]
        likely = likely + jnp.log(total)
    return likely


def text_cnn(given: Given, batch: int, steps: int, width: int, features: int) -> Array:
    """Kim 2014: convolutions of three lengths, the greatest of each over time."""
    x = embedding(given, given.ids(batch, steps), 4000, width)
    found = [jnp.max(relu(conv1d(given, x, features, size, causal=False)), 1) for size in (3, 4, 5)]
    return softmax(dense(given, jnp.concatenate(found, -1), 20))


def speech(given: Given, batch: int, steps: int, width: int, layers: int) -> Array:
    """Hannun et al. 2014 and Li et al. 2019 (Jasper): spectra, 1-d convolutions, letters."""
    x = conv(given, given.data(batch, steps, 80, 1), 8, (11, 5), 2)
    x = relu(batch_norm(given, x)).reshape(batch, steps // 2, -1)
    for _ in range(layers):
        y = conv1d(given, x, width, 11, causal=False)
        x = jnp.clip(batch_norm(given, y), 0.0, 20.0)
    made = dense(given, x, 29)
    top = jnp.max(made, -1, keepdims=True)
    return made - top - jnp.log(jnp.sum(jnp.exp(made - top), -1, keepdims=True))


def kalman(given: Given, batch: int, steps: int, states: int) -> Array:
    """Kalman 1960 with a fixed gain: predict, compare, correct."""
    moves, sees = given.weights(states, states), given.weights(states, states // 2)
    gain = given.weights(states // 2, states)
    seen, state = given.data(steps, batch, states // 2), given.data(batch, states)
    found = []
    for t in range(steps):
        state = state @ moves
        state = state + (seen[t] - state @ sees) @ gain
        found.append(jnp.sum(state * state, -1))
    return lax.concatenate([f[None] for f in found], 0)


MODELS: Models = {
    "wavenet": {
        "small": forward(wavenet, batch=1, steps=1024, width=32, layers=5),
        "large": forward(wavenet, batch=2, steps=2048, width=48, layers=6),
    },
    "tcn": {
        "small": forward(tcn, batch=4, steps=256, width=48, layers=4),
        "large": forward(tcn, batch=8, steps=512, width=64, layers=4),
        "train": training(tcn, batch=4, steps=128, width=32, layers=2),
    },
    "highway": {
        "small": forward(highway, batch=64, width=256, layers=4),
        "large": forward(highway, batch=256, width=512, layers=5),
        "train": training(highway, batch=128, width=320, layers=2),
    },
    "memory_network": {
        "small": forward(memory_network, batch=16, facts=50, width=64, hops=3),
        "large": forward(memory_network, batch=64, facts=100, width=128, hops=2),
    },
    "state_space": {
        "small": forward(state_space, batch=1, steps=256, width=64, layers=2),
        "large": forward(state_space, batch=2, steps=512, width=96, layers=2),
    },
    "hidden_markov": {
        "small": forward(hidden_markov, batch=256, steps=12, states=192),
        "large": forward(hidden_markov, batch=512, steps=16, states=256),
    },
    "text_cnn": {
        "small": forward(text_cnn, batch=8, steps=64, width=128, features=100),
        "large": forward(text_cnn, batch=32, steps=64, width=192, features=128),
    },
    "speech": {
        "small": forward(speech, batch=1, steps=256, width=128, layers=3),
        "large": forward(speech, batch=2, steps=320, width=192, layers=4),
    },
    "kalman": {
        "small": forward(kalman, batch=256, steps=12, states=96),
        "large": forward(kalman, batch=512, steps=12, states=160),
    },
}
