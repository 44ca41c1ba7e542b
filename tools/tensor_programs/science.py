"""Numerical programs: statistics, clustering, differential equations."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from tools.tensor_programs.given import Array, Given, Models, forward, training
from tools.tensor_programs.layers import dense, mlp, sigmoid, softmax

__all__ = ["MODELS"]


def neural_ode(given: Given, batch: int, width: int, inner: int, steps: int) -> Array:
    """Chen et al. 2018, by the classical Runge-Kutta method (Kutta 1901)."""
    first, second = given.weights(width, inner), given.weights(inner, width)

    def slope(x: Array) -> Array:
        return jnp.tanh(x @ first) @ second

    x, h = given.data(batch, width), 0.1
    for _ in range(steps):
        a = slope(x)
        b = slope(x + 0.5 * h * a)
        c = slope(x + 0.5 * h * b)
        x = x + h / 6.0 * (a + 2.0 * b + 2.0 * c + slope(x + h * c))
    return x


def k_means(given: Given, points: int, width: int, means: int, rounds: int) -> Array:
    """Lloyd 1982."""
    x, centres = given.data(points, width), given.data(means, width)
    for _ in range(rounds):
        far = jnp.sum(centres * centres, -1) - 2.0 * (x @ centres.T)
        least = jnp.min(far, -1, keepdims=True)
        mine = jnp.where(far <= least, 1.0, 0.0)
        centres = mine.T @ x / (jnp.sum(mine, 0)[:, None] + 1e-6)
    return centres


def mixture(given: Given, points: int, width: int, parts: int, rounds: int) -> Array:
    """Dempster et al. 1977: expectation and maximisation of Gaussians with diagonal spread."""
    x, means = given.data(points, width), given.data(parts, width)
    weight = softmax(given.data(parts))
    spread = jnp.exp(given.data(parts, width))
    for _ in range(rounds):
        inverse = 1.0 / spread
        far = (x * x) @ inverse.T - 2.0 * (x @ (means * inverse).T)
        far = far + jnp.sum(means * means * inverse + jnp.log(spread), -1)
        share = softmax(jnp.log(weight) - 0.5 * far)
        mass = jnp.sum(share, 0)[:, None] + 1e-6
        means = share.T @ x / mass
        spread = share.T @ (x * x) / mass - means * means + 1e-3
        weight = mass[:, 0] / points
    return means


def power_iteration(given: Given, points: int, width: int, rank: int, rounds: int) -> Array:
    """Principal components by blocks: Halko et al. 2011, Section 4.4, columns scaled."""
    x = given.data(points, width)
    x = x - jnp.mean(x, 0)
    found = given.data(width, rank)
    for _ in range(rounds):
        found = x.T @ (x @ found)
        found = found * lax.rsqrt(jnp.sum(found * found, 0) + 1e-6)
    return found


def stencil(given: Given, side: int, steps: int, waves: bool) -> Array:
    """Heat (Courant et al. 1928: five points) or waves on a square, as convolutions."""
    now, before = given.data(1, side, side, 1), given.data(1, side, side, 1)
    cross = given.data(3, 3, 1, 1)
    form = ("NHWC", "HWIO", "NHWC")
    for _ in range(steps):
        bent = lax.conv_general_dilated(now, cross, (1, 1), "SAME", dimension_numbers=form)
        new = 2.0 * now - before + 0.1 * bent if waves else now + 0.1 * bent
        before, now = now, new
    return now


def diffusion_slices(given: Given, side: int, steps: int) -> Array:
    """Gray and Scott 1984, as Pearson 1993 computed it: shifted slices."""
    u, v = given.data(side, side), given.data(side, side)

    def around(x: Array) -> Array:
        wide = jnp.pad(x, 1)
        return wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:] - 4.0 * x

    for _ in range(steps):
        met = u * v * v
        u, v = (
            u + 0.16 * around(u) - met + 0.035 * (1.0 - u),
            v + 0.08 * around(v) + met - 0.1 * v,
        )
    return u + v


def bodies(given: Given, count: int, steps: int) -> Array:
    """All pairs of Newton's law, softened (Aarseth 1963), by leapfrog."""
    places, speeds, mass = given.data(count, 3), given.data(count, 3), given.data(count)
    for _ in range(steps):
        apart = places[None] - places[:, None]
        square = jnp.sum(apart * apart, -1) + 1e-2
        pull = mass * square**-1 * lax.rsqrt(square)
        speeds = speeds + 0.01 * jnp.einsum("ij,ijd->id", pull, apart)
        places = places + 0.01 * speeds
    return places


def gaussian_process(given: Given, points: int, width: int, rounds: int) -> Array:
    """Rasmussen and Williams 2006, the mean by conjugate gradients (Hestenes and Stiefel 1952)."""
    x, goal = given.data(points, width), given.data(points)
    square = jnp.sum(x * x, -1)
    kernel = jnp.exp(-0.5 * (square[:, None] + square - 2.0 * (x @ x.T)))
    found, left = jnp.zeros((points,)), goal
    along, size = left, jnp.sum(left * left)
    for _ in range(rounds):
        moved = kernel @ along + 0.1 * along
        step = size / jnp.sum(along * moved)
        found, left = found + step * along, left - step * moved
        new = jnp.sum(left * left)
        along, size = left + new / size * along, new
    return kernel @ found


def logistic_regression(given: Given, points: int, width: int, classes: int) -> Array:
    """Cox 1958; of several classes."""
    made = dense(given, given.data(points, width), classes)
    return softmax(made) if classes > 1 else sigmoid(made)


def siren(given: Given, points: int, width: int, layers: int) -> Array:
    """Sitzmann et al. 2020: sines between layers."""
    x = given.data(points, 2)
    for _ in range(layers):
        x = jnp.sin(30.0 * dense(given, x, width))
    return dense(given, x, 3)


def actor_critic(given: Given, batch: int, width: int, actions: int) -> tuple[Array, Array]:
    """Mnih et al. 2016 on observations: actions, and what the state is worth."""
    x = jnp.tanh(mlp(given, given.data(batch, 128), (width, width)))
    made = dense(given, x, actions)
    top = jnp.max(made, -1, keepdims=True)
    logs = made - top - jnp.log(jnp.sum(jnp.exp(made - top), -1, keepdims=True))
    chaos = -jnp.sum(jnp.exp(logs) * logs, -1)
    return logs, dense(given, x, 1)[:, 0] + 0.01 * chaos


MODELS: Models = {
    "neural_ode": {
        "small": forward(neural_ode, batch=128, width=64, inner=256, steps=3),
        "large": forward(neural_ode, batch=256, width=128, inner=512, steps=4),
        "train": training(neural_ode, batch=64, width=64, inner=192, steps=1),
    },
    "k_means": {
        "small": forward(k_means, points=4096, width=32, means=64, rounds=2),
        "large": forward(k_means, points=8192, width=64, means=128, rounds=3),
    },
    "mixture": {
        "small": forward(mixture, points=2048, width=16, parts=32, rounds=2),
        "large": forward(mixture, points=8192, width=32, parts=64, rounds=2),
    },
    "power_iteration": {
        "small": forward(power_iteration, points=1024, width=256, rank=16, rounds=4),
        "large": forward(power_iteration, points=4096, width=400, rank=32, rounds=4),
    },
    "stencil": {
        "heat": forward(stencil, side=224, steps=6, waves=False),
        "waves": forward(stencil, side=288, steps=4, waves=True),
        "reaction": forward(diffusion_slices, side=512, steps=4),
        "reaction_large": forward(diffusion_slices, side=1024, steps=3),
    },
    "bodies": {
        "small": forward(bodies, count=384, steps=3),
        "large": forward(bodies, count=1024, steps=2),
    },
    "gaussian_process": {
        "small": forward(gaussian_process, points=512, width=16, rounds=5),
        "large": forward(gaussian_process, points=1280, width=32, rounds=8),
    },
    "logistic_regression": {
        "small": forward(logistic_regression, points=2048, width=128, classes=10),
        "large": forward(logistic_regression, points=4096, width=500, classes=100),
        "train": training(logistic_regression, points=2048, width=300, classes=1),
    },
    "siren": {
        "small": forward(siren, points=2048, width=96, layers=3),
        "large": forward(siren, points=8192, width=128, layers=3),
        "train": training(siren, points=2048, width=64, layers=2),
    },
    "actor_critic": {
        "small": forward(actor_critic, batch=256, width=256, actions=18),
        "large": forward(actor_critic, batch=1024, width=400, actions=64),
        "train": training(actor_critic, batch=256, width=192, actions=8),
    },
}
