"""What a model is given: weights and data, asked for by their shapes while it is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["Array", "Given", "Model", "Models", "forward", "training"]

Array = Any


@dataclass(slots=True)
class Given:
    """Hands out arrays in the order in which a model asks for them: those of `arrays`, or zeros
    where there are none, which is how the shapes are found. `trained` are the places of weights."""

    arrays: Sequence[Array] | None = None
    shapes: list[jax.ShapeDtypeStruct] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)

    def weights(self, *dims: int) -> Array:
        self.trained.append(len(self.shapes))
        return self.data(*dims)

    def data(self, *dims: int) -> Array:
        return self._next(dims, jnp.float32)

    def ids(self, *dims: int) -> Array:
        """Whole numbers that choose rows of a table."""
        return self._next(dims, jnp.int32)

    def _next(self, dims: tuple[int, ...], dtype: Any) -> Array:
        at = len(self.shapes)
        self.shapes.append(jax.ShapeDtypeStruct(dims, dtype))
        return jnp.zeros(dims, dtype) if self.arrays is None else self.arrays[at]


@dataclass(frozen=True, slots=True)
class Model:
    """A function of `Given` at its sizes. `step`: not what it gives, but its weights after one step
    of gradient descent on the mean square of what it gives."""

    function: Callable[..., Any]
    sizes: dict[str, Any]
    step: bool = False

    def shapes(self) -> Given:
        """Run on nothing, to learn what it asks for."""
        given = Given()
        jax.eval_shape(lambda: self.function(given, **self.sizes))
        return given

    def __call__(self, *arrays: Array) -> Any:
        if not self.step:
            return self.function(Given(arrays), **self.sizes)
        places = self.shapes().trained

        def loss(weights: Sequence[Array]) -> Array:
            held = list(arrays)
            for place, array in zip(places, weights, strict=True):
                held[place] = array
            made = self.function(Given(held), **self.sizes)
            return sum(jnp.mean(part * part) for part in _parts(made))

        weights = [arrays[place] for place in places]
        slopes = jax.grad(loss)(weights)
        return [w - 0.01 * slope for w, slope in zip(weights, slopes, strict=True)]


#: By family and size.
Models = dict[str, dict[str, Model]]


def forward(function: Callable[..., Any], **sizes: Any) -> Model:
    return Model(function, sizes)


def training(function: Callable[..., Any], **sizes: Any) -> Model:
    return Model(function, sizes, step=True)


def _parts(made: Any) -> Iterator[Array]:
    if isinstance(made, tuple | list):
        for part in made:
            yield from _parts(part)
    else:
        yield made
