"""Names of a program and what they stand for."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass, field

from embeddb.core.errors import NestError
from embeddb.nests.parts import Array, Expr, Index


@dataclass(frozen=True, slots=True)
class Held:
    """A name that stands for an array of the program, or a scalar that is stored."""

    array: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A name that may not be used here, and why; with a type, it may be written. `line` is that of
    its declaration."""

    why: str
    dtype: str = ""
    line: int = 0


@dataclass
class Scope:
    """Names that are known at a place of a program. `arrays` is that of the whole program."""

    arrays: list[Array]
    names: ChainMap[str, Index | Expr | Held | Refused] = field(default_factory=ChainMap)

    def inner(self) -> Scope:
        return Scope(self.arrays, self.names.new_child())

    def home(self, name: str) -> Scope:
        """The scope in which a name is declared."""
        depth = next(at for at, one in enumerate(self.names.maps) if name in one)
        return Scope(self.arrays, ChainMap(*self.names.maps[depth:]))

    def of(self, name: str) -> Index | Expr | Held:
        """Raises: NestError for a name that is not known or may not be used."""
        found = self.names.get(name)
        if found is None:
            raise NestError(f"{name} is not known: give a size by #define or with -D {name}=64")
        if isinstance(found, Refused):
            raise NestError(f"{name} {found.why}")
        return found
