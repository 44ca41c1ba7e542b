"""Random assignments of a part that is too large to list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from embeddb.core.config import Value

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Draws"]


class _Part(Protocol):
    """What it needs of `embeddb.platforms.space.parts.Part`."""

    domains: list[Sequence[Value]]

    @property
    def known(self) -> Mapping[str, Any]: ...

    def active(self, i: int, env: Mapping[str, Any]) -> bool: ...

    def fits(self, i: int, env: Mapping[str, Any]) -> bool: ...

    def set(self, i: int, value: Value, chosen: dict[str, Value], env: dict[str, Any]) -> None: ...


class Draws:
    """Of each domain only what its constraints let pass whatever the others are: a draw that could
    only be rejected need not be made."""

    def __init__(self, part: _Part) -> None:
        self._part = part
        self._possible = [
            [value for value in domain if self._alone(i, value)]
            for i, domain in enumerate(part.domains)
        ]

    def _alone(self, i: int, value: Value) -> bool:
        env = dict(self._part.known)
        self._part.set(i, value, {}, env)
        return self._part.fits(i, env)

    def one(self, rng: np.random.Generator) -> dict[str, Value] | None:
        """Each value drawn by itself; None if what came out is not legal."""
        part = self._part
        chosen: dict[str, Value] = {}
        env = dict(part.known)
        for i, possible in enumerate(self._possible):
            if part.active(i, env):
                if not possible:
                    return None
                part.set(i, possible[int(rng.integers(len(possible)))], chosen, env)
            if not part.fits(i, env):
                return None
        return chosen
