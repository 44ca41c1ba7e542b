"""A place in an `.sdfg` file: the symbols and loops that are known there, and the arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from embeddb.nests.parts import Expr, Index, Loop
from indexer.frontends.dace.data import Registry, View
from indexer.frontends.tree import Refused, Scope


class Views(Protocol):
    """The arrays of one (nested) program by their names."""

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
        """Whether it is in a nested program."""
        return self.depth > 0

    def view(self, name: str) -> View:
        """Raises: NestError for an array that is not there, or of a kind that is not known."""
        return self.views.view(name, self)

    def within(self, name: str, loop: Loop, index: Index) -> Place:
        """In the body of a loop."""
        made = replace(self.deeper(), loops=(*self.loops, loop))
        made.scope.names[name] = index
        return made

    def deeper(self) -> Place:
        """Where symbols may be added that are not known around."""
        return replace(self, scope=self.scope.inner())

    def inside(self, views: Views, symbols: Mapping[str, Index | Expr | Refused]) -> Place:
        """In a nested program, which knows no symbols but its own."""
        scope = Scope(self.scope.arrays)
        scope.names.update(symbols)
        return replace(self, views=views, scope=scope, depth=self.depth + 1)
