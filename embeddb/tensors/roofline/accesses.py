"""What a turn of a nest of loops reads, writes and computes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from embeddb.tensors.tiling.forms import Var
from embeddb.tensors.tiling.plan import Stage
from embeddb.tensors.tiling.spans import Span

__all__ = ["BRANCH", "CHOICE", "INDEX", "Access", "Nest", "Step"]

#: A part of a form (`//`, `%`) as a step.
INDEX = "index"
#: A condition, around what is read beside a padding or of one of two joined arrays; and one of more
#: arrays, of which gcc 12 makes no vectors.
CHOICE, BRANCH = "choice", "branch"


@dataclass(frozen=True, eq=False)
class Access:
    """An element that each turn reads or writes. `array` tells arrays apart; `terms` are, by
    dimension of the array, the variables and by what they move along it, or None where that is not
    the same everywhere. `stage` is given where the array is a buffer, whose sizes follow from the
    tile; else `dims` and `strides`, in elements. `share` of the turns make it."""

    array: str
    terms: tuple[tuple[tuple[Var, int | None], ...], ...]
    each: int
    written: bool
    share: float
    stage: Stage | None = None
    dims: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    @cached_property
    def variables(self) -> frozenset[Var]:
        return frozenset(var for terms in self.terms for var, _ in terms)


@dataclass(frozen=True, slots=True)
class Step:
    """An operation on elements of so many bytes, made anew whenever one of `variables` moves."""

    opcode: str
    each: int
    variables: frozenset[Var]
    share: float


@dataclass(frozen=True, eq=False)
class Nest:
    """Loops over `loops`, from outside; `summed` are those over the terms of a sum, `inner` the
    innermost of a sum, `blocked` the one that is run block by block. `depends` are the dimensions
    of the root whose tiles it stands in."""

    loops: tuple[Var, ...]
    spans: dict[Var, Span]
    depends: frozenset[int]
    accesses: tuple[Access, ...]
    steps: tuple[Step, ...]
    summed: frozenset[Var] = frozenset()
    inner: Var | None = None
    blocked: Var | None = None

    @property
    def each(self) -> int:
        """Bytes of the widest elements."""
        return max((access.each for access in self.accesses), default=4)
