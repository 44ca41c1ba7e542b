"""The space of what is tuned: a platform's, less what the dependences of a nest or a program forbid
and the tiles that a kernel cannot have."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.core.sizes import Sizes
from embeddb.nests.check import NestJudge, canonical_schedule
from embeddb.nests.nest import Nest
from embeddb.nests.schedule import KNOWN, parameters
from embeddb.platforms.platform import Platform
from embeddb.platforms.space.space import ConfigSpace
from embeddb.tensors.computation import Computation
from embeddb.tensors.edges import CUT
from embeddb.tensors.partition import CutJudge
from embeddb.tensors.tiles import PARAMETERS, TileJudge

__all__ = ["Coded", "Content", "carried", "default_of", "space_of"]

#: What is tuned and no matrix.
Coded = Nest | Computation
#: What is tuned, structure and all.
Content = Pattern | Nest | Computation


class Sized(Protocol):
    """A subject, or what is known of one."""

    @property
    def sizes(self) -> Sizes: ...


def space_of(platform: Platform, op: Op, subject: Sized) -> ConfigSpace:
    """The legal configurations for a subject. What the dependences of a nest forbid is among them
    where the nest is known by name only, and where none of the platform's parameters is one of a
    schedule (`embeddb.nests.schedule`). Which tiles a kernel cannot have is known of those that our
    own runner computes; a parameter `cut` is judged by the program.

    Raises: UsageError if the platform does not run this kernel.
    """
    space = platform.space(op, subject.sizes)
    given = frozenset(param.name for param in space.params)
    if isinstance(subject, Computation):
        if op.kernel == "fusion" and CUT in given:
            return space.judged(_cut_judge(subject))
        if op.kernel != "tile" or platform.runner != "tile" or not given & set(PARAMETERS):
            return space
        return space.judged(_tile_judge(subject, given))
    if not isinstance(subject, Nest) or not given & parameters(subject.depth):
        return space
    return space.judged(NestJudge(subject, given))


def default_of(platform: Platform, op: Op, subject: Sized) -> Config:
    """The platform's default as it is stored for a subject: of a nest with its loops as they stand,
    where that is legal, else the nearest that is.

    Raises: UsageError if the platform does not run this kernel.
    """
    if not isinstance(subject, Nest):
        return platform.default(op, subject.sizes)
    space = space_of(platform, op, subject)
    known = {param.name for param in space.params}
    stands = canonical_schedule(subject).config
    plain = {name: value for name, value in stands.items() if name in known}
    wished = {**plain, **platform.kernel(op).default}
    for values in (wished, plain):
        config = space.canonical(Config(values))
        if space.reason(config) is None:
            return config
    return space.nearest(wished) or space.canonical(Config(wished))


def carried(platform: Platform) -> str:
    """What becomes of a neighbour's configuration on another loop nest, in one line.

    Raises: UsageError if the platform does not run nests.
    """
    names = {param.name for param in platform.kernel("nest").space.params}
    if not names & KNOWN:
        return "configurations are voted on whole: no parameter is one of a schedule"
    if names <= KNOWN:
        return "schedules are judged by dependences, and carried over loop by loop"
    others = ", ".join(sorted(names - KNOWN))
    return f"schedules are judged by dependences, and voted on whole; not of a schedule: {others}"


@lru_cache(maxsize=64)
def _cut_judge(program: Computation) -> CutJudge:
    return CutJudge(program)


@lru_cache(maxsize=256)
def _tile_judge(kernel: Computation, given: frozenset[str]) -> TileJudge:
    return TileJudge(kernel, given)
