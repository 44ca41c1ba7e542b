"""Networks that go through a sequence step by step, unrolled."""

from __future__ import annotations

import jax.numpy as jnp

from tools.tensor_programs.given import Array, Given, Models, forward, training
from tools.tensor_programs.layers import (
    dense,
    embedding,
    gru_step,
    lstm_step,
    relu,
    sigmoid,
    softmax,
)

__all__ = ["MODELS"]


def _gates(given: Given, inputs: int, size: int, gates: int) -> list[Array]:
    return [
        given.weights(inputs, gates * size),
        given.weights(size, gates * size),
        given.weights(gates * size),
    ]


def lstm(given: Given, batch: int, steps: int, size: int, layers: int) -> Array:
    """Hochreiter and Schmidhuber 1997, stacked."""
    x = given.data(steps, batch, size)
    rows = [x[t] for t in range(steps)]
    for _ in range(layers):
        weights = _gates(given, size, size, 4)
        h, c = jnp.zeros((batch, size)), jnp.zeros((batch, size))
        for t in range(steps):
            h, c = lstm_step(weights, rows[t], h, c)
            rows[t] = h
    return dense(given, rows[-1], 100)


def gru(given: Given, batch: int, steps: int, size: int) -> Array:
    """Cho et al. 2014, in both directions (Schuster and Paliwal 1997)."""
    x = given.data(batch, steps, size)
    ends = []
    for order in (range(steps), reversed(range(steps))):
        weights = _gates(given, size, size, 3)
        h = jnp.zeros((batch, size))
        for t in order:
            h = gru_step(weights, x[:, t], h)
        ends.append(h)
    return dense(given, jnp.concatenate(ends, -1), 64)


def char_rnn(given: Given, batch: int, steps: int, size: int, letters: int) -> Array:
    """Elman 1990; the letter after each, by Sutskever et al. 2011."""
    weights = _gates(given, size, size, 1)
    x = embedding(given, given.ids(batch, steps), letters, size)
    h, found = jnp.zeros((batch, size)), []
    for t in range(steps):
        h = jnp.tanh(x[:, t] @ weights[0] + h @ weights[1] + weights[2])
        found.append(h)
    return softmax(dense(given, jnp.stack(found, 1), letters))


def nmt(given: Given, batch: int, steps: int, size: int, words: int) -> Array:
    """Bahdanau et al. 2014: additive attention of a decoder on all states of an encoder."""
    weights = _gates(given, size, size, 3)
    source = embedding(given, given.ids(batch, steps), words, size)
    h, states = jnp.zeros((batch, size)), []
    for t in range(steps):
        h = gru_step(weights, source[:, t], h)
        states.append(h)
    memory = jnp.stack(states, 1)
    keys = dense(given, memory, size)
    ask, score = given.weights(size, size), given.weights(size)
    decoder = _gates(given, 2 * size, size, 3)
    target = embedding(given, given.ids(batch, steps), words, size)
    found = []
    for t in range(steps):
        wanted = jnp.tanh(keys + (h @ ask)[:, None])
        share = softmax(jnp.tensordot(wanted, score, 1))
        context = jnp.einsum("bt,btd->bd", share, memory)
        h = gru_step(decoder, jnp.concatenate([target[:, t], context], -1), h)
        found.append(h)
    return dense(given, jnp.stack(found, 1), words)


def wavernn(given: Given, batch: int, steps: int, size: int) -> list[Array]:
    """Kalchbrenner et al. 2018: a dual softmax for coarse and fine bits."""
    weights = _gates(given, 3, size, 3)
    half = size // 2
    heads = [(given.weights(half, half), given.weights(half, 256)) for _ in range(2)]
    samples, h, found = given.data(batch, steps, 3), given.data(batch, size), []
    for t in range(steps):
        h = gru_step(weights, samples[:, t], h)
        for part, (first, second) in zip(jnp.split(h, 2, -1), heads, strict=True):
            found.append(softmax(relu(part @ first) @ second))
    return found


def attention_pointer(given: Given, batch: int, steps: int, size: int) -> Array:
    """Vinyals et al. 2015 (pointer networks): each answer is a share of the inputs."""
    x = given.data(batch, steps, size)
    weights = _gates(given, size, size, 4)
    h, c, states = jnp.zeros((batch, size)), jnp.zeros((batch, size)), []
    for t in range(steps):
        h, c = lstm_step(weights, x[:, t], h, c)
        states.append(h)
    keys = dense(given, jnp.stack(states, 1), size, bias=False)
    ask, score = given.weights(size, size), given.weights(size)
    decoder, found = _gates(given, size, size, 4), []
    chosen = x[:, 0]
    for _ in range(steps):
        h, c = lstm_step(decoder, chosen, h, c)
        share = softmax(jnp.tanh(keys + (h @ ask)[:, None]) @ score)
        chosen = jnp.einsum("bt,btd->bd", share, x)
        found.append(share)
    return jnp.stack(found, 1)


def quasi_rnn(given: Given, batch: int, steps: int, size: int, layers: int) -> Array:
    """Bradbury et al. 2016: gates by products of all steps, then element by element."""
    x = given.data(batch, steps, size)
    for _ in range(layers):
        before = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        z, f, o = jnp.split(dense(given, jnp.concatenate([before, x], -1), 3 * size), 3, -1)
        z, f, o = jnp.tanh(z), sigmoid(f), sigmoid(o)
        c, found = jnp.zeros((batch, size)), []
        for t in range(steps):
            c = f[:, t] * c + (1.0 - f[:, t]) * z[:, t]
            found.append(o[:, t] * c)
        x = jnp.stack(found, 1)
    return x


def neural_turing(given: Given, batch: int, steps: int, rows: int, width: int) -> Array:
    """Graves et al. 2014: memory addressed by content, erased and added to."""
    memory, x = given.data(batch, rows, width), given.data(batch, steps, width)
    weights = _gates(given, 2 * width, 2 * width, 4)
    heads = given.weights(2 * width, 3 * width)
    h, c, read = jnp.zeros((batch, 2 * width)), jnp.zeros((batch, 2 * width)), x[:, 0]
    for t in range(steps):
        h, c = lstm_step(weights, jnp.concatenate([x[:, t], read], -1), h, c)
        key, erase, add = jnp.split(h @ heads, 3, -1)
        likeness = jnp.einsum("brw,bw->br", memory, jnp.tanh(key))
        norms = jnp.sqrt(jnp.sum(memory * memory, -1) + 1e-6)
        share = softmax(likeness / norms)
        read = jnp.einsum("br,brw->bw", share, memory)
        memory = memory * (1.0 - share[:, :, None] * sigmoid(erase)[:, None])
        memory = memory + share[:, :, None] * jnp.tanh(add)[:, None]
    return dense(given, read, width)


MODELS: Models = {
    "lstm": {
        "small": forward(lstm, batch=16, steps=8, size=256, layers=2),
        "large": forward(lstm, batch=32, steps=12, size=512, layers=2),
        "train": training(lstm, batch=32, steps=4, size=256, layers=1),
    },
    "gru": {
        "small": forward(gru, batch=16, steps=8, size=256),
        "large": forward(gru, batch=48, steps=10, size=384),
        "train": training(gru, batch=32, steps=4, size=192),
    },
    "char_rnn": {
        "small": forward(char_rnn, batch=32, steps=16, size=256, letters=96),
        "large": forward(char_rnn, batch=64, steps=16, size=640, letters=256),
    },
    "nmt": {
        "small": forward(nmt, batch=16, steps=6, size=192, words=2000),
        "large": forward(nmt, batch=32, steps=8, size=320, words=4000),
    },
    "wavernn": {
        "small": forward(wavernn, batch=8, steps=8, size=512),
        "large": forward(wavernn, batch=16, steps=8, size=896),
    },
    "pointer": {
        "small": forward(attention_pointer, batch=16, steps=6, size=128),
        "large": forward(attention_pointer, batch=64, steps=8, size=256),
    },
    "quasi_rnn": {
        "small": forward(quasi_rnn, batch=16, steps=16, size=256, layers=2),
        "large": forward(quasi_rnn, batch=32, steps=24, size=384, layers=2),
    },
    "neural_turing": {
        "small": forward(neural_turing, batch=32, steps=4, rows=256, width=64),
        "large": forward(neural_turing, batch=64, steps=6, rows=512, width=96),
    },
}
