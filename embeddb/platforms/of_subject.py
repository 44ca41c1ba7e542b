"""The space of what is tuned: a platform's, less what the dependences of a nest or a program forbid
and the tiles that a kernel cannot have."""

from __future__ import annotations

from typing import Protocol

from embeddb.core.config import Config, Op
from embeddb.core.sizes import Sizes
from embeddb.platforms.platform import Platform
from embeddb.platforms.space.space import ConfigSpace


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
    judge = op.workload.judge(op, subject, given, platform.runner)
    return space if judge is None else space.judged(judge)


def default_of(platform: Platform, op: Op, subject: Sized) -> Config:
    """The platform's default as it is stored for a subject: of a nest with its loops as they stand,
    where that is legal, else the nearest that is. Raises: UsageError if the platform does not run
    this kernel."""
    natural = op.workload.natural(subject)
    if natural is None:
        return platform.default(op, subject.sizes)
    space = space_of(platform, op, subject)
    names = {param.name for param in space.params}
    plain = {name: value for name, value in natural.items() if name in names}
    wished = {**plain, **platform.kernel(op).default}
    for values in (wished, plain):
        config = space.canonical(Config(values))
        if space.reason(config) is None:
            return config
    return space.nearest(wished) or space.canonical(Config(wished))
