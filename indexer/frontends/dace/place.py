"""A place in an `.sdfg` file: its symbols, its loops, and the arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from embeddb.nests.parts import Expr, Index, Loop
from indexer.frontends.dace.data import Registry, View
from indexer.frontends.tree import Refused, Scope


class Views(Protocol):
    """The arrays of one (nested) program by name."""

    def view(self, name: str, place: Place) -> View: ...

    def alias(
        self, name: str, part: Callable[[Mapping[str, Any], Place], View], place: Place
    ) -> None: ...


@dataclass(frozen=True)
class Place:
    """Symbols, loops around from the outermost, and the arrays of the program around."""

    registry: Registry
    views: Views
    scope: Scope
    loops: tuple[Loop, ...] = ()
    depth: int = 0

    @property
    def nested(self) -> bool:
        """True in a nested program."""
        return self.depth > 0

    def view(self, name: str) -> View:
        """The view of an array. Raises: NestError for an unknown array, or one of an unsupported
        kind."""
        return self.views.view(name, self)

    def within(self, name: str, loop: Loop, index: Index) -> Place:
        """The place in the body of a loop."""
        inner = replace(self.deeper(), loops=(*self.loops, loop))
        inner.scope.names[name] = index
        return inner

    def deeper(self) -> Place:
        """The place with a scope of its own for symbols."""
        return replace(self, scope=self.scope.inner())

    def inside(self, views: Views, symbols: Mapping[str, Index | Expr | Refused]) -> Place:
        """The place in a nested program, which has only its own symbols."""
        scope = Scope(self.scope.arrays)
        scope.names.update(symbols)
        return replace(self, views=views, scope=scope, depth=self.depth + 1)
